// One file of tokens on disk, in any of the formats that Atoll reads.
//
//   kText      raw bytes; a token is a byte, so the vocabulary has 256 entries. (kJsonl and kShards
//              files too are opened so, for their digests; token_stream.h reads them.)
//   kTokens16  uint16, little endian: nanoGPT's .bin (no header) or llm.c's, whose header must say
//              so (formats/token_head.h).
//   kTokens32  uint32, likewise.
//   kChat      int32, little endian, of a prepared chat (tokenize.h): ~token, which is negative, is
//              no target (common/masked_tokens.h).
//   kMegatron  NAME.bin with tokens of the width that NAME.idx ("MMIDIDX") says. Its sequences are
//              read as one stream in the order of the file; its writer has put an
//              end-of-document token wherever one is wanted.
//
// Files are untrusted: everything that their headers say is checked against the file's true
// size before it is believed. data_file.h says where it may lie. Reads use pread, not a mapping, so
// that a file which shrinks or a disk that fails under us is a Status and not a signal.
//
// Thread safety: Read may be called from several threads.

#ifndef ATOLL_WORKER_DATA_TOKEN_FILE_H_
#define ATOLL_WORKER_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/data/data_file.h"

namespace atl {

// The content of a file of tokens. Two machines with equal digests have the same tokens in the same
// order.
struct TokenFileContent {
  uint64_t digest = 0;              // of every token's bytes, their number and type
  int64_t least = 0, least_at = 0;  // the smallest token, and where it first is
  int64_t greatest = 0, greatest_at = 0;

  bool operator==(const TokenFileContent&) const = default;
};

// Hooks for those that wait while a large file is read; each may be null.
struct ReadWatch {
  Cancelled cancelled;
  // Every few seconds, human-readable; then empty.
  std::function<void(const std::string& what)> progress;
};

class TokenFile {
 public:
  // kMegatron: `path` names either file of the pair, or both without their ending; INVALID_ARGUMENT
  // where only one of them is there.
  static absl::StatusOr<TokenFile> Open(DataFormat format, const std::string& path,
                                        const Cancelled& cancelled = {});

  const std::string& path() const { return file_->path(); }  // of the file that holds the tokens
  const FileIdentity& identity() const { return file_->identity(); }  // of the same
  // The path and how the file is read: names what Scan finds.
  std::string Key() const {
    return absl::StrCat(static_cast<int>(type_), " ", begin_bytes_, " ", path());
  }
  int64_t tokens() const { return tokens_; }

  // Tokens [begin, begin + out.size()), masked ones of kChat as they lie there. DATA_LOSS, for
  // good: the file ends before, or a token is not in [0, vocabulary); names file and position.
  // ABORTED: cancelled. REQUIRES: the range lay in the file.
  absl::Status Read(int64_t begin, int64_t vocabulary, std::span<int32_t> out,
                    const Cancelled& cancelled = {}) const;

  // Fetches what Read would wait for; `begin` and `count` of each range in tokens.
  struct Range {
    int64_t begin = 0, count = 0;
  };
  absl::Status Prefetch(std::span<const Range> ranges, const Cancelled& cancelled) const;

  // Reads every token once; of a remote file whose tag stands for its bytes nothing, and its tokens
  // are then checked as they are read. ABORTED once the watch says so.
  absl::StatusOr<TokenFileContent> Scan(const ReadWatch& watch) const;
  // Looks at `samples` blocks, spread evenly over the file. INVALID_ARGUMENT: a token that is not
  // in [0, vocabulary), or the tokens are as numbers of another width would be; or so many tokens
  // do not fit into 16 bits. Formats kTokens16, kTokens32 and kMegatron alone; OK of others.
  // `warnings`, may be null: gets where a whole block is one token.
  absl::Status CheckSamples(int64_t vocabulary, int64_t samples, const Cancelled& cancelled,
                            std::vector<std::string>* warnings = nullptr) const;

  // Checks that the model knows every token. INVALID_ARGUMENT names file and position of one that
  // is not.
  absl::Status CheckVocabulary(const TokenFileContent& content, int64_t vocabulary) const;

 private:
  enum class Type : uint8_t { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kInt64, kMasked32 };

  explicit TokenFile(std::shared_ptr<const DataFile> file) : file_(std::move(file)) {}
  absl::Status OpenTokens(Type type, const Cancelled& cancelled);
  absl::Status CheckIndexBeside(const Cancelled& cancelled) const;
  absl::Status OpenMegatron(const std::string& index_path, const Cancelled& cancelled);
  absl::Status SetTokens(Type type, int64_t begin_bytes, int64_t end_bytes);
  absl::Status OutsideVocabulary(int64_t token, int64_t vocabulary) const;
  int64_t Width() const;  // bytes of one token
  template <typename Work>
  static void OfType(Type type, const Work& work);

  std::shared_ptr<const DataFile> file_;
  Type type_ = Type::kUint8;
  bool raw_ = false;         // as another program wrote it
  int64_t begin_bytes_ = 0;  // where the first token lies
  int64_t tokens_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_TOKEN_FILE_H_
