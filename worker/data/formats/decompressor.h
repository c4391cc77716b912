// gzip, zstd, xz and bzip2 as streams, with bounded memory.

#ifndef ATOLL_WORKER_DATA_FORMATS_DECOMPRESSOR_H_
#define ATOLL_WORKER_DATA_FORMATS_DECOMPRESSOR_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_kind.h"

namespace atl {

// A zstd window and an xz dictionary may need so much; larger ones are refused.
inline constexpr int64_t kDecompressorBytesMax = int64_t{128} << 20;

// Members (gzip), frames (zstd) and streams follow each other, with zeros behind them, as tapes and
// some stores leave. One thread at a time.
class Decompressor {
 public:
  virtual ~Decompressor() = default;

  // Consumes the front of `in` and writes to the front of `out`, until one of them is empty; both
  // then are what is left. INVALID_ARGUMENT, which names the format but no file: damaged, needs
  // more memory than is given or a dictionary, or is followed by something else.
  absl::Status Decompress(std::span<const uint8_t>* in, std::span<uint8_t>* out);

  // A member has begun and not ended: the input breaks off here, if it ends.
  bool inside() const { return inside_; }

 protected:
  using Input = std::span<const uint8_t>;
  using Output = std::span<uint8_t>;

  explicit Decompressor(const char* format) : format_(format) {}
  absl::Status Error(absl::string_view problem) const;

  // Returns whether a member may begin with the byte.
  virtual bool MayBegin(uint8_t first) const = 0;
  virtual absl::Status Begin() = 0;
  // Continues as Decompress does, within one member; true: it has ended.
  virtual absl::StatusOr<bool> Continue(Input* in, Output* out) = 0;

 private:
  const char* const format_;
  bool inside_ = false;
  int64_t members_ = 0;  // that have ended
};

// Null: of the kind nothing is known here.
std::unique_ptr<Decompressor> NewDecompressor(FileKind kind);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_FORMATS_DECOMPRESSOR_H_
