#include "coordinator/core/rounds/validation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/site_data.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/sharing/spares.h"
#include "coordinator/core/stalls.h"
#include "coordinator/core/view_makers.h"

namespace atl::coord {
namespace {

const ValidationLoss* Find(const ProgressRecord& progress, const std::string& name) {
  const auto& sets = progress.validation_sets;
  const auto found = std::find_if(sets.begin(), sets.end(),
                                  [&](const ValidationLoss& set) { return set.name == name; });
  return found == sets.end() ? nullptr : &*found;
}

// Losses of sets, or scores of tasks, by name.
template <typename Result>
void Put(std::vector<Result>& results, Result result) {
  const auto at = std::lower_bound(
      results.begin(), results.end(), result.name,
      [](const Result& known, const std::string& name) { return known.name < name; });
  if (at != results.end() && at->name == result.name) {
    *at = std::move(result);
  } else {
    results.insert(at, std::move(result));
  }
}

void PutNamedSets(const JobSpec& spec, const ValidationResult& message, ProgressRecord& progress) {
  for (const ValidationSet& known : spec.data.validation) {
    for (ValidationLoss loss : message.sets) {
      if (loss.name != known.name || !IsLoss(loss.loss)) continue;
      loss.version = message.version;
      Put(progress.validation_sets, std::move(loss));
      break;
    }
  }
}

bool IsShare(double value) { return value >= 0 && value <= 1; }

bool IsScore(const TaskScore& score) {
  return score.items > 0 && IsShare(score.accuracy) && IsShare(score.normalised_accuracy) &&
         IsShare(score.accuracy_standard_error) &&
         IsShare(score.normalised_accuracy_standard_error);
}

std::string Describe(const TaskScore& score) {
  return absl::StrCat("version ", score.version, ": task ", score.name, ": ",
                      score.kind == TaskKind::kPerplexity
                          ? absl::StrCat("perplexity ", score.perplexity)
                          : absl::StrCat("accuracy ", 100 * score.accuracy, "%, standard error ",
                                         100 * score.accuracy_standard_error, "%"),
                      " over ", CountText(score.items, "item"));
}

// The first one scores the version in all tasks, however many validate it.
bool IsToScore(const Job& job, IslandId island) {
  const ProgressRecord& progress = job.progress;
  if (SpareEvaluates(job)) return !progress.evaluations.empty() && island == kSpareIsland;
  return !progress.evaluations.empty() && !progress.validators.empty() &&
         progress.validators.front() == island;
}

// Takes the scores of tasks that are due. An older version's are shown, and stay due. A score of no
// items says that there is none.
void PutScores(State& s, Job& job, IslandId island, const ValidationResult& message) {
  ProgressRecord& progress = job.EditProgress();
  const std::vector<EvaluationSpec>& tasks = job.spec().evaluation;
  std::erase_if(progress.evaluations, [&](int32_t i) {
    if (i >= std::ssize(tasks)) return true;
    const EvaluationSpec& task = tasks[static_cast<size_t>(i)];
    const auto found =
        std::find_if(message.scores.begin(), message.scores.end(),
                     [&](const TaskScore& score) { return score.name == task.name; });
    if (found == message.scores.end()) return false;
    const bool done = message.version >= progress.validate_version;
    if (done) NotePush(s, job, island);
    if (!IsScore(*found)) {
      s.Log(job.id(), Severity::kWarning,
            absl::StrCat("version ", message.version, " has no score in task ", task.name,
                         ": its losses are not finite, or shares are none"));
      return done;
    }
    TaskScore score = *found;
    score.version = message.version;
    score.kind = task.kind;
    s.Log(job.id(), Severity::kInfo, Describe(score));
    Put(progress.scores, std::move(score));
    return done;
  });
}

// Over the sites that have evaluated this version.
ValidationLoss MeanOfSites(const JobSpec& spec, const ProgressRecord& progress, Version version) {
  ValidationLoss mean;
  for (const SiteData& site : spec.data.sites) {
    const ValidationLoss* loss = Find(progress, site.site);
    if (loss == nullptr || loss->version != version) continue;
    mean.tokens += loss->tokens;
    mean.loss += static_cast<double>(loss->tokens) * loss->loss;
    mean.accuracy += static_cast<double>(loss->tokens) * loss->accuracy;
  }
  if (mean.tokens == 0) return mean;
  mean.loss /= static_cast<double>(mean.tokens);
  mean.accuracy /= static_cast<double>(mean.tokens);
  return mean;
}

std::string Describe(const Job& job, const ValidationLoss& loss) {
  const bool of_images = IsImages(job.spec().data.format);
  return absl::StrCat(
      "version ", loss.version, ": validation loss ", loss.name.empty() ? "" : "of ", loss.name,
      loss.name.empty() ? "" : " ", loss.loss,
      of_images ? " nats an image over " : " nats a token over ", loss.tokens, " ", TokenUnit(job),
      loss.accuracy > 0 ? absl::StrCat(", accuracy ", 100 * loss.accuracy, "%") : "");
}

bool IsBeingValidated(const State& s, const Job& job) {
  const ProgressRecord& progress = job.progress;
  if (SpareEvaluates(job)) return SpareHasVersion(s, job);
  if (progress.validate_version == kNoVersion || progress.validators.empty()) return false;
  return std::all_of(progress.validators.begin(), progress.validators.end(), [&](IslandId id) {
    const IslandRecord& island = job.islands.at(id);
    const Worker* worker = s.FindWorker(island.worker);
    return island.incarnation != 0 && worker != nullptr && worker->attached && worker->progress &&
           worker->progress->job == job.id() && worker->progress->generation == island.generation &&
           worker->progress->base_version == progress.validate_version;
  });
}

// How far losses that are measured of one version, or in the steps before it, may be apart.
constexpr double kLossRatio = 8;
constexpr double kLossAnyway = 20;  // nats: a model that knows nothing may have that much

bool IsNear(double loss, double low, double high) {
  return loss >= low / kLossRatio && loss <= std::max(kLossAnyway, high * kLossRatio);
}

// The least and the largest training loss of the newest round that says so.
std::optional<std::pair<double, double>> FindTrainingLosses(const Job& job) {
  for (auto it = job.rounds.decisions.rbegin(); it != job.rounds.decisions.rend(); ++it) {
    std::optional<std::pair<double, double>> losses;
    for (const DecisionParticipant& p : it->second.participants) {
      if (!p.accepted || !(p.train_loss > 0)) continue;
      if (!losses) losses = {p.train_loss, p.train_loss};
      losses->first = std::min(losses->first, p.train_loss);
      losses->second = std::max(losses->second, p.train_loss);
    }
    if (losses) return losses;
  }
  return std::nullopt;
}

// Returns whether a validator's loss is accepted. A loss far from what islands had in training
// needs another validator that says about the same.
bool IsCredible(State& s, Job& job, IslandId island, const ValidationLoss& result) {
  const auto training = FindTrainingLosses(job);
  const bool possible = IsLoss(result.loss) && result.accuracy >= 0 && result.accuracy <= 1;
  if (possible && (!training || IsNear(result.loss, training->first, training->second)))
    return true;
  auto& doubted = job.doubted_losses;
  std::erase_if(doubted, [&](const auto& entry) { return entry.second.version != result.version; });
  for (const auto& [other, loss] : doubted) {
    const bool same = other != island && loss.name == result.name &&
                      IsNear(result.loss, loss.loss, loss.loss) && result.loss > 0;
    if (possible && same) return true;
  }
  doubted[island] = result;
  const auto found = job.islands.find(island);
  const NodeId worker = found != job.islands.end() ? found->second.worker
                        : job.spare                ? job.spare->worker
                                                   : "";
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat(island == kSpareIsland ? "spare" : absl::StrCat("island ", island),
                     worker.empty() ? "" : absl::StrCat(" (worker ", worker, ")"),
                     " says of version ", result.version, " a validation loss of ", result.loss,
                     training ? absl::StrCat(", while islands train at ", training->first, " to ",
                                             training->second)
                              : "",
                     ": it counts if another island says about the same"));
  return false;
}

// Takes the island's loss for the data on this axis, unless it is known. False: it is doubted.
bool TakeLoss(State& s, Job& job, IslandId island, int64_t axis, const ValidationResult& message) {
  const JobSpec& spec = job.spec();
  ValidationLoss result{"", message.version, message.loss, message.tokens, message.accuracy};
  if (spec.data.sites.empty()) {
    if (message.version <= job.progress.validated_version) return true;
  } else {
    result.name = spec.data.sites[static_cast<size_t>(axis)].site;
    const ValidationLoss* known = Find(job.progress, result.name);
    if (known != nullptr && message.version <= known->version) return true;
  }
  // A site's losses are the job above's to judge.
  if (!job.record.site && !IsCredible(s, job, island, result)) {
    if (job.progress.validate_version == message.version) ChooseValidators(s, job);
    return false;
  }
  NotePush(s, job, island);
  ProgressRecord& progress = job.EditProgress();
  s.Log(job.id(), Severity::kInfo, Describe(job, result));
  PutNamedSets(spec, message, progress);
  if (!result.name.empty()) Put(progress.validation_sets, result);
  if (message.version >= progress.validated_version) {
    const ValidationLoss all =
        result.name.empty() ? result : MeanOfSites(spec, progress, message.version);
    progress.validated_version = message.version;
    progress.validation_loss = all.loss;
    progress.validation_accuracy = all.accuracy;
    if (message.version == 0) progress.first_validation_loss = all.loss;
  }
  return true;
}

void AddTask(std::vector<int32_t>& tasks, int32_t task) {
  if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(task);
}

// With all tasks that are due. An older version could not be pulled any more.
void BeginValidation(State& s, Job& job, Version version) {
  ProgressRecord& progress = job.EditProgress();
  progress.validate_version = version;
  for (const int32_t task : std::exchange(progress.evaluations_next, {})) {
    AddTask(progress.evaluations, task);
  }
  ChooseValidators(s, job);
}

// Takes the island's result: its loss comes first, its score in one task after the other later.
void TakeResult(State& s, Job& job, IslandId island, int64_t axis,
                const ValidationResult& message) {
  if (axis < 0 || message.version > job.progress.version) return;
  if (!TakeLoss(s, job, island, axis, message)) return;
  // Also of another site, which was to score it before.
  if (!job.progress.evaluations.empty()) PutScores(s, job, island, message);
  if (job.progress.validate_version > message.version || IsToScore(job, island)) return;
  ProgressRecord& progress = job.EditProgress();
  std::erase(progress.validators, island);
  if (!progress.evaluations.empty()) return;
  if (job.spec().data.sites.empty()) progress.validators.clear();
  if (!progress.validators.empty()) return;
  progress.validate_version = kNoVersion;
  // Tasks that became due meanwhile.
  const bool more = !progress.evaluations_next.empty() && !job.record.site;
  if (more) BeginValidation(s, job, job.progress.version);
}

// The version of the job above that this version of a site's job has in it; kNoVersion: not known
// any more.
Version FindBaseVersion(const Job& job, Version version) {
  if (version >= job.record.site->based_at) return job.record.site->base;
  const auto& decisions = job.rounds.decisions;
  for (auto it = decisions.rbegin(); it != decisions.rend(); ++it) {
    const DecisionRecord& decision = it->second;
    if (decision.version <= version && decision.step.adopts != kNoVersion) {
      return decision.step.adopts;
    }
  }
  return kNoVersion;
}

// Takes the result of a site's island, which counts for the version that the site had adopted. A
// version that came since is not evaluated for its own sake, but for the last one.
void TakeResultAbove(State& s, const Job& job, int64_t axis, ValidationResult message) {
  const SiteJob& site = *job.record.site;
  Job* above = JobAbove(s, job);
  message.version = FindBaseVersion(job, message.version);
  if (above == nullptr || !above->active() || message.version == kNoVersion) return;
  const Version wanted = above->progress.validate_version;
  if (above->progress.state == JobState::kRunning && wanted > message.version) {
    above->EditProgress().validate_version = message.version;
  }
  TakeResult(s, *above, site.island, axis, message);
  s.Touch(*above);
}

}  // namespace

