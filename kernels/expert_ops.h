// The arguments of operations on mixtures of experts; see ops.h for the notation and rules.
//
// A router gives each of N tokens k of E experts, and weights. Assignment n * k + j is token n's
// j-th. Products run on rows that are sorted by expert, in one launch for all: GroupTokens says
// where each assignment lies, for a share [first, first + G) of the experts that are here. R is
// the number of rows that there is room for; those behind the last assignment are neither read nor
// written by any operation. int32 tensors are contiguous.

#ifndef ATOLL_KERNELS_EXPERT_OPS_H_
#define ATOLL_KERNELS_EXPERT_OPS_H_

#include <cstdint>

#include "kernels/tensor.h"

namespace atl {

enum class Activation : uint8_t;

// ---- Router. scores = softmax of a row's logits, or sigmoid of each. An expert's weight is its
// score, divided by the sum of the token's k if `normalise`, times `scale`. All sigmoids may be 0:
// kRouterEpsilon is added to sums of theirs that divide. ----

inline constexpr float kRouterEpsilon = 1e-20f;

enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

struct RouterRule {
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = false;
  float scale = 1.0f;
};

// Chooses the k experts of the largest logits, or, with a bias, of the largest scores + bias; of
// equal ones the lowest. The largest comes first.
struct RouteForward {
  RouterRule rule;
  Tensor logits;   // act [N, E]
  Tensor bias;     // f32 [1, E]; optional. As small as its differences are, they decide
  Tensor experts;  // int32 [N, k]
  Tensor weights;  // f32 [N, k]
  void Check() const;
};

// Padding of a sequence is marked by `starts` (ops.h) as documents of one token each, which no
// router counts. The sequence's last token is one if that before it is one.
inline bool IsPadding(const int32_t* starts, int64_t n, int64_t seq_len) {
  const int64_t at = n % seq_len;
  if (starts == nullptr || at == 0 || starts[n] != at) return false;
  return at + 1 < seq_len ? starts[n + 1] == at + 1 : starts[n - 1] == at - 1;
}

// counts[s][e] = assignments of sequence s's tokens to expert e, without padding.
struct CountExperts {
  Tensor experts;  // int32 [N, k]
  Tensor counts;   // int32 [N / T, E]
  Tensor starts;   // int32 [1, N]; optional
  void Check() const;
};

// Losses of the router's own, as each of them is defined for a sequence of T tokens without
// padding:
//   balance (Fedus et al. 2021; transformers' of a batch of one sequence and one layer):
//     E sum over e of counts[e] / T * mean over tokens of p[e], p = scores / sum of a row's scores
//   z (Zoph et al. 2022): mean over tokens of log(sum of exp(logits))^2
// totals += share * {balance, z} of each sequence, and behind these counts of each expert. The
// losses' gradients are times `balance` and `z`, and `share`. Choices have no gradient; loads +=
// E times each expert's counts less those of all, for BalanceExperts: whole numbers, whose sums
// over micro-batches have no rounding.
struct RouterLosses {
  float balance = 0, z = 0;
  Tensor share;   // f32 [1, 1]: of a sequence in the mean
  Tensor counts;  // from CountExperts
  Tensor starts;  // as there
  Tensor terms;   // f32 [2, N]: room
  Tensor totals;  // f32 [1, 2 + E]
  Tensor loads;   // f32 [1, E]; optional

