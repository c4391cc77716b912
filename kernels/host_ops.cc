#include "kernels/host_ops.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "common/check.h"
#include "kernels/bfloat16.h"
#include "kernels/codecs/codec.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;

// Elements one task handles: large enough to hide the cost of handing it out.
constexpr int64_t kTaskElements = 1 << 16;
// Elements handled at a time inside a task, so that the weighted sum of many deltas, and what
// quantised ones decode to, stay in the cache while each delta is read once.
constexpr int64_t kTile = 1024;
constexpr size_t kGramBlockMost = 65;  // deltas whose products are made together
constexpr int64_t kTileMax = 4096;     // a multiple of every codec's block
// Deltas read in one pass: more streams than the processor's prefetchers follow would stall.
constexpr int64_t kSideBySide = 4;

// Numbers of f32 or bf16: those at i to i + 15, and the one at i.
template <class V>
ATOLL_INLINE V LoadSixteen(const void* data, Encoding encoding, int64_t i) {
  return encoding == Encoding::kFloat32
             ? simd::Load<V>(static_cast<const float*>(data) + i)
             : simd::FromBfloat16<V>(static_cast<const Bfloat16*>(data) + i);
}
float LoadOne(const void* data, Encoding encoding, int64_t i) {
  return encoding == Encoding::kFloat32 ? static_cast<const float*>(data)[i]
                                        : WidenBfloat16(static_cast<const Bfloat16*>(data)[i]);
}

// Numbers of f32 or bf16 with their weight.
struct Plain {
  const void* data;
  Encoding encoding;
  float weight;
};

// Numbers begin to begin + n of a delta: where they lie, or, of a quantised one, decoded into
// `decoded`. REQUIRES: begin is a multiple of its block.
Plain PlainFrom(const DeltaView& delta, float weight, int64_t begin, int64_t n, float* decoded) {
  const auto* bytes = static_cast<const std::byte*>(delta.data);
  bytes += EncodedBytes(delta.encoding, begin);
  if (!IsQuantized(delta.encoding)) return {bytes, delta.encoding, weight};
  GetCodec(delta.encoding).decode(bytes, decoded, n);
  return {decoded, Encoding::kFloat32, weight};
}

// Returns the numbers n elements further on.
Plain Behind(const Plain& p, int64_t n) {
  return {static_cast<const std::byte*>(p.data) + EncodedBytes(p.encoding, n), p.encoding,
          p.weight};
}

int64_t SelectTileSize(int64_t block) { return block > kTile ? kTileMax : kTile; }

// The update that the last pass of AddDeltas makes of the sum g of the weighted deltas: Sixteen for
// elements i to i + 15, One for element i. Prefetch requests what Sixteen changes.
struct SgdUpdate {
  float* theta;
  float eta;

  ATOLL_INLINE void Prefetch(int64_t i) const { __builtin_prefetch(theta + i, 1); }
  template <class V>
  ATOLL_INLINE void Sixteen(int64_t i, const V& g) const {
    simd::Store(theta + i, simd::Load<V>(theta + i) - g * eta);
  }
  void One(int64_t i, float g) const { theta[i] -= eta * g; }
};

struct NesterovUpdate {
  float* theta;
  float* velocity;
  float eta, mu;

  ATOLL_INLINE void Prefetch(int64_t i) const {
    __builtin_prefetch(theta + i, 1);
    __builtin_prefetch(velocity + i, 1);
  }
  template <class V>
  ATOLL_INLINE void Sixteen(int64_t i, const V& g) const {
    const V v = simd::Load<V>(velocity + i) * mu + g;
    simd::Store(velocity + i, v);
    simd::Store(theta + i, simd::Load<V>(theta + i) - (v * mu + g) * eta);
  }
  void One(int64_t i, float g) const {
    velocity[i] = mu * velocity[i] + g;
    theta[i] -= eta * (g + mu * velocity[i]);
  }
};

