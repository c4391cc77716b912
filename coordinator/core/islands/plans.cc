#include "coordinator/core/islands/plans.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plan_choice.h"
#include "coordinator/core/islands/switching.h"

namespace atl::coord {
namespace {

constexpr int kMostDoublings = 5;

std::set<NodeId> WorkersWithPart(const IslandPlan& plan) {
  std::set<NodeId> workers;
  if (!plan.members.empty()) workers.insert(plan.members[0].worker);
  for (const PlanProgram& program : plan.programs) workers.insert(WorkerFromDevice(program.device));
  return workers;
}

bool IsAttached(const State& s, const IslandMember& member) {
  const Worker* worker = s.FindWorker(member.worker);
  return worker != nullptr && worker->attached && worker->record.incarnation == member.incarnation;
}

// Where its rounds go, and how many islands send theirs over the same links.
void AddRounds(const State& s, const Job& job, const NodeId& leads, MakePlan& query) {
  const auto site_of = [&](const NodeId& name) {
    const Worker* worker = s.FindWorker(name);
    return worker == nullptr ? std::string() : GetWorkerSite(*worker);
  };
  query.islands_at_site = 0;
  for (const auto& [id, other] : job.islands) {
    if (!other.site.empty()) continue;
    query.islands_at_site += site_of(other.worker) == site_of(leads) ? 1 : 0;
  }
  query.islands_at_site = std::max(1, query.islands_at_site);
  std::map<NodeId, std::string> site_of_server;
  int64_t elements = 0;
  for (const ShardDescriptor& shard : job.record.shards) {
    const NodeId name = GetActiveServer(shard);
    const auto [site, added] = site_of_server.try_emplace(name);
    const Server* server = added ? s.FindServer(name) : nullptr;
    if (server != nullptr) site->second = GetServerSite(s, *server);
    query.servers[site->second] += static_cast<double>(shard.elements);
    elements += shard.elements;
  }
  for (auto& [site, share] : query.servers) share /= static_cast<double>(elements);
}

MakePlan RequestFor(const State& s, const Job& job, const IslandRecord& island,
                    const std::vector<IslandMember>& island_members, const IslandPlan* current) {
  MakePlan query;
  query.job = job.id();
  query.island = island.island;
  query.number = island.plan_number + 1;
  query.islands = std::max<int>(1, static_cast<int>(job.islands.size()));
  query.spec = job.spec();
  query.facts = *job.record.facts;
  query.busy = job.plans.contains(island.island);
  if (current != nullptr) query.current = *current;
  const auto planning = job.planning.find(island.island);
  const auto plan = job.plans.find(island.island);
  if (planning != job.planning.end() && !planning->second.ran.empty()) {
    query.ran = planning->second.ran;
  } else if (plan != job.plans.end()) {  // this coordinator has not seen any set up
    query.ran = plan->second.replicas;
  }
  for (const auto& [id, other] : job.islands) {
    const Worker* leader = s.FindWorker(other.worker);
    if (leader == nullptr || !leader->progress || leader->progress->job != job.id()) continue;
    const std::vector<int64_t>& tokens = leader->progress->expert_tokens;
    query.expert_tokens.resize(std::max(query.expert_tokens.size(), tokens.size()));
    for (size_t e = 0; e < tokens.size(); ++e) {
      query.expert_tokens[e] = AddCounts(query.expert_tokens[e], tokens[e]);
    }
  }
  if (!query.spec.layout.link_limits.empty()) AddRounds(s, job, island_members[0].worker, query);
  for (const IslandMember& member : island_members) {
    const Worker& worker = *s.FindWorker(member.worker);
    query.members.push_back({member, GetWorkerSite(worker), worker.devices, {}});
  }
  return query;
}

void RequestPlan(State& s, const Job& job, const IslandRecord& island,
                 const std::vector<IslandMember>& island_members, Planning& planning) {
  planning.request = ++s.next_plan_request;
  planning.requested_at = s.now;
  planning.requested_members = island_members;
  MakePlan query = RequestFor(s, job, island, island_members,
                              planning.urgent ? nullptr : PlanInForce(job, island));
  query.request = planning.request;
  query.reason = planning.reason;
  planning.requested_changes = planning.changed;
  planning.requested_reason = planning.reason;
  s.out.plans.push_back(std::move(query));
}

// A follower without a part in the island's new plan may hold layers that are needed, and becomes a
// source. One that some member cannot reach is left out: its transfers would only time out.
void AddSources(const State& s, const Job& job, IslandId island, const Planning& planning,
                IslandPlan& plan) {
  for (const auto& [name, worker] : s.workers) {
    const bool serves = worker.following && worker.following->job == job.id() &&
                        worker.following->island == island && worker.following->holds_layers;
    const bool led = name == job.islands.at(island).takes_over_from;
    if (!worker.attached || (!serves && !led) || planning.left_out.contains(name)) continue;
    const auto assignment = s.FindAssignment(worker);
    if (assignment.job != nullptr && (assignment.job != &job || assignment.island != island))
      continue;
    IslandMember source = ToIslandMember(worker);
    if (!Contains(plan.members, source)) plan.members.push_back(std::move(source));
  }
}

bool IsSource(const State& s, const Job& job, IslandId island, const IslandMember& member) {
  if (!IsExpected(s, member)) return false;
  const Worker& worker = *s.FindWorker(member.worker);
  const bool unreceived = !worker.attached || !worker.has_beaten;
  return unreceived || (worker.following && worker.following->job == job.id() &&
                        worker.following->island == island);
}

// The same layout without its transfer sources, when they are not needed any more or when one has
// failed: members wait for each other, and transfers from a failed source would only time out.
void ReleaseSources(State& s, Job& job, const IslandRecord& island) {
  const IslandPlan* plan = PlanInForce(job, island);
  if (plan == nullptr) return;
  bool any = false, lost = false;
  const std::set<NodeId> with_part = WorkersWithPart(*plan);
  for (const IslandMember& member : plan->members) {
    if (with_part.contains(member.worker)) continue;
    if (member.worker == island.takes_over_from) continue;  // see AdvanceSwitches
    any = true;
    lost = lost || !IsSource(s, job, island.island, member);
  }
  if (!lost && !(any && IsSetUp(s, job, island, *plan))) return;
  if (!lost && FindSuccessor(s, job, island) != nullptr) return;  // its plan comes at once
  std::vector<IslandMember> stepping = Stepping(s, job, island);
  IslandPlan& next = job.EditPlan(island.island);
  std::erase_if(next.members, [&](const IslandMember& m) {
    return !HasPart(next, m.worker) && m.worker != island.takes_over_from;
  });
  next.number = ++job.EditIsland(island.island).plan_number;
  BeginSwitch(
      s, job, island,
      lost ? "a transfer source is unavailable" : "its transfer sources are not needed any more",
      std::move(stepping));
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat("island ", island.island, ": plan ", next.number,
                     ", the same layout without its transfer sources",
                     lost ? ": one of them is unavailable" : ""));
}

void NoteFailedReplan(State& s, Planning& planning) {
  planning.replan_not_before =
      s.now + s.options.plan_retry * (1 << std::min(planning.failed_replans++, kMostDoublings));
}

// The first plan of a generation: all workers of the island are attached now, and what is on their
// disks may be a whole state. Returns what the log says of it.
std::string ResumeFromDisks(State& s, Job& job, IslandId id) {
  IslandRecord& island = job.EditIsland(id);
  if (island.saved.empty() || island.resume || island.ready) return "";
  return ResumeSaved(s, job, island);
}

void NoPlan(State& s, Job& job, const IslandRecord& island, Planning& planning,
            const std::string& trouble) {
  if (planning.trouble != trouble) {
    const IslandPlan* plan = PlanInForce(job, island);
    s.Log(job.id(), Severity::kWarning,
          absl::StrCat("island ", island.island, ": no new plan (", planning.reason, "): ", trouble,
                       plan == nullptr ? "" : absl::StrCat("; it keeps plan ", plan->number)));
  }
  planning.trouble = trouble;
  planning.not_before = s.now + s.options.plan_retry;
  NoteFailedReplan(s, planning);
}

// Workers that all failed do not come back at the same time: the first one waits for the others, or
// the state that only they have would be lost.
bool Awaits(State& s, const Job& job, const IslandRecord& island, Planning& planning) {
  const bool begins = !island.ready && !island.resume && PlanInForce(job, island) == nullptr;
  planning.awaits = begins ? AwaitedHolder(s, job, island) : "";
  if (planning.awaits.empty()) {
    planning.awaits_until.reset();
    return false;
  }
  if (!planning.awaits_until) planning.awaits_until = s.now + s.options.saved_state_grace;
  return s.now < *planning.awaits_until;
}

void NoteWhatRuns(const State& s, const Job& job, const IslandRecord& island, Planning& planning) {
  const auto plan = job.plans.find(island.island);
  if (plan == job.plans.end() || planning.ran_number == plan->second.number ||
      !IsSetUp(s, job, island, plan->second)) {
    return;
  }
  planning.ran_number = plan->second.number;
  planning.ran = plan->second.replicas;
}

}  // namespace

