#include "coordinator/core/islands/island_members.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plans.h"
#include "coordinator/core/islands/switching.h"
#include "coordinator/core/members.h"

namespace atl::coord {
namespace {

// Workers of one group may share an island.
std::string GetIslandGroupKey(const Job& job, const Worker& worker) {
  return GetIslandScope(job) == IslandScope::kSite ? GetWorkerSite(worker) : "";
}

bool MayShare(const Job& job, const Worker& worker) {
  return GetIslandScope(job) != IslandScope::kWorker && !worker.peer_endpoint.empty();
}

bool Names(const IslandPlan& plan, const NodeId& worker) {
  return std::any_of(plan.members.begin(), plan.members.end(),
                     [&](const IslandMember& m) { return m.worker == worker; });
}

bool HasRoom(const State& s, const Job& job, const IslandRecord& island, const Worker& worker) {
  const Worker* leader = s.FindWorker(island.worker);
  if (leader == nullptr || !leader->attached) return false;  // see CanAssignWorkers
  if (job.called.contains(island.island)) return false;
  const int64_t most = job.spec().layout.workers_per_island;
  return MayShare(job, *leader) && MayShare(job, worker) &&
         GetIslandGroupKey(job, *leader) == GetIslandGroupKey(job, worker) &&
         (most == 0 || 1 + static_cast<int64_t>(island.followers.size()) < most);
}

void TakeOver(State& s, Job& job, IslandRecord& island, const NodeId& evicted, const Loss& loss) {
  // The first of the plan's that is left, else the first of all.
  auto successor = island.followers.begin();
  if (auto plan = job.plans.find(island.island); plan != job.plans.end()) {
    for (const IslandMember& member : plan->second.members) {
      auto it = std::find_if(island.followers.begin(), island.followers.end(),
                             [&](const IslandMember& f) { return f.worker == member.worker; });
      if (it == island.followers.end()) continue;
      successor = it;
      break;
    }
  }
  NoteSteps(s, island, /*lost=*/true);
  island.worker = successor->worker;
  island.incarnation = successor->incarnation;
  island.followers.erase(successor);
  job.member_orders.erase(island.worker);
  if (!loss.left) island.evictions++;
  NewGeneration(job, island);
  island.reason = absl::StrCat("worker ", island.worker, " leads in generation ", island.generation,
                               " after ", evicted, loss.left ? " " : " was ", DescribeLoss(loss));
  s.Log(job.id(), loss.left ? Severity::kInfo : Severity::kWarning,
        absl::StrCat("island ", island.island, ": ", island.reason, ResumeSaved(s, job, island)));
}

}  // namespace

int64_t NeededWorkers(const JobSpec& spec) {
  const bool alone = spec.layout.island == IslandScope::kWorker;
  const int64_t each = alone ? 1 : std::max<int64_t>(spec.layout.workers_per_island, 1);
  return spec.outer.min_islands * each;
}

IslandCapacity::IslandCapacity(const State& s, const Job& job) : job_(job) {
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation == 0) continue;
    const Worker* leader = s.FindWorker(island.worker);
    const bool here = leader != nullptr && leader->attached;
    islands_.push_back({here ? GetIslandGroupKey(job_, *leader) : "",
                        here && MayShare(job_, *leader) && !job.called.contains(id),
                        1 + static_cast<int64_t>(island.followers.size())});
  }
  for (const NodeId& name : s.candidates) {
    const Worker& member = *s.FindWorker(name);
    if (member.candidate_for == job.id()) Take(member);
  }
}

bool IslandCapacity::Take(const Worker& worker) {
  const int64_t most = job_.spec().layout.workers_per_island;
  const bool shares = MayShare(job_, worker);
  const std::string group = GetIslandGroupKey(job_, worker);
  for (OpenIsland& open : islands_) {
    if (!shares || !open.shared || open.group != group) continue;
    if (most != 0 && open.workers >= most) continue;
    ++open.workers;
    return true;
  }
  if (static_cast<int64_t>(islands_.size()) >= job_.spec().outer.max_islands) return false;
  islands_.push_back({group, shares, 1});
  return true;
}

bool CanAssignWorkers(const State& s, const Job& job) {
  if (GetIslandScope(job) == IslandScope::kWorker) return true;
  return std::all_of(job.islands.begin(), job.islands.end(), [&](const auto& entry) {
    const Worker* leader = s.FindWorker(entry.second.worker);
    return entry.second.incarnation == 0 || !entry.second.site.empty() ||
           (leader != nullptr && leader->attached);
  });
}

void Join(State& s, Job& job, Worker& worker) {
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation == 0) continue;
    if (!HasRoom(s, job, island, worker)) continue;
    job.EditIsland(id).followers.push_back(ToIslandMember(worker));
    s.SetCandidate(worker, "");
    worker.progress.reset();
    s.Log(job.id(), Severity::kInfo,
          absl::StrCat("island ", id, ": worker ", worker.record.name, " joined"));
    return;
  }
  AssignIsland(s, job, worker);
}

void NoteLost(const NodeId& worker, std::string reason, IslandRecord& island) {
  ++island.members_lost;
  island.lost.push_back({worker, std::move(reason)});
  if (island.lost.size() > kLostMembersKept) island.lost.erase(island.lost.begin());
}

