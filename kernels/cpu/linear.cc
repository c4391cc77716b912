// Linear layers and embeddings.

#include <algorithm>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;
using simd::LoadUpTo;
using simd::StoreUpTo;

// Rows of activations per product: what follows it finds them in the second-level cache, and
// packing the weights again for every block costs oneDNN about 3%.
constexpr int64_t kGemmRows = 256;

// y = add + bias, each null for zero.
ATOLL_KERNEL(StartRow, (const float* add, const float* bias, float* y, int64_t n),
             (add, bias, y, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    V sum{};
    if (add != nullptr) sum += LoadUpTo<V>(add + i, n - i);
    if (bias != nullptr) sum += LoadUpTo<V>(bias + i, n - i);
    StoreUpTo(y + i, sum, n - i);
  }
}

// pre += bias; y = activation(pre) + add.
ATOLL_KERNEL(ActivateRow,
             (Activation kind, const float* bias, const float* add, float* pre, float* y,
              int64_t n),
             (kind, bias, add, pre, y, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    V x = LoadUpTo<V>(pre + i, n - i);
    if (bias != nullptr) {
      x += LoadUpTo<V>(bias + i, n - i);
      StoreUpTo(pre + i, x, n - i);
    }
    V result = simd::Activate(kind, x);
    if (add != nullptr) result += LoadUpTo<V>(add + i, n - i);
    StoreUpTo(y + i, result, n - i);
  }
}

// dx = dx * activation'(pre) + add.
ATOLL_KERNEL(DeactivateRow,
             (Activation kind, const float* pre, const float* add, float* dx, int64_t n),
             (kind, pre, add, dx, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    V result =
        LoadUpTo<V>(dx + i, n - i) * simd::ActivateDerivative(kind, LoadUpTo<V>(pre + i, n - i));
    if (add != nullptr) result += LoadUpTo<V>(add + i, n - i);
    StoreUpTo(dx + i, result, n - i);
  }
}

// sums[i] += sum over rows of x[row][i].
ATOLL_KERNEL(AddColumns, (const float* x, int64_t stride, int64_t rows, float* sums, int64_t n),
             (x, stride, rows, sums, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    V sum{};
    for (int64_t row = 0; row < rows; ++row) sum += LoadUpTo<V>(x + row * stride + i, n - i);
    StoreUpTo(sums + i, LoadUpTo<V>(sums + i, n - i) + sum, n - i);
  }
}

// y = a + b, each null for zero; y may be a.
ATOLL_KERNEL(AddRow, (const float* a, const float* b, float* y, int64_t n), (a, b, y, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    V sum{};
    if (a != nullptr) sum = LoadUpTo<V>(a + i, n - i);
    if (b != nullptr) sum += LoadUpTo<V>(b + i, n - i);
    StoreUpTo(y + i, sum, n - i);
  }
}

// y's rows [begin, end) start as add + bias, the product being added to them; false if there is
// nothing to start from.
bool Start(const Tensor& add, const Tensor& bias, const Tensor& y, int64_t begin, int64_t end) {
  if (!add.present() && !bias.present()) return false;
  if (add.data == y.data && !bias.present()) return true;
  for (int64_t row = begin; row < end; ++row) {
    StartRow(PointerOrNull(add, row), PointerOrNull(bias, 0), Pointer(y, row), y.cols);
  }
  return true;
}

template <typename Body>
void ForGemmRows(ThreadPool& pool, int64_t rows, const Body& body) {
  pool.For(Blocks(rows, kGemmRows), [&](int64_t block, int) {
    body(block * kGemmRows, std::min(rows, (block + 1) * kGemmRows));
  });
}

// Rows of a weight gradient per product: enough of them that packing x, once per block, is cheap;
// enough blocks that a few threads share them evenly.
int64_t WeightBlockRows(int64_t out) {
  const int64_t blocks = std::max<int64_t>(out >= 128 ? 4 : 1, 2 * Blocks(out, 256));
  return Blocks(Blocks(out, blocks), 8) * 8;
}

// Columns of an embedding table that one block handles.
constexpr int64_t kEmbeddingCols = 64;

// A token's row of a table, from column `col`; null where it is not in this part of the table.
template <typename Op>
float* TableRow(const Op& op, const Tensor& table, int64_t n, int64_t col) {
  const int32_t token = op.tokens.template as<int32_t>()[n];
  const int64_t row = (op.typed ? token & kTokenMask : token) - op.first_token;
  const bool here = row >= 0 && row < table.rows;
  ATOLL_CHECK(here || op.part, "token ", row, " of a vocabulary of ", table.rows);
  return here ? Pointer(table, row, col) : nullptr;
}

// Likewise of its type's; null without types.
float* TypeRow(const Tensor& tokens, const Tensor& types, int64_t n, int64_t col) {
  if (!types.present()) return nullptr;
  const int32_t type = tokens.as<int32_t>()[n] >> kTypeShift;
  ATOLL_CHECK(type >= 0 && type < types.rows, "token type ", type, " of ", types.rows);
  return Pointer(types, type, col);
}

}  // namespace

