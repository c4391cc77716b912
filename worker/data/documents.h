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
  std::optional<int32_t> end = {};  // the token behind each
  // No part of a document, as its first tokens and as its last one.
  std::optional<int32_t> before = {}, behind = {};
  bool files = false;  // a file's end ends one, too
  // Documents have their end as their last token, and begin where a token says so
  // (BeginsDocument).
  bool whole = false;
  bool pairs = false;  // and every two of them are a pair, which fits into a sequence
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

// Packs documents into sequences of `sequence_tokens` tokens, the inputs and one more target, by
// best fit (Ding et al. 2024, "Fewer Truncations Improve Language Modeling") among so many
// documents at a time. What is packed follows from the documents and their order alone.
//
// A document that is longer is cut, and so are the fewest that fill every sequence but the last to
// 99%. Where one is cut, the last token before is the first one behind: each token but a document's
// first is a target once. Documents of one token, which have no target, are left out.
class DocumentPacker {
 public:
  using Sequence = std::vector<Document>;        // one or more, together at most sequence_tokens
  static constexpr int64_t kPaddingShare = 100;  // one in so many tokens may be padding

  // REQUIRES: sequence_tokens >= 2.
  explicit DocumentPacker(int64_t sequence_tokens) : sequence_tokens_(sequence_tokens) {}

  // Appends the sequences that are complete; End all others.
  void Add(const Document& document, std::vector<Sequence>* sequences);
  void End(std::vector<Sequence>* sequences);

 private:
  struct Bin {
    Sequence documents;
    int64_t free = 0;
  };

  // Returns whether more than 1% of it is empty, and a document would fit.
  bool HasHole(const Bin& bin) const {
    return bin.free >= 2 && bin.free * kPaddingShare > sequence_tokens_;
  }
  void Pack(bool all, std::vector<Sequence>* sequences);
  std::vector<Bin> FitBest();
  void FillHoles(std::vector<Bin*> holes);

  const int64_t sequence_tokens_;
  std::vector<Document> window_;
  int64_t window_tokens_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_DOCUMENTS_H_
