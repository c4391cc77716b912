#include "worker/data/testing/image_encoders.h"

#include <png.h>

#include <cstdio>
#include <cstdlib>
#include <vector>
// Needs what <cstdio> declares.
#include <jpeglib.h>

#include "common/check.h"

namespace atl {
namespace {

std::vector<uint8_t> Samples(int width, int height, int channels) {
  std::vector<uint8_t> samples;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) samples.push_back(TestSample(x, y, c));
    }
  }
  return samples;
}

}  // namespace

uint8_t TestSample(int x, int y, int channel) {
  return static_cast<uint8_t>(7 * x + 11 * y + 60 * channel);
}

std::string EncodeJpeg(int width, int height, int channels, bool progressive) {
  const std::vector<uint8_t> samples = Samples(width, height, channels);
  jpeg_compress_struct codec{};
  jpeg_error_mgr errors{};
  codec.err = jpeg_std_error(&errors);  // ends the program
  jpeg_create_compress(&codec);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&codec, &out, &size);
  codec.image_width = static_cast<JDIMENSION>(width);
  codec.image_height = static_cast<JDIMENSION>(height);
  codec.input_components = channels;
  codec.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, 100, TRUE);
  if (progressive) jpeg_simple_progression(&codec);
  jpeg_start_compress(&codec, TRUE);
  for (int y = 0; y < height; ++y) {
    auto* row = const_cast<uint8_t*>(samples.data()) + y * width * channels;
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  std::string bytes(reinterpret_cast<char*>(out), size);
  jpeg_destroy_compress(&codec);
  std::free(out);
  return bytes;
}

std::string EncodePng(int width, int height, int channels) {
  constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB,
                                      PNG_FORMAT_RGBA};
  const std::vector<uint8_t> samples = Samples(width, height, channels);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = kFormats[channels - 1];
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string bytes(size, '\0');
  ATOLL_CHECK(
      png_image_write_to_memory(&image, bytes.data(), &size, 0, samples.data(), 0, nullptr) != 0,
      image.message);
  bytes.resize(size);
  return bytes;
}

}  // namespace atl
