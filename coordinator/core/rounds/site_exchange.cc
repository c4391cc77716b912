#include "coordinator/core/rounds/site_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/encoding.h"
#include "common/model/same_model.h"
#include "common/protocol/limits.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/rounds/round_decision.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/rounds/validation.h"
#include "coordinator/core/settings.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

constexpr int64_t kExchangesCarried = 3;  // as islands carry rounds
constexpr int kSupersededMost = 3;        // versions that a branch could not fetch in time

int64_t RoundsBetween(const Job& job) { return job.spec().outer.site.rounds; }

// Estimates from this site's tokens how many all trained meanwhile.
int64_t EstimateTotalTokens(const State& s, const Job& job, int64_t tokens) {
  const int64_t own = std::max<int64_t>(1, job.occupied_islands());
  return tokens / own * std::max(own, TrainingIslands(s, job));
}

// Makes the push request of its island of the job above.
PushRequest MakePushRequest(const Job& job, const Job& above) {
  const SiteJob& site = *job.record.site;
  const ProgressRecord& progress = job.progress;
  PushRequest request;
  request.job = above.id();
  request.contribution = {site.island, site.generation, above.islands.at(site.island).author,
                          site.base};
  request.consumed = above.ledger->LeasedRanges(site.island);
  for (const PositionRange& range : request.consumed) {
    request.tokens += range.size() * job.spec().data.sequence_length;
  }
  request.masked_tokens = std::min(progress.masked_since, request.tokens);
  request.inner_steps = progress.steps_since / std::max<int64_t>(1, job.occupied_islands());
  const int64_t counted = request.tokens - request.masked_tokens;
  request.train_loss = counted == 0 ? 0 : progress.loss_since / static_cast<double>(counted);
  return request;
}

// The version to be made is contributed, if the job above can take it now.
bool Contribute(State& s, Job& job, Job& above, Version version) {
  if (above.progress.state != JobState::kRunning || !AllServersKnown(above)) return false;
  const IslandId island = job.record.site->island;
  if (!HasRoom(s, above)) {
    above.rounds.waits_for_room.insert(island);
    return false;
  }
  const PushRequest request = MakePushRequest(job, above);
  if (const absl::Status status = TakeContribution(above, request); !status.ok()) {
    s.Log(job.id(), Severity::kError,
          absl::StrCat("job ", above.id(), " refuses the contribution: ", status.message()));
    return false;
  }
  above.rounds.EditContribution(request.contribution).site = job.record.site->site;
  s.Touch(above);
  SiteJob& site = *job.EditRecord().site;
  site.contribution = request.contribution;
  site.contributed_at = version;
  ProgressRecord& progress = job.EditProgress();
  progress.rounds_since = progress.steps_since = progress.masked_since = 0;
  progress.loss_since = 0;
  for (auto& [server, link] : job.rounds.links) link.exchange_again_at = s.now;
  return true;
}

bool MayContribute(const Job& job) {
  const SiteJob& site = *job.record.site;
  return !site.contribution && site.base != kNoVersion && job.ledger->Leased(site.island) > 0;
}

// Nothing more comes from its islands: there is no data, or there are none.
bool IsDrained(const Job& job) {
  if (job.occupied_islands() > 0 && job.ledger->free() > 0) return false;
  for (const auto& [id, island] : job.islands) {
    if (job.ledger->Leased(id) > 0) return false;
  }
  return std::all_of(job.rounds.contributions.begin(), job.rounds.contributions.end(),
                     [](const auto& entry) { return entry.second.dropped; });
}

// Returns whether its servers may differ in having what islands hold instead of the parameters.
bool IsEnding(const Job& origin) {
  const auto has_ended = [&](const ShardDescriptor& shard) {
    const auto link = origin.rounds.links.find(GetActiveServer(shard));
    return link != origin.rounds.links.end() && link->second.ended;
  };
  return origin.progress.validated_final && IsQuantized(origin.spec().outer.pull_encoding) &&
         !std::all_of(origin.record.shards.begin(), origin.record.shards.end(), has_ended);
}

// The newest version of the job above, if one is to be adopted.
std::optional<Version> VersionToAdopt(const Job& job, const Job& above) {
  const Version newest = above.progress.version;
  if (!job.record.site) return IsEnding(above) ? std::nullopt : std::optional(newest);
  const SiteJob& site = *job.record.site;
  // After the last validation its servers may end at any time, and have then what islands hold
  // instead of the parameters.
  if (newest == kNoVersion || above.progress.validated_final) return std::nullopt;
  if (site.base == kNoVersion) return newest;
  if (!site.contribution) {
    // The last validation is of the last version.
    const bool last = above.progress.state == JobState::kFinishing && site.base < newest;
    return last ? std::optional(newest) : std::nullopt;
  }
  const std::optional<ContributionOutcome>& outcome = above.islands.at(site.island).outcome;
  const bool decided = outcome && outcome->contribution == *site.contribution;
  return decided && outcome->version <= newest ? std::optional(newest) : std::nullopt;
}

