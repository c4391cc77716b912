#include "coordinator/monitoring/cluster_metrics.h"

#include <algorithm>
#include <map>
#include <string>

namespace atl {
namespace {

using Labels = MetricsWriter::Labels;

double Number(int64_t value) { return static_cast<double>(value); }

void AddMembers(const std::vector<MemberView>& members, MetricsWriter& writer) {
  std::map<std::pair<std::string, std::string>, int> count;
  for (const char* kind : {"worker", "paramserver"}) {
    for (const char* state : {"attached", "unavailable"}) count[{kind, state}] = 0;
  }
  std::map<std::string, size_t> shown;
  for (const MemberView& m : members) {
    ++count[{m.kind, m.attached ? "attached" : "unavailable"}];
    if (!m.attached || ++shown[m.kind] > kMembersShown) continue;
    const Labels member = {{"kind", m.kind}, {"member", m.name}};
    writer.Add(kHeartbeatAge, m.since_heartbeat_s, member);
    if (!IsServer(m)) continue;
    const Labels server = {{"server", m.name}};
    writer.Add(kServerParameterBytes, Number(m.load->parameter_bytes), server);
    writer.Add(kServerStagedBytes, Number(m.load->staged_bytes), server);
    writer.Add(kServerLogBytes, Number(m.load->log_bytes), server);
    writer.Add(kServerReceivedBytes, Number(m.load->received_bytes), server);
    writer.Add(kServerSentBytes, Number(m.load->sent_bytes), server);
    writer.Add(kServerMemoryBytes, Number(m.memory_bytes), server);
  }
  for (const auto& [key, number] : count) {
    writer.Add(kMembers, number, {{"kind", key.first}, {"state", key.second}});
  }
}

void AddIsland(const JobView& job, const IslandView& island, double since_step_s,
               MetricsWriter& writer) {
  const Labels labels = {{"atoll_job", job.summary.job}, {"island", std::to_string(island.island)}};
  const auto with = [&](const char* name, const char* value) {
    Labels more = labels;
    more.emplace_back(name, value);
    return more;
  };
  writer.Add(kIslandContributions, Number(island.rounds_accepted), with("outcome", "accepted"));
  writer.Add(kIslandContributions, Number(island.rounds_rejected), with("outcome", "rejected"));
  writer.Add(kIslandTokens, Number(island.tokens_committed), labels);
  writer.Add(kIslandSinceStep, since_step_s, labels);
  writer.Add(kIslandLostSteps, Number(island.steps_interrupted), with("loss", "interrupted"));
  writer.Add(kIslandLostSteps, Number(island.steps_redone), with("loss", "replayed"));
  if (!island.progress) return;
  const IslandProgress& p = *island.progress;
  if (p.train_loss != 0) writer.Add(kIslandLoss, p.train_loss, labels);
  writer.Add(kIslandTokenRate, p.tokens_per_s, labels);
  if (p.step_seconds_idle_link > 0) {
    writer.Add(kIslandStepSeconds, p.step_seconds_idle_link, with("transfers", "idle"));
  }
  if (p.step_seconds_overlap > 0) {
    writer.Add(kIslandStepSeconds, p.step_seconds_overlap, with("transfers", "active"));
  }
  writer.Add(kIslandPushedBytes, Number(p.pushed_bytes), labels);
  writer.Add(kIslandPulledBytes, Number(p.pulled_bytes), labels);
}

void AddCounters(const JobCounters& counters, const JobId& job, MetricsWriter& writer) {
  const Labels labels = {{"atoll_job", job}};
  writer.Add(kRoundSeconds, counters.round_seconds, labels);
  writer.Add(kStaleness, counters.staleness, labels);
  writer.Add(kRounds, Number(counters.committed), {{"atoll_job", job}, {"outcome", "committed"}});
  writer.Add(kRounds, Number(counters.voided), {{"atoll_job", job}, {"outcome", "void"}});
  if (counters.last_decision_ms > 0) {
    writer.Add(kLastRound, Number(counters.last_decision_ms) / 1e3, labels);
    writer.Add(kOuterClip, counters.clip_scale, labels);
    writer.Add(kOuterNorm, counters.norm, labels);
    writer.Add(kOuterRho, counters.rho, labels);
    writer.Add(kOuterGain, counters.gain, labels);
    writer.Add(kOuterCosine, counters.cosine, labels);
  }
  for (const char* reason : {"connection_lost", "other", "restarted", "silent"}) {
    const auto found = counters.evictions.find(reason);
    const int64_t count = found == counters.evictions.end() ? 0 : found->second;
    writer.Add(kEvictions, Number(count), {{"atoll_job", job}, {"reason", reason}});
  }
}

void AddRound(int64_t unix_ms, const JobSummary& job, const JobHistory& history,
              MetricsWriter& writer) {
  const Labels labels = {{"atoll_job", job.job}};
  const bool runs = job.state == JobState::kRunning;
  writer.Add(kRoundAge, runs ? history.RoundAgeSeconds(unix_ms) : 0, labels);
  if (const double mean = history.MeanRoundSeconds(); mean > 0) {
    writer.Add(kRoundMean, mean, labels);
  }
}

void AddScore(const JobId& job, const TaskScore& score, MetricsWriter& writer) {
  const auto add = [&](const char* measure, double accuracy, double error) {
    const Labels labels = {{"atoll_job", job}, {"task", score.name}, {"measure", measure}};
    writer.Add(kJobAccuracy, accuracy, labels);
    writer.Add(kJobAccuracyError, error, labels);
  };
  if (score.kind != TaskKind::kPerplexity) {
    add("plain", score.accuracy, score.accuracy_standard_error);
  }
  if (score.kind == TaskKind::kChoices) {
    add("normalised", score.normalised_accuracy, score.normalised_accuracy_standard_error);
  } else {
    writer.Add(kJobPerplexity, score.perplexity, {{"atoll_job", job}, {"task", score.name}});
  }
}

void AddJob(Instant now, int64_t unix_ms, const JobView& job, const JobObservations& seen,
            MetricsWriter& writer) {
  const JobSummary& s = job.summary;
  const Labels labels = {{"atoll_job", s.job}};
  writer.Add(kJobVersion, Number(s.version), labels);
  writer.Add(kJobTokens, Number(s.tokens_committed), labels);
  writer.Add(kJobBudget, Number(s.tokens_budget), labels);
  writer.Add(kJobTokenRate, s.tokens_per_s, labels);
  if (s.train_loss != 0) writer.Add(kJobLoss, s.train_loss, labels);
  if (s.validated_version >= 0) writer.Add(kJobValidationLoss, s.validation_loss, labels);
  size_t sets = 0;
  for (const ValidationLoss& set : s.validation_sets) {
    if (++sets > kIslandsShown) break;
    writer.Add(kJobSetLoss, set.loss, {{"atoll_job", s.job}, {"set", set.name}});
  }
  for (const TaskScore& score : s.scores) AddScore(s.job, score, writer);
  writer.Add(kJobRunning, s.state == JobState::kRunning ? 1 : 0, labels);
  writer.Add(kJobIslands, Number(s.active_islands), labels);
  int64_t trained = 0;
  size_t shown = 0;
  for (const IslandView& island : job.islands) {
    if (island.progress) trained += island.progress->tokens;
    if (++shown > kIslandsShown) continue;
    AddIsland(job, island, seen.progress.Of(now, job, island).since_step_s, writer);
  }
  // Leaders count from their own start: what is committed may be more than they have counted.
  if (trained > 0) {
    writer.Add(kJobGoodput, std::min(1.0, Number(s.tokens_committed) / Number(trained)), labels);
  }
  if (const JobCounters* found = seen.counters.Find(s.job)) AddCounters(*found, s.job, writer);
  if (const JobHistory* found = seen.history.Find(s.job)) AddRound(unix_ms, s, *found, writer);
}

}  // namespace

void AddClusterMetrics(Instant now, int64_t unix_ms, const CoordinatorCore& core,
                       const JobObservations& seen, MetricsWriter& writer) {
  AddMembers(core.Members(now), writer);
  std::map<std::string, int> states;
  for (int state = 0; state <= static_cast<int>(JobState::kCancelled); ++state) {
    states[Name(static_cast<JobState>(state))] = 0;
  }
  size_t shown = 0;
  const auto jobs = core.JobStates();
  for (auto newest = jobs.rbegin(); newest != jobs.rend(); ++newest) {
    const auto& [job, state] = *newest;
    ++states[Name(state)];
    if (HasEnded(state) || ++shown > kJobsShown) continue;
    AddJob(now, unix_ms, *core.Job(now, job), seen, writer);
  }
  for (const auto& [state, number] : states) writer.Add(kJobs, number, {{"state", state}});
}

}  // namespace atl