struct DelayedUpdate {
  float* theta;
  float* momentum;
  float* sum;
  float eta, mu, share;
  bool last;  // of the pushes that the momentum moves after

  ATOLL_INLINE void Prefetch(int64_t i) const {
    __builtin_prefetch(theta + i, 1);
    __builtin_prefetch(momentum + i, 1);
    __builtin_prefetch(sum + i, 1);
  }
  template <class V>
  ATOLL_INLINE void Sixteen(int64_t i, const V& g) const {
    const V part = g * share;
    V all = simd::Load<V>(sum + i) + part;
    V moved = simd::Load<V>(theta + i) - part * eta;
    if (last) {
      const V b = simd::Load<V>(momentum + i) * mu + all;
      simd::Store(momentum + i, b);
      moved -= b * (mu * eta);
      all = V{};
    }
    simd::Store(sum + i, all);
    simd::Store(theta + i, moved);
  }
  void One(int64_t i, float g) const {
    const float part = g * share;
    float all = sum[i] + part;
    theta[i] -= eta * part;
    if (last) {
      momentum[i] = mu * momentum[i] + all;
      theta[i] -= mu * eta * momentum[i];
      all = 0;
    }
    sum[i] = all;
  }
};

// All of one encoding, or each of its own.
enum class Types { kFloat32, kBfloat16, kMixed };

// One pass over n elements from `begin` on that reads kCount deltas side by side and adds them to
// g_before (null: to nothing). All but the update count elements from `begin`. The last pass hands
// the sum to the update, any other leaves it in g_after.
template <class V, int kCount, Types kTypes, class Update>
ATOLL_INLINE void AddDeltas(const Plain* deltas, const float* g_before, float* g_after,
                            int64_t begin, int64_t n, const Update& update) {
  const void* data[kCount + 1];
  Encoding encoding[kCount + 1];
  float weight[kCount + 1];
  for (int d = 0; d < kCount; ++d) {
    data[d] = deltas[d].data;
    encoding[d] = kTypes == Types::kMixed ? deltas[d].encoding : static_cast<Encoding>(kTypes);
    weight[d] = deltas[d].weight;
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    V g{};
    if (g_before != nullptr) g = simd::Load<V>(g_before + i);
#pragma GCC unroll 4
    for (int d = 0; d < kCount; ++d) {
      const Encoding type = kTypes == Types::kMixed ? encoding[d] : static_cast<Encoding>(kTypes);
      g += LoadSixteen<V>(data[d], type, i) * weight[d];
    }
    if (g_after != nullptr) {
      simd::Store(g_after + i, g);
    } else {
      update.Sixteen(begin + i, g);
    }
  }
}

template <class V, Types kTypes, class Update>
ATOLL_INLINE void AddSomeDeltas(const Plain* deltas, int64_t count, const float* g_before,
                                float* g_after, int64_t begin, int64_t n, const Update& update) {
  switch (count) {
    case 0:
      return AddDeltas<V, 0, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 1:
      return AddDeltas<V, 1, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 2:
      return AddDeltas<V, 2, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 3:
      return AddDeltas<V, 3, kTypes>(deltas, g_before, g_after, begin, n, update);
    default:
      return AddDeltas<V, 4, kTypes>(deltas, g_before, g_after, begin, n, update);
  }
}

// Up to kSideBySide deltas over n elements from `begin` on, n a multiple of kLanes.
template <class V, class Update>
ATOLL_INLINE void AddPass(const Update& update, const Plain* deltas, int64_t count,
                          const float* g_before, float* g_after, int64_t begin, int64_t n) {
  bool same = true;
  for (int64_t d = 1; d < count; ++d) same = same && deltas[d].encoding == deltas[0].encoding;
  const Types types = !same        ? Types::kMixed
                      : count == 0 ? Types::kFloat32
                                   : static_cast<Types>(deltas[0].encoding);
  switch (types) {
    case Types::kFloat32:
      return AddSomeDeltas<V, Types::kFloat32>(deltas, count, g_before, g_after, begin, n, update);
    case Types::kBfloat16:
      return AddSomeDeltas<V, Types::kBfloat16>(deltas, count, g_before, g_after, begin, n, update);
    case Types::kMixed:
      return AddSomeDeltas<V, Types::kMixed>(deltas, count, g_before, g_after, begin, n, update);
  }
}