bool IsFetched(const Job& job) {
  return std::all_of(job.rounds.links.begin(), job.rounds.links.end(), [&](const auto& entry) {
    return entry.second.known && entry.second.base_fetched == job.rounds.adopting;
  });
}

// Another version of the running job that it begins with is there, and the one before was not
// fetched. Counts those that could be: servers knew where the shards are to be.
bool IsSupersededTooOften(Job& job) {
  Rounds& rounds = job.rounds;
  const bool could = rounds.adopting != kNoVersion &&
                     std::all_of(rounds.links.begin(), rounds.links.end(), [](const auto& entry) {
                       return entry.second.known && entry.second.assigned;
                     });
  if (!could || ++rounds.superseded < kSupersededMost) return false;
  rounds.superseded = 0;
  rounds.adopting = kNoVersion;
  return true;
}

// True: a round is decided that adopts a version.
bool AdvanceAdoption(State& s, Job& job, const Job& above) {
  const std::optional<Version> newest = VersionToAdopt(job, above);
  if (!newest) return false;
  Rounds& rounds = job.rounds;
  if (rounds.adopting == kNoVersion || (*newest > rounds.adopting && !IsFetched(job))) {
    if (!job.record.site && IsSupersededTooOften(job)) {
      FailJob(s, job,
              absl::StrCat("model.initial_job = \"", job.spec().model.initial_job,
                           "\": ", kSupersededMost,
                           " versions were replaced before they were fetched: "
                           "pause that job and submit this one again, or name a folder that atoll "
                           "export wrote (model.initial_weights_path)"));
      return true;
    }
    rounds.adopting = *newest;
    for (auto& [server, link] : rounds.links) link.exchange_again_at = s.now;
  }
  if (!IsFetched(job)) return false;
  PassRound(s, job, rounds, /*opened_by=*/-1,
            absl::StrCat("adopts version ", rounds.adopting, " of job ", above.id()));
  DecisionRecord& decision = rounds.EditDecision(job.progress.round);
  decision.step.adopts = rounds.adopting;
  if (!job.record.site) return true;
  const SiteJob& site = *job.record.site;
  decision.tokens_committed_after =
      above.progress.tokens_committed +
      EstimateTotalTokens(s, job,
                          above.ledger->Leased(site.island) * job.spec().data.sequence_length);
  return true;
}

// True: a round without terms is decided that contributes: what is left, or what the job above had
// no memory for when it was due.
bool ContributeNow(State& s, Job& job, Job& above) {
  const bool due = job.progress.rounds_since >= RoundsBetween(job);
  if (!MayContribute(job) || (!due && !IsDrained(job))) return false;
  Rounds& rounds = job.rounds;
  if (!Contribute(s, job, above, job.progress.version + 1)) return false;
  PassRound(s, job, rounds, /*opened_by=*/-1,
            due ? "a contribution is due" : "its islands have no more data");
  rounds.EditDecision(job.progress.round).step.contributes = true;
  return true;
}

// Its islands evaluate for the job above what the site has made of the version that it adopted.
bool AdvanceValidation(State& s, Job& job, const Job& above) {
  const SiteJob& site = *job.record.site;
  ProgressRecord& progress = job.progress;
  const std::vector<IslandId>& validators = above.progress.validators;
  const bool wanted =
      std::find(validators.begin(), validators.end(), site.island) != validators.end();
  const bool last = above.progress.state == JobState::kFinishing;
  const bool scores = !above.progress.evaluations.empty();  // are wanted, also once there is a loss
  if (!wanted || job.occupied_islands() == 0 ||
      (site.base <= above.progress.validated_version && !scores) ||
      (last && site.base < above.progress.validate_version)) {
    return false;
  }
  if (progress.validate_version == kNoVersion) {
    if (progress.validated_version >= site.based_at && !(last && scores)) return false;
    job.EditProgress().validate_version = job.progress.version;
    job.EditProgress().evaluations = above.progress.evaluations;
  } else if (!progress.validators.empty()) {
    return false;
  }
  ChooseValidators(s, job);
  return !progress.validators.empty();
}

// Returns the contribution that its servers are to push to the job above; null: nothing, now.
const ContributionRecord* ToBePushed(const Job& job, const Job& above) {
  if (!job.record.site) return nullptr;
  const SiteJob& site = *job.record.site;
  if (!site.contribution || job.progress.version < site.contributed_at) return nullptr;
  const auto found = above.rounds.contributions.find(*site.contribution);
  const std::vector<ContributionId>& complete = above.rounds.complete;
  if (found == above.rounds.contributions.end() || found->second.dropped ||
      std::find(complete.begin(), complete.end(), *site.contribution) != complete.end()) {
    return nullptr;
  }
  return &found->second;
}

