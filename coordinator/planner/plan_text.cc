// Plans in words; see planner.h.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/number_text.h"
#include "coordinator/planner/planner.h"

namespace atl::plan {
namespace {

// "4", or "1 to 4".
std::string DegreesText(const Layout& layout) {
  size_t least = SIZE_MAX, most = 0;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      least = std::min(least, stage.devices.size());
      most = std::max(most, stage.devices.size());
    }
  }
  return least < most ? absl::StrCat(least, " to ", most) : absl::StrCat(most);
}

}  // namespace

std::string WhyLonger(const StepParts& longer, const StepParts& than) {
  const std::pair<double, const char*> parts[] = {
      {longer.work_s - than.work_s, "its busiest device computes"},
      {longer.wait_s - than.wait_s, "it waits for messages and other stages"},
      {longer.sync_s - than.sync_s, "it sums gradients, not hidden by work,"},
      {longer.commit_s - than.commit_s, "it waits for distant sites to agree"}};
  const auto most = std::max_element(std::begin(parts), std::end(parts));
  if (most->first <= 0) return "";
  return absl::StrCat(most->second, " ", SecondsText(most->first), " longer");
}

std::string DescribeStructure(const Layout& layout) {
  size_t least = SIZE_MAX;
  size_t most = 0;
  const size_t each = layout.shape == Shape::kPlain ? 1 : 2;
  for (const Replica& replica : layout.replicas) {
    least = std::min(least, replica.stages.size() / each);
    most = std::max(most, replica.stages.size() / each);
  }
  const std::string stages = least == most ? absl::StrCat(most) : absl::StrCat(least, " to ", most);
  const char* halves = layout.shape == Shape::kVShaped       ? " of two halves in a V"
                       : layout.shape == Shape::kInterleaved ? " of two halves interleaved"
                                                             : "";
  return absl::StrCat(layout.replicas.size(),
                      layout.replicas.size() == 1 ? " replica" : " replicas", " x ", stages,
                      most == 1 ? " stage" : " stages", halves, ", TP ", DegreesText(layout));
}

std::string Describe(const Layout& layout) {
  return absl::StrCat(DescribeStructure(layout), ", micro-batch ", layout.micro_batch);
}

std::string GapReason(const Layout& layout, const Outcome& outcome) {
  if (outcome.step_s <= 1.05 * outcome.bound_s) return "";
  const ReplicaOutcome& kind = SlowestKind(outcome);
  const int micro_batches = layout.replicas[kind.replicas[0]].micro_batches;
  // Memory binds where another micro-batch would not have fitted.
  for (size_t s = 0; s < kind.problem.chunks.size(); ++s) {
    const sim::Chunk& chunk = kind.problem.chunks[s];
    const int64_t has = kind.problem.devices[chunk.device].memory_bytes;
    const int64_t peak = kind.found.result.devices[chunk.device].peak_bytes;
    if (chunk.activation_bytes > 0 && peak + chunk.activation_bytes > has) {
      return absl::StrCat("memory binds: stage ", s, " has room for ", has / chunk.activation_bytes,
                          " of ", micro_batches, " micro-batches");
    }
  }
  double link_s = 0;
  for (const sim::Chunk& chunk : kind.problem.chunks) {
    if (chunk.forward_link == sim::kNoLink) continue;
    link_s = std::max(
        link_s, 1e-9 * static_cast<double>(sim::AloneSerialNs(
                           kind.problem.network, kind.problem.network.links[chunk.forward_link],
                           chunk.forward_bytes)));
  }
  if (link_s * micro_batches > 0.5 * outcome.step_s) {
    return absl::StrFormat("a link is busy %.0f%% of the step",
                           100 * link_s * micro_batches / outcome.step_s);
  }
  return absl::StrCat("few micro-batches: ", micro_batches, " over ", kind.problem.chunks.size(),
                      " stages; filling and draining the pipeline shows");
}

std::string TimesFrom(const Cluster& cluster, const Costs& costs, const Layout& layout) {
  Source worst = Source::kMeasured;
  std::set<int> types;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      const int type = cluster.devices[stage.devices[0]].type;
      if (!types.insert(type).second) continue;
      worst = std::max(worst, GroupCosts(cluster, costs, layout.micro_batch, stage.devices,
                                         layout.tensor_split_ratios)
                                  .source());
    }
  }
  if (worst == Source::kMeasured) return "measured";
  if (worst == Source::kInterpolated) return "interpolated between measured sizes";
  return absl::StrFormat("roofline at %.0f%% of the datasheet", 100 * costs.options().efficiency);
}

}  // namespace atl::plan
