#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/host_ops.h"
#include "kernels/host_ops_impl.h"

namespace atl {
namespace {

using simd::kLanes;

constexpr size_t kGramBlockMost = 65;  // deltas whose products are made together

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
    codec_block = std::max(codec_block, EncodedBlock(delta.encoding));
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

}  // namespace atl
