#include "worker/pipeline/emulation.h"

namespace atl::worker {
namespace {

double GetCostInBlocks(LayerKind layer, PlanOpKind kind) {
  switch (layer) {
    case LayerKind::kEmbedding:
      return kind == PlanOpKind::kInputGradient ? 0 : 0.1;  // tokens have no gradient
    case LayerKind::kBlock:
      return 1;
    case LayerKind::kHead:
      return 0.5;
  }
  return 0;
}

}  // namespace

Emulation EmulatedBlocks(Duration block) {
  Emulation emulation;
  emulation.only = true;
  emulation.duration = [block](const std::string&, LayerKind layer, PlanOpKind kind, int64_t rows) {
    return FromSeconds(Seconds(block) * GetCostInBlocks(layer, kind) * static_cast<double>(rows));
  };
  return emulation;
}

}  // namespace atl::worker
