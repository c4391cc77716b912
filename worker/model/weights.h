// Where a model's parameters come from and go to: a seed, or a Hugging Face folder.

#ifndef ATOLL_WORKER_MODEL_WEIGHTS_H_
#define ATOLL_WORKER_MODEL_WEIGHTS_H_

#include <functional>
#include <span>
#include <string>

#include "common/model/adapters/peft.h"
#include "common/model/hugging_face.h"
#include "common/model/layout.h"
#include "worker/model/safetensors.h"

namespace atl {

// Fills one layer's flat buffer from a seed, the same on every machine: each parameter has a random
// stream of its own, named by the parameter, and only whole-number arithmetic is behind the
// numbers. A "normal" number is the sum of twelve 16-bit uniform ones (Irwin and Hall): standard
// deviation 1, no tails beyond 6. REQUIRES: params.size() == layout.size, blocks = number of
// blocks.
void InitLayer(const LayerLayout& layout, int64_t blocks, uint64_t seed, std::span<float> params);

// DIR/config.json. `warning`: as of ParseModelConfig.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& dir, std::string* warning = nullptr);

// Hands out a layer's flat buffer on the host; it stays good until the next call.
// Called for layers in order, possibly the same one several times in a row.
using LayerSource = std::function<absl::StatusOr<std::span<const float>>(int layer)>;

// Reads DIR/model.safetensors, or the shards that DIR/model.safetensors.index.json names, into
// `layers` (host memory, one span per layout; empty: only checked). F32, F16 and BF16 are
// understood. Every tensor of the model must be there once with its shape, and no other one (known
// left-overs of transformers, such as attention masks, are skipped), and every value be finite:
// messages name the tensor. Names may lack the family's "transformer." or "model." before them, and
// BERT's norms have the names of Google's files, "gamma" and "beta", too. The memory taken beyond
// `layers` is one tensor's. ABORTED, between two tensors, once `cancelled` (it may be null) says
// so.
absl::Status ReadWeights(const std::string& dir, std::span<const LayerLayout> layouts,
                         std::span<const std::span<float>> layers,
                         const std::function<bool()>& cancelled = nullptr);

// The same without reading values: which tensors there are, their shapes and types. Reads headers
// only.
absl::Status CheckWeights(const std::string& dir, std::span<const LayerLayout> layouts);
// Checks as CheckWeights does; returns a digest, never 0, of the tensors' names, shapes and types
// and of samples of their bytes. Copies have the same one, however they are cut into files.
absl::StatusOr<uint64_t> DigestWeights(const std::string& dir, std::span<const LayerLayout> layouts,
                                       const std::function<bool()>& cancelled = nullptr);

// ---- Adapters: folders as PEFT writes and reads them. `layouts`: of a model with an adapter. ----

// Checks DIR/adapter_config.json, which must be of this rank and scale, and that
// DIR/adapter_model.safetensors has A and B of all targets and nothing else. Reads no values.
absl::Status CheckAdapter(const std::string& dir, const AdapterConfig& adapter,
                          std::span<const LayerLayout> layouts);
// Reads DIR/adapter_model.safetensors as ReadWeights reads a model's.
absl::Status ReadAdapter(const std::string& dir, std::span<const LayerLayout> layouts,
                         std::span<const std::span<float>> layers,
                         const std::function<bool()>& cancelled = nullptr);
// Reads the text of DIR/adapter_config.json.
absl::StatusOr<AdapterSpec> ReadAdapterConfig(const std::string& dir);
// Writes both files; `base`: the model's own folder or hf:// path, which PEFT loads beside it.
// Memory: as WriteModelFolder.
absl::Status WriteAdapterFolder(const std::string& dir, const ModelConfig& config,
                                std::span<const LayerLayout> layouts, const LayerSource& source,
                                const std::string& base, WeightType type = WeightType::kFp32);

inline constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

// Writes DIR/config.json and DIR/model.safetensors in `type`, or shards with an index when the
// model is larger than max_shard_bytes, as transformers would load them. DIR is made if need be;
// files of these names are replaced, each only once it is complete and on disk, the config or index
// last. Memory: one layer at a time, plus one tensor.
absl::Status WriteModelFolder(const std::string& dir, const ModelConfig& config,
                              std::span<const LayerLayout> layouts, const LayerSource& source,
                              int64_t max_shard_bytes = kMaxShardBytes,
                              WeightType type = WeightType::kFp32);

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_WEIGHTS_H_
