// JPEG and PNG files for tests, made by the libraries' own encoders.

#ifndef ATOLL_WORKER_DATA_TESTING_IMAGE_ENCODERS_H_
#define ATOLL_WORKER_DATA_TESTING_IMAGE_ENCODERS_H_

#include <cstdint>
#include <string>

namespace atl {

// The samples of a test's image: its pixels differ in all directions and channels.
uint8_t TestSample(int x, int y, int channel);

// `channels`: 1 grey, 3 colour, 4 the four colours of print.
std::string EncodeJpeg(int width, int height, int channels, bool progressive = false);

// `channels`: 1 grey, 2 with transparency, 3 colour, 4 with transparency.
std::string EncodePng(int width, int height, int channels);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_TESTING_IMAGE_ENCODERS_H_