void LoseWorker(State& s, const State::Assignment& assignment, const NodeId& worker,
                const Loss& loss) {
  Job& job = *assignment.job;
  IslandRecord& island = job.EditIsland(assignment.island);
  NoteLost(worker, loss.text(), island);
  if (assignment.leads) {
    if (island.followers.empty()) return EvictIsland(s, job, assignment.island, loss);
    return TakeOver(s, job, island, worker, loss);
  }
  std::erase_if(island.followers, [&](const IslandMember& m) { return m.worker == worker; });
  job.member_orders.erase(worker);
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("island ", assignment.island, " goes on without worker ", worker, ": ",
                     loss.text()));
}

void LoseIsland(State& s, Job& job, IslandId id, const Loss& loss) {
  IslandRecord& island = job.EditIsland(id);
  NoteLost(island.worker, loss.text(), island);
  for (const IslandMember& follower : island.followers) {
    NoteLost(follower.worker, loss.text(), island);
    job.member_orders.erase(follower.worker);
  }
  EvictIsland(s, job, id, loss);
}

bool BeginLeaving(State& s, Worker& worker, const Loss& loss) {
  const State::Assignment assignment = s.FindAssignment(worker);
  const bool leads = assignment.job != nullptr && assignment.leads;
  if (leads && assignment.job->islands.at(assignment.island).followers.empty()) return false;
  if (!leads && !worker.following) return false;
  worker.leaving = true;
  worker.reason = loss.text();
  if (leads) {
    s.Log(assignment.job->id(), Severity::kInfo,
          absl::StrCat("island ", assignment.island, ": its leader ", worker.record.name,
                       " is to hand over: ", loss.text()));
  } else if (assignment.job != nullptr) {
    LoseWorker(s, assignment, worker.record.name, loss);
  }
  return true;
}

std::vector<IslandMember> IslandMembers(const State& s, const IslandRecord& island) {
  IslandMember leader{island.worker, island.incarnation, "", ""};
  if (const Worker* member = s.FindWorker(island.worker)) {
    leader = ToIslandMember(*member);
    leader.incarnation = island.incarnation;
  }
  std::vector<IslandMember> island_members = {leader};
  island_members.insert(island_members.end(), island.followers.begin(), island.followers.end());
  return island_members;
}

std::vector<IslandMember> NextIslandMembers(const State& s, const Job& job,
                                            const IslandRecord& island) {
  const IslandMember* successor = FindSuccessor(s, job, island);
  if (successor == nullptr) return IslandMembers(s, island);
  std::vector<IslandMember> island_members = {*successor};
  for (const IslandMember& follower : island.followers) {
    if (follower.worker != successor->worker) island_members.push_back(follower);
  }
  return island_members;
}

bool SameWorkers(const std::vector<IslandMember>& a, const std::vector<IslandMember>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const IslandMember& x, const IslandMember& y) {
                      return x.worker == y.worker && x.incarnation == y.incarnation;
                    });
}

void OnMemberProgress(State& s, Worker& worker) {
  if (!worker.following) return;
  Job* job = s.jobs.Peek(worker.following->job);
  const State::Assignment assignment = s.PeekAssignment(worker);
  const bool expected =
      assignment.job != nullptr && assignment.job == job;  // its orders have its assignment
  if (expected || worker.candidate_for == worker.following->job) return;
  if (job == nullptr && worker.candidate_for.empty()) return;  // see OnHeartbeat
  if (job == nullptr || job->ended()) {
    return StopReported<MemberOrder>(s, worker, *worker.following, WhyStopped(job));
  }
  if (job->islands.contains(worker.following->island)) {
    ResendMemberOrder(s, *job, worker.record.name);  // it may be a source
    DismissOutsiders(s, *job, worker.following->island);
  }
}

void DismissOutsiders(State& s, Job& job, IslandId id) {
  const IslandRecord& island = job.islands.at(id);
  const IslandPlan* plan = PlanInForce(job, island);
  if (island.incarnation != 0) {
    // The step under way may still need their state, or themselves.
    const Worker* leader = s.FindWorker(island.worker);
    if (plan == nullptr || leader == nullptr || !leader->progress ||
        leader->progress->job != job.id() || leader->progress->generation != island.generation ||
        leader->progress->plan_number < plan->number) {
      return;
    }
  }
  const auto followers = s.followed.find({job.id(), id});
  if (followers == s.followed.end()) return;
  for (const NodeId& name : followers->second) {
    Worker& worker = *s.FindWorker(name);
    if (!worker.attached) continue;
    // Sources too: if one of them stops, the step under way ends with it.
    const bool inside = plan != nullptr && Names(*plan, name);
    // Another island of the job may have it by now, whose order replaces this one.
    const State::Assignment assignment = s.FindAssignment(worker);
    const bool elsewhere = assignment.job == &job && (assignment.leads || assignment.island != id);
    if (inside || elsewhere) continue;
    StopReported<MemberOrder>(s, worker, *worker.following, "the island's plan has no part for it");
    // Unless it reports holdings again: it may stop before that is known, and cannot be a source
    // then.
    worker.following->holds_layers = false;
  }
}

}  // namespace atl::coord
