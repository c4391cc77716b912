#include "worker/data/image_codec.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
// Needs what <cstdio> declares.
#include <jpeglib.h>
// Needs jpeglib.h.
#include <jerror.h>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/file_kind.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr int kScansMax = 500;  // of a progressive JPEG: each is a pass over the whole image
constexpr long kJpegMemoryMax = 1L << 30;

absl::Status CheckSize(int64_t width, int64_t height) {
  if (width >= 1 && height >= 1 && width <= kImageSourceSideMax && height <= kImageSourceSideMax &&
      width * height <= kImagePixelsMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("is ", width, " x ", height, " pixels; at most ", kImageSourceSideMax,
                   " a side and ", kImagePixelsMax, " in all are read: make it smaller"));
}

// libjpeg leaves a function by longjmp where there is an error: between setjmp and there no object
// with a destructor may be made, so everything lies in the reader.
class JpegReader {
 public:
  explicit JpegReader(std::string_view bytes) : bytes_(bytes) {
    codec_.err = jpeg_std_error(&errors_);
    codec_.client_data = this;
    errors_.error_exit = [](j_common_ptr codec) { Of(codec)->Fail(); };
    errors_.emit_message = [](j_common_ptr codec, int level) {
      if (level < 0) Of(codec)->OnWarning();
    };
    monitor_.progress_monitor = [](j_common_ptr codec) {
      if (Of(codec)->codec_.input_scan_number > kScansMax) Of(codec)->Fail();
    };
  }
  ~JpegReader() { jpeg_destroy_decompress(&codec_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  absl::StatusOr<RgbImage> Read() {
    if (!ReadHead()) return Damaged();
    ATOLL_RETURN_IF_ERROR(CheckSize(codec_.image_width, codec_.image_height));
    if (codec_.jpeg_color_space == JCS_CMYK || codec_.jpeg_color_space == JCS_YCCK) {
      return absl::InvalidArgumentError(
          "is a JPEG with the four colours of print (CMYK): convert it to RGB");
    }
    RgbImage image{codec_.image_width, codec_.image_height, {}};
    image.pixels.resize(static_cast<size_t>(image.width * image.height * kImageChannels));
    if (!ReadPixels(image.pixels.data())) return Damaged();
    return image;
  }

 private:
  static JpegReader* Of(j_common_ptr codec) { return static_cast<JpegReader*>(codec->client_data); }

  [[noreturn]] void Fail() {
    errors_.format_message(reinterpret_cast<j_common_ptr>(&codec_), message_);
    std::longjmp(jump_, 1);
  }

  // libjpeg fills up with grey what is missing; other warnings are of harmless bytes between.
  void OnWarning() {
    if (errors_.msg_code == JWRN_JPEG_EOF || errors_.msg_code == JWRN_HIT_MARKER) Fail();
  }

  absl::Status Damaged() const {
    return absl::InvalidArgumentError(absl::StrCat("its JPEG data is damaged: ", message_));
  }

  bool ReadHead() {
    if (setjmp(jump_) != 0) return false;
    jpeg_create_decompress(&codec_);
    codec_.client_data = this;
    codec_.progress = &monitor_;
    codec_.mem->max_memory_to_use = kJpegMemoryMax;
    jpeg_mem_src(&codec_, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
    return jpeg_read_header(&codec_, TRUE) == JPEG_HEADER_OK;
  }

  bool ReadPixels(uint8_t* out) {
    if (setjmp(jump_) != 0) return false;
    codec_.out_color_space = JCS_RGB;
    codec_.dct_method = JDCT_ISLOW;  // the same on every machine
    jpeg_start_decompress(&codec_);
    const size_t row = size_t{codec_.output_width} * kImageChannels;
    while (codec_.output_scanline < codec_.output_height) {
      JSAMPROW to = out + codec_.output_scanline * row;
      jpeg_read_scanlines(&codec_, &to, 1);
    }
    jpeg_finish_decompress(&codec_);
    return true;
  }

  const std::string_view bytes_;
  jpeg_decompress_struct codec_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr monitor_{};
  std::jmp_buf jump_{};
  char message_[JMSG_LENGTH_MAX] = {};
};

// libpng's simple interface keeps its jumps to itself.
class PngReader {
 public:
  PngReader() { image_.version = PNG_IMAGE_VERSION; }
  ~PngReader() { png_image_free(&image_); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  absl::StatusOr<RgbImage> Read(std::string_view bytes) {
    if (png_image_begin_read_from_memory(&image_, bytes.data(), bytes.size()) == 0) {
      return Damaged();
    }
    ATOLL_RETURN_IF_ERROR(CheckSize(image_.width, image_.height));
    image_.format = PNG_FORMAT_RGBA;
    image_.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
    RgbImage image{image_.width, image_.height, {}};
    const auto count = static_cast<size_t>(image.width * image.height);
    image.pixels.resize(count * 4);
    uint8_t* const pixels = image.pixels.data();
    if (png_image_finish_read(&image_, nullptr, pixels, 0, nullptr) == 0) return Damaged();
    for (size_t i = 0; i < count; ++i) {
      for (size_t c = 0; c < 3; ++c) {
        pixels[3 * i + c] =
            static_cast<uint8_t>((pixels[4 * i + c] * pixels[4 * i + 3] + 127) / 255);
      }
    }
    image.pixels.resize(count * 3);
    return image;
  }

 private:
  absl::Status Damaged() const {
    return absl::InvalidArgumentError(absl::StrCat("its PNG data is damaged: ", image_.message));
  }

  png_image image_{};
};

// Source pixels of output pixel `to` along one axis: from `first` on, with these weights. In units
// of 1 / (2 side) of a source pixel, its middle lies at (2 to + 1) source.
struct Taps {
  int64_t first = 0, total = 0;
  std::vector<int64_t> weights;
};

std::vector<Taps> ComputeTaps(int64_t source, int64_t side) {
  const int64_t support = 2 * std::max(source, side);
  std::vector<Taps> taps(static_cast<size_t>(side));
  for (int64_t to = 0; to < side; ++to) {
    Taps& tap = taps[static_cast<size_t>(to)];
    const int64_t middle = (2 * to + 1) * source;
    tap.first = std::max<int64_t>(0, (middle - support) / (2 * side) - 1);
    const auto weight = [&](int64_t from) {
      return std::max<int64_t>(0, support - std::abs((2 * from + 1) * side - middle));
    };
    while (weight(tap.first) == 0) ++tap.first;
    for (int64_t from = tap.first; from < source && weight(from) > 0; ++from) {
      tap.weights.push_back(weight(from));
      tap.total += tap.weights.back();
    }
  }
  return taps;
}

// The pixel of `taps`; `step` is from one to the next.
void Blend(const Taps& taps, const uint8_t* from, int64_t step, uint8_t* out) {
  int64_t sums[kImageChannels] = {};
  for (const int64_t weight : taps.weights) {
    for (int64_t c = 0; c < kImageChannels; ++c) sums[c] += weight * from[c];
    from += step;
  }
  for (int64_t c = 0; c < kImageChannels; ++c) {
    out[c] = static_cast<uint8_t>((sums[c] + taps.total / 2) / taps.total);
  }
}

}  // namespace

absl::StatusOr<RgbImage> DecodeImage(std::string_view bytes) {
  if (bytes.starts_with("\xff\xd8\xff")) return JpegReader(bytes).Read();
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return PngReader().Read(bytes);
  const FoundKind found = DetectFileKind(bytes);
  return absl::InvalidArgumentError(absl::StrCat(
      "is ", found.name.empty() ? "" : absl::StrCat(found.name, ", "), "neither a JPEG nor a PNG"));
}

void ResizeToSquare(const RgbImage& image, int64_t side, std::span<uint8_t> out) {
  ATOLL_CHECK(std::ssize(out) == side * side * kImageChannels);
  const int64_t source = std::min(image.width, image.height);
  const int64_t left = (image.width - source) / 2, top = (image.height - source) / 2;
  const std::vector<Taps> taps = ComputeTaps(source, side);
  const int64_t narrow = side * kImageChannels;
  std::vector<uint8_t> rows(static_cast<size_t>(source * narrow));  // as wide as the result
  for (int64_t y = 0; y < source; ++y) {
    const uint8_t* const row =
        image.pixels.data() + ((top + y) * image.width + left) * kImageChannels;
    for (int64_t x = 0; x < side; ++x) {
      const Taps& tap = taps[static_cast<size_t>(x)];
      Blend(tap, row + tap.first * kImageChannels, kImageChannels,
            rows.data() + y * narrow + x * kImageChannels);
    }
  }
  for (int64_t y = 0; y < side; ++y) {
    const Taps& tap = taps[static_cast<size_t>(y)];
    for (int64_t x = 0; x < narrow; x += kImageChannels) {
      Blend(tap, rows.data() + tap.first * narrow + x, narrow, out.data() + y * narrow + x);
    }
  }
}

}  // namespace atl
