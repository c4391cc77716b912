#include "worker/pipeline/transport_selection.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/protocol/nccl_joins.h"
#include "common/protocol/tensor_groups.h"

namespace atl::worker {
namespace {

const IslandMember& GetMember(const IslandPlan& plan, const std::string& device) {
  const NodeId worker = WorkerFromDevice(device);
  for (const IslandMember& member : plan.members) {
    if (member.worker == worker) return member;
  }
  ATOLL_CHECK(false, "no member of the plan owns ", device);
  __builtin_unreachable();
}

}  // namespace

TransportChoice SelectTransport(const IslandPlan& plan, const std::string& from,
                                const std::string& to) {
  const IslandMember &a = GetMember(plan, from), &b = GetMember(plan, to);
  if (a.worker == b.worker) return {TransportKind::kWithin, "one worker"};
  const std::string lacks = NcclLacks(a, b);
  if (!lacks.empty()) return {TransportKind::kLink, lacks};
  return {TransportKind::kNccl, absl::StrCat("GPUs of site ", a.site)};
}

bool SharesNccl(const IslandPlan& plan, const std::vector<std::string>& devices) {
  const IslandMember& first = GetMember(plan, devices.at(0));
  return std::all_of(devices.begin(), devices.end(), [&](const std::string& device) {
    return NcclLacks(first, GetMember(plan, device)).empty();
  });
}

std::vector<StageLink> ListStageLinks(const IslandPlan& plan) {
  std::set<StageLink> all;
  for (const PlanReplica& replica : plan.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const std::vector<std::string>& here = replica.stages[s].devices;
      const std::vector<std::string>& next = replica.stages[s + 1].devices;
      const auto add = [&](const std::string& from, const std::string& to) {
        if (from == to) return;
        all.insert({from, to});
        all.insert({to, from});
      };
      for (const auto& [from, to] : MessagePairs(here.size(), next.size())) {
        add(here[from], next[to]);
      }
      for (const auto& [from, to] : MessagePairs(next.size(), here.size())) {
        add(next[from], here[to]);
      }
    }
  }
  return {all.begin(), all.end()};
}

}  // namespace atl::worker
