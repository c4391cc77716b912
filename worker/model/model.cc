#include "worker/model/model.h"

#include <utility>

namespace atl {

absl::StatusOr<Model> Model::Create(const ModelConfig& config, DType compute) {
  ATOLL_RETURN_IF_ERROR(config.Validate());
  Model model;
  model.config_ = config;
  model.compute_ = compute;
  std::vector<LayerLayout> layouts = MakeLayouts(config);
  const auto new_block = config.family == ModelFamily::kGpt2 ? &NewGpt2Block : &NewLlamaBlock;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto make = i == 0 ? &NewEmbedding : i + 1 == layouts.size() ? &NewHead : new_block;
    model.layers_.push_back(make(config, compute, std::move(layouts[i])));
  }
  return model;
}

Tensor Model::Constants(int64_t seq_len, void* memory) const {
  if (config_.family == ModelFamily::kGpt2) return {};
  return {memory, DType::kFloat32, seq_len, config_.head_dim()};
}

void Model::InitConstants(Backend& backend, Stream& stream, const Tensor& constants) const {
  if (constants.present()) {
    backend.Run(stream, RopeTable{constants, static_cast<float>(config_.rope_theta)});
  }
}

}  // namespace atl
