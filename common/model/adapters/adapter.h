// Adapters of a model: beside the frozen matrix W of a target, trained A [rank, in] and B [out,
// rank], whose product scale * B (A x) is added to W x (LoRA, Hu et al. 2021). A job's [adapter]
// becomes part of its ModelConfig, and layouts, stashes and costs follow that.

#ifndef ATOLL_COMMON_MODEL_ADAPTERS_ADAPTER_H_
#define ATOLL_COMMON_MODEL_ADAPTERS_ADAPTER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "common/weight_codes.h"

namespace atl {

struct Architecture;
struct ModelConfig;

struct AdapterConfig {
  int64_t rank = 0;  // 0: the model has no adapter, and all of it is trained
  double alpha = 0;
  bool use_rslora = false;
  // Ends of names of blocks' matrices, as PEFT's target_modules; or kAllLinear alone.
  std::vector<std::string> targets;
  // Frozen matrices of attention and of dense feed-forwards are stored so, which are the linear
  // layers of blocks that bitsandbytes replaces; routers and experts, whose matrices newer models
  // have as one stacked parameter, the embedding, the head, norms and biases are not. None: all are
  // numbers of the compute type.
  std::optional<WeightCode> base = std::nullopt;
  AdapterInit init = AdapterInit::kKaiming;

  bool present() const { return rank > 0; }
  double scale() const;  // alpha / rank, or alpha / sqrt(rank)
  // Returns whether the matrix of this name within its block ("self_attn.q_proj") is a target.
  bool Adapts(absl::string_view matrix) const;

  bool operator==(const AdapterConfig&) const = default;
};
inline constexpr char kAllLinear[] = "all-linear";

// The products of a block; each one multiplies an input with one or several matrices.
enum class BlockProduct : uint8_t { kQueryKeyValue, kOut, kUp, kDown };
inline constexpr size_t kBlockProducts = 4;

// Counts the columns of A x of all targets of each product.
std::array<int64_t, kBlockProducts> CountAdapterColumns(const ModelConfig& config);

// The model with the job's adapter. INVALID_ARGUMENT: a family that has no targets, a target that
// no matrix of its blocks is called, or a base whose codes' blocks would cross rows.
absl::StatusOr<ModelConfig> WithAdapter(ModelConfig config, const AdapterSpec& spec);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_ADAPTERS_ADAPTER_H_
