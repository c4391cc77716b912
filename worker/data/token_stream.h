// All files of a job's data as one stream of tokens.

#ifndef ATOLL_WORKER_DATA_TOKEN_STREAM_H_
#define ATOLL_WORKER_DATA_TOKEN_STREAM_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/data/digest_cache.h"
#include "worker/data/documents.h"
#include "worker/data/images.h"
#include "worker/data/token_file.h"

namespace atl {

class TokenStream {
 public:
  // `path`: a file, a glob, or for kShards a folder. Text that has to become tokens first (JSONL, a
  // tokenizer, compressed files) is tokenized into the cache folder, once on this machine.
  // INVALID_ARGUMENT: the tokenizer or the shards have ids that are not below `vocabulary`, or
  // documents are to be padded whose ends the shards do not mark. What frames documents in shards
  // is part of them without options.frame.
  static absl::StatusOr<TokenStream> Open(const DataSpec& spec, const std::string& path,
                                          int64_t vocabulary, const DataOptions& options = {});

  int64_t tokens() const { return begins_.back(); }
  const std::string& path() const { return path_; }  // for messages
  bool masked() const { return masked_; }            // some tokens may be (common/masked_tokens.h)

  // TokenFile::CheckSamples of every file, with about `samples` blocks in all; names all files that
  // are wrong.
  absl::Status CheckSamples(int64_t vocabulary, int64_t samples, const Cancelled& cancelled = {},
                            std::vector<std::string>* warnings = nullptr) const;

  // Tokens [begin, begin + out.size()). INVALID_ARGUMENT names file and position of a token that is
  // not in [0, vocabulary). REQUIRES: the range lies in the stream.
  absl::Status Read(int64_t begin, int64_t vocabulary, std::span<int32_t> out,
                    const Cancelled& cancelled = {}) const;

  // Returns the marks of the documents' ends. REQUIRES: data.pad_documents, or data.documents that
  // are packed.
  const DocumentMarks& marks() const { return *marks_; }

  // Hands all documents over, some at a time and in order, and reads every token for that. ABORTED
  // once the watch says so; else the error of `take`. REQUIRES: there are marks.
  absl::Status ReadDocuments(
      int64_t vocabulary, const ReadWatch& watch,
      const std::function<absl::Status(std::span<const Document>)>& take) const;

  // Fetches what reads of these tokens would wait for; of those that there are.
  absl::Status Prefetch(std::span<const Document> ranges, const Cancelled& cancelled) const;

  // Returns a digest of every token of all files, in order. INVALID_ARGUMENT names file and
  // position of a token that is not in [0, vocabulary).
  absl::StatusOr<uint64_t> Digest(int64_t vocabulary, const DataOptions& options) const;

 private:
  absl::Status Add(DataFormat format, const std::string& path, const Cancelled& cancelled);
  static absl::StatusOr<TokenStream> OpenShards(const std::string& folder, int64_t vocabulary,
                                                const Cancelled& cancelled);
  static absl::StatusOr<TokenStream> OpenText(const DataSpec& spec, const std::string& path,
                                              int64_t vocabulary, const DataOptions& options);
  size_t FindFileIndex(int64_t token) const;

  std::string path_;
  bool masked_ = false;
  std::optional<int32_t> end_of_text_;  // of shards
  std::optional<DocumentMarks> marks_;
  std::vector<TokenFile> files_;
  std::vector<int64_t> begins_ = {0};  // of each file, and the end of the last
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_TOKEN_STREAM_H_
