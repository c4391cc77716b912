// topk: of a chunk of kTopKChunk numbers, the ones with the largest sizes (one in kTopKShare,
// rounded up; of equal sizes the first ones), each as its index and two bits; the others are 0. The
// sizes are cut in two at their mean, and a number travels as its sign and the mean of its part. A
// chunk: both means (f32, smaller part first), indices of kTopKIndexBits bits in rising order, then
// codes, 1 for a sign and 2 for the larger part; both begin in a new byte. Both means are NaN in a
// chunk with a number that is not finite.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/codecs/codec.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;

constexpr int64_t kKeptMax = kTopKChunk / kTopKShare;
constexpr int64_t kHeader = 2 * sizeof(float);
constexpr int32_t kSizeBits = 0x7fffffff, kInfinity = 0x7f800000;

// The content of a chunk.
struct Kept {
  float means[2];
  int64_t count = 0;
  int32_t index[kKeptMax];
  uint8_t code[kKeptMax];

  float Number(int64_t i) const {
    const float size = means[code[i] >> 1];
    return code[i] & 1 ? -size : size;
  }
};

int64_t CodesAt(int64_t kept) { return kHeader + (kept * kTopKIndexBits + 7) / 8; }

// Two indices in three bytes.
void Pack(const Kept& kept, int64_t elements, std::byte* out) {
  std::memset(out, 0, static_cast<size_t>(GetEncodingInfo(Encoding::kTopK).block_bytes(elements)));
  std::memcpy(out, kept.means, sizeof(kept.means));
  for (int64_t i = 0; i < kept.count; ++i) {
    std::byte* const at = out + kHeader + i / 2 * 3;
    const int32_t index = kept.index[i];
    if (i % 2 == 0) {
      at[0] = std::byte(index & 255);
      at[1] |= std::byte(index >> 8);
    } else {
      at[1] |= std::byte((index & 15) << 4);
      at[2] = std::byte(index >> 4);
    }
    out[CodesAt(kept.count) + i / 4] |= std::byte(kept.code[i] << i % 4 * 2);
  }
}

void Unpack(const std::byte* bytes, int64_t elements, Kept* kept) {
  kept->count = TopKKept(elements);
  std::memcpy(kept->means, bytes, sizeof(kept->means));
  for (int64_t i = 0; i < kept->count; ++i) {
    const std::byte* const at = bytes + kHeader + i / 2 * 3;
    const auto byte = [&](int64_t b) { return static_cast<int32_t>(at[b]); };
    kept->index[i] = i % 2 == 0 ? byte(0) | (byte(1) & 15) << 8 : byte(1) >> 4 | byte(2) << 4;
    const int codes = static_cast<int>(bytes[CodesAt(kept->count) + i / 4]);
    kept->code[i] = codes >> i % 4 * 2 & 3;
  }
}

// Means and codes of the numbers at kept->index.
void CutInTwo(const float* values, Kept* kept) {
  double sum = 0;
  for (int64_t i = 0; i < kept->count; ++i) sum += std::abs(values[kept->index[i]]);
  const double middle = sum / static_cast<double>(kept->count);
  double sums[2] = {};
  int64_t counts[2] = {};
  for (int64_t i = 0; i < kept->count; ++i) {
    const float value = values[kept->index[i]];
    const bool larger = std::abs(value) > middle;
    kept->code[i] = static_cast<uint8_t>((larger ? 2 : 0) | (value < 0 ? 1 : 0));
    sums[larger] += std::abs(value);
    ++counts[larger];
  }
  for (int part = 0; part < 2; ++part) {
    kept->means[part] =
        counts[part] == 0 ? 0 : static_cast<float>(sums[part] / static_cast<double>(counts[part]));
  }
}

// Writes a chunk whose numbers, all finite, and largest ones are known.
void Finish(const float* values, int64_t elements, Kept* kept, float* residual, std::byte* out) {
  CutInTwo(values, kept);
  Pack(*kept, elements, out);
  if (residual == nullptr) return;
  for (int64_t i = 0; i < kept->count; ++i) residual[kept->index[i]] -= kept->Number(i);
}

// Encodes a chunk with a number that is not finite.
void FinishNotFinite(int64_t elements, float* residual, std::byte* out) {
  Kept kept;
  kept.count = TopKKept(elements);
  kept.means[0] = kept.means[1] = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < kept.count; ++i) {
    kept.index[i] = static_cast<int32_t>(i);
    kept.code[i] = 0;
  }
  Pack(kept, elements, out);
  if (residual != nullptr) std::fill_n(residual, elements, 0.0f);
}