std::unique_ptr<Backend> NewCpuBackend(int threads, int64_t memory_bytes) {
  return std::make_unique<CpuBackend>(threads, memory_bytes);
}

void CpuBackend::Run(Stream&, const LinearForward& op, Workspace) {
  op.Check();
  const bool activated = op.activation != Activation::kNone;
  const Tensor& product = activated ? op.pre : op.y;
  ForGemmRows(pool_, op.x.rows, [&](int64_t begin, int64_t end) {
    const bool started = !activated && Start(op.add, op.bias, op.y, begin, end);
    Gemm(false, true, end - begin, op.w.rows, op.x.cols, Pointer(op.x, begin), op.x.stride,
         op.w.f32(), op.w.stride, started, Pointer(product, begin), product.stride);
    for (int64_t row = begin; activated && row < end; ++row) {
      ActivateRow(op.activation, PointerOrNull(op.bias, 0), PointerOrNull(op.add, row),
                  Pointer(op.pre, row), Pointer(op.y, row), op.y.cols);
    }
  });
}

void CpuBackend::Run(Stream&, const LinearBackwardInput& op, Workspace) {
  op.Check();
  const bool activated = op.activation != Activation::kNone;
  ForGemmRows(pool_, op.dx.rows, [&](int64_t begin, int64_t end) {
    const bool started = !activated && Start(op.add, Tensor(), op.dx, begin, end);
    Gemm(false, false, end - begin, op.dx.cols, op.dy.cols, Pointer(op.dy, begin), op.dy.stride,
         op.w.f32(), op.w.stride, started, Pointer(op.dx, begin), op.dx.stride);
    for (int64_t row = begin; activated && row < end; ++row) {
      DeactivateRow(op.activation, Pointer(op.pre, row), PointerOrNull(op.add, row),
                    Pointer(op.dx, row), op.dx.cols);
    }
  });
}

void CpuBackend::Run(Stream&, const LinearBackwardWeight& op, Workspace) {
  op.Check();
  const int64_t out = op.dy.cols, block = WeightBlockRows(out);
  pool_.For(Blocks(out, block), [&](int64_t i, int) {
    const int64_t begin = i * block, rows = std::min(block, out - begin);
    Gemm(true, false, rows, op.x.cols, op.x.rows, Pointer(op.dy, 0, begin), op.dy.stride,
         op.x.f32(), op.x.stride, /*accumulate=*/true, Pointer(op.dw, begin), op.dw.stride);
    if (op.dbias.present()) {
      AddColumns(Pointer(op.dy, 0, begin), op.dy.stride, op.dy.rows, Pointer(op.dbias, 0, begin),
                 rows);
    }
  });
}

void CpuBackend::Run(Stream&, const EmbeddingForward& op) {
  op.Check();
  ForRowBlocks(pool_, op.y.rows, op.y.cols, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      AddRow(TableRow(op, op.table, n, 0),
             PointerOrNull(op.positions,
                           op.position_offset + PositionInDocument(op.starts, n, op.seq_len)),
             Pointer(op.y, n), op.y.cols);
      const float* type = TypeRow(op.tokens, op.types, n, 0);
      if (type != nullptr) AddRow(type, Pointer(op.y, n), Pointer(op.y, n), op.y.cols);
    }
  });
}

// Blocks of columns, so that no two threads add to the same number and every sum runs in the order
// of the tokens.
void CpuBackend::Run(Stream&, const EmbeddingBackwardWeight& op, Workspace) {
  op.Check();
  pool_.For(Blocks(op.dy.cols, kEmbeddingCols), [&](int64_t block, int) {
    const int64_t begin = block * kEmbeddingCols;
    const int64_t cols = std::min(kEmbeddingCols, op.dy.cols - begin);
    for (int64_t n = 0; n < op.dy.rows; ++n) {
      const float* dy = Pointer(op.dy, n, begin);
      float* row = TableRow(op, op.dtable, n, begin);
      if (row != nullptr) AddRow(row, dy, row, cols);
      float* type = TypeRow(op.tokens, op.dtypes, n, begin);
      if (type != nullptr) AddRow(type, dy, type, cols);
      if (!op.dpositions.present()) continue;
      float* position = Pointer(
          op.dpositions, op.position_offset + PositionInDocument(op.starts, n, op.seq_len), begin);
      AddRow(position, dy, position, cols);
    }
  });
}

int64_t CpuBackend::WorkspaceBytes(const LinearForward&) const { return 0; }
int64_t CpuBackend::WorkspaceBytes(const LinearBackwardInput&) const { return 0; }
int64_t CpuBackend::WorkspaceBytes(const LinearBackwardWeight&) const { return 0; }
int64_t CpuBackend::WorkspaceBytes(const EmbeddingBackwardWeight&) const { return 0; }

}  // namespace atl
