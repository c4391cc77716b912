// Where the documents of a stream lie: 8 bytes for each, in a file of the data cache.

#ifndef ATOLL_WORKER_DATA_DOCUMENT_INDEX_H_
#define ATOLL_WORKER_DATA_DOCUMENT_INDEX_H_

#include <cstdint>
#include <memory>

#include "common/status.h"
#include "worker/data/data_file.h"
#include "worker/data/token_stream.h"

namespace atl {

// Thread-safe.
class DocumentIndex {
 public:
  // The one of this machine's cache, else made by reading all tokens once. REQUIRES: the stream is
  // of data whose documents are padded. INVALID_ARGUMENT: it has more tokens than entries reach.
  static absl::StatusOr<DocumentIndex> Open(const TokenStream& stream, int64_t vocabulary,
                                            const DataOptions& options);

  int64_t documents() const { return file_->bytes() / kEntryBytes; }

  // Returns a document; one that is longer than any sequence has fewer tokens here than in the
  // file, but more than a sequence. DATA_LOSS: the file is damaged. REQUIRES: 0 <= number <
  // documents().
  absl::StatusOr<Document> Read(int64_t number, const Cancelled& cancelled = {}) const;

 private:
  static constexpr int64_t kEntryBytes = 8;

  DocumentIndex(std::shared_ptr<const DataFile> file, int64_t tokens)
      : file_(std::move(file)), tokens_(tokens) {}

  std::shared_ptr<const DataFile> file_;
  int64_t tokens_;  // of the stream
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_DOCUMENT_INDEX_H_