ATOLL_KERNEL(RunPass,
             (const SgdUpdate& update, const Plain* deltas, int64_t count, const float* g_before,
              float* g_after, int64_t begin, int64_t n),
             (update, deltas, count, g_before, g_after, begin, n)) {
  AddPass<V>(update, deltas, count, g_before, g_after, begin, n);
}
ATOLL_KERNEL(RunPass,
             (const NesterovUpdate& update, const Plain* deltas, int64_t count,
              const float* g_before, float* g_after, int64_t begin, int64_t n),
             (update, deltas, count, g_before, g_after, begin, n)) {
  AddPass<V>(update, deltas, count, g_before, g_after, begin, n);
}
ATOLL_KERNEL(RunPass,
             (const DelayedUpdate& update, const Plain* deltas, int64_t count,
              const float* g_before, float* g_after, int64_t begin, int64_t n),
             (update, deltas, count, g_before, g_after, begin, n)) {
  AddPass<V>(update, deltas, count, g_before, g_after, begin, n);
}

// A vector of as many doubles as a register holds (SSE: two registers).
template <class V>
using Wide = std::conditional_t<std::is_same_v<V, simd::Avx512>, simd::D8, simd::D4>;
template <class V>
inline constexpr int kWideLanes = sizeof(Wide<V>) / sizeof(double);

// The numbers from i on in double.
template <class V>
ATOLL_INLINE Wide<V> LoadWide(const Plain& from, bool all_f32, int64_t i) {
  using Narrow = std::conditional_t<std::is_same_v<V, simd::Avx512>, simd::F8, simd::F4>;
  const Narrow numbers =
      all_f32 || from.encoding == Encoding::kFloat32
          ? simd::Load<Narrow>(static_cast<const float*>(from.data) + i)
          : simd::FromBfloat16<Narrow>(static_cast<const Bfloat16*>(from.data) + i);
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (!std::is_same_v<V, simd::Sse>) {
    // One instruction, of which GCC 12 makes two and two moves; clang makes one.
    Wide<V> wide;
    asm("vcvtps2pd %1, %0" : "=v"(wide) : "vm"(numbers));
    return wide;
  }
#endif
  return __builtin_convertvector(numbers, Wide<V>);
}

// Adds the dot products of rows and columns over n numbers, a multiple of kLanes, to
// sums[row * kColumns + column]; of a triangle, whose columns are the rows, those with column >=
// row. A product has the same kLanes accumulators whatever is made beside it, so that its bits do
// not depend on that: many products take a pass over the numbers, which lie in the cache, for each
// register of a product.
template <class V, int kRows, int kColumns, bool kTriangle>
ATOLL_INLINE void AddDots(const Plain* rows, const Plain* columns, bool all_f32, int64_t n,
                          double* sums) {
  constexpr int kProducts = kTriangle ? kRows * (kRows + 1) / 2 : kRows * kColumns;
  constexpr int kRegisters = std::is_same_v<V, simd::Avx512> ? 20 : 12;
  constexpr int kParts = static_cast<int>(kLanes) / kWideLanes<V>;
  constexpr int kTogether = kProducts * kParts <= kRegisters       ? kParts
                            : kProducts * kParts / 2 <= kRegisters ? kParts / 2
                                                                   : 1;
  Wide<V> all[kRows][kColumns] = {};
  for (int part = 0; part < kParts; part += kTogether) {
    Wide<V> parts[kTogether][kRows][kColumns] = {};
    for (int64_t i = 0; i < n; i += kLanes) {
#pragma GCC unroll 4
      for (int p = 0; p < kTogether; ++p) {
        Wide<V> a[kRows], b[kColumns];
        const int64_t at = i + (part + p) * kWideLanes<V>;
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) a[r] = LoadWide<V>(rows[r], all_f32, at);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          b[c] = kTriangle ? a[c] : LoadWide<V>(columns[c], all_f32, at);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
          for (int c = kTriangle ? r : 0; c < kColumns; ++c) parts[p][r][c] += a[r] * b[c];
        }
      }
    }
    for (int p = 0; p < kTogether; ++p) {
      for (int r = 0; r < kRows; ++r) {
        for (int c = kTriangle ? r : 0; c < kColumns; ++c) all[r][c] += parts[p][r][c];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = kTriangle ? r : 0; c < kColumns; ++c) {
      sums[r * kColumns + c] += simd::SumOfLanes<double>(all[r][c]);
    }
  }
}

