#include "kernels/ops.h"

namespace atl {
namespace {

void CheckTensor(const Tensor& x, const char* name) {
  ATOLL_CHECK(x.rows >= 0 && x.cols >= 0 && x.stride >= x.cols, name, ": ", x.rows, " x ", x.cols,
              " with stride ", x.stride);
}

void CheckShape(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
  CheckTensor(x, name);
  ATOLL_CHECK(x.rows == rows && x.cols == cols, name, " is ", x.rows, " x ", x.cols, ", not ", rows,
              " x ", cols);
}

// Or f64, which only the reference backend takes.
void CheckF32(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
  CheckShape(x, name, rows, cols);
  ATOLL_CHECK(x.dtype == DType::kFloat32 || x.dtype == DType::kFloat64, name, " must be f32");
}

void CheckInt32(const Tensor& x, const char* name, int64_t cols) {
  CheckShape(x, name, 1, cols);
  ATOLL_CHECK(x.dtype == DType::kInt32, name, " must be int32");
}

// An activation of the same type as `like`.
void CheckAct(const Tensor& x, const char* name, int64_t rows, int64_t cols, const Tensor& like) {
  CheckShape(x, name, rows, cols);
  ATOLL_CHECK(x.dtype != DType::kInt32, name, " must hold reals");
  ATOLL_CHECK(x.dtype == like.dtype, name, ": activations of one operation have one dtype");
}

void CheckOptionalAct(const Tensor& x, const char* name, int64_t rows, int64_t cols,
                      const Tensor& like) {
  if (x.rows != 0 || x.present()) CheckAct(x, name, rows, cols, like);
}

// Rows are so many parts of `width` columns; one, with a mean.
void CheckNorm(const Tensor& x, int64_t width, const Tensor& mean, const Tensor& rstd) {
  ATOLL_CHECK(width > 0 && x.cols % width == 0, x.cols, " columns are not parts of ", width);
  CheckF32(rstd, "rstd", x.cols / width, x.rows);
  ATOLL_CHECK(rstd.contiguous(), "rstd must be contiguous");
  if (mean.rows == 0) return;
  ATOLL_CHECK(width == x.cols, "means are of whole rows");
  CheckF32(mean, "mean", 1, x.rows);
}

void CheckSequences(int64_t rows, int64_t seq_len, int64_t position_offset, const Tensor& starts) {
  ATOLL_CHECK(seq_len > 0 && rows % seq_len == 0, rows, " rows are not whole sequences of ",
              seq_len);
  ATOLL_CHECK(position_offset >= 0);
  if (starts.present()) CheckInt32(starts, "starts", rows);
}

void CheckPositions(const Tensor& x, const char* name, int64_t needed, int64_t cols) {
  CheckTensor(x, name);
  ATOLL_CHECK(x.rows >= needed && x.cols == cols, name, " is ", x.rows, " x ", x.cols, "; needs ",
              needed, " rows of ", cols);
}

void CheckAttention(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& out, const Tensor& lse, const Tensor& lengths,
                    const Tensor& starts) {
  ATOLL_CHECK(s.batch > 0 && s.seq_len > 0 && s.head_dim > 0 && s.kv_heads > 0);
  ATOLL_CHECK(s.heads > 0 && s.heads % s.kv_heads == 0, s.heads, " heads over ", s.kv_heads);
  ATOLL_CHECK(s.scale > 0, "attention needs a scale");
  const int64_t n = s.batch * s.seq_len;
  CheckAct(q, "q", n, s.heads * s.head_dim, q);
  CheckAct(k, "k", n, s.kv_heads * s.head_dim, q);
  CheckAct(v, "v", n, s.kv_heads * s.head_dim, q);
  CheckAct(out, "out", n, s.heads * s.head_dim, q);
  CheckF32(lse, "lse", s.batch * s.heads, s.seq_len);
  ATOLL_CHECK(s.window == 0 || (s.window > 0 && s.causal), "a window of ", s.window);
  ATOLL_CHECK(s.softcap >= 0);
  if (lengths.present()) {
    CheckInt32(lengths, "lengths", s.batch);
    ATOLL_CHECK(s.window == 0, "a window over padded sequences may see nothing");
  }
  if (starts.present()) {
    CheckInt32(starts, "starts", n);
    ATOLL_CHECK(s.causal && !lengths.present(), "documents need causal attention without padding");
  }
}

void CheckFlat(const Tensor& x, const char* name, const Tensor& like) {
  CheckF32(x, name, like.rows, like.cols);
  ATOLL_CHECK(x.contiguous(), name, " must be contiguous");
}

}  // namespace

void LinearForward::Check() const {
  CheckAct(x, "x", x.rows, w.cols, x);
  CheckAct(w, "w", y.cols, x.cols, x);
  CheckAct(y, "y", x.rows, w.rows, x);
  CheckOptionalAct(bias, "bias", 1, w.rows, x);
  CheckOptionalAct(add, "add", x.rows, w.rows, x);
  if (activation != Activation::kNone) CheckAct(pre, "pre", x.rows, w.rows, x);
}

void LinearBackwardInput::Check() const {
  CheckAct(dy, "dy", dy.rows, w.rows, dy);
  CheckAct(w, "w", dy.cols, w.cols, dy);
  CheckAct(dx, "dx", dy.rows, w.cols, dy);
  CheckOptionalAct(add, "add", dy.rows, w.cols, dy);
  if (activation == Activation::kNone) return;
  CheckAct(pre, "pre", dy.rows, w.cols, dy);
  ATOLL_CHECK(!add.present() || add.data != dx.data, "with an activation, add cannot be dx");
}

void LinearBackwardWeight::Check() const {
  CheckAct(x, "x", dy.rows, x.cols, x);
  CheckAct(dy, "dy", x.rows, dy.cols, x);
  CheckF32(dw, "dw", dy.cols, x.cols);
  if (dbias.present()) CheckF32(dbias, "dbias", 1, dy.cols);
}

void EmbeddingForward::Check() const {
  CheckInt32(tokens, "tokens", y.rows);
  CheckSequences(y.rows, seq_len, position_offset, starts);
  CheckAct(table, "table", table.rows, y.cols, y);
  if (positions.present()) {
    CheckPositions(positions, "positions", position_offset + seq_len, y.cols);
    ATOLL_CHECK(positions.dtype == y.dtype);
  }
  CheckOptionalAct(types, "types", types.rows, y.cols, y);
}

void EmbeddingBackwardWeight::Check() const {
  CheckInt32(tokens, "tokens", dy.rows);
  CheckSequences(dy.rows, seq_len, position_offset, starts);
  CheckF32(dtable, "dtable", dtable.rows, dy.cols);
  if (dpositions.present()) {
    CheckPositions(dpositions, "dpositions", position_offset + seq_len, dy.cols);
    ATOLL_CHECK(dpositions.dtype == dtable.dtype);
  }
  if (dtypes.present()) CheckF32(dtypes, "dtypes", dtypes.rows, dy.cols);
}

void NormForward::Check() const {
  CheckAct(x, "x", x.rows, x.cols, x);
  CheckAct(w, "w", 1, w.cols, x);
  if (centred()) CheckAct(b, "b", 1, w.cols, x);
  CheckAct(y, "y", x.rows, x.cols, x);
  CheckNorm(x, w.cols, mean, rstd);
}

void NormBackwardInput::Check() const {
  CheckAct(dy, "dy", x.rows, x.cols, x);
  CheckAct(w, "w", 1, w.cols, x);
  CheckNorm(x, w.cols, mean, rstd);
  CheckOptionalAct(add, "add", x.rows, x.cols, x);
  CheckAct(dx, "dx", x.rows, x.cols, x);
}

void NormBackwardWeight::Check() const {
  CheckAct(dy, "dy", x.rows, x.cols, x);
  CheckNorm(x, dw.cols, mean, rstd);
  CheckF32(dw, "dw", 1, dw.cols);
  if (centred()) CheckF32(db, "db", 1, dw.cols);
}

void Rope::Check() const {
  CheckAct(x, "x", x.rows, x.cols, x);
  CheckSequences(x.rows, seq_len, position_offset, starts);
  CheckPositions(table, "table", position_offset + seq_len, table.cols);
  ATOLL_CHECK(table.dtype == StateType(x.dtype) && table.cols > 0 && table.cols % 2 == 0);
  ATOLL_CHECK(x.cols % table.cols == 0, x.cols, " channels are not whole heads of ", table.cols);
}

void AttentionForward::Check() const { CheckAttention(shape, q, k, v, out, lse, lengths, starts); }

void AttentionBackward::Check() const {
  CheckAttention(shape, q, k, v, out, lse, lengths, starts);
  CheckAct(dout, "dout", q.rows, q.cols, q);
  CheckAct(dq, "dq", q.rows, q.cols, q);
  CheckAct(dk, "dk", k.rows, k.cols, q);
  CheckAct(dv, "dv", v.rows, v.cols, q);
}

void GatedForward::Check() const {
  CheckAct(gate, "gate", y.rows, y.cols, y);
  CheckOptionalAct(up, "up", y.rows, y.cols, y);
  CheckAct(y, "y", y.rows, y.cols, y);
}

void GatedBackward::Check() const {
  for (const Tensor* x : {&gate, &dy, &dgate})
    CheckAct(*x, "a tensor of a gate", dy.rows, dy.cols, dy);
  for (const Tensor* x : {&up, &dup})
    CheckOptionalAct(*x, "a tensor of a gate", dy.rows, dy.cols, dy);
  ATOLL_CHECK(up.present() == dup.present(), "up and its gradient come together");
}

void SoftcapForward::Check() const {
  CheckAct(x, "x", y.rows, y.cols, y);
  CheckAct(y, "y", y.rows, y.cols, y);
  ATOLL_CHECK(cap > 0);
}

void SoftcapBackward::Check() const {
  for (const Tensor* t : {&x, &dy, &dx})
    CheckAct(*t, "a tensor of soft caps", dy.rows, dy.cols, dy);
  ATOLL_CHECK(cap > 0);
}

void AddScaled::Check() const {
  for (const Tensor* x : {&a, &b, &out}) {
    CheckShape(*x, "a tensor of AddScaled", out.rows, out.cols);
    ATOLL_CHECK(x->dtype != DType::kInt32, "AddScaled adds reals");
  }
}

void Scale::Check() const { CheckAct(x, "x", x.rows, x.cols, x); }

void Convert::Check() const {
  CheckShape(from, "from", to.rows, to.cols);
  CheckShape(to, "to", from.rows, from.cols);
  ATOLL_CHECK((from.dtype == DType::kInt32) == (to.dtype == DType::kInt32), "tokens are not reals");
}

void CrossEntropy::Check() const {
  CheckAct(logits, "logits", logits.rows, logits.cols, logits);
  CheckInt32(targets, "targets", logits.rows);
  CheckOptionalAct(dlogits, "dlogits", logits.rows, logits.cols, logits);
  CheckF32(totals, "totals", 1, 2);
  ATOLL_CHECK(smoothing >= 0 && smoothing < 1 && (smoothing == 0 || sums.rows == 0), "smoothing ",
              smoothing);
  if (max.rows == 0 && sums.rows == 0) return;
  CheckF32(max, "max", 1, logits.rows);
  CheckF32(sums, "sums", 3, logits.rows);
}

void CrossEntropyMax::Check() const {
  CheckAct(logits, "logits", logits.rows, logits.cols, logits);
  ATOLL_CHECK(logits.cols > 0, "a part of a vocabulary without classes");
  CheckF32(max, "max", 1, logits.rows);
}

void CrossEntropySums::Check() const {
  CheckAct(logits, "logits", logits.rows, logits.cols, logits);
  CheckInt32(targets, "targets", logits.rows);
  CheckF32(max, "max", 1, logits.rows);
  CheckF32(sums, "sums", 3, logits.rows);
}

namespace {

void CheckUpdate(const Tensor& grad, const Tensor& grad_scale, const Tensor& param_copy) {
  if (grad_scale.present()) CheckF32(grad_scale, "grad_scale", 1, 1);
  if (!param_copy.present()) return;
  CheckShape(param_copy, "param_copy", grad.rows, grad.cols);
  ATOLL_CHECK(param_copy.dtype == DType::kBfloat16 && param_copy.contiguous());
}

}  // namespace

void AdamStep::Check() const {
  for (const Tensor* x : {&param, &grad, &m, &v}) CheckFlat(*x, "a buffer of AdamStep", param);
  CheckUpdate(grad, grad_scale, param_copy);
  ATOLL_CHECK(step >= 1, "AdamStep counts steps from 1");
}

void MomentumStep::Check() const {
  for (const Tensor* x : {&grad, &m}) CheckFlat(*x, "a buffer of MomentumStep", grad);
  for (const Tensor* x : {&param, &v}) {
    if (x->present()) CheckFlat(*x, "a buffer of MomentumStep", grad);
  }
  CheckUpdate(grad, grad_scale, param_copy);
  const bool updates = param.present() || grad.data == nullptr;
  ATOLL_CHECK(updates || (weight_decay == 0 && !param_copy.present()), "nothing to update");
}

void LambNorms::Check() const {
  step.Check();
  CheckF32(sums, "sums", 1, 2);
}

void Normalize::Check() const {
  for (const Tensor* t : {&x, &y}) CheckFlat(*t, "a buffer of Normalize", x);
  CheckF32(sum_of_squares, "sum_of_squares", 1, 1);
}

void SumOfSquares::Check() const {
  CheckFlat(x, "x", x);
  CheckF32(out, "out", 1, 1);
}

void ClipScale::Check() const {
  CheckF32(sum_of_squares, "sum_of_squares", 1, 1);
  CheckF32(scale, "scale", 1, 1);
  ATOLL_CHECK(max_norm > 0);
}

void DecodeWeights::Check() const {
  const int64_t rows = y.rows, cols = y.cols, blocks = cols / kWeightBlock;
  ATOLL_CHECK(cols > 0 && cols % kWeightBlock == 0 && y.contiguous(), "y of ", cols, " columns");
  ATOLL_CHECK(codes.dtype == DType::kInt32 && scales.dtype == DType::kInt32 && codes.contiguous() &&
                  scales.contiguous() && coarse.contiguous() && coarse.dtype == DType::kFloat32,
              "codes are bytes in int32, and coarse scales f32");
  ATOLL_CHECK(4 * codes.size() == GetCodeBytes(code, rows * cols), codes.size(), " words of codes");
  ATOLL_CHECK(4 * scales.size() >= rows * blocks, scales.size(), " words of scales");
  const int64_t last = first_scale + (rows - 1) * scale_step + blocks - 1;
  ATOLL_CHECK(first_scale >= 0 && scale_step >= blocks && last / kScaleBlock + 1 < coarse.cols,
              "scale ", last, " of ", coarse.cols - 1, " groups");
}

}  // namespace atl
