#include "coordinator/core/core.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/crash_scope.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/drain.h"
#include "coordinator/core/flush.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plans.h"
#include "coordinator/core/islands/switching.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/members.h"
#include "coordinator/core/reconcile.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/settings.h"
#include "coordinator/core/stalls.h"
#include "coordinator/core/state.h"
#include "coordinator/core/view_makers.h"
#include "coordinator/core/whole_state.h"

namespace atl {
namespace {

using coord::Job;
using coord::State;

struct EventHandler {
  State& s;

  void operator()(const FromWorker& e) { coord::OnWorkerMessage(s, e); }
  void operator()(const FromServer& e) { coord::OnServerMessage(s, e); }
  void operator()(const ConnectionLost& e) { coord::OnConnectionLost(s, e); }
  void operator()(const SubmitJob& e) { coord::OnSubmit(s, e); }
  void operator()(const ControlJob& e) { coord::OnControl(s, e); }
  void operator()(const ChangeSettings& e) { coord::OnChangeSettings(s, e); }
  void operator()(const DrainMember& e) {
    s.out.replies.push_back({e.request_id, coord::SetDraining(s, e.name, e.drain), ""});
  }
  void operator()(const PlanMade& e) { coord::OnPlanMade(s, e); }
  void operator()(const SitesFound& e) { coord::OnSitesFound(s, e); }
  void operator()(const WorkersGrouped& e) { coord::OnWorkersGrouped(s, e); }
  void operator()(const ProfileChanged& e) { coord::OnProfileChanged(s, e); }
  void operator()(const Stalled& e) {
    coord::SuspendEvictions(s);
    coord::ExcuseStall(s, e.late);
  }
  void operator()(const Tick&) {}
};

// Returns the job of a request about one job, or of an answer to one of the core's own.
JobId JobFromEvent(const CoordinatorEvent& event) {
  return std::visit(
      [](const auto& e) -> JobId {
        if constexpr (requires { e.job; }) return e.job;
        return "";
      },
      event);
}

}  // namespace

class CoordinatorCore::Impl {
 public:
  // Returns the state for reading: that opens no job.
  const State& read() const { return state; }
  // Null: there is none, or it is removed.
  const coord::Job* Find(const JobId& id) const {
    const coord::Job* job = state.FindJob(id);
    return job == nullptr || job->record.removed ? nullptr : job;
  }