bool IsToFetch(const Job& job, const ServerLink& link) {
  return job.rounds.adopting != kNoVersion && link.base_fetched != job.rounds.adopting;
}

ShardSource ToShardSource(const ShardDescriptor& shard) {
  const ShardPlacement active = ToPlacement(shard, FindReplica(shard, ReplicaRole::kActive));
  return {ToOwnedShard(shard), active.endpoint, active.public_key};
}

void SendFetch(State& s, const Job& job, const Job& above, const NodeId& server) {
  FetchBase fetch{job.id(), above.id(), job.rounds.adopting, {}};
  for (const ShardId shard : job.ShardsOn(server)) {
    fetch.sources.push_back(ToShardSource(above.record.shards[static_cast<size_t>(shard)]));
  }
  s.SendToServer(server, std::move(fetch));
}

void SendPush(State& s, const Job& job, Job& above, const NodeId& server) {
  const SiteJob& site = *job.record.site;
  PushContribution push{job.id(), site.contributed_at, above.id(), *site.contribution, {}, {}};
  StagedByServer& staged = above.rounds.staged[*site.contribution];
  for (const GrantedPush& granted : GetPushOrder(above, site.island)) {
    const auto at = static_cast<size_t>(granted.shard);
    if (GetActiveServer(job.record.shards[at]) != server) continue;
    const ShardDescriptor& target = above.record.shards[at];
    const int64_t elements = target.elements;
    const std::vector<ElementRange> missing =
        staged[GetActiveServer(target)].Missing(granted.shard, {0, elements});
    if (missing.empty()) continue;
    push.targets.push_back(ToShardSource(target));
    for (const ElementRange& range : missing) {
      const bool whole = range.size() == elements;
      push.order.push_back({granted.shard, whole ? 0 : range.begin, whole ? 0 : range.size(), ""});
    }
  }
  if (!push.order.empty()) s.SendToServer(server, std::move(push));
}

// The job whose versions it adopts; null: there is none any more.
const Job* FindSource(const State& s, const Job& job) {
  if (job.record.site) return JobAbove(s, job);
  const Job* origin = s.FindJob(ParseInitialJob(job.spec().model.initial_job)->job);
  return origin == nullptr || origin->record.removed ? nullptr : origin;
}

bool Exchanges(const Job& job) { return job.record.site || IsBranching(job); }

bool OwesExchange(const Job& job, const Job& above, const ServerLink& link) {
  if (!link.known || !link.assigned) return false;
  return IsToFetch(job, link) || ToBePushed(job, above) != nullptr;
}

}  // namespace

void ReassignData(Job& job, const ContributionRecord& contribution) {
  job.ledger->Reassign(contribution.contribution, job.record.site->island);
  ProgressRecord& progress = job.EditProgress();
  progress.steps_since = AddCounts(progress.steps_since, contribution.inner_steps);
  progress.masked_since = AddCounts(progress.masked_since, contribution.masked_tokens);
  progress.loss_since += contribution.train_loss *
                         static_cast<double>(contribution.tokens - contribution.masked_tokens);
}

void NoteSiteRound(State& s, Job& job, DecisionRecord& decision) {
  ProgressRecord& progress = job.EditProgress();
  decision.tokens_committed_after =
      progress.tokens_committed + EstimateTotalTokens(s, job, decision.tokens);
  progress.rounds_since = AddCounts(progress.rounds_since, 1);
  if (progress.rounds_since < RoundsBetween(job) || !MayContribute(job)) return;
  Job* above = JobAbove(s, job);
  decision.step.contributes = above != nullptr && Contribute(s, job, *above, decision.version);
}

void FinishSiteRound(Job& job, const DecisionRecord& decision) {
  if (decision.step.adopts == kNoVersion) return;
  SiteJob& site = *job.EditRecord().site;
  site.base = decision.step.adopts;
  site.based_at = decision.version;
  site.contribution.reset();
  job.rounds.adopting = kNoVersion;
}

bool IsBranching(const Job& job) {
  return !job.record.site && !job.spec().model.initial_job.empty() &&
         job.progress.version == kNoVersion;
}

// Compares what parameters of adapters mean; how they began is no matter.
bool HaveSameAdapter(AdapterSpec a, AdapterSpec b) {
  for (AdapterSpec* spec : {&a, &b}) {
    spec->path.clear();
    spec->init = {};
  }
  return a == b;
}

