#include "worker/data/documents.h"

#include <algorithm>

namespace atl {

int64_t CountLonger(std::span<const Document> documents, int64_t tokens) {
  return std::count_if(documents.begin(), documents.end(),
                       [&](const Document& document) { return document.tokens > tokens; });
}

void DocumentSplitter::Add(std::span<const int32_t> tokens, std::vector<Document>* documents) {
  for (const int32_t token : tokens) {
    if (token == marks_.end) {
      End(documents);
      begin_ = ++at_;
      continue;
    }
    if (at_ == begin_ && token == marks_.before) ++begin_;
    last_ = token;
    ++at_;
  }
}

void DocumentSplitter::End(std::vector<Document>* documents) {
  int64_t size = at_ - begin_;
  if (size > 0 && last_ == marks_.behind) --size;
  if (size > 0) documents->push_back({begin_, size});
  begin_ = at_;
}

}  // namespace atl
