// Linear layers and embeddings.

#include "kernels/reference/reference.h"
#include "kernels/reference/reference_backend.h"

namespace atl {
namespace {

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
  for (int64_t n = 0; n < op.x.rows; ++n) {
    for (int64_t o = 0; o < op.w.rows; ++o) {
      double sum = AtOrZero(op.bias, 0, o);
      for (int64_t i = 0; i < op.x.cols; ++i) sum += double{At(op.x, n, i)} * At(op.w, o, i);
      if (op.activation != Activation::kNone) At(op.pre, n, o) = sum;
      const double add = AtOrZero(op.add, n, o);
      At(op.y, n, o) = Activate(op.activation, sum) + add;
    }
  }
}

void ReferenceBackend::Run(Stream&, const LinearBackwardInput& op, Workspace) {
  op.Check();
  for (int64_t n = 0; n < op.dx.rows; ++n) {
    for (int64_t i = 0; i < op.dx.cols; ++i) {
      double sum = 0;
      for (int64_t o = 0; o < op.dy.cols; ++o) sum += double{At(op.dy, n, o)} * At(op.w, o, i);
      if (op.activation != Activation::kNone) {
        sum *= ActivateDerivative(op.activation, At(op.pre, n, i));
      }
      At(op.dx, n, i) = sum + AtOrZero(op.add, n, i);
    }
  }
}

void ReferenceBackend::Run(Stream&, const LinearBackwardWeight& op, Workspace) {
  op.Check();
  for (int64_t o = 0; o < op.dy.cols; ++o) {
    for (int64_t i = 0; i < op.x.cols; ++i) {
      double sum = 0;
      for (int64_t n = 0; n < op.x.rows; ++n) sum += double{At(op.dy, n, o)} * At(op.x, n, i);
      At(op.dw, o, i) += sum;
    }
    if (!op.dbias.present()) continue;
    double sum = 0;
    for (int64_t n = 0; n < op.x.rows; ++n) sum += At(op.dy, n, o);
    At(op.dbias, o) += sum;
  }
}

void ReferenceBackend::Run(Stream&, const EmbeddingForward& op) {
  op.Check();
  for (int64_t n = 0; n < op.y.rows; ++n) {
    const int64_t position = op.position_offset + n % op.seq_len;
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
    const int64_t position = op.position_offset + n % op.seq_len;
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