// values = delta + residual, to the residual too; zeroes behind them up to whole vectors. Returns
// the largest size's bits.
ATOLL_KERNEL(AddUp, (const float* delta, float* residual, float* values, int64_t n, int32_t* top),
             (delta, residual, values, n, top)) {
  using Int = typename simd::Lanes<V>::Int;
  Int largest{};
  for (int64_t i = 0; i < n; i += kLanes) {
    V v = simd::LoadUpTo<V>(delta + i, n - i);
    if (residual != nullptr) {
      v += simd::LoadUpTo<V>(residual + i, n - i);
      simd::StoreUpTo(residual + i, v, n - i);
    }
    simd::Store(values + i, v);
    largest = simd::Max(simd::BitCast<Int>(v) & kSizeBits, largest);
  }
  *top = simd::ReduceMax<int32_t>(largest);
}

// How many sizes have bits of at least `least`, which is above 0.
ATOLL_KERNEL(CountFrom, (const float* values, int64_t n, int32_t least, int32_t* count),
             (values, n, least, count)) {
  using Int = typename simd::Lanes<V>::Int;
  Int minus{};
  for (int64_t i = 0; i < n; i += kLanes) {
    minus += (simd::BitCast<Int>(simd::Load<V>(values + i)) & kSizeBits) >= least;
  }
  *count = -simd::SumOfLanes<int32_t>(minus);
}

// The bits of the kept->count-th largest size, by bisection: at least so many are not below it.
int32_t SmallestKept(const float* values, int64_t n, int32_t top, int64_t wanted) {
  int32_t low = 0, high = top + 1, count = 0;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    CountFrom(values, n, middle, &count);
    (count >= wanted ? low : high) = middle;
    if (count == wanted) break;
  }
  return low;
}

void EncodeChunk(const float* delta, float* residual, std::byte* out, int64_t n) {
  float values[kTopKChunk];
  int32_t top = 0;
  AddUp(delta, residual, values, n, &top);
  if (top >= kInfinity) return FinishNotFinite(n, residual, out);
  const int64_t wanted = TopKKept(n);
  const int32_t least = SmallestKept(values, n, top, wanted);
  int32_t above = 0;
  if (least < top) CountFrom(values, n, least + 1, &above);
  int64_t equal = wanted - above;  // of those that are not above, so many are kept
  Kept kept;
  for (int64_t i = 0; i < n && kept.count < wanted; ++i) {
    int32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    bits &= kSizeBits;
    if (bits < least || (bits == least && equal-- <= 0)) continue;
    kept.index[kept.count++] = static_cast<int32_t>(i);
  }
  Finish(values, n, &kept, residual, out);
}

void DecodeChunk(const std::byte* bytes, float* out, int64_t n) {
  Kept kept;
  Unpack(bytes, n, &kept);
  const bool finite = !std::isnan(kept.means[0]);
  std::fill_n(out, n, finite ? 0.0f : std::numeric_limits<float>::quiet_NaN());
  for (int64_t i = 0; i < kept.count && finite; ++i) {
    if (kept.index[i] < n) out[kept.index[i]] = kept.Number(i);
  }
}

absl::Status CheckChunk(const std::byte* bytes, int64_t chunk, int64_t n) {
  Kept kept;
  Unpack(bytes, n, &kept);
  const bool none = std::isnan(kept.means[0]) && std::isnan(kept.means[1]);
  for (const float mean : kept.means) {
    if (none || (mean >= 0 && std::isfinite(mean))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk, " has the mean ", mean, "; means are finite and at least 0"));
  }
  for (int64_t i = 0; i < kept.count; ++i) {
    if (kept.index[i] < n && (i == 0 || kept.index[i] > kept.index[i - 1])) continue;
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, " has the index ",
                                                   kept.index[i], " as its number ", i,
                                                   "; indices rise and are below ", n));
  }
  return absl::OkStatus();
}

// Calls `work` with each chunk's number, first element, first byte and size.
template <class Work>
void ForChunks(int64_t elements, const Work& work) {
  constexpr int64_t kBytes = EncodedBytes(Encoding::kTopK, kTopKChunk);
  for (int64_t chunk = 0; chunk * kTopKChunk < elements; ++chunk) {
    const int64_t begin = chunk * kTopKChunk;
    work(chunk, begin, chunk * kBytes, std::min(kTopKChunk, elements - begin));
  }
}

void EncodeChunks(const float* delta, float* residual, std::byte* out, int64_t elements) {
  ForChunks(elements, [&](int64_t, int64_t begin, int64_t byte, int64_t n) {
    EncodeChunk(delta + begin, residual == nullptr ? nullptr : residual + begin, out + byte, n);
  });
}

void DecodeChunks(const std::byte* bytes, float* out, int64_t elements) {
  ForChunks(elements, [&](int64_t, int64_t begin, int64_t byte, int64_t n) {
    DecodeChunk(bytes + byte, out + begin, n);
  });
}

absl::Status CheckChunks(const std::byte* bytes, int64_t elements) {
  absl::Status status;
  ForChunks(elements, [&](int64_t chunk, int64_t, int64_t byte, int64_t n) {
    if (status.ok()) status = CheckChunk(bytes + byte, chunk, n);
  });
  return status;
}

}  // namespace

const Codec kTopKCodec = {Encoding::kTopK, EncodeChunks, DecodeChunks, CheckChunks};

}  // namespace atl
