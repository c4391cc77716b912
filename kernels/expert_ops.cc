#include "kernels/expert_ops.h"

#include <algorithm>

#include "kernels/ops.h"

namespace atl {
namespace {

void ExpectShape(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
  ATOLL_CHECK(x.rows == rows && x.cols == cols && x.stride >= cols, name, " is ", x.rows, " x ",
              x.cols, " with stride ", x.stride, ", not ", rows, " x ", cols);
}

void ExpectReals(const Tensor& x, const char* name, int64_t rows, int64_t cols,
                 const Tensor& like) {
  ExpectShape(x, name, rows, cols);
  ATOLL_CHECK(x.dtype != DType::kInt32 && x.dtype == like.dtype, name,
              ": activations of one operation have one dtype");
}

void ExpectSums(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
  ExpectShape(x, name, rows, cols);
  ATOLL_CHECK(x.dtype == DType::kFloat32 || x.dtype == DType::kFloat64, name, " must be f32");
}

void ExpectWhole(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
  ExpectShape(x, name, rows, cols);
  ATOLL_CHECK(x.dtype == DType::kInt32 && x.contiguous(), name, " must be contiguous int32");
}

void CheckRoute(const Tensor& logits, const Tensor& experts, const Tensor& weights) {
  ExpectReals(logits, "logits", experts.rows, logits.cols, logits);
  ATOLL_CHECK(experts.cols > 0 && experts.cols <= logits.cols, experts.cols, " of ", logits.cols,
              " experts");
  ExpectWhole(experts, "experts", logits.rows, experts.cols);
  ExpectSums(weights, "weights", logits.rows, experts.cols);
}

int64_t CheckGroups(const Tensor& group_starts) {
  ATOLL_CHECK(group_starts.cols > 1, "no groups");
  ExpectWhole(group_starts, "group_starts", 1, group_starts.cols);
  return group_starts.cols - 1;
}

void CheckWeights(const Tensor& w, int64_t out, int64_t in, int64_t stride) {
  ExpectShape(w, "w", out, in);
  ATOLL_CHECK(stride >= (out - 1) * w.stride + in, "matrices of ", out, " x ", in, " every ",
              stride, " elements overlap");
}

void CheckAssignments(const Tensor& assignments, const Tensor& weights, int64_t rows) {
  ExpectSums(weights, "weights", weights.rows, weights.cols);
  if (assignments.rows != 0 || assignments.present()) {
    return ExpectWhole(assignments, "assignments", 1, rows);
  }
  ATOLL_CHECK(weights.size() == rows, weights.size(), " weights for ", rows, " rows");
}

}  // namespace

void RouteForward::Check() const {
  CheckRoute(logits, experts, weights);
  if (bias.rows != 0 || bias.present()) ExpectSums(bias, "bias", 1, logits.cols);
}

void CountExperts::Check() const {
  ExpectWhole(experts, "experts", experts.rows, experts.cols);
  ExpectWhole(counts, "counts", counts.rows, counts.cols);
  ATOLL_CHECK(counts.rows > 0 && experts.rows % counts.rows == 0, experts.rows, " tokens in ",
              counts.rows, " sequences");
  if (starts.present()) ExpectWhole(starts, "starts", 1, experts.rows);
}

void RouteBackward::Check() const {
  CheckRoute(logits, experts, dweights);
  ExpectReals(dlogits, "dlogits", logits.rows, logits.cols, logits);
  if (!losses.present()) return;
  ExpectWhole(losses.counts, "counts", losses.counts.rows, logits.cols);
  ATOLL_CHECK(losses.counts.rows > 0 && logits.rows % losses.counts.rows == 0);
  ExpectSums(losses.terms, "terms", 2, logits.rows);
  ExpectSums(losses.share, "share", 1, 1);
  ExpectSums(losses.totals, "totals", 1, 2 + logits.cols);
  if (losses.starts.present()) ExpectWhole(losses.starts, "starts", 1, logits.rows);
  if (losses.loads.present()) ExpectSums(losses.loads, "loads", 1, logits.cols);
}

void BalanceExperts::Check() const {
  ExpectSums(bias, "bias", 1, bias.cols);
  ExpectSums(loads, "loads", 1, bias.cols);
  if (param_copy.present()) ExpectReals(param_copy, "param_copy", 1, bias.cols, param_copy);
}

void GroupTokens::Check() const {
  const int64_t groups = CheckGroups(group_starts), n = experts.rows, k = experts.cols;
  ExpectWhole(experts, "experts", n, k);
  ExpectWhole(rows, "rows", n, k);
  ExpectWhole(assignments, "assignments", 1, assignments.cols);
  ATOLL_CHECK(first >= 0 && assignments.cols >= n * std::min(k, groups), "no room for ", n,
              " tokens in ", assignments.cols, " rows");
}

void GatherRows::Check() const {
  ExpectReals(x, "x", x.rows, y.cols, x);
  ExpectReals(y, "y", y.rows, x.cols, x);
  ExpectWhole(assignments, "assignments", 1, y.rows);
  ATOLL_CHECK(per_token > 0);
}

void AddRows::Check() const {
  ExpectReals(x, "x", x.rows, y.cols, y);
  ExpectWhole(rows, "rows", y.rows, rows.cols);
  if (add.rows != 0 || add.present()) ExpectReals(add, "add", y.rows, y.cols, y);
}

void GroupedForward::Check() const {
  CheckGroups(group_starts);
  ExpectReals(x, "x", y.rows, w.cols, x);
  ExpectReals(y, "y", x.rows, w.rows, x);
  ExpectReals(w, "w", y.cols, x.cols, x);
  CheckWeights(w, y.cols, x.cols, stride);
}

void GroupedBackwardInput::Check() const {
  CheckGroups(group_starts);
  ExpectReals(dy, "dy", dx.rows, w.rows, dy);
  ExpectReals(dx, "dx", dy.rows, w.cols, dy);
  ExpectReals(w, "w", dy.cols, dx.cols, dy);
  CheckWeights(w, dy.cols, dx.cols, stride);
}

void GroupedBackwardWeight::Check() const {
  CheckGroups(group_starts);
  ExpectReals(x, "x", dy.rows, dw.cols, x);
  ExpectReals(dy, "dy", x.rows, dw.rows, x);
  ExpectSums(dw, "dw", dy.cols, x.cols);
  CheckWeights(dw, dy.cols, x.cols, stride);
}

void WeightedGatedForward::Check() const {
  ExpectReals(gate, "gate", y.rows, y.cols, y);
  ExpectReals(up, "up", y.rows, y.cols, y);
  CheckAssignments(assignments, weights, y.rows);
}

void WeightedGatedBackward::Check() const {
  for (const Tensor* x : {&gate, &up, &dgate, &dup}) ExpectReals(*x, "x", dy.rows, dy.cols, dy);
  CheckAssignments(assignments, weights, dy.rows);
  ExpectSums(dweights, "dweights", weights.rows, weights.cols);
}

}  // namespace atl