// Products that are made together: of four deltas among each other, or of two with four.
constexpr int64_t kTriangleMost = 4, kRowsMost = 2, kColumnsMost = 4;

template <class V>
ATOLL_INLINE void AddTriangle(const Plain* rows, int64_t count, bool all_f32, int64_t n,
                              double* sums) {
  switch (count) {
    case 1:
      return AddDots<V, 1, 1, true>(rows, rows, all_f32, n, sums);
    case 2:
      return AddDots<V, 2, 2, true>(rows, rows, all_f32, n, sums);
    case 3:
      return AddDots<V, 3, 3, true>(rows, rows, all_f32, n, sums);
    default:
      return AddDots<V, 4, 4, true>(rows, rows, all_f32, n, sums);
  }
}
template <class V>
ATOLL_INLINE void AddRectangle(const Plain* rows, int64_t row_count, const Plain* columns,
                               int64_t column_count, bool all_f32, int64_t n, double* sums) {
  if (row_count == 2) {
    return column_count == 4 ? AddDots<V, 2, 4, false>(rows, columns, all_f32, n, sums)
                             : AddDots<V, 2, 1, false>(rows, columns, all_f32, n, sums);
  }
  return column_count == 4 ? AddDots<V, 1, 4, false>(rows, columns, all_f32, n, sums)
                           : AddDots<V, 1, 1, false>(rows, columns, all_f32, n, sums);
}

ATOLL_KERNEL(TriangleOfDots,
             (const Plain* rows, int64_t count, bool all_f32, int64_t n, double* sums),
             (rows, count, all_f32, n, sums)) {
  return all_f32 ? AddTriangle<V>(rows, count, true, n, sums)
                 : AddTriangle<V>(rows, count, false, n, sums);
}
ATOLL_KERNEL(RectangleOfDots,
             (const Plain* rows, int64_t row_count, const Plain* columns, int64_t column_count,
              bool all_f32, int64_t n, double* sums),
             (rows, row_count, columns, column_count, all_f32, n, sums)) {
  return all_f32 ? AddRectangle<V>(rows, row_count, columns, column_count, true, n, sums)
                 : AddRectangle<V>(rows, row_count, columns, column_count, false, n, sums);
}

ATOLL_KERNEL(ToBfloat16Block, (const float* from, Bfloat16* to, int64_t n), (from, to, n)) {
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) simd::ToBfloat16(to + i, simd::Load<V>(from + i));
  if (whole == n) return;
  Bfloat16 last[kLanes];
  simd::ToBfloat16(last, simd::LoadFirst<V>(from + whole, n - whole));
  for (int64_t i = whole; i < n; ++i) to[i] = last[i - whole];
}

ATOLL_KERNEL(FromBfloat16Block, (const Bfloat16* from, float* to, int64_t n), (from, to, n)) {
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) simd::Store(to + i, simd::FromBfloat16<V>(from + i));
  if (whole == n) return;
  Bfloat16 last[kLanes] = {};
  for (int64_t i = whole; i < n; ++i) last[i - whole] = from[i];
  simd::StoreFirst(to + whole, simd::FromBfloat16<V>(last), n - whole);
}

