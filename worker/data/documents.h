// Documents in a stream of tokens.

#ifndef ATOLL_WORKER_DATA_DOCUMENTS_H_
#define ATOLL_WORKER_DATA_DOCUMENTS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace atl {

// Marks of the documents' ends.
struct DocumentMarks {
  int32_t end = 0;  // the token behind each
  // No part of a document, as its first tokens and as its last one.
  std::optional<int32_t> before = {}, behind = {};
  bool files = false;  // a file's end ends one, too
};

struct Document {
  int64_t begin = 0;  // in the stream
  int64_t tokens = 0;

  bool operator==(const Document&) const = default;
};

// Returns how many have more than so many tokens.
int64_t CountLonger(std::span<const Document> documents, int64_t tokens);

// Splits a stream that is added a part at a time. Empty documents are left out.
class DocumentSplitter {
 public:
  explicit DocumentSplitter(const DocumentMarks& marks) : marks_(marks) {}

  // Appends the documents that end in this part.
  void Add(std::span<const int32_t> tokens, std::vector<Document>* documents);

  // Ends the document that has begun, if any.
  void End(std::vector<Document>* documents);

 private:
  const DocumentMarks marks_;
  int64_t begin_ = 0, at_ = 0;
  int32_t last_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_DOCUMENTS_H_
