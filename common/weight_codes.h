// Codes of frozen weights, as bitsandbytes defines them (QLoRA, Dettmers et al. 2023): a matrix is
// cut along its rows into blocks of 64 numbers that share a scale, their largest size.
//   nf4: of 16 numbers in [-1, 1], the code of the one that is nearest to number / scale
//   int8: round(127 number / scale)
// The scales are stored as codes too: less their mean over the matrix, in blocks of 256, each code
// that of the nearest to scale / largest of the block in a dynamic code book of 256 numbers.
// A number takes 4.13 bits, or 8.13, and is decoded from its code and the decoded scale.

#ifndef ATOLL_COMMON_WEIGHT_CODES_H_
#define ATOLL_COMMON_WEIGHT_CODES_H_

#include <array>
#include <cstdint>

namespace atl {

enum class WeightCode : uint8_t { kInt8, kNf4 };

inline constexpr int64_t kWeightBlock = 64;  // numbers that share a scale
inline constexpr int64_t kScaleBlock = 256;  // scales that share another

// Returns the bytes of codes; two of nf4 share a byte, the first one in its lower half.
// REQUIRES: whole blocks.
constexpr int64_t GetCodeBytes(WeightCode code, int64_t elements) {
  return code == WeightCode::kNf4 ? elements / 2 : elements;
}
constexpr int64_t CountScaleBlocks(int64_t elements) {
  return (elements / kWeightBlock + kScaleBlock - 1) / kScaleBlock;
}

// Quantiles of a normal distribution, by code.
inline constexpr float kNf4Numbers[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
inline constexpr float kInt8Largest = 127;

// The code book of scales: 0, 1, and of each sign and power of ten from 10^-6 to 1 twice as many
// numbers as of the one before, evenly spaced above a tenth of it. In order.
inline constexpr std::array<float, 256> kScaleNumbers = [] {
  std::array<float, 256> numbers = {};
  double power = 1e-6;
  int at = 0;
  for (int cells = 1; cells <= 64; cells *= 2, power *= 10) {
    for (int cell = 0; cell < cells; ++cell, ++at) {
      const double size = power * (0.1 + 0.9 * (cell + 0.5) / cells);
      numbers[static_cast<size_t>(128 + at)] = static_cast<float>(size);
      numbers[static_cast<size_t>(126 - at)] = static_cast<float>(-size);
    }
  }
  numbers[255] = 1;
  return numbers;
}();

}  // namespace atl

#endif  // ATOLL_COMMON_WEIGHT_CODES_H_