int64_t Tasks(int64_t n) { return (n + kTaskElements - 1) / kTaskElements; }

void CheckSize(const DeltaView& delta, int64_t size) {
  ATOLL_CHECK(delta.size == size, "a delta of ", delta.size, " numbers for ", size);
}

// Rows by columns of the Gram matrix; the same of both is its upper triangle alone.
struct GramBlock {
  std::span<const DeltaView> rows, columns;

  bool is_triangle() const { return rows.data() == columns.data(); }
  size_t entries() const {
    return is_triangle() ? rows.size() * (rows.size() + 1) / 2 : rows.size() * columns.size();
  }
  // Row by row; of a triangle from the diagonal on.
  size_t ComputeEntryIndex(size_t row, size_t column) const {
    if (!is_triangle()) return row * columns.size() + column;
    return row * (2 * rows.size() - row + 1) / 2 + column - row;
  }
};

// The block's products of n numbers, at most kTile, of which `plain` has those of the rows, then of
// the columns.
class GramPart {
 public:
  GramPart(const GramBlock& block, std::span<const Plain> plain, int64_t n)
      : block_(block), rows_(plain.data()), columns_(plain.data()), n_(n) {
    if (!block.is_triangle()) columns_ += block.rows.size();
    for (const Plain& p : plain) all_f32_ = all_f32_ && p.encoding == Encoding::kFloat32;
  }

  void AddTo(double* sums) const {
    const auto rows = std::ssize(block_.rows), columns = std::ssize(block_.columns);
    const bool triangle = block_.is_triangle();
    for (int64_t row = 0; row < rows; row += kTriangleMost) {
      const int64_t end = std::min(rows, row + kTriangleMost);
      if (triangle) Add(row, end, row, end, sums);
      for (int64_t r = row; r < end; r += kRowsMost) {
        for (int64_t c = triangle ? end : 0; c < columns;) {
          const int64_t width = columns - c >= kColumnsMost ? kColumnsMost : 1;
          Add(r, std::min(end, r + kRowsMost), c, c + width, sums);
          c += width;
        }
      }
    }
  }

 private:
  void Add(int64_t row, int64_t row_end, int64_t column, int64_t column_end, double* sums) const {
    const int64_t whole = n_ / kLanes * kLanes, width = column_end - column;
    const bool diagonal = block_.is_triangle() && row == column;
    double dots[kTriangleMost * kTriangleMost] = {};
    if (diagonal) {
      TriangleOfDots(rows_ + row, row_end - row, all_f32_, whole, dots);
    } else {
      RectangleOfDots(rows_ + row, row_end - row, columns_ + column, width, all_f32_, whole, dots);
    }
    for (int64_t r = row; r < row_end; ++r) {
      for (int64_t c = diagonal ? r : column; c < column_end; ++c) {
        double& sum =
            sums[block_.ComputeEntryIndex(static_cast<size_t>(r), static_cast<size_t>(c))];
        sum += dots[(r - row) * width + c - column];
        for (int64_t i = whole; i < n_; ++i) {
          sum += static_cast<double>(LoadOne(rows_[r].data, rows_[r].encoding, i)) *
                 LoadOne(columns_[c].data, columns_[c].encoding, i);
        }
      }
    }
  }

  const GramBlock& block_;
  const Plain* rows_;
  const Plain* columns_;
  const int64_t n_;
  bool all_f32_ = true;
};