bool NeedsPlan(const State& s, const Job& job, const IslandRecord& island) {
  if (!island.site.empty()) return false;
  const LayoutSpec& layout = job.spec().layout;
  if (layout.island != IslandScope::kWorker || island.plan_number > 0) return true;
  if (layout.stages > 1 || layout.replicas > 1 || layout.tensor_parallel > 1 ||
      layout.recompute == Recompute::kAll) {
    return true;
  }
  const Worker* leader = Leader(s, island);
  return leader != nullptr && (leader->devices.size() > 1 || leader->measured_for == job.id());
}

bool HasPart(const IslandPlan& plan, const NodeId& worker) {
  if (!plan.members.empty() && plan.members[0].worker == worker) return true;
  // Names of devices are compared in place: islands have hundreds, and this is called for each.
  const size_t slash = worker.size();
  return std::any_of(plan.programs.begin(), plan.programs.end(), [&](const PlanProgram& program) {
    return program.device.rfind('/') == slash && program.device.compare(0, slash, worker) == 0;
  });
}

bool IsSetUp(const State& s, const Job& job, const IslandRecord& island, const IslandPlan& plan) {
  const Worker* leader = s.FindWorker(island.worker);
  return leader != nullptr && leader->progress && leader->progress->job == job.id() &&
         leader->progress->generation == island.generation &&
         leader->progress->plan_number >= plan.number;
}

