// Linear layers and embeddings.

#include "kernels/reference/reference.h"
#include "kernels/reference/reference_backend.h"

namespace atl {

std::unique_ptr<Backend> NewReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

void ReferenceBackend::Run(Stream&, const LinearForward& op, Workspace) {
  op.Check();
  for (int64_t n = 0; n < op.x.rows; ++n) {
    for (int64_t o = 0; o < op.w.rows; ++o) {
      double sum = AtOrZero(op.bias, 0, o);
      for (int64_t i = 0; i < op.x.cols; ++i) sum += double{At(op.x, n, i)} * At(op.w, o, i);
      if (op.activation != Activation::kNone) At(op.pre, n, o) = static_cast<float>(sum);
      const double add = AtOrZero(op.add, n, o);
      At(op.y, n, o) = static_cast<float>(Activate(op.activation, sum) + add);
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
      At(op.dx, n, i) = static_cast<float>(sum + AtOrZero(op.add, n, i));
    }
  }
}

void ReferenceBackend::Run(Stream&, const LinearBackwardWeight& op, Workspace) {
  op.Check();
  for (int64_t o = 0; o < op.dy.cols; ++o) {
    for (int64_t i = 0; i < op.x.cols; ++i) {
      double sum = 0;
      for (int64_t n = 0; n < op.x.rows; ++n) sum += double{At(op.dy, n, o)} * At(op.x, n, i);
      At(op.dw, o, i) += static_cast<float>(sum);
    }
    if (!op.dbias.present()) continue;
    double sum = 0;
    for (int64_t n = 0; n < op.x.rows; ++n) sum += At(op.dy, n, o);
    At(op.dbias, o) += static_cast<float>(sum);
  }
}

void ReferenceBackend::Run(Stream&, const EmbeddingForward& op) {
  op.Check();
  const int32_t* tokens = op.tokens.as<int32_t>();
  for (int64_t n = 0; n < op.y.rows; ++n) {
    const int64_t position = op.position_offset + n % op.seq_len;
    for (int64_t c = 0; c < op.y.cols; ++c) {
      At(op.y, n, c) =
          static_cast<float>(At(op.table, tokens[n], c) + AtOrZero(op.positions, position, c));
    }
  }
}

void ReferenceBackend::Run(Stream&, const EmbeddingBackwardWeight& op, Workspace) {
  op.Check();
  const int32_t* tokens = op.tokens.as<int32_t>();
  for (int64_t n = 0; n < op.dy.rows; ++n) {
    const int64_t position = op.position_offset + n % op.seq_len;
    for (int64_t c = 0; c < op.dy.cols; ++c) {
      At(op.dtable, tokens[n], c) += At(op.dy, n, c);
      if (op.dpositions.present()) At(op.dpositions, position, c) += At(op.dy, n, c);
    }
  }
}

}  // namespace atl