// The block's products of elements [begin, end), row by row, into `sums`.
void GramTask(const GramBlock& block, int64_t begin, int64_t end, double* sums) {
  std::vector<DeltaView> deltas(block.rows.begin(), block.rows.end());
  if (!block.is_triangle()) {
    deltas.insert(deltas.end(), block.columns.begin(), block.columns.end());
  }
  int64_t codec_block = 1;
  for (const DeltaView& delta : deltas) {
    codec_block = std::max(codec_block, GetEncodingInfo(delta.encoding).block);
  }
  // Tile by tile, so that the tiles of all deltas serve all their products from the cache.
  const int64_t tile_size = SelectTileSize(codec_block);
  std::vector<float> decoded(codec_block > 1 ? deltas.size() * tile_size : 0);
  std::vector<Plain> plain(deltas.size());
  for (int64_t tile = begin; tile < end; tile += tile_size) {
    const int64_t n = std::min(tile_size, end - tile);
    for (size_t d = 0; d < deltas.size(); ++d) {
      float* const to = codec_block > 1 ? decoded.data() + d * tile_size : nullptr;
      plain[d] = PlainFrom(deltas[d], 1, tile, n, to);
    }
    // The partial sums are the same for any encoding.
    for (int64_t part = 0; part < n; part += kTile) {
      GramPart(block, plain, std::min(kTile, n - part)).AddTo(sums);
      for (Plain& p : plain) p = Behind(p, kTile);
    }
  }
}

// PlainFrom of delta `d` of `count`, whose decoding requests what the update changes kTile elements
// later, up to `end`: neither waits for the other.
template <class Update>
Plain DecodeAndPrefetch(const Update& update, const WeightedDelta& from, int64_t d, int64_t count,
                        int64_t begin, int64_t n, int64_t end, float* decoded) {
  if (IsQuantized(from.delta.encoding)) {
    const int64_t next = begin + kTile, last = std::min(end, next + (d + 1) * n / count);
    for (int64_t i = next + d * n / count / kLanes * kLanes; i < last; i += kLanes) {
      update.Prefetch(i);
    }
  }
  return PlainFrom(from.delta, from.weight, begin, n, decoded);
}

// The step on elements [begin, end). Up to kSideBySide deltas are summed in registers; the sum of
// more, and numbers of quantised ones, are carried through the cache, tile by tile.
template <class Update>
void StepTask(const Update& update, std::span<const WeightedDelta> deltas, int64_t begin,
              int64_t end) {
  const int64_t k = static_cast<int64_t>(deltas.size());
  int64_t block = 1;
  for (const WeightedDelta& d : deltas)
    block = std::max(block, GetEncodingInfo(d.delta.encoding).block);
  const int64_t tile_size = block > 1 ? block : k > kSideBySide ? kTile : end - begin;
  float decoded[kSideBySide][kTileMax], sum[kTileMax];
  for (int64_t tile = begin; tile < end; tile += tile_size) {
    const int64_t n = std::min(tile_size, end - tile), whole = n / kLanes * kLanes;
    float rest[kLanes] = {};  // the sum of elements behind the last whole vector
    for (int64_t first = 0; first == 0 || first < k; first += kSideBySide) {
      const int64_t count = std::min(kSideBySide, k - first);
      Plain plain[kSideBySide];
      for (int64_t d = 0; d < count; ++d) {
        const WeightedDelta& from = deltas[first + d];
        plain[d] = DecodeAndPrefetch(update, from, d, count, tile, n, end, decoded[d]);
        for (int64_t i = whole; i < n; ++i) {
          rest[i - whole] += from.weight * LoadOne(plain[d].data, plain[d].encoding, i);
        }
      }
      const bool last = first + kSideBySide >= k;
      RunPass(update, plain, count, first == 0 ? nullptr : sum, last ? nullptr : sum, tile, whole);
    }
    for (int64_t i = whole; i < n; ++i) update.One(tile + i, rest[i - whole]);
  }
}

}  // namespace

namespace {

template <class Update>
void Step(const Update& update, std::span<const WeightedDelta> deltas, int64_t size,
          ThreadPool& pool) {
  ATOLL_CHECK(deltas.size() <= kMaxDeltas, deltas.size(), " deltas");
  for (const WeightedDelta& d : deltas) CheckSize(d.delta, size);
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    StepTask(update, deltas, begin, std::min(size, begin + kTaskElements));
  });
}