absl::Status CheckOrigin(const State& s, const JobSpec& spec) {
  ATOLL_ASSIGN_OR_RETURN(const InitialJob initial, ParseInitialJob(spec.model.initial_job));
  if (initial.job.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat("model.initial_job = \"", spec.model.initial_job, "\": ");
  const Job* origin = s.FindJob(initial.job);
  if (origin == nullptr || origin->record.removed || origin->record.site) {
    return absl::NotFoundError(
        absl::StrCat(what, "there is no such job, or it was removed: see atoll ls"));
  }
  if (!HaveSameAdapter(origin->spec().adapter, spec.adapter)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what,
                     "that job's [adapter] is another; leave rank, alpha, targets, use_rslora "
                     "and base as that job has them"));
  }
  const Version newest = origin->progress.version;
  if (newest == kNoVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "the job has no parameters yet: wait for its version 0"));
  }
  if (initial.version == kNoVersion) return absl::OkStatus();
  if (initial.version != newest) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "parameter servers keep the newest version alone, which is ", newest,
                     ": name that one or none, or a folder that atoll export wrote "
                     "(model.initial_weights_path)"));
  }
  if (origin->ended() || origin->progress.state == JobState::kPaused) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, "the job goes on, and its version ", newest,
                   " is soon replaced: pause it first, or name no version"));
}

absl::StatusOr<std::vector<ShardDescriptor>> CutAsOrigin(const State& s, const JobSpec& spec,
                                                         const JobFacts& facts) {
  ATOLL_RETURN_IF_ERROR(CheckOrigin(s, spec));
  ATOLL_ASSIGN_OR_RETURN(const InitialJob initial, ParseInitialJob(spec.model.initial_job));
  const Job* origin = s.FindJob(initial.job);
  if (origin == nullptr || !origin->record.facts || origin->record.facts->layers != facts.layers ||
      !IsSameModel(origin->record.facts->model, facts.model)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.initial_job = \"", spec.model.initial_job,
                     "\": that job's model is another; leave [model] as that job has it"));
  }
  std::vector<ShardDescriptor> shards = origin->record.shards;
  for (ShardDescriptor& shard : shards) {
    shard.replicas.clear();
    shard.filled_at = kNoVersion;
    shard.filled_age = 0;
  }
  return shards;
}

void NoteEnded(State& s, ServerLink& link, bool ended) {
  if (std::exchange(link.ended, ended) == ended) return;
  s.jobs.ForEachLive([&](Job& job) {
    if (IsBranching(job)) s.Touch(job);
  });
}

void FinishBranching(State& s, Job& job, const DecisionRecord& decision) {
  if (job.record.site || decision.step.adopts == kNoVersion) return;
  JobSpec spec = job.spec();
  const JobId origin = ParseInitialJob(spec.model.initial_job)->job;
  spec.model.initial_job = absl::StrCat(origin, "@", decision.step.adopts);
  job.rounds.adopting = kNoVersion;
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat("begins with the parameters of ", spec.model.initial_job));
  ReplaceSpec(s, job, spec);
}

bool AdvanceExchange(State& s, Job& job) {
  if (!job.record.site) {
    const Job* origin = FindSource(s, job);
    return origin != nullptr && AdvanceAdoption(s, job, *origin);
  }
  Job* above = JobAbove(s, job);
  if (above == nullptr) return false;
  return AdvanceAdoption(s, job, *above) || ContributeNow(s, job, *above) ||
         AdvanceValidation(s, job, *above);
}

bool HoldsForExchange(const Job& job) {
  return job.record.site && job.progress.rounds_since >= kExchangesCarried * RoundsBetween(job);
}

void OnBaseFetched(State& s, Server& server, const BaseFetched& message) {
  Job* job = s.FindJob(message.job);
  if (job == nullptr || !Exchanges(*job)) return;
  const auto link = job->rounds.links.find(server.record.name);
  if (link == job->rounds.links.end() || !link->second.known) return;
  link->second.base_fetched = message.version;
  link->second.trouble.clear();
  s.Touch(*job);
}

// ------------------------------------------------------------------------------- what is owed ----

void PumpExchange(State& s, Job& job) {
  if (!Exchanges(job) || !job.active() || job.stale()) return;
  const Job* source = FindSource(s, job);
  if (source == nullptr) return;
  for (auto& [server, link] : job.rounds.links) {
    if (!OwesExchange(job, *source, link) || s.now < link.exchange_again_at) continue;
    link.exchange_again_at = s.now + kRetryInterval;
    if (IsToFetch(job, link)) SendFetch(s, job, *source, server);
    if (ToBePushed(job, *source) != nullptr) SendPush(s, job, *JobAbove(s, job), server);
  }
}

Instant NextExchangeDeadline(const State& s, const Job& job) {
  Instant next = kNever;
  if (!Exchanges(job) || !job.active() || job.stale()) return next;
  const Job* source = FindSource(s, job);
  if (source == nullptr) return next;
  for (const auto& [server, link] : job.rounds.links) {
    if (OwesExchange(job, *source, link)) next = std::min(next, link.exchange_again_at);
  }
  return next;
}

}  // namespace atl::coord
