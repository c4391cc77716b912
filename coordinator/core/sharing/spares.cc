#include "coordinator/core/sharing/spares.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/preparation.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/site_data.h"
#include "coordinator/core/rounds/validation.h"
#include "coordinator/core/sharing/scheduling.h"

namespace atl::coord {
namespace {

// A version is pulled and set up within this, or the worker is of no use.
constexpr Duration kAdoptsWithin = std::chrono::minutes(5);
constexpr size_t kUnfitMost = 64;

// A model that an island needs several workers for is too large for one.
bool WantsSpare(const Job& job) {
  if (!job.active() || job.stale() || job.spare || job.spec().evaluation.empty()) return false;
  if (job.record.site || job.spec().outer.site.rounds > 0 || !job.spec().data.sites.empty()) {
    return false;
  }
  // It would have a share of each version alone, and no steps of its own beside it.
  if (job.spec().outer.fragment_blend < 1) return false;
  return std::all_of(job.islands.begin(), job.islands.end(),
                     [](const auto& entry) { return entry.second.followers.empty(); });
}

bool MayEvaluate(const Job& job, const Worker& worker) {
  const auto unfit = job.unfit_spares.find(worker.record.name);
  return worker.attached && !worker.leaves() && worker.candidate_for.empty() &&
         worker.spare_for.empty() && !worker.refused.contains(job.id()) &&
         (unfit == job.unfit_spares.end() || unfit->second != worker.record.incarnation);
}

Worker* FindSpare(State& s, const Job& job) {
  return job.spare ? s.FindWorker(job.spare->worker) : nullptr;
}

// Returns whether it has pulled what it was given last.
bool HasNewest(const State& s, const Job& job) {
  const Worker* worker = s.FindWorker(job.spare->worker);
  return worker != nullptr && worker->progress && worker->progress->job == job.id() &&
         worker->progress->generation == job.spare->generation &&
         worker->progress->base_version == job.spare->newest;
}

Instant AnswerDeadline(const State& s, const Job& job) {
  const bool adopted = SpareHasVersion(s, job);
  return job.spare->since + (adopted ? s.options.final_evaluation_limit : kAdoptsWithin);
}

void RequestPreparation(State& s, Job& job, const Worker& worker) {
  job.spare->preparing.Sent(s.now);
  s.Send(worker, PrepareJob{job.id(), SpecFor(job, worker), worker.candidature});
}

OrderHead MakeSpareHead(const Job& job) {
  const Spare& spare = *job.spare;
  OrderHead head{.incarnation = spare.incarnation,
                 .placement_revision = job.placement_revision,
                 .settings_revision = job.settings_revision};
  IslandOrder& order = head.order;
  order.job = job.id();
  order.island = kSpareIsland;
  order.generation = spare.generation;
  order.run = RunState::kPause;
  order.reason = "this worker is spare: it evaluates versions, and trains nothing";
  // It pulls those alone that it is to evaluate.
  order.committed_version = spare.newest;
  order.steps_this_round = GetStepsPerRound(job);
  order.tokens_committed = job.progress.tokens_committed;
  order.author = spare.incarnation;
  if (SpareEvaluates(job)) {
    order.validate_version = job.progress.validate_version;
    order.evaluations = job.progress.evaluations;
  }
  return head;
}

void SendSpareOrder(State& s, Job& job, const Worker& worker) {
  const SentOrder& sent = job.spare->sent;
  IslandOrder order = sent.head.order;
  order.sequence = sent.sequence;
  order.spec = SpecFor(job, worker);
  order.layers = job.record.facts->layers;
  order.shards = ListPlacements(job.record.shards);
  for (const ShardPlacement& shard : order.shards) order.pull_order.push_back(shard.shard);
  s.Send(worker, std::move(order));
}

}  // namespace

void TakeSpare(State& s, Job& job, const std::vector<Worker*>& idle) {
  if (!WantsSpare(job)) return;
  const auto found = std::find_if(idle.begin(), idle.end(), [&](const Worker* worker) {
    return MayEvaluate(job, *worker) && s.FindAssignment(*worker).job == nullptr &&
           WhyLeftOut(s, job, *worker).empty();
  });
  if (found == idle.end()) return;
  Worker& worker = **found;
  worker.spare_for = job.id();
  worker.candidature = s.NextSequence();
  job.spare = Spare{.worker = worker.record.name,
                    .incarnation = worker.record.incarnation,
                    .generation = ++job.EditProgress().plan_generation};
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat("worker ", worker.record.name, " is spare: it evaluates versions"));
  RequestPreparation(s, job, worker);
}

void DropSpare(State& s, Worker& worker, const std::string& reason) {
  const JobId id = std::exchange(worker.spare_for, "");
  Job* job = id.empty() ? nullptr : s.FindJob(id);
  if (job == nullptr || !job->spare || job->spare->worker != worker.record.name) return;
  const bool evaluated = SpareEvaluates(*job);
  job->spare.reset();
  s.Touch(*job);
  if (!reason.empty()) {
    s.Log(id, Severity::kInfo,
          absl::StrCat("worker ", worker.record.name, " evaluates no more: ", reason));
  }
  if (evaluated && job->active()) ChooseValidators(s, *job);
}