const IslandPlan* PlanInForce(const Job& job, const IslandRecord& island) {
  auto found = job.plans.find(island.island);
  if (island.incarnation == 0 || found == job.plans.end()) return nullptr;
  const std::vector<IslandMember>& members = found->second.members;
  if (members.empty() || members[0].worker != island.worker ||
      members[0].incarnation != island.incarnation) {
    return nullptr;
  }
  const auto whole = [&] {
    for (size_t i = 1; i < members.size(); ++i) {
      const bool follows = Contains(island.followers, members[i], i - 1);
      if (!follows && HasPart(found->second, members[i].worker)) return false;
    }
    return true;
  };
  // Called often, and more than a few comparisons for islands of a hundred workers.
  if (job.dirty.islands.contains(island.island) || job.dirty.plans.contains(island.island)) {
    return whole() ? &found->second : nullptr;
  }
  auto known = job.plan_is_whole.find(island.island);
  if (known == job.plan_is_whole.end()) {
    known = job.plan_is_whole.emplace(island.island, whole()).first;
  }
  return known->second ? &found->second : nullptr;
}

void RenumberPlan(Job& job, IslandRecord& island) {
  if (PlanInForce(job, island) == nullptr) return;
  job.EditPlan(island.island).number = ++island.plan_number;
}

