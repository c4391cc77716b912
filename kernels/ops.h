// The arguments of every operation: what it computes, shapes, and which tensors may be the same.
// Notation: N = B * T tokens (rows), C channels. "f32" tensors are always kFloat32. "act" tensors
// (activations, their gradients, and the weights an operation multiplies with) are all of the
// backend's compute type: kFloat32, or kBfloat16 where Backend::Supports says so. Where a backend
// computes in kFloat64 (the reference does, for tests), "f32" tensors are kFloat64 too. Gradients
// of weights are f32 and ACCUMULATE (dw += ...), because micro-batches do; zero them first. Unless
// a comment allows it, an output overlaps no other argument. `add` operands are optional: absent,
// the sum starts from zero; one may be the output itself, but not overlap it partly.
//
// Check() aborts on shapes that do not fit together: that is a bug of the caller. Every backend
// calls it first. Checks look at shapes only where a workspace is requested (data may be null).

#ifndef ATOLL_KERNELS_OPS_H_
#define ATOLL_KERNELS_OPS_H_

#include <cstdint>

#include "common/ids.h"
#include "kernels/coded_ops.h"
#include "kernels/expert_ops.h"
#include "kernels/image_ops.h"
#include "kernels/tensor.h"

namespace atl {

// Derivatives follow PyTorch: kGeluTanh is "gelu_new", kGeluErf the exact one.
enum class Activation : uint8_t { kNone, kGeluTanh, kGeluErf, kSilu, kRelu };

// Where sequences hold several documents: `starts`, int32 [1, N], is of each token the position in
// its sequence where its document begins. It never falls within a sequence, nor passes the token.
// Positions then count from there.
inline int64_t PositionInDocument(const Tensor& starts, int64_t n, int64_t seq_len) {
  return n % seq_len - (starts.present() ? starts.as<int32_t>()[n] : 0);
}

// ---- Linear: y = activation(x W^T + bias) + add. Weights are [out, in] as in PyTorch. ----

struct LinearForward {
  Tensor x;     // act [N, in]
  Tensor w;     // act [out, in]
  Tensor bias;  // act [1, out]; optional
  Tensor add;   // act [N, out]; optional; a residual stream
  Tensor y;     // act [N, out]
  Activation activation = Activation::kNone;
  Tensor pre;  // act [N, out]: x W^T + bias, kept for backward; present iff activation != kNone
  void Check() const;
};

// B: dx = (dy W) * activation'(pre) + add, where `activation` is the one that PRODUCED x.
struct LinearBackwardInput {
  Tensor dy;   // act [N, out]
  Tensor w;    // act [out, in]
  Tensor add;  // act [N, in]; optional; may be dx only without an activation
  Tensor dx;   // act [N, in]
  Activation activation = Activation::kNone;
  Tensor pre;  // act [N, in]; present iff activation != kNone
  void Check() const;
};

// W: dw += dy^T x, dbias += sum over rows of dy.
struct LinearBackwardWeight {
  Tensor x;      // act [N, in]
  Tensor dy;     // act [N, out]
  Tensor dw;     // f32 [out, in]
  Tensor dbias;  // f32 [1, out]; optional
  void Check() const;
};

// ---- Embedding: y[n] = table[tokens[n]] + positions[position_offset + n mod T]. ----
// Where tokens are `typed`, the upper 8 bits of each are its type (a segment), whose row is added.
// Of a table cut by rows, `part` of it holds the rows [first_token, first_token + V): tokens
// outside add nothing, neither to y nor to dtable.

inline constexpr int kTypeShift = 24;
inline constexpr int32_t kTokenMask = (1 << kTypeShift) - 1;

struct EmbeddingForward {
  Tensor tokens;        // int32 [1, N]; each in [0, V): the data loader guarantees it
  Tensor table;         // act [V, C]
  Tensor positions;     // act [>= position_offset + T, C]; optional (learned positions)
  Tensor types;         // act [types, C]; optional
  Tensor y;             // act [N, C]
  int64_t seq_len = 0;  // T, divides N
  int64_t position_offset = 0;
  bool typed = false;
  bool part = false;  // else all tokens must be in the table
  int64_t first_token = 0;
  Tensor starts;  // optional
  void Check() const;
};

// W: dtable[tokens[n]] += dy[n], dpositions[position_offset + n mod T] += dy[n], in the order of n.
struct EmbeddingBackwardWeight {
  Tensor tokens;      // int32 [1, N]
  Tensor dy;          // act [N, C]
  Tensor dtable;      // f32 [V, C]
  Tensor dpositions;  // f32; optional
  Tensor dtypes;      // f32; optional: += dy of the tokens of a type
  int64_t seq_len = 0;
  int64_t position_offset = 0;
  bool typed = false;
  bool part = false;
  int64_t first_token = 0;
  Tensor starts;  // optional
  void Check() const;
};

// ---- RMSNorm: y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps), of each of the k parts of each
// row: k heads, or 1. With a mean LayerNorm, whose k is 1: y = (x - mean) * rstd * w + b, rstd = 1
// / sqrt(variance + eps). ----

struct NormForward {
  Tensor x;     // act [N, k C]
  Tensor w;     // act [1, C]
  Tensor b;     // act [1, C]; with a mean
  Tensor y;     // act [N, k C]; may be x
  Tensor mean;  // f32 [1, N], kept for backward; optional
  Tensor rstd;  // f32 [k, N], kept for backward
  float eps = 1e-5f;
  bool centred() const { return mean.rows != 0; }
  void Check() const;
};

// B: dx = add + gradient of the norm.
struct NormBackwardInput {
  Tensor dy;    // act [N, k C]
  Tensor x;     // act [N, k C]
  Tensor w;     // act [1, C]
  Tensor mean;  // f32 [1, N]; as in forward
  Tensor rstd;  // f32 [k, N]
  Tensor add;   // act [N, k C]; optional
  Tensor dx;    // act [N, k C]; may be dy or add
  bool centred() const { return mean.rows != 0; }
  void Check() const;
};

// W: dw += sum over rows and their parts of dy * (x - mean) * rstd, db += sum over rows of dy.
struct NormBackwardWeight {
  Tensor dy;    // act [N, k C]
  Tensor x;     // act [N, k C]
  Tensor mean;  // f32 [1, N]; as in forward
  Tensor rstd;  // f32 [k, N]
  Tensor dw;    // f32 [1, C]
  Tensor db;    // f32 [1, C]; with a mean
  bool centred() const { return mean.rows != 0; }
  void Check() const;
};

// ---- Rotary positions, Hugging Face's "rotate_half": channel i of a head's first half turns with
// channel i of its second half by position * theta^(-2 i / head_dim). ----

// Row p of the table: cos of the head_dim / 2 angles of position p, then their sin.
// x is turned in place; `inverse` turns back, which is the gradient.
struct Rope {
  Tensor x;      // act [N, heads * head_dim]
  Tensor table;  // f32 [>= position_offset + T, head_dim]
  int64_t seq_len = 0;
  int64_t position_offset = 0;
  bool inverse = false;
  Tensor starts = {};  // optional
  void Check() const;
};

// ---- Attention with grouped queries: heads is a multiple of kv_heads, query head h reads key head
// h / (heads / kv_heads). out = softmax(cap(scale * q k^T), masked) v. ----

struct AttentionShape {
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;     // usually 1 / sqrt(head_dim)
  bool causal = true;  // a query sees no key behind it
  int64_t window = 0;  // and only the last `window` of them; 0: all. Causal only.
  float softcap = 0;   // scores become softcap * tanh(score / softcap); 0: as they are

