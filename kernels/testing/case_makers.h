// Makers of cases: one for each operation, or for a few that belong together.

#ifndef ATOLL_KERNELS_TESTING_CASE_MAKERS_H_
#define ATOLL_KERNELS_TESTING_CASE_MAKERS_H_

#include "kernels/testing/op_case.h"

namespace atl::testing {

inline constexpr auto kAct = Type::kAct;
inline constexpr auto kF32 = Type::kF32;
inline constexpr auto kOnlyF32 = Type::kOnlyF32;
inline constexpr auto kInt32 = Type::kInt32;

// Bytes of `count` f32 numbers.
inline double Floats(double count) { return 4 * count; }

// Part of a case's name.
const char* Name(Activation kind);

// ---- layer_cases.cc ----

OpCase LinearCase(int64_t n, int64_t in, int64_t out, bool bias, bool add,
                  Activation activation = Activation::kNone);
// The second half of an MLP, whose B goes back through the activation that made its input. `add`:
// another branch's gradient for that input.
OpCase ActivatedInputCase(int64_t n, int64_t in, int64_t out, Activation activation,
                          bool add = true);
// The same with gaps between these arguments' rows that are 8 elements wider than others'.
OpCase WithWiderGaps(OpCase op_case, const std::vector<std::string>& arguments);
// The same with several documents in each sequence, of lengths that differ.
OpCase WithDocuments(OpCase op_case, int64_t sequences, int64_t seq_len, int64_t documents);
OpCase EmbeddingCase(int64_t batch, int64_t seq_len, int64_t vocabulary, int64_t channels,
                     bool positions, int64_t offset);
// A part of a table, that some of the tokens are in.
OpCase EmbeddingPartCase(int64_t batch, int64_t seq_len, int64_t first_token, int64_t rows,
                         int64_t channels);
OpCase RmsNormCase(int64_t n, int64_t channels, bool add, int64_t heads = 1);
OpCase LayerNormCase(int64_t n, int64_t channels, bool add);
OpCase RopeCase(int64_t batch, int64_t seq_len, int64_t heads, int64_t head_dim, int64_t offset);
OpCase AttentionCase(int64_t batch, int64_t seq_len, int64_t heads, int64_t kv_heads,
                     int64_t head_dim);
// Makes a case of attention with a shape's mask, and with `padded` also the ends of sequences
// hidden.
OpCase MaskedAttentionCase(AttentionShape shape, bool padded = false);
// Tokens of three types.
OpCase TypedEmbeddingCase(int64_t batch, int64_t seq_len, int64_t vocabulary, int64_t channels);

// ---- elementwise_cases.cc ----

OpCase GatedCase(int64_t n, int64_t channels, Activation kind = Activation::kSilu);
OpCase SoftcapCase(int64_t n, int64_t channels, float cap);
OpCase GeluCase(int64_t n, int64_t channels, Activation kind);
OpCase AddScaledCase(int64_t n, int64_t channels, Type a_type, Type b_type, Type out_type);
// In place on f32 (axpy), and a scale behind it.
OpCase InPlaceCase(int64_t n, int64_t channels);
OpCase ConvertCase(int64_t n, int64_t channels);
// Some targets are ignored. `in_place`: the gradient replaces the logits.
OpCase CrossEntropyCase(int64_t n, int64_t vocabulary, bool in_place, float smoothing = 0);
OpCase SmoothedCrossEntropyCase(int64_t n, int64_t classes);
// One part of a cut vocabulary, that some of the targets are in.
OpCase CrossEntropyPartCase(int64_t n, int64_t first_class, int64_t classes, bool in_place);
OpCase AdamCase(int64_t size, int64_t step, bool clip, bool copy, bool lamb);
// `divides`: RMSprop. Without `params` only the momentum is updated.
OpCase MomentumCase(int64_t size, bool divides, bool params, bool copy);
OpCase NormalizeCase(int64_t size);
// Rows of `cols` from column `first` on of a matrix of `whole` columns, from scale group 1 on.
OpCase DecodeCase(WeightCode code, int64_t rows, int64_t cols, int64_t first, int64_t whole);
OpCase ClipCase(int64_t size, float max_norm);

// ---- expert_cases.cc ----

// `biased`: the bias alone decides; with losses where there are sequences.
OpCase RouterCase(int64_t n, int64_t experts, int64_t k, const RouterRule& rule, bool biased,
                  int64_t sequences = 0);
OpCase BalanceCase(int64_t experts, bool copy);
// Gated experts [first, first + here) from tokens to tokens, with and without a sum that they add
// to.
OpCase ExpertsCase(int64_t n, int64_t d, int64_t hidden, int64_t experts, int64_t k, int64_t first,
                   int64_t here, bool add);
std::vector<OpCase> ExpertTestCases();

// ---- image_cases.cc ----

OpCase PixelsCase(int64_t pixels, int64_t channels);
OpCase ConvCase(const ConvShape& shape);
OpCase BatchNormCase(int64_t n, int64_t channels, Activation activation, bool add);
// By running statistics, and how these run.
OpCase RunningNormCase(int64_t n, int64_t channels);
OpCase PoolCase(PoolKind kind, const WindowShape& shape, int64_t channels, bool add);
OpCase ChannelGateCase(int64_t batch, int64_t rows, int64_t channels);
OpCase CountHitsCase(int64_t n, int64_t classes, bool parted);
std::vector<OpCase> ImageTestCases();

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_CASE_MAKERS_H_
