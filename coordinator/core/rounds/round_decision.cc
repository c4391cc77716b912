#include "coordinator/core/rounds/round_decision.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/protocol/fragments.h"
#include "common/protocol/learning_rate.h"
#include "common/protocol/limits.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/rounds/decide.h"
#include "coordinator/core/rounds/decision_chain.h"
#include "coordinator/core/rounds/expert_tokens.h"
#include "coordinator/core/rounds/merge.h"
#include "coordinator/core/rounds/robust_weights.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/round_steps.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/rounds/validation.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/view_makers.h"

namespace atl::coord {
namespace {

constexpr Duration kCommitLogInterval = std::chrono::minutes(1);  // for debugging, every commit
constexpr int kNotFiniteRoundsMax = 3;  // in a row, before the job is stopped
constexpr double kLeastRate = 1e-12;    // a rate of 0 is no scale

DecisionParticipant MakeParticipant(const Job& job, const Rounds& rounds,
                                    const ContributionId& id) {
  const ContributionRecord& record = rounds.contributions.at(id);
  DecisionParticipant p;
  p.contribution = id;
  const IslandRecord& island = job.islands.at(id.island);
  // The island may have another leader since.
  p.worker = !island.site.empty()    ? absl::StrCat(kBranchPrefix, island.site)
             : record.worker.empty() ? island.worker
                                     : record.worker;
  p.inner_steps = record.inner_steps;
  p.tokens = record.tokens;
  p.train_loss = record.train_loss;
  p.learning_rate = record.learning_rate;
  p.gradient_norm = record.gradient_norm;
  p.signature = record.signature;
  if (p.signature) p.consumed = record.consumed;
  p.expert_tokens = record.expert_tokens;
  return p;
}

// See penalty.h. `round_tokens`: of all candidates together. A short push counts as a whole one:
// its steps stray less from one direction than those of a long one. Where lengths change, it is
// compared with those of its own length instead (StatisticsIndex).
double EstimateLearningRateSum(const Job& job, const DecisionParticipant& p, int64_t round_tokens) {
  const int64_t committed = job.progress.tokens_committed;
  // In the middle where the rate rises, where they began at the latest where it falls.
  const auto rate = [&](const InnerSpec& inner, int64_t train_tokens) {
    const int64_t islands = ActiveIslands(job);
    return std::max(LearningRate(inner, train_tokens, committed, islands),
                    LearningRate(inner, train_tokens, committed + round_tokens / 2, islands));
  };
  const int64_t steps = std::max({p.inner_steps, job.spec().outer.steps_per_round, int64_t{1}});
  double most = rate(job.spec().inner, job.spec().schedule.train_tokens);
  // It may have been trained at the rates of before.
  const std::optional<FormerRates>& former = job.former_rates;
  if (former && p.contribution.base_version <= former->until) {
    most = std::max(most, rate(former->inner, former->train_tokens));
  }
  return std::max(most, kLeastRate) * static_cast<double>(steps);
}

DecisionRecord& NewDecision(Job& job, Rounds& rounds) {
  const int64_t round = ++job.EditProgress().round;
  DecisionRecord& decision = rounds.EditDecision(round);
  decision.job = job.id();
  decision.round = round;
  decision.previous = job.progress.version;
  decision.optimizer_steps = job.progress.optimizer_steps;
  return decision;
}

// Contributions that were dropped go with the decision, whose application servers acknowledge: then
// they have surely forgotten them.
void TakeDropped(Rounds& rounds, DecisionRecord& decision) {
  for (const auto& [id, record] : rounds.contributions) {
    if (record.dropped) decision.dropped.push_back(id);
  }
  std::sort(decision.dropped.begin(), decision.dropped.end());
  for (const ContributionId& id : decision.dropped) rounds.EraseContribution(id);
}

// A site's data is that of the job above, where it is judged.
void NoteSkipped(State& s, Job& job, const ContributionRecord& accepted) {
  if (accepted.skipped.empty()) return;
  Job* counted = job.record.site ? JobAbove(s, job) : &job;
  if (counted == nullptr) return;
  int64_t& skipped = counted->EditProgress().skipped_sequences;
  for (const PositionRange& range : accepted.skipped) skipped += range.size();
  counted->rounds.skipped_more = true;
  s.Log(counted->id(), Severity::kWarning,
        absl::StrCat("island ", accepted.contribution.island,
                     job.record.site ? absl::StrCat(" of job ", job.id()) : "", " has skipped ",
                     DescribeSequences(accepted.skipped), "; ", skipped, " of the job's ",
                     counted->ledger->budget(), " so far"));
}

// Empty: no more of the data was skipped than the job allows.
std::string DescribeTooMuchSkipped(const Job& job) {
  const int64_t skipped = job.progress.skipped_sequences, all = job.ledger->budget();
  const double share = job.spec().inner.skipped_share_max;
  if (static_cast<double>(skipped) <= share * static_cast<double>(all)) return "";
  return absl::StrCat("stopped at version ", job.progress.version, ": ", skipped, " of ", all,
                      " sequences were skipped, more than inner.skipped_share_max = ", share,
                      " allows; the events name them");
}

// `rate`: what the round's step takes of a weight.
void NoteOutcome(State& s, Job& job, Rounds& rounds, const DecisionParticipant& p,
                 const PenaltyVerdict& verdict, Version version) {
  IslandRecord& island = job.EditIsland(p.contribution.island);
  island.outcome =
      ContributionOutcome{p.contribution, version, p.accepted, verdict.warm_up_again, p.reason};
  if (p.accepted) {
    island.rounds_accepted++;
    island.tokens_committed += p.tokens;
    NoteSkipped(s, job, rounds.contributions.at(p.contribution));
    if (job.record.site) {
      ReassignData(job, rounds.contributions.at(p.contribution));
    } else {
      job.ledger->Commit(p.contribution);
    }
    rounds.EraseContribution(p.contribution);
    return;
  }
  island.rounds_rejected++;
  DropContribution(s, job, p.contribution, p.reason);
}

// Sums the Gram matrices of each layer over all servers, with a last row and column for the outer
// optimizer's reference slot; zeros where a server has none.
std::vector<LayerGram> SumGrams(const Collecting& collecting) {
  const size_t k = collecting.contributions.size(), n = k + 1;
  std::map<int32_t, std::vector<double>> sums;
  for (const auto& [server, layers] : collecting.grams) {
    for (const LayerGram& layer : layers) {
      std::vector<double>& sum = sums[layer.layer];
      sum.resize(n * n, 0);
      const size_t width = layer.values.size() == n * n ? n : k;
      for (size_t i = 0; i < width; ++i) {
        for (size_t j = 0; j < width; ++j) sum[i * n + j] += layer.values[i * width + j];
      }
    }
  }
  std::vector<LayerGram> layers;
  for (auto& [layer, sum] : sums) layers.push_back({layer, std::move(sum)});
  return layers;
}

// k-by-k, of whole pseudo-gradients.
std::vector<double> WholeGram(const std::vector<LayerGram>& layers, size_t k) {
  std::vector<double> gram(k * k, 0);
  for (const LayerGram& layer : layers) {
    for (size_t i = 0; i < k * k; ++i) gram[i] += layer.values[i / k * (k + 1) + i % k];
  }
  return gram;
}

constexpr int kRhoRounds = 7;  // before a round, that its rate is set by too
constexpr double kLeastGain = 0.7, kMostGain = 1.5;

MergedRound Merge(const Job& job, const Rounds& rounds, const DecisionRecord& decision,
                  const RoundDecision& result, const std::vector<LayerGram>& layers,
                  Version version) {
  // The embedding is the first layer, also of a head that shares it.
  MergeInput input{job.spec().outer, {}, layers, {0}, {}};
  for (size_t i = 0; i < decision.participants.size(); ++i) {
    const DecisionParticipant& p = decision.participants[i];
    const auto steps = static_cast<double>(std::max<int64_t>(1, p.inner_steps));
    input.candidates.push_back(
        {result.verdicts[i].weight, static_cast<double>(p.tokens) / steps,
         (version - 1 - p.contribution.base_version) / FragmentsFrom(job.spec().outer).count()});
  }
  for (auto d = rounds.decisions.rbegin();
       d != rounds.decisions.rend() && input.past_rho.size() < kRhoRounds; ++d) {
    const bool passed = d->second.participants.empty();
    if (d->second.version > 0 && d->first != decision.round && !passed) {
      input.past_rho.push_back(d->second.rho);
    }
  }
  MergedRound merged = MergeRound(input);
  for (LayerStep& layer : merged.step.layers) {
    std::vector<double> weights;  // of what is committed alone
    for (size_t i = 0; i < layer.weights.size(); ++i) {
      if (result.verdicts[i].penalty.accepted) weights.push_back(layer.weights[i]);
    }
    layer.weights = std::move(weights);
  }
  return merged;
}

// The moving average of the parameters decays in each step of all islands (outer_optimizer.h). With
// fragments a layer has as many steps in a round as all fragments have pushes.
double ComputeAverageKeep(const Job& job, const DecisionRecord& decision,
                          const RoundDecision& result) {
  if (!KeepsAverage(job.spec())) return RoundStep().average_keep;
  double steps = 0;
  for (size_t i = 0; i < decision.participants.size(); ++i) {
    if (!result.verdicts[i].penalty.accepted) continue;
    // A step trains on a sequence at least: what an island says has this limit.
    const DecisionParticipant& p = decision.participants[i];
    steps += static_cast<double>(
        std::min(p.inner_steps, p.tokens / std::max<int64_t>(1, job.spec().data.sequence_length)));
  }
  const int64_t fragments = job.spec().outer.fragments;
  const int64_t islands = std::max<int64_t>(1, ActiveIslands(job));
  return std::pow(job.spec().inner.ema,
                  steps * static_cast<double>(fragments) / static_cast<double>(islands));
}

bool IsGainInRange(double gain) { return gain == 0 || (gain >= kLeastGain && gain <= kMostGain); }

// Said when it begins, not in every round.
void WarnOfGain(State& s, const Job& job, const Rounds& rounds, const DecisionRecord& decision) {
  const auto before = rounds.decisions.find(decision.round - 1);
  const bool was_in_range = before == rounds.decisions.end() || IsGainInRange(before->second.gain);
  if (IsGainInRange(decision.gain) || !was_in_range) return;
  s.Log(
      job.id(), Severity::kWarning,
      absl::StrFormat("version %d: the outer step has a gain of %.2f, outside %.1f to %.1f: change "
                      "outer.learning_rate, or set outer.optimizer = \"nesterov_gain\"",
                      decision.version, decision.gain, kLeastGain, kMostGain));
}

// Records are compared and printed: no NaN in them.
double Storable(double value) { return std::isfinite(value) ? value : -1; }

std::string Describe(const DecisionRecord& decision) {
  std::string text = decision.version == kNoVersion
                         ? absl::StrCat("round ", decision.round, " is void")
                         : absl::StrCat("version ", decision.version, " is decided");
  absl::StrAppend(&text, ": ", decision.closed_because);
  for (const DecisionParticipant& p : decision.participants) {
    absl::StrAppendFormat(&text, "; island %d: weight %.4g (%s)", p.contribution.island, p.weight,
                          p.reason);
  }
  return text;
}

// Decisions that are not needed any more: too old to show, applied everywhere, and in a snapshot
// everywhere with a snapshot to spare.
void Prune(const State& s, Job& job, Rounds& rounds) {
  Version needed_after = job.progress.version;
  for (const auto& [server, link] : rounds.links) {
    needed_after = std::min(needed_after, link.snapshot_version);
  }
  needed_after -= GetSnapshotRounds(job);
  ForgetExpertTokens(rounds, needed_after);
  while (static_cast<int64_t>(rounds.decisions.size()) > s.options.decisions_kept) {
    auto oldest = rounds.decisions.begin();
    if (oldest->second.previous >= needed_after) return;
    rounds.dirty.decisions.insert(oldest->first);
    rounds.decisions.erase(oldest);
  }
}

// Returns whether servers can make this step.
bool IsFinite(const MergedRound& merged) {
  const auto finite = [](double value) { return std::isfinite(static_cast<float>(value)); };
  return finite(merged.step.learning_rate) &&
         std::all_of(merged.weights.begin(), merged.weights.end(), finite) &&
         std::all_of(merged.step.layers.begin(), merged.step.layers.end(),
                     [&](const LayerStep& layer) {
                       return std::all_of(layer.weights.begin(), layer.weights.end(), finite);
                     });
}

// By statistics that are no numbers, or contradict each other, the mean alone is certain.
MergedRound FallBackToMean(const Job& job, const RoundDecision& result) {
  MergedRound mean;
  for (const RoundVerdict& verdict : result.verdicts) mean.weights.push_back(verdict.weight);
  mean.step.learning_rate = job.spec().outer.learning_rate;
  return mean;
}

void TakeMerged(const MergedRound& merged, DecisionRecord& decision) {
  decision.norm = Storable(merged.norm);
  decision.clip_scale = Storable(merged.clip_scale);
  decision.step = merged.step;
  decision.rho = Storable(merged.health.rho);
  decision.gain = Storable(merged.health.gain);
  decision.cosine = Storable(merged.health.cosine);
  decision.staleness = Storable(merged.health.staleness);
}

// The round's participants, into the decision and as they are judged.
std::vector<RoundCandidate> TakeCandidates(Job& job, Rounds& rounds, const Collecting& collecting,
                                           DecisionRecord& decision) {
  std::vector<RoundCandidate> candidates;
  int64_t tokens = 0;
  for (const ContributionId& id : collecting.contributions) {
    decision.participants.push_back(MakeParticipant(job, rounds, id));
    tokens += decision.participants.back().tokens;
    rounds.EditPenalty(id.island);
  }
  const int64_t fragment = FragmentFromVersion(collecting.version, FragmentsFrom(job.spec().outer));
  for (const DecisionParticipant& p : decision.participants) {
    const ContributionRecord& record = rounds.contributions.at(p.contribution);
    candidates.push_back({p.contribution, p.tokens, EstimateLearningRateSum(job, p, tokens),
                          record.masked_tokens, StatisticsIndex(job, fragment, p.inner_steps),
                          record.site, collecting.unfit.contains(p.contribution)});
  }
  return candidates;
}

// Adds what the round adds to the steps that each island's optimizer has made, as a mean.
void AddOptimizerSteps(const Job& job, const RoundDecision& result, DecisionRecord& decision) {
  int64_t steps = 0;
  for (size_t i = 0; i < result.verdicts.size(); ++i) {
    if (!result.verdicts[i].penalty.accepted) continue;
    steps = AddCounts(steps, decision.participants[i].inner_steps);
  }
  const auto islands = static_cast<double>(std::max<int64_t>(1, job.occupied_islands()));
  decision.optimizer_steps =
      std::min(static_cast<double>(kMaxNumber),
               decision.optimizer_steps + static_cast<double>(steps) / islands);
}

// Returns whether moments are due and some that is accepted has them.
bool AveragesMoments(const Job& job, const Rounds& rounds, const RoundDecision& result,
                     const Collecting& collecting) {
  const Version due = GetMomentsVersion(job);
  if (result.is_void || due == kNoVersion || collecting.version < due) return false;
  for (size_t i = 0; i < result.verdicts.size(); ++i) {
    const ContributionId& id = collecting.contributions[i];
    if (result.verdicts[i].penalty.accepted && rounds.contributions.at(id).moments) return true;
  }
  return false;
}

}  // namespace

void DecideInitial(State& s, Job& job, Rounds& rounds, const ContributionId& id) {
  DecisionRecord& decision = NewDecision(job, rounds);
  decision.version = 0;
  decision.opened_by = id.island;
  decision.closed_because = "the initial weights are there";
  DecisionParticipant p = MakeParticipant(job, rounds, id);
  p.accepted = true;
  p.weight = 1;
  p.reason = "initial weights";
  decision.participants.push_back(p);
  rounds.EraseContribution(id);
  std::vector<ContributionId> others;  // of initializers before
  for (const auto& [other, record] : rounds.contributions) {
    if (!record.dropped) others.push_back(other);
  }
  for (const ContributionId& other : others) {
    DropContribution(s, job, other, "other initial weights were complete first");
  }
  TakeDropped(rounds, decision);
  job.EditIsland(id.island).outcome = ContributionOutcome{id, 0, true, false, p.reason};
  rounds.window.reset();
  s.Log(job.id(), Severity::kInfo, Describe(decision));
  RetryServersNow(s, job);
}

void DecideRound(State& s, Job& job, Rounds& rounds) {
  const Collecting collecting = std::move(*rounds.collecting);
  rounds.collecting.reset();
  DecisionRecord& decision = NewDecision(job, rounds);
  decision.opened_by = collecting.opened_by;
  decision.closed_because = collecting.closed_because;
  const std::vector<RoundCandidate> candidates = TakeCandidates(job, rounds, collecting, decision);
  const std::vector<LayerGram> layers = SumGrams(collecting);
  decision.gram = WholeGram(layers, candidates.size());
  const OuterSpec& outer = job.spec().outer;
  RoundDecision result = Decide(candidates, decision.gram, outer.reject_outliers, rounds.penalties);
  if (!result.is_void) WeighRobustly(outer, candidates, decision.gram, result);
  for (double& value : decision.gram) value = Storable(value);
  MergedRound merged;
  merged.weights.resize(candidates.size(), 0);
  if (!result.is_void) merged = Merge(job, rounds, decision, result, layers, collecting.version);
  if (!result.is_void && !IsFinite(merged)) merged = FallBackToMean(job, result);
  merged.step.average_keep = ComputeAverageKeep(job, decision, result);
  TakeMerged(merged, decision);
  decision.tokens = result.tokens;
  decision.tokens_committed_after = job.progress.tokens_committed + result.tokens;
  decision.version = result.is_void ? kNoVersion : collecting.version;
  if (!result.is_void) AddOptimizerSteps(job, result, decision);
  decision.step.averages_moments = AveragesMoments(job, rounds, result, collecting);
  for (size_t i = 0; i < candidates.size(); ++i) {
    DecisionParticipant& p = decision.participants[i];
    const RoundVerdict& verdict = result.verdicts[i];
    p.norm = Storable(verdict.norm);
    p.score = Storable(verdict.penalty.score);
    p.limit = Storable(verdict.penalty.limit);
    p.clip = Storable(verdict.penalty.clip);
    p.weight = merged.weights[i];
    p.accepted = verdict.penalty.accepted;
    p.reason = verdict.penalty.reason;
    NoteOutcome(s, job, rounds, p, verdict.penalty,
                result.is_void ? job.progress.version : collecting.version);
  }
  if (job.record.site && !result.is_void) NoteSiteRound(s, job, decision);
  const bool any_rejected = std::any_of(decision.participants.begin(), decision.participants.end(),
                                        [](const DecisionParticipant& p) { return !p.accepted; });
  s.Log(job.id(),
        result.is_void ? Severity::kWarning
        : any_rejected ? Severity::kInfo
                       : Severity::kDebug,
        Describe(decision));
  WarnOfGain(s, job, rounds, decision);
  const bool none_finite =
      std::all_of(result.verdicts.begin(), result.verdicts.end(),
                  [](const RoundVerdict& v) { return !std::isfinite(v.norm); });
  rounds.not_finite_rounds = none_finite ? rounds.not_finite_rounds + 1 : 0;
  if (rounds.not_finite_rounds >= kNotFiniteRoundsMax) {
    return FailJob(s, job,
                   absl::StrCat("stopped at version ", job.progress.version,
                                ": the pseudo-gradients of ", rounds.not_finite_rounds,
                                " rounds in a row are not finite; lower "
                                "inner.learning_rate, or set inner.clip_norm"));
  }
  if (!result.is_void) {
    TakeDropped(rounds, decision);
    RetryServersNow(s, job);
    return;
  }
  // No version follows, so a push from the same base would have the name of the one just rejected.
  for (const ContributionId& id : collecting.contributions) {
    const IslandRecord& island = job.islands.at(id.island);
    if (island.generation == id.generation && island.incarnation != 0) {
      RenewIsland(s, job, id.island, "its round is void: everything was rejected");
    }
  }
}

void PassTurn(State& s, Job& job, Rounds& rounds, const std::string& why) {
  const int64_t fragment =
      FragmentFromVersion(job.progress.version + 1, FragmentsFrom(job.spec().outer));
  PassRound(s, job, rounds, rounds.window->opened_by,
            absl::StrCat(why, ", none with fragment ", fragment));
}

void PassRound(State& s, Job& job, Rounds& rounds, IslandId opened_by, const std::string& why) {
  DecisionRecord& decision = NewDecision(job, rounds);
  decision.version = job.progress.version + 1;
  decision.opened_by = opened_by;
  decision.closed_because = why;
  decision.tokens_committed_after = job.progress.tokens_committed;
  TakeDropped(rounds, decision);
  s.Log(job.id(), Severity::kDebug, Describe(decision));
  RetryServersNow(s, job);
}

void FinishRound(State& s, Job& job, Rounds& rounds) {
  const DecisionRecord* decision = rounds.FindDecision(job.progress.version + 1);
  ProgressRecord& progress = job.EditProgress();
  progress.version = decision->version;
  progress.tokens_committed = decision->tokens_committed_after;
  progress.optimizer_steps = decision->optimizer_steps;
  if (decision->step.averages_moments) {
    progress.averaged_version = decision->version;
    progress.averaged_steps = std::llround(progress.optimizer_steps);
  }
  const Version version = progress.version;
  const bool is_due =
      !rounds.commit_logged_at || s.now - *rounds.commit_logged_at >= kCommitLogInterval;
  if (is_due) rounds.commit_logged_at = s.now;
  s.Log(job.id(), is_due ? Severity::kInfo : Severity::kDebug,
        absl::StrCat("version ", version, " is committed: ", progress.tokens_committed, " ",
                     TokenUnit(job), " so far"));
  if (rounds.round_closed_at) {
    rounds.round_took = s.now - *std::exchange(rounds.round_closed_at, {});
  }
  FinishBranching(s, job, *decision);
  if (job.ended()) return;
  ChooseRoundLength(s, job);
  BalanceSteps(s, job, *decision);
  if (job.record.site) FinishSiteRound(job, *decision);
  ScheduleValidation(s, job, version);
  Prune(s, job, rounds);
  // Not again for the same data: the operator may have resumed the job.
  const bool judged = !job.record.site && std::exchange(rounds.skipped_more, false);
  const std::string why = judged ? DescribeTooMuchSkipped(job) : "";
  if (!why.empty()) FailJob(s, job, why);
}

}  // namespace atl::coord