  bool present() const { return totals.present(); }
};

// B: the gradient of logits.
struct RouteBackward {
  RouterRule rule;
  Tensor logits;    // act [N, E]
  Tensor experts;   // int32 [N, k]
  Tensor dweights;  // f32 [N, k]
  Tensor dlogits;   // act [N, E]
  RouterLosses losses;
  void Check() const;
};

// bias -= rate * sign(loads): experts that many tokens chose become less likely to be chosen,
// others more (Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing"). Flat.
struct BalanceExperts {
  Tensor bias;        // f32
  Tensor loads;       // f32
  Tensor param_copy;  // bf16; optional: receives the new numbers rounded
  float rate = 0;
  bool zero_loads = false;
  void Check() const;
};

// ---- Order ----

// Sorts assignments by expert; those of one expert stay in their order.
struct GroupTokens {
  Tensor experts;       // int32 [N, k]
  int64_t first = 0;    // the first expert here
  Tensor group_starts;  // int32 [1, G + 1]: group g is rows [group_starts[g], group_starts[g + 1])
  Tensor assignments;   // int32 [1, R], R >= N min(k, G): by row; -1 behind the last
  Tensor rows;          // int32 [N, k]: by assignment; -1 where its expert is not here
  void Check() const;
};

// y[r] = x[the token of row r]: to sorted rows; also B of AddRows.
struct GatherRows {
  Tensor x;               // act [N, C]
  Tensor assignments;     // int32 [1, R]
  int64_t per_token = 0;  // k
  Tensor y;               // act [R, C]
  void Check() const;
};

// y[n] = add[n] + sum of x[r] over the rows of token n, in the order of its assignments: back from
// sorted rows; also B of GatherRows.
struct AddRows {
  Tensor x;     // act [R, C]
  Tensor rows;  // int32 [N, k]
  Tensor add;   // act [N, C]; optional
  Tensor y;     // act [N, C]; may be add
  void Check() const;
};

// ---- Experts: linear layers by group. Matrix g is w's, `stride` elements further for each g. ----

// y = x w[g]^T.
struct GroupedForward {
  Tensor x;  // act [R, in]
  Tensor w;  // act [out, in]: of the first group
  int64_t stride = 0;
  Tensor group_starts;  // int32 [1, G + 1]
  Tensor y;             // act [R, out]
  void Check() const;
};

// B: dx = dy w[g].
struct GroupedBackwardInput {
  Tensor dy;  // act [R, out]
  Tensor w;   // act [out, in]
  int64_t stride = 0;
  Tensor group_starts;  // int32 [1, G + 1]
  Tensor dx;            // act [R, in]
  void Check() const;
};

// W: dw[g] += dy^T x.
struct GroupedBackwardWeight {
  Tensor x;             // act [R, in]
  Tensor dy;            // act [R, out]
  Tensor group_starts;  // int32 [1, G + 1]
  Tensor dw;            // f32 [out, in]
  int64_t stride = 0;
  void Check() const;
};

// y[r] = weight of r's assignment * activation(gate[r]) * up[r]. Weighing here instead of behind
// the next product leaves nothing of that one's output to keep. Without `assignments` rows are
// assignments.
struct WeightedGatedForward {
  Tensor gate;         // act [R, F]
  Tensor up;           // act [R, F]
  Tensor weights;      // f32 [N, k]
  Tensor assignments;  // int32 [1, R]; optional
  Tensor y;            // act [R, F]
  Activation kind{};   // kSilu or another
  void Check() const;
};

struct WeightedGatedBackward {
  Tensor gate;         // act [R, F]
  Tensor up;           // act [R, F]
  Tensor weights;      // f32 [N, k]
  Tensor assignments;  // int32 [1, R]; optional
  Tensor dy;           // act [R, F]
  Tensor dgate;        // act [R, F]; may be any of the acts above
  Tensor dup;          // act [R, F]; likewise, but not dgate
  Tensor dweights;     // f32 [N, k]; only of the assignments of rows here
  Activation kind{};
  void Check() const;
};

// Their part of ATOLL_OPERATIONS.
#define ATOLL_EXPERT_OPERATIONS(PLAIN, RARE) \
  RARE(RouteForward)                         \
  RARE(CountExperts)                         \
  RARE(RouteBackward)                        \
  RARE(BalanceExperts)                       \
  RARE(GroupTokens)                          \
  PLAIN(GatherRows)                          \
  PLAIN(AddRows)                             \
  PLAIN(GroupedForward)                      \
  PLAIN(GroupedBackwardInput)                \
  PLAIN(GroupedBackwardWeight)               \
  PLAIN(WeightedGatedForward)                \
  PLAIN(WeightedGatedBackward)

}  // namespace atl

#endif  // ATOLL_KERNELS_EXPERT_OPS_H_
