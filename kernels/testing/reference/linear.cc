// Linear layers and embeddings.

#include <utility>
#include <vector>

#include "kernels/testing/reference/reference.h"
#include "kernels/testing/reference/reference_backend.h"

namespace atl {
namespace {

// rows x cols numbers, row by row.
struct Matrix {
  int64_t rows, cols;
  std::vector<double> numbers;
};

Matrix Read(const Tensor& x, bool transposed = false) {
  Matrix m{x.rows, x.cols, {}};
  if (transposed) std::swap(m.rows, m.cols);
  m.numbers.reserve(x.rows * x.cols);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) {
      m.numbers.push_back(transposed ? double{At(x, c, r)} : double{At(x, r, c)});
    }
  }
  return m;
}

// sums[c] += sum over k of a[row][k] * b[k][c], added in the order of k.
void AddProduct(const Matrix& a, int64_t row, const Matrix& b, std::vector<double>& sums) {
  for (int64_t k = 0; k < b.rows; ++k) {
    const double left = a.numbers[row * a.cols + k];
    const double* right = b.numbers.data() + k * b.cols;
    for (int64_t c = 0; c < b.cols; ++c) sums[c] += left * right[c];
  }
}

// The row of a table for a token, -1 where it is not in this part of the table.
template <typename Op>
int64_t TableRow(const Op& op, const Tensor& table, int64_t n) {
  const int32_t token = op.tokens.template as<int32_t>()[n];
  const int64_t row = (op.typed ? token & kTokenMask : token) - op.first_token;
  return op.part && (row < 0 || row >= table.rows) ? -1 : row;
}

}  // namespace

std::unique_ptr<Backend> NewReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

void ReferenceBackend::Run(Stream&, const LinearForward& op, Workspace) {
  op.Check();
  const Matrix x = Read(op.x), w = Read(op.w, /*transposed=*/true);
  std::vector<double> sums(w.cols);
  for (int64_t n = 0; n < x.rows; ++n) {
    for (int64_t o = 0; o < w.cols; ++o) sums[o] = AtOrZero(op.bias, 0, o);
    AddProduct(x, n, w, sums);
    for (int64_t o = 0; o < w.cols; ++o) {
      if (op.activation != Activation::kNone) At(op.pre, n, o) = sums[o];
      const double add = AtOrZero(op.add, n, o);
      At(op.y, n, o) = Activate(op.activation, sums[o]) + add;
    }
  }
}

void ReferenceBackend::Run(Stream&, const LinearBackwardInput& op, Workspace) {
  op.Check();
  const Matrix dy = Read(op.dy), w = Read(op.w);
  for (int64_t n = 0; n < dy.rows; ++n) {
    std::vector<double> sums(w.cols);
    AddProduct(dy, n, w, sums);
    for (int64_t i = 0; i < w.cols; ++i) {
      if (op.activation != Activation::kNone) {
        sums[i] *= ActivateDerivative(op.activation, At(op.pre, n, i));
      }
      At(op.dx, n, i) = sums[i] + AtOrZero(op.add, n, i);
    }
  }
}

void ReferenceBackend::Run(Stream&, const LinearBackwardWeight& op, Workspace) {
  op.Check();
  const Matrix dy = Read(op.dy, /*transposed=*/true), x = Read(op.x);
  for (int64_t o = 0; o < dy.rows; ++o) {
    std::vector<double> sums(x.cols);
    AddProduct(dy, o, x, sums);
    for (int64_t i = 0; i < x.cols; ++i) At(op.dw, o, i) += sums[i];
    if (!op.dbias.present()) continue;
    double sum = 0;
    for (int64_t n = 0; n < x.rows; ++n) sum += At(op.dy, n, o);
    At(op.dbias, o) += sum;
  }
}

void ReferenceBackend::Run(Stream&, const EmbeddingForward& op) {
  op.Check();
  for (int64_t n = 0; n < op.y.rows; ++n) {
    const int64_t position = op.position_offset + PositionInDocument(op.starts, n, op.seq_len);
    const int64_t row = TableRow(op, op.table, n);
    for (int64_t c = 0; c < op.y.cols; ++c) {
      const double token = row < 0 ? 0.0 : At(op.table, row, c);
      At(op.y, n, c) = token + AtOrZero(op.positions, position, c) +
                       AtOrZero(op.types, op.tokens.as<int32_t>()[n] >> kTypeShift, c);
    }
  }
}

void ReferenceBackend::Run(Stream&, const EmbeddingBackwardWeight& op, Workspace) {
  op.Check();
  for (int64_t n = 0; n < op.dy.rows; ++n) {
    const int64_t position = op.position_offset + PositionInDocument(op.starts, n, op.seq_len);
    const int64_t row = TableRow(op, op.dtable, n);
    for (int64_t c = 0; c < op.dy.cols; ++c) {
      if (row >= 0) At(op.dtable, row, c) += At(op.dy, n, c);
      if (op.dpositions.present()) At(op.dpositions, position, c) += At(op.dy, n, c);
      if (op.dtypes.present()) {
        At(op.dtypes, op.tokens.as<int32_t>()[n] >> kTypeShift, c) += At(op.dy, n, c);
      }
    }
  }
}

}  // namespace atl