  bool plain() const { return causal && window == 0 && softcap == 0; }
};

struct AttentionForward {
  AttentionShape shape;
  Tensor q;    // act [N, heads * head_dim]
  Tensor k;    // act [N, kv_heads * head_dim]
  Tensor v;    // act [N, kv_heads * head_dim]
  Tensor out;  // act [N, heads * head_dim]
  Tensor lse;  // f32 [batch * heads, T]: log of the sum of exp of each row, kept for backward
  // int32 [1, batch]; optional: of each sequence, the first keys that exist, 1 to T. The others are
  // padding, which nothing sees.
  Tensor lengths;
  Tensor starts;  // optional, causal alone: a query sees no key of an earlier document
  void Check() const;
};

struct AttentionBackward {
  AttentionShape shape;
  Tensor q, k, v, out, lse;  // as in forward
  Tensor dout;               // act [N, heads * head_dim]
  Tensor dq;                 // act [N, heads * head_dim]
  Tensor dk;                 // act [N, kv_heads * head_dim]
  Tensor dv;                 // act [N, kv_heads * head_dim]
  Tensor lengths, starts;    // as in forward
  void Check() const;
};

// ---- Elementwise ----

// y = activation(gate) * up, without `up` activation(gate).
struct GatedForward {
  Tensor gate;  // act [N, F]
  Tensor up;    // act [N, F]; optional
  Tensor y;     // act [N, F]; may be gate or up
  Activation kind = Activation::kSilu;
  void Check() const;
};

struct GatedBackward {
  Tensor gate;   // act [N, F]
  Tensor up;     // act [N, F]; as in forward
  Tensor dy;     // act [N, F]
  Tensor dgate;  // act [N, F]; may be any of the inputs
  Tensor dup;    // act [N, F]; likewise, but not dgate; absent as `up` is
  Activation kind = Activation::kSilu;
  void Check() const;
};

// y = cap * tanh(x / cap).
struct SoftcapForward {
  Tensor x;  // act [N, F]
  Tensor y;  // act [N, F]; may be x
  float cap = 0;
  void Check() const;
};

struct SoftcapBackward {
  Tensor x;   // act [N, F]
  Tensor dy;  // act [N, F]
  Tensor dx;  // act [N, F]; may be x or dy
  float cap = 0;
  void Check() const;
};

// out = a + alpha * b. Residual add (alpha 1), difference (-1), axpy (out is a). The three dtypes
// may differ (f32 or bf16 each, where the backend supports bf16), so a pseudo-gradient can leave
// in bf16.
struct AddScaled {
  Tensor a;
  Tensor b;
  Tensor out;  // may be a or b
  float alpha = 1.0f;
  void Check() const;
};

// x *= factor.
struct Scale {
  Tensor x;
  float factor = 1.0f;
  void Check() const;
};

// to = from, rounding to nearest even where precision is lost. Also plain copies.
struct Convert {
  Tensor from;
  Tensor to;
  void Check() const;
};

// ---- Loss: softmax cross-entropy with the gradient in the same pass. ----

// For each row with target != ignore_index: loss = log(sum exp(logits)) - logits[target];
// dlogits = (softmax(logits) - onehot) * grad_scale; other rows get zero gradient. With `smoothing`
// the target's class has 1 - smoothing of the weight, and all V classes, which are then whole,
// share the rest. totals[0] += sum of losses, totals[1] += number of rows counted.
struct CrossEntropy {
  Tensor logits;   // act [N, V]
  Tensor targets;  // int32 [1, N]; each in [0, V) or ignore_index
  Tensor dlogits;  // act [N, V]; may be logits (nothing else is then stored); absent: loss only
  Tensor totals;   // f32 [1, 2]
  float grad_scale = 1.0f;  // 1 / tokens of the whole batch, for a mean loss
  int32_t ignore_index = -100;
  float smoothing = 0;
  // Set where a vocabulary is cut into parts (below); both or neither. Targets may then be of any
  // part.
  Tensor max;
  Tensor sums;
  int64_t first_class = 0;
  void Check() const;
};

// The same over a vocabulary cut into parts, each of which has the logits of the classes
// [first_class, first_class + V): CrossEntropyMax, the maximum of its results over the parts,
// CrossEntropySums, the sum of its results over the parts, and CrossEntropy with both on every
// part, which all find the same totals. No part ever sees another's logits.
struct CrossEntropyMax {
  Tensor logits;  // act [N, V], V > 0
  Tensor max;     // f32 [1, N]: the largest of each row
  void Check() const;
};

struct CrossEntropySums {
  Tensor logits;   // act [N, V]
  Tensor targets;  // int32 [1, N]: a class of any part, or ignored
  Tensor max;      // f32 [1, N]: over all parts
  // f32 [3, N]: the sum of exp(logit - max); the target's logit - max, 0 where it is not here; how
  // many classes before the target reach the maximum, for CountHits.
  Tensor sums;
  int64_t first_class = 0;
  void Check() const;
};

// ---- Optimizer. All tensors are f32 and contiguous, flat buffers of any length. ----

// PyTorch's AdamW (decoupled decay) on one flat buffer, each byte moved once.
// `step` counts from 1. The gradient is multiplied by *grad_scale (read on the device) first.
//
// With `lamb` the step of LAMB (You et al. 2020). With m' and v', the moments without their bias:
//   direction = m' / (sqrt(v') + eps) + weight_decay * param
//   param = param - lr * direction
// The trust ratio of a matrix is in `lr`.
struct AdamStep {
  Tensor param;
  Tensor grad;
  Tensor m;           // first moment
  Tensor v;           // second moment
  Tensor grad_scale;  // f32 [1, 1]; optional
  Tensor param_copy;  // bf16, same size; optional: receives the new parameters rounded
  int64_t step = 0;
  double lr = 0;  // doubles: 1 - beta in float would already be off by 5e-5
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  bool zero_grad = false;  // also set grad to zero, ready for the next step's accumulation
  bool lamb = false;
  void Check() const;
};

// PyTorch's SGD with momentum, and its RMSprop where there is a mean square. With
// g = grad * *grad_scale + weight_decay * param:
//   v = alpha v + (1 - alpha) g^2, g = g / (sqrt(v) + eps)   where there is v
//   m = momentum m + g
//   param = param - lr m                                     where there is param
struct MomentumStep {
  Tensor param;  // optional
  Tensor grad;
  Tensor m;
  Tensor v;           // optional
  Tensor grad_scale;  // f32 [1, 1]; optional
  Tensor param_copy;  // bf16; optional: receives the new parameters rounded
  double lr = 0;
  double momentum = 0.9;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  bool zero_grad = false;
  void Check() const;
};

// Norms of what `step` would do. Only the sums change: sums += {sum of param^2, of direction^2}.
struct LambNorms {
  AdamStep step;
  Tensor sums;  // f32 [1, 2]
  void Check() const;
};

// y = x / (sqrt(sum_of_squares) + 1e-7).
struct Normalize {
  Tensor x;
  Tensor sum_of_squares;  // f32 [1, 1]
  Tensor y;               // may be x
  void Check() const;
};

// out = (accumulate ? out : 0) + sum of x^2. The result repeats bit for bit.
struct SumOfSquares {
  Tensor x;    // f32
  Tensor out;  // f32 [1, 1]
  bool accumulate = false;
  void Check() const;
};

// scale = min(1, max_norm / (sqrt(sum_of_squares) + 1e-6)), as PyTorch clips gradients.
struct ClipScale {
  Tensor sum_of_squares;  // f32 [1, 1]
  Tensor scale;           // f32 [1, 1]; may be sum_of_squares
  float max_norm = 1.0f;
  void Check() const;
};

// ---- All operations, of the headers above too. Backends declare theirs from it. ----
//   PLAIN    needs no scratch memory
//   SCRATCH  takes a Workspace
//   LIBRARY  likewise, and where a device has a library for it, that is tried first
//   RARE     needs none, and hosts do with one version for all backends

#define ATOLL_OPERATIONS(PLAIN, SCRATCH, LIBRARY, RARE) \
  LIBRARY(LinearForward)                                \
  LIBRARY(LinearBackwardInput)                          \
  LIBRARY(LinearBackwardWeight)                         \
  PLAIN(EmbeddingForward)                               \
  SCRATCH(EmbeddingBackwardWeight)                      \
  PLAIN(NormForward)                                    \
  PLAIN(NormBackwardInput)                              \
  SCRATCH(NormBackwardWeight)                           \
  PLAIN(Rope)                                           \
  LIBRARY(AttentionForward)                             \
  LIBRARY(AttentionBackward)                            \
  PLAIN(GatedForward)                                   \
  PLAIN(GatedBackward)                                  \
  PLAIN(SoftcapForward)                                 \
  PLAIN(SoftcapBackward)                                \
  PLAIN(AddScaled)                                      \
  PLAIN(Scale)                                          \
  PLAIN(Convert)                                        \
  SCRATCH(CrossEntropy)                                 \
  PLAIN(CrossEntropyMax)                                \
  PLAIN(CrossEntropySums)                               \
  PLAIN(AdamStep)                                       \
  PLAIN(MomentumStep)                                   \
  SCRATCH(LambNorms)                                    \
  PLAIN(Normalize)                                      \
  SCRATCH(SumOfSquares)                                 \
  RARE(ClipScale)                                       \
  PLAIN(PixelsForward)                                  \
  LIBRARY(ConvForward)                                  \
  LIBRARY(ConvBackwardInput)                            \
  LIBRARY(ConvBackwardWeight)                           \
  SCRATCH(BatchNormForward)                             \
  SCRATCH(BatchNormBackwardInput)                       \
  PLAIN(BatchNormBackwardWeight)                        \
  PLAIN(RunningMean)                                    \
  PLAIN(PoolForward)                                    \
  PLAIN(PoolBackward)                                   \
  PLAIN(ChannelGateForward)                             \
  PLAIN(ChannelGateBackward)                            \
  PLAIN(CountHits)                                      \
  PLAIN(DecodeWeights)                                  \
  ATOLL_EXPERT_OPERATIONS(PLAIN, RARE)

}  // namespace atl

#endif  // ATOLL_KERNELS_OPS_H_
