#include "worker/model/frozen_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"
#include "common/model/tensor_layout.h"
#include "kernels/bfloat16.h"

namespace atl {
namespace {

float FindLargest(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// Returns 0 where there is no finite one.
float Inverse(float largest) {
  return largest >= std::numeric_limits<float>::min() ? 1 / largest : 0;
}

// Halfway from each nf4 number to the next one.
constexpr std::array<float, 15> kNf4Borders = [] {
  std::array<float, 15> borders = {};
  for (size_t i = 0; i < borders.size(); ++i) {
    borders[i] = (kNf4Numbers[i] + kNf4Numbers[i + 1]) / 2;
  }
  return borders;
}();

using Block = std::array<int32_t, kWeightBlock>;

// By comparisons without branches, which compilers vectorise.
Block EncodeNf4(const float* values, float inverse) {
  Block codes = {};
  for (const float border : kNf4Borders) {
    for (size_t i = 0; i < codes.size(); ++i) codes[i] += values[i] * inverse > border ? 1 : 0;
  }
  return codes;
}

void EncodeBlock(WeightCode code, const float* values, float largest, uint8_t* to) {
  const float inverse = Inverse(largest);
  switch (code) {
    case WeightCode::kNf4: {
      const Block codes = EncodeNf4(values, inverse);
      for (size_t i = 0; i < codes.size(); i += 2) {
        to[i / 2] = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
      }
      return;
    }
    case WeightCode::kInt8:
      for (int64_t i = 0; i < kWeightBlock; ++i) {
        const float number = std::nearbyint(kInt8Largest * (values[i] * inverse));
        to[i] = static_cast<uint8_t>(
            static_cast<int8_t>(std::clamp(number, -kInt8Largest, kInt8Largest)));
      }
      return;
  }
}

uint8_t FindScaleCode(float value) {
  const auto above = std::ranges::lower_bound(kScaleNumbers, value);
  if (above == kScaleNumbers.begin()) return 0;
  if (above == kScaleNumbers.end()) return 255;
  const bool lower = value <= (*above + *(above - 1)) / 2;
  return static_cast<uint8_t>(above - kScaleNumbers.begin() - (lower ? 1 : 0));
}

void EncodeScales(std::vector<float> scales, CodedMatrix* matrix) {
  double sum = 0;
  for (const float scale : scales) sum += scale;
  const auto mean = static_cast<float>(sum / static_cast<double>(scales.size()));
  for (float& scale : scales) scale -= mean;
  matrix->coarse.push_back(mean);
  for (size_t begin = 0; begin < scales.size(); begin += kScaleBlock) {
    const size_t count = std::min<size_t>(kScaleBlock, scales.size() - begin);
    const auto block = std::span(scales).subspan(begin, count);
    const float largest = FindLargest(block);
    const float inverse = Inverse(largest);
    matrix->coarse.push_back(largest);
    for (const float scale : block) matrix->scales.push_back(FindScaleCode(scale * inverse));
  }
}

// Rounds numbers to the compute type.
void Round(std::span<const float> values, DType compute, std::byte* to) {
  const auto put = [&]<typename T>(const T& rounded) {
    std::memcpy(to, &rounded, sizeof(T));
    to += sizeof(T);
  };
  switch (compute) {
    case DType::kBfloat16:
      for (const float value : values) put(RoundToBfloat16(value));
      return;
    case DType::kFloat64:
      for (const float value : values) put(double{value});
      return;
    default:
      std::memcpy(to, values.data(), values.size_bytes());
  }
}

}  // namespace

CodedMatrix EncodeMatrix(WeightCode code, std::span<const float> values) {
  ATOLL_CHECK(!values.empty() && std::ssize(values) % kWeightBlock == 0);
  CodedMatrix matrix;
  matrix.codes.resize(static_cast<size_t>(GetCodeBytes(code, std::ssize(values))));
  std::vector<float> scales;
  for (int64_t begin = 0; begin < std::ssize(values); begin += kWeightBlock) {
    const auto block = values.subspan(static_cast<size_t>(begin), kWeightBlock);
    scales.push_back(FindLargest(block));
    EncodeBlock(code, block.data(), scales.back(),
                &matrix.codes[static_cast<size_t>(GetCodeBytes(code, begin))]);
  }
  EncodeScales(std::move(scales), &matrix);
  return matrix;
}

void DecodeMatrix(WeightCode code, const CodedMatrix& matrix, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t block = i / kWeightBlock;
    const float spread =
        matrix.coarse[1 + block / kScaleBlock] * kScaleNumbers[matrix.scales[block]];
    const float scale = matrix.coarse[0] + spread;
    if (code == WeightCode::kNf4) {
      values[i] = kNf4Numbers[matrix.codes[i / 2] >> (i % 2 == 0 ? 0 : 4) & 15] * scale;
    } else {
      values[i] = static_cast<float>(static_cast<int8_t>(matrix.codes[i])) / kInt8Largest * scale;
    }
  }
}

FrozenWeights::FrozenWeights(const LayerLayout& layout, std::span<const float> values)
    : layout_(layout), values_(values), coded_(layout.frozen.size()) {
  ATOLL_CHECK(std::ssize(values) == layout.frozen_size, "layer ", layout.name);
  for (size_t i = 0; i < coded_.size(); ++i) {
    const ParamSpec& param = layout.frozen[i];
    if (!layout.coded(param)) continue;
    coded_[i] = EncodeMatrix(*layout.coding, values.subspan(static_cast<size_t>(param.offset),
                                                            static_cast<size_t>(param.size)));
  }
}

std::vector<std::byte> FrozenWeights::Image(const LayerLayout& part, DType compute) const {
  const FrozenPlaces places = PlaceFrozen(part, GetElementSize(compute));
  std::vector<std::byte> image(static_cast<size_t>(places.bytes));
  std::vector<float> cut;
  for (size_t i = 0; i < part.frozen.size(); ++i) {
    const ParamSpec &to = part.frozen[i], &from = layout_.frozen[i];
    const FrozenPlace& place = places.params[i];
    std::byte* const at = image.data() + place.values;
    if (!place.coded()) {
      cut.resize(static_cast<size_t>(to.size));
      ForEachRun(from, to, [&](int64_t whole, int64_t here, int64_t count) {
        std::copy_n(values_.begin() + whole, count, cut.begin() + (here - to.offset));
      });
      Round(cut, compute, at);
      continue;
    }
    const WeightCode code = *layout_.coding;
    const CodedMatrix& matrix = *coded_[i];
    ForEachRun(from, to, [&](int64_t whole, int64_t here, int64_t count) {
      const int64_t first = whole - from.offset, begin = here - to.offset;
      std::memcpy(at + GetCodeBytes(code, begin), matrix.codes.data() + GetCodeBytes(code, first),
                  static_cast<size_t>(GetCodeBytes(code, count)));
      std::memcpy(image.data() + place.scales + begin / kWeightBlock,
                  matrix.scales.data() + first / kWeightBlock,
                  static_cast<size_t>(count / kWeightBlock));
    });
    ATOLL_CHECK(place.coarse_numbers == std::ssize(matrix.coarse), from.name);
    std::memcpy(image.data() + place.coarse, matrix.coarse.data(),
                matrix.coarse.size() * sizeof(float));
  }
  return image;
}

std::vector<float> FrozenWeights::Stored() const {
  std::vector<float> values(values_.begin(), values_.end());
  for (size_t i = 0; i < coded_.size(); ++i) {
    if (!coded_[i]) continue;
    const ParamSpec& param = layout_.frozen[i];
    DecodeMatrix(*layout_.coding, *coded_[i],
                 std::span(values).subspan(static_cast<size_t>(param.offset),
                                           static_cast<size_t>(param.size)));
  }
  return values;
}

}  // namespace atl
