// Where the documents of each sequence lie in a stream: 8 bytes for each document, and for each
// sequence of several, in files of the data cache.

#ifndef ATOLL_WORKER_DATA_DOCUMENT_INDEX_H_
#define ATOLL_WORKER_DATA_DOCUMENT_INDEX_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/status.h"
#include "worker/data/data_file.h"
#include "worker/data/token_stream.h"

namespace atl {

// Thread-safe.
class DocumentIndex {
 public:
  // The one of this machine's cache, else made by reading all tokens once. `packed`: sequences hold
  // so many tokens, and those that DocumentPacker packs, or a pair; 0: each is one document.
  // REQUIRES: the stream has marks. INVALID_ARGUMENT: it has more tokens than entries reach.
  static absl::StatusOr<DocumentIndex> Open(const TokenStream& stream, int64_t vocabulary,
                                            int64_t packed, const DataOptions& options);

  int64_t sequences() const {
    return sequences_ == nullptr ? file_->bytes() / kEntryBytes
                                 : sequences_->bytes() / kEntryBytes - 1;
  }

  // Returns a sequence's documents; one alone that is longer than any sequence has fewer tokens
  // here than in the file, but more than a sequence. DATA_LOSS: a file is damaged. REQUIRES: 0 <=
  // number < sequences().
  absl::StatusOr<std::vector<Document>> Read(int64_t number, const Cancelled& cancelled = {}) const;

 private:
  static constexpr int64_t kEntryBytes = 8;

  DocumentIndex(std::shared_ptr<const DataFile> file, int64_t packed, int64_t tokens)
      : file_(std::move(file)), packed_(packed), tokens_(tokens) {}
  absl::Status Damaged(const DataFile& file, int64_t number) const;

  std::shared_ptr<const DataFile> file_;
  std::shared_ptr<const DataFile> sequences_;  // packed: of each its first entry, and the end
  int64_t packed_;
  int64_t tokens_;  // of the stream
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_DOCUMENT_INDEX_H_
