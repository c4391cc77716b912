// JPEG and PNG files to squares of pixels. Bytes are untrusted: what a head announces is
// checked before memory is taken for it, and the libraries' errors become a Status.

#ifndef ATOLL_WORKER_DATA_IMAGE_CODEC_H_
#define ATOLL_WORKER_DATA_IMAGE_CODEC_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace atl {

inline constexpr int64_t kImagePixelsMax = int64_t{1} << 26;  // of a file, as it is
inline constexpr int64_t kImageSourceSideMax = 1 << 15;       // of a file, as it is
inline constexpr int64_t kImageChannels = 3;

struct RgbImage {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> pixels;  // row by row; red, green and blue side by side
};

// JPEG and PNG are recognised by their first bytes. Grey becomes colour; what is transparent lies
// on black. The same bytes give the same pixels on every machine. INVALID_ARGUMENT says what is
// wrong: neither format, too large, damaged, cut off, or a JPEG with the four colours of print.
absl::StatusOr<RgbImage> DecodeImage(std::string_view bytes);

// The middle square of an image, made `side` pixels wide: each pixel is the mean of those that it
// covers, weighted by a triangle (bilinear where the image grows). In whole numbers, so that all
// machines agree. REQUIRES: out.size() is side * side * kImageChannels, and a decoded image.
void ResizeToSquare(const RgbImage& image, int64_t side, std::span<uint8_t> out);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_IMAGE_CODEC_H_
