#include "common/protocol/tensor_groups.h"

#include <numeric>

#include "common/check.h"

namespace atl {

int TensorDegree(const IslandPlan& plan, int32_t layer) {
  ATOLL_CHECK(!plan.replicas.empty());
  for (const PlanStage& stage : plan.replicas[0].stages) {
    if (layer < stage.first_layer + stage.layers) return static_cast<int>(stage.devices.size());
  }
  ATOLL_CHECK(false, "no stage holds layer ", layer);
  __builtin_unreachable();
}

std::vector<int32_t> GetTensorSplitRatios(const IslandPlan& plan, int32_t layer) {
  std::vector<int32_t> ratios = plan.tensor_split_ratios;
  if (ratios.empty()) ratios.assign(static_cast<size_t>(TensorDegree(plan, layer)), 1);
  const auto divisor = std::accumulate(ratios.begin(), ratios.end(), 0, std::gcd<int, int>);
  for (int32_t& share : ratios) share /= divisor;
  return ratios;
}

std::vector<std::pair<size_t, size_t>> MessagePairs(size_t senders, size_t receivers) {
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t rank = 0; rank < receivers; ++rank) {
    pairs.emplace_back(SendingRank(rank, senders), rank);
  }
  return pairs;
}

}  // namespace atl