double GetTokensPerSecond(const State& s, const IslandRecord& island) {
  const Worker* worker = s.FindWorker(island.worker);
  if (worker == nullptr || !worker->attached || !worker->progress) return 0;
  const double speed = worker->progress->tokens_per_s;
  return std::isfinite(speed) && speed > 0 ? speed : 0;
}

bool IsLoss(double loss) {
  constexpr double kMost = 1e6;
  return loss >= 0 && loss <= kMost;
}

void ChooseValidators(State& s, Job& job) {
  ProgressRecord& progress = job.EditProgress();
  progress.validators.clear();
  if (GiveToSpare(s, job)) return;
  const std::vector<SiteData>& sites = job.spec().data.sites;
  std::map<int64_t, std::pair<double, IslandId>> best;     // by axis
  std::optional<std::pair<double, IslandId>> best_of_all;  // that may score it in tasks
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation == 0) continue;
    const Worker* worker = s.FindWorker(island.worker);
    const int64_t axis = !island.site.empty() ? FindSiteAxis(job.spec(), island.site)
                         : sites.empty()      ? 0
                         : worker == nullptr  ? -1
                                              : FindDataAxis(job.spec(), *worker);
    if (axis < 0) continue;
    const auto doubted = job.doubted_losses.find(id);
    if (doubted != job.doubted_losses.end() &&
        doubted->second.version == progress.validate_version) {
      continue;
    }
    // A ready island before any that is not, and one that makes progress before any other.
    const double value = (island.ready ? 1e18 : 0) - (IsStalled(job, id) ? 2e18 : 0) -
                         (island.site.empty() ? 0 : 5e17) + GetTokensPerSecond(s, island);
    if (!best_of_all || value > best_of_all->first) best_of_all = {value, id};
    if (!sites.empty()) {
      const ValidationLoss* loss = Find(progress, sites[static_cast<size_t>(axis)].site);
      if (loss != nullptr && loss->version >= progress.validate_version) continue;
    }
    const auto [entry, first] = best.try_emplace(axis, value, id);
    if (!first && value > entry->second.first) entry->second = {value, id};
  }
  for (const auto& [axis, choice] : best) progress.validators.push_back(choice.second);
  if (best.empty() && best_of_all && !progress.evaluations.empty()) {
    progress.validators.push_back(best_of_all->second);
  }
  // No island is left that could evaluate it.
  const bool doubted = std::any_of(
      job.doubted_losses.begin(), job.doubted_losses.end(),
      [&](const auto& entry) { return entry.second.version == progress.validate_version; });
  if (progress.validators.empty() && (!sites.empty() || doubted)) {
    progress.validate_version = kNoVersion;
  }
}

