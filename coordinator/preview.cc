#include "coordinator/preview.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/status.h"
#include "coordinator/plan_answer.h"
#include "coordinator/planning/island_scope.h"

namespace atl {
namespace {

std::vector<std::string> IdleDevices(const PlanRequest& request, const PlanMade& made) {
  std::set<std::string> used;
  if (made.plan.ok()) {
    for (const PlanProgram& program : made.plan->programs) used.insert(program.device);
  }
  std::vector<std::string> idle;
  for (const PlanMember& member : request.members) {
    for (size_t i = 0; i < member.devices.size(); ++i) {
      std::string device = absl::StrCat(member.member.worker, "/", i);
      if (!used.contains(device)) idle.push_back(std::move(device));
    }
  }
  return idle;
}

// Without times the plan would be another one than the island's, which is made after measuring.
absl::Status CheckMeasured(const PlanRequest& request) {
  for (const PlanMember& member : request.members) {
    std::set<std::string> measured;
    for (const DeviceProfile& profile : member.profiles) measured.insert(profile.device);
    for (size_t i = 0; i < member.devices.size(); ++i) {
      const std::string device = absl::StrCat(member.member.worker, "/", i);
      if (measured.contains(device)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "device \"", device,
          "\" has not been measured for this model: workers measure a job's "
          "model when they prepare for it; submit the job and look at atoll plan JOB, or plan with "
          "--cluster"));
    }
  }
  return absl::OkStatus();
}

// In the order of their names.
std::vector<std::vector<size_t>> GroupMembersByIsland(const PlanRequest& all,
                                                      IslandScope island_scope) {
  std::vector<ScopeWorker> workers;
  for (const PlanMember& member : all.members) {
    workers.push_back({member.site, !member.member.endpoint.empty()});
  }
  return AssignIslands(workers, all.spec, island_scope);
}

struct Island {
  IslandId id = 0;
  PlanRequest request;
  std::optional<IslandPlan> current;
};

struct Item {
  JobId job;
  std::vector<Island> islands;
  bool grouped = true;  // false: islands[0] has all workers
  Instant ends{};
};

// Finds the islands of all workers.
absl::Status Group(Item& item, const std::function<bool()>& stop, std::string& reason) {
  PlanRequest all = std::exchange(item.islands, {})[0].request;
  ATOLL_RETURN_IF_ERROR(CheckMeasured(all));
  IslandScope island_scope = all.spec.layout.island;
  if (island_scope == IslandScope::kAuto) {
    all.threads = SearchThreads();
    all.stop = stop;
    const WorkersGrouped grouped = AnswerGrouping(all);
    island_scope = grouped.island_scope;
    reason = grouped.reason;
  }
  for (const std::vector<size_t>& island_workers : GroupMembersByIsland(all, island_scope)) {
    const auto id = static_cast<IslandId>(item.islands.size());
    item.islands.push_back({id, OnlyMembers(all, island_workers), std::nullopt});
  }
  std::map<std::string, int> led;  // by site
  for (const Island& island : item.islands) ++led[island.request.members[0].site];
  for (Island& island : item.islands) {
    island.request.islands = static_cast<int>(item.islands.size());
    island.request.islands_at_site = led[island.request.members[0].site];
  }
  return absl::OkStatus();
}

absl::StatusOr<Preview> Answer(Item& item, const std::function<bool()>& stop) {
  if (stop()) return absl::DeadlineExceededError("others' previews took all of the timeout");
  Preview preview{item.job, "", {}};
  if (!item.grouped) ATOLL_RETURN_IF_ERROR(Group(item, stop, preview.grouping));
  for (Island& island : item.islands) {
    island.request.threads = SearchThreads();
    island.request.stop = stop;
    PreviewedPlan& plan = preview.plans.emplace_back();
    const PlanRequest offered = island.request;
    plan.made = AnswerPlan(island.request, island.current);
    plan.made.job = item.job;
    plan.made.island = island.id;
    plan.current_number = island.current ? island.current->number : 0;
    plan.idle_devices = IdleDevices(offered, plan.made);
  }
  return preview;
}

void Enqueue(IslandPlanner& planner, Item item, OnPreview on_done) {
  planner.RunWhenIdle([item = std::move(item), on_done = std::move(on_done)](
                          const absl::Status& refused, const std::function<bool()>& stop) mutable {
    if (!refused.ok()) return on_done(refused);
    on_done(Answer(item, [&] { return SteadyNow() >= item.ends || stop(); }));
  });
}

}  // namespace

void QueryPreview(Instant now, IslandPlanner& planner, const std::vector<MakePlan>& queries,
                  Duration limit, OnPreview on_done) {
  Item item{queries.empty() ? "" : queries[0].job, {}, true, now + limit};
  for (const MakePlan& query : queries) {
    item.islands.push_back({query.island, query, query.current});
    planner.registry().FillIn(item.islands.back().request);
  }
  Enqueue(planner, std::move(item), std::move(on_done));
}

void QueryPreview(Instant now, IslandPlanner& planner, const GroupWorkers& query, Duration limit,
                  OnPreview on_done) {
  Item item{"", {}, false, now + limit};
  item.islands.push_back({0, query, std::nullopt});
  planner.registry().FillIn(item.islands.back().request);
  Enqueue(planner, std::move(item), std::move(on_done));
}

}  // namespace atl
