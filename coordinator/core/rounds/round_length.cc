#include "coordinator/core/rounds/round_length.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/number_text.h"
#include "common/plural.h"
#include "common/protocol/fragments.h"
#include "common/protocol/learning_rate.h"
#include "common/protocol/round_length.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/rounds/validation.h"

namespace atl::coord {
namespace {

constexpr int kLeastRounds = 32;

bool IsChosen(const Job& job) { return job.spec().outer.steps_per_round == 0; }

// However slow links are, a job has some rounds: an island that exchanges nothing learns alone.
int64_t CountMostSteps(const Job& job) {
  const double islands = static_cast<double>(std::max<int64_t>(1, ActiveIslands(job)));
  const double steps = static_cast<double>(job.spec().schedule.train_tokens) /
                       (kLeastRounds * islands * CountStepTokens(job));
  return static_cast<int64_t>(std::clamp(steps, static_cast<double>(kFirstRoundSteps),
                                         static_cast<double>(kStepsPerRoundMax)));
}

// Exchanges are mostly measured without the moments of the rounds that have them: how much longer
// the mean exchange is by its bytes.
double MomentsFactor(const Job& job) {
  const OuterSpec& outer = job.spec().outer;
  const int64_t steps = GetStepsPerRound(job);
  if (CountMomentsRounds(outer, steps) <= 1) return 1;
  const auto bytes = static_cast<double>(EncodedBytes(outer.push_encoding, kTopKChunk) +
                                         EncodedBytes(outer.pull_encoding, kTopKChunk));
  return 1 + 2 * MomentsBytesPerElement(outer, steps) * static_cast<double>(kTopKChunk) / bytes;
}

// Nothing where no island has measured both an exchange and its speed.
std::optional<RoundTimes> MeasureRound(const State& s, const Job& job) {
  const OuterSpec& outer = job.spec().outer;
  RoundTimes times;
  double fastest = 0, slowest = INFINITY;
  for (const auto& [id, island] : job.islands) {
    const double speed = GetTokensPerSecond(s, island);
    const auto exchange = job.exchanges.find(id);
    if (!IsActive(job, island) || !(speed > 0) || exchange == job.exchanges.end()) continue;
    fastest = std::max(fastest, speed);
    slowest = std::min(slowest, speed);
    const Estimate& measured = exchange->second.seconds;
    const double median = measured.median(), spread = measured.spread();
    times.exchange_s = std::max(times.exchange_s, median);
    times.exchange_least_s = std::max(times.exchange_least_s, median / spread);
    times.exchange_most_s = std::max(times.exchange_most_s, median * spread);
  }
  if (!(fastest > 0)) return std::nullopt;
  const Estimate& commits = job.commits.seconds;
  const double commit_s = commits.median(), spread = commits.spread();
  for (double* const seconds :
       {&times.exchange_s, &times.exchange_least_s, &times.exchange_most_s}) {
    *seconds *= MomentsFactor(job);
  }
  times.exchange_s += commit_s;
  times.exchange_least_s += commit_s / spread;
  times.exchange_most_s += commit_s * spread;
  times.step_s = CountStepTokens(job) / (outer.balance_steps ? fastest : slowest);
  times.overlap = outer.overlap == Overlap::kCarry;
  if (outer.balance_steps) times.slowest_over_fastest = slowest / fastest;
  return times;
}

std::string WhyText(const RoundTimes& times) {
  std::string why = absl::StrCat("an exchange takes ", SecondsText(times.exchange_s), ", a step ",
                                 SecondsText(times.step_s), "; ");
  if (times.overlap) {
    why += "islands train on meanwhile, and a round is to last four exchanges";
  } else {
    why += "islands wait meanwhile, at most a twentieth of the time";
  }
  if (const int64_t least = CountLeastSteps(times.slowest_over_fastest); least > 2) {
    absl::StrAppendFormat(&why, "; the slowest island makes a step in %d of the fastest", least);
  }
  return why;
}

// Returns the bytes of all layers for each token that an island trains on.
std::string BytesText(const Job& job) {
  const OuterSpec& outer = job.spec().outer;
  int64_t elements = 0;
  for (const LayerSize& layer : job.record.facts->layers) elements += layer.elements;
  const double tokens = CountStepTokens(job) * static_cast<double>(GetStepsPerRound(job));
  const double moments = MomentsBytesPerElement(outer, GetStepsPerRound(job));
  const auto bytes = [&](Encoding encoding) {
    return (static_cast<double>(EncodedBytes(encoding, elements)) +
            moments * static_cast<double>(elements)) /
           tokens;
  };
  return absl::StrFormat(
      "%s bytes a token pushed in %s, %s pulled in %s", NumberText(bytes(outer.push_encoding), 3),
      GetEncodingInfo(outer.push_encoding).name, NumberText(bytes(outer.pull_encoding), 3),
      GetEncodingInfo(outer.pull_encoding).name);
}

}  // namespace

double CountStepTokens(const Job& job) {
  return static_cast<double>(BatchSequences(job.spec().inner, job.progress.tokens_committed)) *
         static_cast<double>(job.spec().data.sequence_length);
}

int64_t GetStepsBetweenPushes(const Job& job) {
  if (!IsChosen(job)) return StepsBetweenPushes(job.spec().outer);
  const int64_t chosen = job.progress.steps_between_pushes;
  return chosen > 0 ? chosen : kFirstRoundSteps;
}

int64_t GetStepsPerRound(const Job& job) {
  const OuterSpec& outer = job.spec().outer;
  return IsChosen(job) ? GetStepsBetweenPushes(job) * outer.fragments : outer.steps_per_round;
}

Version GetMomentsVersion(const Job& job) {
  const int64_t rounds = CountMomentsRounds(job.spec().outer, GetStepsPerRound(job));
  if (rounds == 0) return kNoVersion;
  return std::max<Version>(0, job.progress.averaged_version) + rounds;
}

int64_t ScheduledRounds(const Job& job, int64_t every) {
  if (!IsChosen(job) || every <= 0) return every;
  return std::max(every, every * kScheduleSteps / GetStepsBetweenPushes(job));
}

int64_t GetSnapshotRounds(const Job& job) {
  // Rounds may be short; how long the log is makes snapshots, too.
  constexpr int64_t kShortRounds = 16;
  const int64_t every = job.spec().schedule.snapshot_every_rounds;
  return IsChosen(job) ? kShortRounds * every : every;
}

int64_t StatisticsIndex(const Job& job, int64_t fragment, int64_t inner_steps) {
  if (!IsChosen(job)) return fragment;
  return ComputeLengthClass(inner_steps) * FragmentsFrom(job.spec().outer).count() + fragment;
}

void NoteExchange(Instant now, Job& job, IslandId island, const IslandProgress& progress) {
  const double seconds = progress.exchange_seconds;
  if (std::isfinite(seconds) && seconds > 0) job.exchanges[island].Add(now, seconds);
}

void ChooseRoundLength(State& s, Job& job) {
  if (!IsChosen(job)) return;
  const Duration took = job.rounds.round_took;
  if (took > Duration::zero()) job.commits.Add(s.now, Seconds(took));
  const std::optional<RoundTimes> times = MeasureRound(s, job);
  if (!times) return;
  const int64_t before = GetStepsBetweenPushes(job);
  const int64_t wanted = job.round_length.Follow(s.now, before, *times);
  const int64_t steps = std::min(wanted, CountMostSteps(job));
  if (steps == before) return;
  job.EditProgress().steps_between_pushes = steps;
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat("rounds have ", steps, " steps now: ", WhyText(*times)));
}

std::string RoundLengthText(const State& s, const Job& job) {
  if (!job.record.facts) return "";
  std::string text =
      absl::StrCat(CountText(GetStepsPerRound(job), "step"), " a round, ", BytesText(job));
  if (!IsChosen(job)) return absl::StrCat(text, "; the job says so");
  const int64_t steps = GetStepsPerRound(job);
  absl::StrAppend(&text, "; half as many with ", 2 * steps, " steps; ");
  if (const std::optional<RoundTimes> times = MeasureRound(s, job)) {
    absl::StrAppend(&text, WhyText(*times));
    if (steps >= CountMostSteps(job))
      text += absl::StrCat("; no more, so that the job has ", kLeastRounds, " rounds");
    return text;
  }
  return absl::StrCat(text, "no exchange is measured yet");
}

}  // namespace atl::coord
