// One file of tokens on disk, in any of the formats that Atoll reads.
//
//   kText      raw bytes; a token is a byte, so the vocabulary has 256 entries. (kJsonl and kShards
//              files too are opened so, for their digests; token_stream.h reads them.)
//   kTokens16  uint16, little endian: nanoGPT's .bin (no header) or llm.c's (256 int32 of header,
//              magic 20240520, version 1, number of tokens).
//   kTokens32  uint32, little endian, without a header.
//   kMegatron  NAME.bin with tokens of the width that NAME.idx ("MMIDIDX") says. Its sequences are
//              read as one stream in the order of the file; whoever wrote it has put an
//              end-of-document token wherever one is wanted.
//
// A file may come from anybody: everything that its headers say is checked against the file's true
// size before it is believed. Reads use pread, not a mapping, so that a file which shrinks or a
// disk that fails under us is a Status and not a signal.
//
// Thread safety: Read may be called from several threads.

#ifndef ATOLL_WORKER_DATA_TOKEN_FILE_H_
#define ATOLL_WORKER_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <span>
#include <string>

#include "common/protocol/job_spec.h"
#include "common/status.h"

namespace atl {

class TokenFile {
 public:
  // kMegatron: `path` names either file of the pair, or both without their ending.
  static absl::StatusOr<TokenFile> Open(DataFormat format, const std::string& path);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&& other) noexcept;

  const std::string& path() const { return path_; }  // of the file that holds the tokens
  int64_t tokens() const { return tokens_; }

  // Tokens [begin, begin + out.size()). INVALID_ARGUMENT names file and position of a token that is
  // not in [0, vocabulary). REQUIRES: the range lies in the file.
  absl::Status Read(int64_t begin, int64_t vocabulary, std::span<int32_t> out) const;

  // Of the tokens' number and samples of their bytes: two machines with equal digests have the same
  // file, as far as mistakes go.
  absl::StatusOr<uint64_t> Digest() const;

 private:
  enum class Type : uint8_t { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kInt64 };

  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  absl::Status OpenTokens16();
  absl::Status OpenMegatron(const std::string& index_path);
  absl::Status SetTokens(Type type, int64_t begin_bytes, int64_t end_bytes);
  absl::Status ReadBytes(int64_t offset, void* out, int64_t bytes) const;

  std::string path_;
  int fd_ = -1;
  int64_t file_bytes_ = 0;
  Type type_ = Type::kUint8;
  int64_t begin_bytes_ = 0;  // where the first token lies
  int64_t tokens_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_TOKEN_FILE_H_
