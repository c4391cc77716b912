// Which members of an island take no part because others cannot reach them.

#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/request.h"

namespace atl {

std::vector<std::pair<NodeId, std::string>> ExcludeUnreachable(PlanRequest& request) {
  std::vector<std::pair<NodeId, std::string>> left_out;
  for (;;) {
    // By worker: which ones it lacks; a pair counts for both. The leader's never goes.
    std::map<NodeId, std::map<NodeId, const UnreachablePair*>> lacks;
    std::map<NodeId, size_t> index;
    for (const PlanMember& member : request.members)
      index.emplace(member.member.worker, index.size());
    for (const UnreachablePair& pair : request.unreachable) {
      if (index.count(pair.from) == 0 || index.count(pair.to) == 0 || pair.from == pair.to)
        continue;
      lacks[pair.from].try_emplace(pair.to, &pair);
      lacks[pair.to].try_emplace(pair.from, &pair);
    }
    if (lacks.empty()) return left_out;
    const NodeId leader = request.members[0].member.worker;
    const auto rank = [&](const NodeId& worker) {
      return std::tuple(lacks.at(worker).count(leader), lacks.at(worker).size(), index.at(worker));
    };
    NodeId worst;
    for (const auto& [worker, others] : lacks) {
      if (worker == leader) continue;
      if (worst.empty() || rank(worker) > rank(worst)) worst = worker;
    }
    const auto& others = lacks.at(worst);
    const UnreachablePair& pair =
        others.count(leader) > 0 ? *others.at(leader) : *others.begin()->second;
    left_out.emplace_back(worst, absl::StrCat(pair.from, " > ", pair.to, ": ", pair.reason));
    std::erase_if(request.members,
                  [&](const PlanMember& member) { return member.member.worker == worst; });
  }
}

}  // namespace atl