int64_t GetElementSize(std::span<float> theta, std::initializer_list<std::span<float>> slots) {
  for (const std::span<float> slot : slots) {
    ATOLL_CHECK(slot.size() == theta.size(), "a slot and parameters differ in size");
  }
  return static_cast<int64_t>(theta.size());
}

}  // namespace

void OuterSgd(std::span<float> theta, std::span<const WeightedDelta> deltas, float eta,
              ThreadPool& pool) {
  Step(SgdUpdate{theta.data(), eta}, deltas, GetElementSize(theta, {}), pool);
}

void OuterNesterov(std::span<float> theta, std::span<float> velocity,
                   std::span<const WeightedDelta> deltas, float eta, float mu, ThreadPool& pool) {
  Step(NesterovUpdate{theta.data(), velocity.data(), eta, mu}, deltas,
       GetElementSize(theta, {velocity}), pool);
}

void OuterDelayedNesterov(std::span<float> theta, std::span<float> momentum, std::span<float> sum,
                          std::span<const WeightedDelta> deltas, float eta, float mu, float share,
                          bool last, ThreadPool& pool) {
  Step(DelayedUpdate{theta.data(), momentum.data(), sum.data(), eta, mu, share, last}, deltas,
       GetElementSize(theta, {momentum, sum}), pool);
}

namespace {

// The block's sums over all elements, row by row; what it takes meanwhile grows with the elements
// and the block alone.
std::vector<double> GramSums(const GramBlock& block, int64_t size, ThreadPool& pool) {
  const size_t entries = block.entries();
  std::vector<double> partial(Tasks(size) * entries, 0.0);
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    GramTask(block, begin, std::min(size, begin + kTaskElements), partial.data() + task * entries);
  });
  std::vector<double> sums(entries, 0.0);
  for (size_t i = 0; i < partial.size(); ++i) sums[i % entries] += partial[i];
  return sums;
}

}  // namespace

void GramMatrix(std::span<const DeltaView> deltas, std::span<double> gram, ThreadPool& pool) {
  const size_t k = deltas.size();
  ATOLL_CHECK(k <= kMaxDeltas && gram.size() == k * k, k, " deltas, ", gram.size(), " entries");
  if (k == 0) return;
  const int64_t size = deltas[0].size;
  for (const DeltaView& delta : deltas) CheckSize(delta, size);
  const size_t blocks = (k + kGramBlockMost - 1) / kGramBlockMost;
  const size_t width = (k + blocks - 1) / blocks;
  for (size_t row = 0; row < k; row += width) {
    for (size_t column = row; column < k; column += width) {
      const GramBlock block{deltas.subspan(row, std::min(width, k - row)),
                            deltas.subspan(column, std::min(width, k - column))};
      const std::vector<double> sums = GramSums(block, size, pool);
      size_t entry = 0;
      for (size_t i = row; i < row + block.rows.size(); ++i) {
        for (size_t j = block.is_triangle() ? i : column; j < column + block.columns.size(); ++j) {
          gram[i * k + j] = gram[j * k + i] = sums[entry++];
        }
      }
    }
  }
}

void ToBfloat16(std::span<const float> from, std::span<Bfloat16> to, ThreadPool& pool) {
  ATOLL_CHECK(from.size() == to.size());
  const int64_t size = static_cast<int64_t>(from.size());
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    ToBfloat16Block(from.data() + begin, to.data() + begin, std::min(kTaskElements, size - begin));
  });
}

void FromBfloat16(std::span<const Bfloat16> from, std::span<float> to, ThreadPool& pool) {
  ATOLL_CHECK(from.size() == to.size());
  const int64_t size = static_cast<int64_t>(from.size());
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    FromBfloat16Block(from.data() + begin, to.data() + begin,
                      std::min(kTaskElements, size - begin));
  });
}

}  // namespace atl