void ReleaseSpare(State& s, Worker& worker, const std::string& reason) {
  const JobId id = worker.spare_for;
  const Job* job = id.empty() ? nullptr : std::as_const(s).FindJob(id);
  if (job != nullptr && job->spare) {
    SendStop<IslandOrder>(s, worker, id, kSpareIsland, job->spare->generation, reason);
  }
  DropSpare(s, worker, reason);
}

void ReleaseSpareFrom(State& s, Job& job, const std::string& reason) {
  Worker* const spare = FindSpare(s, job);
  if (spare != nullptr) ReleaseSpare(s, *spare, reason);
}

void OnSparePrepared(State& s, Job& job, Worker& worker, const JobFacts& facts) {
  if (!job.spare || job.spare->agrees || !job.record.facts) return;
  worker.prepared = facts;
  std::vector<SiteFacts> none;
  const std::string difference = DifferenceAt(job.spec(), *job.record.facts, worker, none);
  worker.prepared.reset();
  if (!difference.empty()) {
    ReleaseSpare(s, worker, "");
    return RefuseWorker(s, job, worker,
                        absl::StrCat("it differs from the other workers: ", difference));
  }
  job.spare->agrees = true;
  s.Touch(job);
}

void OnSpareHeartbeat(State& s, Job& job, const Worker& worker) {
  Spare& spare = *job.spare;
  if (!spare.agrees) {
    if (spare.preparing.Due(s.now)) RequestPreparation(s, job, worker);
    return;
  }
  const std::optional<IslandProgress>& progress = worker.progress;
  const bool current = progress && progress->job == job.id() &&
                       progress->generation == spare.generation &&
                       progress->seen_sequence >= spare.sent.sequence;
  if (current || spare.sent.sequence == 0 || !spare.sent.resending.Due(s.now)) return;
  spare.sent.resending.SentAgain(s.now, s.HasManyMembers());
  SendSpareOrder(s, job, worker);
}

bool SpareEvaluates(const Job& job) {
  return job.spare && job.spare->evaluates && job.progress.validate_version != kNoVersion;
}

bool GiveToSpare(State& s, Job& job) {
  const bool doubted =
      std::any_of(job.doubted_losses.begin(), job.doubted_losses.end(), [&](const auto& entry) {
        return entry.first == kSpareIsland && entry.second.version == job.progress.validate_version;
      });
  if (!job.spare) return false;
  job.spare->evaluates = job.spare->agrees && !doubted;
  if (!job.spare->evaluates) return false;
  // Rounds that are shorter than its pulls give it no more time.
  if (job.spare->newest == kNoVersion || HasNewest(s, job)) job.spare->since = s.now;
  job.spare->newest = job.progress.validate_version;
  s.Touch(job);
  return true;
}

bool SpareHasVersion(const State& s, const Job& job) {
  return job.spare && job.spare->newest == job.progress.validate_version && HasNewest(s, job);
}

bool AdvanceSpare(State& s, Job& job) {
  Worker* worker = FindSpare(s, job);
  if (worker == nullptr) return false;
  if (worker->leaves()) {
    ReleaseSpare(s, *worker, "it leaves");
    return true;
  }
  if (!SpareEvaluates(job) || s.now < AnswerDeadline(s, job)) return false;
  std::string reason = absl::StrCat("it has no result of version ", job.progress.validate_version);
  if (worker->progress && !worker->progress->activity.empty()) {
    absl::StrAppend(&reason, "; it says: ", CleanText(worker->progress->activity, 300));
  }
  if (job.unfit_spares.size() >= kUnfitMost) job.unfit_spares.clear();
  job.unfit_spares[worker->record.name] = worker->record.incarnation;
  ReleaseSpare(s, *worker, reason);
  return true;
}

Instant NextSpareDeadline(const State& s, const Job& job) {
  return SpareEvaluates(job) ? AnswerDeadline(s, job) : kNever;
}

void RefreshSpareOrder(State& s, Job& job) {
  const Worker* worker = FindSpare(s, job);
  if (worker == nullptr || !worker->attached || job.spare->newest == kNoVersion) return;
  SentOrder& sent = job.spare->sent;
  OrderHead head = MakeSpareHead(job);
  if (sent.sequence != 0 && sent.head == head) return;
  sent.head = std::move(head);
  sent.sequence = s.NextSequence();
  sent.resending.Sent(s.now);
  SendSpareOrder(s, job, *worker);
}

std::string DescribeSpare(const State& s, const Job& job) {
  if (!job.spare) return "";
  const Worker* worker = s.FindWorker(job.spare->worker);
  const bool reports = worker != nullptr && worker->progress && worker->progress->job == job.id();
  const std::string what = !job.spare->agrees     ? "opening the model and the data"
                           : !SpareEvaluates(job) ? "waiting for a version"
                           : reports              ? CleanText(worker->progress->activity, 200)
                                                  : "getting ready";
  return absl::StrCat(job.spare->worker, ", spare: ", what);
}

}  // namespace atl::coord