  State state;
  bool stepped = false;
};

CoordinatorCore::CoordinatorCore(CoordinatorOptions options, ClusterId cluster, int64_t epoch)
    : impl_(std::make_unique<Impl>()) {
  impl_->state.cluster = std::move(cluster);
  impl_->state.options = std::move(options);
  impl_->state.epoch = epoch;
  impl_->state.sequence = epoch << 32;
}
CoordinatorCore::~CoordinatorCore() = default;
CoordinatorCore::CoordinatorCore(CoordinatorCore&&) noexcept = default;
CoordinatorCore& CoordinatorCore::operator=(CoordinatorCore&&) noexcept = default;

absl::Status CoordinatorCore::Recover(Instant now, const std::vector<StoreRecord>& stored,
                                      const JobId& crashed) {
  ATOLL_CHECK(!impl_->stepped, "Recover comes before the first Step");
  impl_->state.now = now;
  impl_->state.crashed = crashed;
  return coord::Load(impl_->state, stored);
}

std::string CoordinatorCore::SaveWhole() const { return coord::SaveWhole(impl_->read()); }

bool CoordinatorCore::LoadWhole(absl::string_view bytes) {
  impl_->stepped = true;
  return coord::LoadWhole(bytes, impl_->state);
}

CoordinatorActions CoordinatorCore::Step(Instant now, const CoordinatorEvent& event) {
  impl_->stepped = true;
  State& s = impl_->state;
  ATOLL_CHECK(now >= s.now, "time went back");
  s.now = now;
  s.out = CoordinatorActions();
  const CrashScope scope(JobFromEvent(event));
  if (!s.crashed.empty()) coord::FailCrashed(s);
  std::visit(EventHandler{s}, event);
  s.out.next_deadline = coord::Reconcile(s, coord::AffectedBy(event));
  coord::Flush(s);
  const int64_t sequence = coord::HasDecided(s) ? s.sequence : 0;
  for (ToWorker& message : s.out.to_workers) message.sequence = sequence;
  for (ToServer& message : s.out.to_servers) message.sequence = sequence;
  return std::move(s.out);
}

std::vector<MemberView> CoordinatorCore::Members(Instant now) const {
  std::vector<MemberView> views;
  const State& s = impl_->read();
  for (const auto& [name, worker] : s.workers) views.push_back(coord::MakeView(s, worker, now));
  for (const auto& [name, server] : s.servers) views.push_back(coord::MakeView(s, server, now));
  return views;
}

CoordinatorCore::JobPage CoordinatorCore::Jobs(int64_t before, size_t ended_most) const {
  JobPage page;
  size_t ended = 0;
  int64_t oldest = 0;  // of those
  const auto& jobs = impl_->read().jobs;
  for (auto at = jobs.end(); at != jobs.begin();) {
    const auto& [number, job] = *--at;
    const bool is_older = before != 0 && (number >= before || !job.ended());
    if (job.record.removed || is_older) continue;
    if (job.ended()) {
      if (ended == ended_most) page.before = oldest;
      if (ended == ended_most) continue;
      ++ended;
      oldest = number;
    }
    const CrashScope scope(job.id());
    page.jobs.push_back(coord::MakeSummary(impl_->read(), job));
  }
  std::reverse(page.jobs.begin(), page.jobs.end());
  return page;
}

std::optional<JobView> CoordinatorCore::Job(Instant now, const JobId& id) const {
  const coord::Job* job = impl_->Find(id);
  if (job == nullptr) return std::nullopt;
  const CrashScope scope(id);
  return coord::MakeView(impl_->read(), *job, now);
}

std::optional<JobSummary> CoordinatorCore::Summary(const JobId& id) const {
  const coord::Job* job = impl_->Find(id);
  if (job == nullptr) return std::nullopt;
  return coord::MakeSummary(impl_->read(), *job);
}

std::optional<CoordinatorCore::DecisionsPage> CoordinatorCore::Decisions(const JobId& id,
                                                                         int64_t after_round,
                                                                         size_t most) const {
  const coord::Job* job = impl_->Find(id);
  if (job == nullptr) return std::nullopt;
  DecisionsPage page{.newest_digest = job->progress.decisions_digest};
  std::set<std::string> keys;
  const std::map<int64_t, DecisionRecord>& kept = job->rounds.decisions;
  for (auto d = kept.upper_bound(after_round); d != kept.end() && page.decisions.size() < most;
       ++d) {
    page.decisions.push_back(d->second);
    page.decisions.back().gram.clear();
    for (const DecisionParticipant& p : d->second.participants) {
      if (p.signature) keys.insert(p.signature->key);
    }
  }
  for (const Signer& signer : job->record.signers) {
    if (keys.contains(signer.key)) page.certificates.push_back(signer.certificate);
  }
  return page;
}

std::optional<JobState> CoordinatorCore::FindState(const JobId& id) const {
  const coord::Job* job = impl_->Find(id);
  if (job == nullptr) return std::nullopt;
  return job->progress.state;
}

std::vector<std::pair<JobId, JobState>> CoordinatorCore::JobStates() const {
  std::vector<std::pair<JobId, JobState>> states;
  for (const auto& [number, job] : impl_->read().jobs) {
    if (!job.record.removed) states.emplace_back(job.id(), job.progress.state);
  }
  return states;
}

IslandPlan CoordinatorCore::Plan(const JobId& id, IslandId island) const {
  const coord::Job* job = impl_->Find(id);
  if (job == nullptr || !job->islands.contains(island)) return {};
  const IslandPlan* plan = coord::PlanInForce(*job, job->islands.at(island));
  return plan == nullptr ? IslandPlan() : *plan;
}

std::vector<OrphanView> CoordinatorCore::Orphans() const { return coord::Orphans(impl_->read()); }

std::vector<MakePlan> CoordinatorCore::PlanRequests(const JobId& id) const {
  const coord::Job* job = impl_->Find(id);
  return job == nullptr ? std::vector<MakePlan>() : coord::PlanRequests(impl_->read(), *job);
}

std::string CoordinatorCore::WhyPlanIsKept(const PlanMade& made) const {
  const coord::Job* job = impl_->read().FindJob(made.job);
  return job == nullptr ? "" : coord::WhyPlanIsKept(impl_->read(), *job, made);
}

std::vector<PlanMember> CoordinatorCore::IdleWorkers(const LayoutSpec& layout) const {
  return coord::IdleWorkers(impl_->read(), layout);
}

std::vector<ForeignMemberView> CoordinatorCore::ForeignMembers(Instant now) const {
  constexpr Duration kShown = std::chrono::minutes(1);
  std::vector<ForeignMemberView> views;
  for (const auto& [key, foreign] : impl_->read().foreign) {
    const Duration since = now - foreign.last_heartbeat;
    if (since < kShown)
      views.push_back({Name(key.kind), key.name, foreign.cluster, Seconds(since)});
  }
  return views;
}

const ClusterId& CoordinatorCore::cluster() const { return impl_->read().cluster; }
int64_t CoordinatorCore::epoch() const { return impl_->read().epoch; }
const std::string& CoordinatorCore::StoreAge() const { return impl_->read().store_age; }

int64_t CoordinatorCore::JobsExamined() const { return impl_->read().jobs.closed(); }

std::vector<StoreRecord> CoordinatorCore::Stored() const {
  return coord::AllRecords(impl_->read());
}

int64_t CoordinatorCore::JobVisits() const { return impl_->read().jobs.visits(); }

const char* Name(JobState state) {
  static constexpr const char* kNames[] = {"queued",  "preparing", "initializing",
                                           "running", "paused",    "finishing",
                                           "done",    "failed",    "cancelled"};
  const auto index = static_cast<size_t>(state);
  return index < std::size(kNames) ? kNames[index] : "?";
}

}  // namespace atl