void ScheduleValidation(State& s, Job& job, Version version) {
  const bool last = job.ledger->Count(LedgerUse::kCommitted) == job.ledger->budget();
  const auto is_due = [&](int64_t every_rounds) {
    const int64_t every = ScheduledRounds(job, every_rounds);
    return version == 0 || last || (every > 0 && version % every == 0);
  };
  const JobSpec& spec = job.spec();
  bool due = false;
  if (!job.record.site) {  // sites evaluate for the job above
    due = is_due(spec.schedule.validate_every_rounds);
    for (int32_t i = 0; i < std::ssize(spec.evaluation); ++i) {
      if (!is_due(spec.evaluation[static_cast<size_t>(i)].every_rounds)) continue;
      due = true;
      AddTask(job.EditProgress().evaluations_next, i);
    }
  }
  const bool pending = job.progress.validate_version != kNoVersion;
  if ((!due && !pending) || (!last && IsBeingValidated(s, job))) return;
  BeginValidation(s, job, version);
}

void OnValidation(State& s, Worker& worker, const ValidationResult& message) {
  Job* job = s.FindJob(message.job);
  if (job == nullptr || !job->active() || !std::isfinite(message.loss)) return;
  if (worker.spare_for == job->id() && job->spare) {
    job->spare->since = s.now;
    return TakeResult(s, *job, kSpareIsland, /*axis=*/0, message);
  }
  const State::Assignment assignment = s.FindAssignment(worker);
  if (assignment.job != job || !assignment.leads) return;
  const int64_t axis = job->spec().data.sites.empty() ? 0 : FindDataAxis(job->spec(), worker);
  if (job->record.site) TakeResultAbove(s, *job, axis, message);
  TakeResult(s, *job, assignment.island, axis, message);
}

}  // namespace atl::coord