void OnPlanMade(State& s, const PlanMade& made) {
  Job* job = s.FindJob(made.job);
  if (job == nullptr || !job->active()) return;
  s.Touch(*job, made.island);
  auto found = job->planning.find(made.island);
  if (found == job->planning.end() || found->second.request != made.request) return;
  Planning& planning = found->second;
  const IslandRecord& island = job->islands.at(made.island);
  planning.request = 0;
  const bool other_leader = planning.requested_members.front().worker != island.worker;
  if (other_leader && !SameWorkers(planning.requested_members, NextIslandMembers(s, *job, island)))
    return;
  planning.considered = planning.requested_members;
  planning.reason = planning.requested_reason;
  // Later changes are for the next plan; an unusable plan stays so until there is another.
  const bool unusable = planning.requested_changes.unusable();
  if (made.plan.ok() || !unusable) planning.changed.Forget(planning.requested_changes);
  absl::Status status = made.plan.status();
  if (status.ok()) status = CheckPlan(*job, planning.requested_members, *made.plan);
  if (!status.ok()) {
    return NoPlan(s, *job, island, planning, CleanText(std::string(status.message())));
  }
  planning.trouble.clear();
  planning.not_before = s.now;
  planning.left_out.clear();
  for (const auto& [worker, why] : made.left_out) planning.left_out[worker] = CleanText(why, 200);
  if (const IslandPlan* current = PlanInForce(*job, island);
      current != nullptr && !unusable && !other_leader) {
    const std::string why_keep = WhyKeep(s, *job, island, *current, made);
    if (!why_keep.empty()) {
      planning.trouble =
          absl::StrCat("keeps plan ", current->number, " (", planning.reason, "): ", why_keep);
      s.Log(job->id(), Severity::kInfo,
            absl::StrCat("island ", made.island, " ", planning.trouble));
      return NoteFailedReplan(s, planning);
    }
  }
  planning.replan_not_before = s.now + s.options.plan_retry;
  planning.failed_replans = 0;
  // A worker that does not reach the others finishes nothing with them.
  std::vector<IslandMember> stepping;
  if (!unusable) stepping = Stepping(s, *job, island);
  if (other_leader) BeginHandover(s, *job, made.island, planning.requested_members.front());
  std::string resumes;
  if (PlanInForce(*job, island) == nullptr && !other_leader) {
    resumes = ResumeFromDisks(s, *job, made.island);
  }
  IslandPlan& plan = job->EditPlan(made.island);
  plan = *made.plan;
  plan.number = ++job->EditIsland(made.island).plan_number;
  AddSources(s, *job, made.island, planning, plan);
  const std::string reason = std::exchange(
      plan.reason, absl::StrCat("made because ", planning.reason,
                                plan.reason.empty() ? "" : absl::StrCat("; ", plan.reason)));
  BeginSwitch(s, *job, island, planning.reason, std::move(stepping));
  s.Log(job->id(), Severity::kInfo,
        absl::StrCat("island ", made.island, " (", planning.reason, "): ", DescribePlan(plan),
                     reason.empty() ? "" : "; ", CleanText(reason), resumes));
}

void OnProfileChanged(State& s, const ProfileChanged& event) {
  for (const NodeId& worker : event.workers) {
    const State::Assignment assignment = s.FindAssignment(worker);
    if (assignment.job == nullptr || !assignment.job->plans.contains(assignment.island)) continue;
    Planning& planning = assignment.job->planning[assignment.island];
    planning.changed.Add(CleanText(event.subject.empty() ? event.reason : event.subject, 200),
                         event.unusable ? Changes::kUnusable : event.size,
                         CleanText(event.reason, 200));
    // Replan requests that were refused before it do not apply to this change.
    planning.failed_replans = 0;
    planning.replan_not_before = std::min(planning.replan_not_before, s.now + s.options.plan_retry);
    if (event.unusable) planning.not_before = s.now;
  }
}

void AdvancePlans(State& s, Job& job) {
  for (const auto& [id, island] : job.islands) {
    if (!job.touched.contains(id)) continue;
    if (island.incarnation == 0 || !NeedsPlan(s, job, island)) {
      job.planning.erase(id);
      continue;
    }
    Planning& planning = job.planning[id];
    NoteWhatRuns(s, job, island, planning);
    const std::vector<IslandMember> island_members = NextIslandMembers(s, job, island);
    if (!SameWorkers(planning.requested_members, island_members)) {
      planning.request = 0;
      planning.not_before = s.now;
    }
    if (planning.request != 0 && s.now >= planning.requested_at + s.options.plan_limit) {
      planning.request = 0;
    }
    ReleaseSources(s, job, island);
    FindReason(s, job, island, island_members, planning);
    const bool all_here = std::all_of(island_members.begin(), island_members.end(),
                                      [&](const IslandMember& m) { return IsAttached(s, m); });
    if (planning.reason.empty() || planning.request != 0 || !all_here ||
        s.now < planning.not_before) {
      continue;
    }
    if (Awaits(s, job, island, planning)) continue;
    RequestPlan(s, job, island, island_members, planning);
  }
}

