// The parts of a transformer, beyond its sizes: one Architecture describes a family, and layers,
// layouts and costs follow it. Nothing outside families/ depends on which family a model is of.

#ifndef ATOLL_COMMON_MODEL_ARCHITECTURE_H_
#define ATOLL_COMMON_MODEL_ARCHITECTURE_H_

#include <cstdint>
#include <string>

namespace atl {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };

// Where the norms of a half of a block stand; f is attention or the feed-forward.
enum class NormPosition : uint8_t {
  kBefore,  // x + f(norm(x))
  kAfter,   // x + norm(f(x))
  kAround,  // x + norm(f(norm(x)))
  kSum,     // norm(x + f(x)): the original transformer, BERT
};

constexpr bool HasNormBefore(NormPosition position) {
  return position == NormPosition::kBefore || position == NormPosition::kAround;
}
constexpr bool HasNormAfter(NormPosition position) { return position != NormPosition::kBefore; }

enum class Positions : uint8_t { kLearned, kRotary };

// Norms of queries and keys before they are turned.
enum class QkNorm : uint8_t {
  kNone,
  kEachHead,  // over a head's channels, one weight for all heads
  kAllHeads,  // over all channels: heads cannot be cut
};

enum class FeedForward : uint8_t {
  kPlain,  // down(act(up(x)))
  kGated,  // down(act(gate(x)) * up(x))
};

enum class Nonlinearity : uint8_t { kSilu, kGeluTanh, kGeluErf };

// The last layer's work and its training objective.
enum class Objective : uint8_t {
  kNextToken,    // final norm, product with the head's matrix
  kMaskedToken,  // transform, norm, product with the table and a bias; some tokens are masked
  kImageClass,   // of models of images, which image_model.h describes
};

// Parameters' names in files, without ".weight" and ".bias"; empty where the family has none. Those
// of a block stand behind block_prefix, the block's number and ".".
struct ParamNames {
  std::string block_prefix;
  std::string embedding, positions, token_types, embedding_norm;
  std::string final_norm, head;
  std::string transform, transform_norm;
  std::string head_bias;  // whole name
  // Names of a block's matrices. Either qkv or (query, key, value) is set, and either gate_up or
  // (gate, up); up alone if plain.
  std::string qkv, query, key, value, query_norm, key_norm, out;
  std::string gate_up, gate, up, down;
  // Blocks with experts have these; an expert's matrices stand behind expert_prefix, its number and
  // ".".
  std::string router, correction;  // the latter: whole name within the block
  std::string expert_prefix, expert_gate, expert_up, expert_down;
  std::string shared_gate, shared_up, shared_down, shared_weight;
  std::string attention_norm, after_attention_norm;  // before and after
  std::string feed_forward_norm, after_feed_forward_norm;
};

struct Architecture {
  NormKind norm = NormKind::kRmsNorm;
  NormPosition norm_position = NormPosition::kBefore;
  bool norms_from_zero = false;  // files have the norms' weights less 1
  Positions positions = Positions::kRotary;
  QkNorm qk_norm = QkNorm::kNone;
  FeedForward feed_forward = FeedForward::kGated;
  Nonlinearity nonlinearity = Nonlinearity::kSilu;
  bool qkv_bias = false;
  bool out_bias = false;           // of attention's output
  bool feed_forward_bias = false;  // of both products
  bool causal = true;
  int64_t token_types = 0;  // rows of the segments' table; 0: there is none
  bool embedding_norm = false;
  Objective objective = Objective::kNextToken;
  double embedding_scale = 1;
  double attention_scale = 0;
  double attention_softcap = 0;  // scores become cap * tanh(score / cap); 0: as they are
  double logit_softcap = 0;
  bool matrices_transposed = false;  // files have blocks' matrices as [in, out]
  ParamNames names;

  bool norm_bias() const { return norm == NormKind::kLayerNorm; }
  bool rotary() const { return positions == Positions::kRotary; }
  bool gated() const { return feed_forward == FeedForward::kGated; }
};

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_ARCHITECTURE_H_
