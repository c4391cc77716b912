// Experts: rows sorted by expert, and products by group.

#include <vector>

#include "kernels/testing/reference/reference_backend.h"

namespace atl {
namespace {

// Calls visit(row, offset of its group's matrix) for all rows with an assignment.
template <typename Visit>
void ForGroupedRows(const Tensor& group_starts, int64_t stride, const Visit& visit) {
  const int32_t* starts = group_starts.as<int32_t>();
  for (int64_t g = 0; g + 1 < group_starts.cols; ++g) {
    for (int64_t row = starts[g]; row < starts[g + 1]; ++row) visit(row, g * stride);
  }
}

// The element at [row, col] of the matrix that lies `offset` elements behind w's.
Element InGroup(const Tensor& w, int64_t offset, int64_t row, int64_t col) {
  return {w, offset + row * w.stride + col};
}

// -1: the row has none.
int64_t FindAssignment(const Tensor& assignments, int64_t row) {
  return assignments.present() ? assignments.as<int32_t>()[row] : row;
}

}  // namespace

void ReferenceBackend::Run(Stream&, const GatherRows& op) {
  op.Check();
  for (int64_t r = 0; r < op.y.rows; ++r) {
    const int64_t assignment = FindAssignment(op.assignments, r);
    if (assignment < 0) continue;
    for (int64_t c = 0; c < op.y.cols; ++c) At(op.y, r, c) = At(op.x, assignment / op.per_token, c);
  }
}

void ReferenceBackend::Run(Stream&, const AddRows& op) {
  op.Check();
  const int64_t k = op.rows.cols;
  for (int64_t n = 0; n < op.y.rows; ++n) {
    for (int64_t c = 0; c < op.y.cols; ++c) {
      double sum = AtOrZero(op.add, n, c);
      for (int64_t j = 0; j < k; ++j) {
        const int32_t row = op.rows.as<int32_t>()[n * k + j];
        if (row >= 0) sum += At(op.x, row, c);
      }
      At(op.y, n, c) = sum;
    }
  }
}

void ReferenceBackend::Run(Stream&, const GroupedForward& op) {
  op.Check();
  ForGroupedRows(op.group_starts, op.stride, [&](int64_t row, int64_t offset) {
    for (int64_t o = 0; o < op.y.cols; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < op.x.cols; ++i) sum += At(op.x, row, i) * InGroup(op.w, offset, o, i);
      At(op.y, row, o) = sum;
    }
  });
}

void ReferenceBackend::Run(Stream&, const GroupedBackwardInput& op) {
  op.Check();
  ForGroupedRows(op.group_starts, op.stride, [&](int64_t row, int64_t offset) {
    for (int64_t i = 0; i < op.dx.cols; ++i) {
      double sum = 0;
      for (int64_t o = 0; o < op.dy.cols; ++o)
        sum += At(op.dy, row, o) * InGroup(op.w, offset, o, i);
      At(op.dx, row, i) = sum;
    }
  });
}

void ReferenceBackend::Run(Stream&, const GroupedBackwardWeight& op) {
  op.Check();
  const int32_t* starts = op.group_starts.as<int32_t>();
  for (int64_t g = 0; g + 1 < op.group_starts.cols; ++g) {
    for (int64_t o = 0; o < op.dy.cols; ++o) {
      for (int64_t i = 0; i < op.x.cols; ++i) {
        double sum = 0;
        for (int64_t row = starts[g]; row < starts[g + 1]; ++row) {
          sum += At(op.dy, row, o) * At(op.x, row, i);
        }
        InGroup(op.dw, g * op.stride, o, i) += sum;
      }
    }
  }
}

void ReferenceBackend::Run(Stream&, const WeightedGatedForward& op) {
  op.Check();
  const int64_t k = op.weights.cols;
  for (int64_t r = 0; r < op.y.rows; ++r) {
    const int64_t a = FindAssignment(op.assignments, r);
    if (a < 0) continue;
    const double weight = At(op.weights, a / k, a % k);
    for (int64_t c = 0; c < op.y.cols; ++c) {
      At(op.y, r, c) = weight * Activate(op.kind, At(op.gate, r, c)) * At(op.up, r, c);
    }
  }
}

void ReferenceBackend::Run(Stream&, const WeightedGatedBackward& op) {
  op.Check();
  const int64_t k = op.weights.cols;
  for (int64_t r = 0; r < op.dy.rows; ++r) {
    const int64_t a = FindAssignment(op.assignments, r);
    if (a < 0) continue;
    const double weight = At(op.weights, a / k, a % k);
    double dot = 0;
    for (int64_t c = 0; c < op.dy.cols; ++c) {
      const double gate = At(op.gate, r, c), up = At(op.up, r, c), dy = At(op.dy, r, c);
      const double activated = Activate(op.kind, gate);
      dot += dy * activated * up;
      At(op.dgate, r, c) = weight * dy * up * ActivateDerivative(op.kind, gate);
      At(op.dup, r, c) = weight * dy * activated;
    }
    At(op.dweights, a / k, a % k) = dot;
  }
}

}  // namespace atl
