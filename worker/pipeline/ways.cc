#include "worker/pipeline/ways.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/protocol/nccl_joins.h"
#include "common/protocol/tensor_groups.h"

namespace atl::worker {
namespace {

const IslandMember& MemberOf(const IslandPlan& plan, const std::string& device) {
  const NodeId worker = WorkerOfDevice(device);
  for (const IslandMember& member : plan.members) {
    if (member.worker == worker) return member;
  }
  ATOLL_CHECK(false, "no member of the plan owns ", device);
  __builtin_unreachable();
}

}  // namespace

Way WayBetween(const IslandPlan& plan, const std::string& from, const std::string& to) {
  const IslandMember &a = MemberOf(plan, from), &b = MemberOf(plan, to);
  if (a.worker == b.worker) return {WayKind::kWithin, "one worker"};
  const std::string lacks = NcclLacks(a, b);
  if (!lacks.empty()) return {WayKind::kLink, lacks};
  return {WayKind::kNccl, absl::StrCat("GPUs of site ", a.site)};
}

bool SharesNccl(const IslandPlan& plan, const std::vector<std::string>& devices) {
  const IslandMember& first = MemberOf(plan, devices.at(0));
  return std::all_of(devices.begin(), devices.end(), [&](const std::string& device) {
    return NcclLacks(first, MemberOf(plan, device)).empty();
  });
}

std::vector<StageLink> StageLinksOf(const IslandPlan& plan) {
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