std::vector<MakePlan> PlanRequests(const State& s, const Job& job) {
  std::vector<MakePlan> queries;
  if (!job.active()) return queries;
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation == 0 || !NeedsPlan(s, job, island)) continue;
    std::vector<IslandMember> island_members = NextIslandMembers(s, job, island);
    std::erase_if(island_members, [&](const IslandMember& m) { return !IsAttached(s, m); });
    if (island_members.empty()) continue;
    queries.push_back(RequestFor(s, job, island, island_members, PlanInForce(job, island)));
  }
  return queries;
}

std::string WhyPlanIsKept(const State& s, const Job& job, const PlanMade& made) {
  const auto island = job.islands.find(made.island);
  if (island == job.islands.end() || !made.plan.ok()) return "";
  const IslandPlan* current = PlanInForce(job, island->second);
  if (current == nullptr) return "";
  return WhyKeep(s, job, island->second, *current, made);
}

std::vector<PlanMember> IdleWorkers(const State& s, const LayoutSpec& layout) {
  std::vector<PlanMember> idle;
  for (const auto& [name, worker] : s.workers) {
    if (!worker.attached || !worker.candidate_for.empty()) continue;
    if (s.FindAssignment(worker).job != nullptr) continue;
    if (!WhyNoPart(layout, name, GetWorkerSite(worker), worker.devices.size()).empty()) continue;
    idle.push_back({ToIslandMember(worker), GetWorkerSite(worker), worker.devices, {}});
  }
  return idle;
}

Instant NextPlanDeadline(const State& s, const Job& job) {
  if (!job.active()) return kNever;
  Instant next = NextSwitchDeadline(s, job);
  for (const auto& [id, planning] : job.planning) {
    if (planning.request != 0) {
      next = std::min(next, planning.requested_at + s.options.plan_limit);
    } else {
      if (planning.not_before > s.now && !planning.reason.empty()) {
        next = std::min(next, planning.not_before);
      }
      if (planning.awaits_until && *planning.awaits_until > s.now) {
        next = std::min(next, *planning.awaits_until);
      }
      // A replan request is repeated with every heartbeat; this one may have come too early.
      if (planning.replan_not_before > s.now) next = std::min(next, planning.replan_not_before);
    }
  }
  return next;
}

std::string DescribePlanning(const State& s, const Job& job, const IslandRecord& island) {
  auto found = job.planning.find(island.island);
  if (found == job.planning.end()) return "";
  const Planning& planning = found->second;
  if (planning.request != 0) {
    std::vector<NodeId> workers;
    for (const IslandMember& member : planning.requested_members) workers.push_back(member.worker);
    return absl::StrCat("making a plan: ", planning.reason, WhoMeasures(s, workers));
  }
  if (planning.reason.empty()) return "";
  for (const IslandMember& member : IslandMembers(s, island)) {
    if (!IsAttached(s, member)) {
      return absl::StrCat("needs a plan (", planning.reason, "): waiting for worker ",
                          member.worker);
    }
  }
  if (!planning.awaits.empty() && planning.awaits_until && s.now < *planning.awaits_until) {
    return absl::StrCat("waiting for worker ", planning.awaits, ", whose disk holds a part of its ",
                        "saved state, for ", Seconds(*planning.awaits_until - s.now), " s more");
  }
  return absl::StrCat("needs a plan (", planning.reason, "): ", planning.trouble);
}

std::string MissingPlans(const State& s, const Job& job) {
  std::string text;
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation == 0 || !NeedsPlan(s, job, island) ||
        PlanInForce(job, island) != nullptr) {
      continue;
    }
    absl::StrAppend(&text, text.empty() ? "island " : "; island ", id, " ",
                    DescribePlanning(s, job, island));
  }
  return text;
}

}  // namespace atl::coord
