#include "coordinator/tracing/round_spans.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_format.h"

namespace atl {
namespace {

constexpr size_t kGrantedMax = 4096;  // of a job; pushes beyond begin at their decision
constexpr size_t kDecidingMax = 64;   // likewise

std::string HexId(const std::string& text, uint64_t seed) {
  return absl::StrFormat("%016x", XXH3_64bits_withSeed(text.data(), text.size(), seed));
}

}  // namespace

std::vector<Span> RoundSpans::OnStored(int64_t unix_ms, const std::vector<StoreWrite>& writes) {
  std::vector<Span> ended;
  for (const StoreWrite& write : writes) {
    if (const auto* job = std::get_if<JobRecord>(&write.record)) {
      if (write.erase || job->removed) jobs_.erase(job->job);
    } else if (const auto* pushed = std::get_if<ContributionRecord>(&write.record)) {
      auto& granted_ms = jobs_[pushed->job].granted_ms;
      if (pushed->dropped) {
        granted_ms.erase(pushed->contribution);
      } else if (!write.erase && granted_ms.size() < kGrantedMax) {
        granted_ms.try_emplace(pushed->contribution, unix_ms);
      }
    } else if (const auto* decision = std::get_if<DecisionRecord>(&write.record)) {
      if (!write.erase) OnDecision(unix_ms, *decision, &ended);
    } else if (const auto* progress = std::get_if<ProgressRecord>(&write.record)) {
      if (!write.erase) OnVersion(unix_ms, progress->version, jobs_[progress->job], &ended);
    }
  }
  return ended;
}

void RoundSpans::OnDecision(int64_t unix_ms, const DecisionRecord& decision,
                            std::vector<Span>* ended) {
  Job& job = jobs_[decision.job];
  if (decision.round <= job.last_round) return;  // stored again
  job.last_round = decision.round;
  const std::string name = absl::StrCat(decision.job, "/", decision.round);
  const std::string trace_id = HexId(name, 1) + HexId(name, 2);
  Span root{trace_id, HexId(name, 3), "", "outer round", unix_ms, unix_ms, {}, ""};
  root.attributes = {{"atoll.job", decision.job},
                     {"atoll.round", decision.round},
                     {"atoll.version", decision.version},
                     {"atoll.tokens", decision.tokens},
                     {"atoll.closed_because", decision.closed_because},
                     {"atoll.clip_scale", decision.clip_scale}};
  Round round{decision.version, {}};
  for (const DecisionParticipant& p : decision.participants) {
    const auto granted = job.granted_ms.extract(p.contribution);
    const int64_t begin = granted.empty() ? unix_ms : granted.mapped();
    root.begin_unix_ms = std::min(root.begin_unix_ms, begin);
    const std::string push = absl::StrCat(name, "/", p.contribution.island);
    round.spans.push_back({trace_id,
                           HexId(push, 3),
                           root.span_id,
                           "push",
                           begin,
                           unix_ms,
                           {{"atoll.island", int64_t{p.contribution.island}},
                            {"atoll.worker", p.worker},
                            {"atoll.base_version", p.contribution.base_version},
                            {"atoll.inner_steps", p.inner_steps},
                            {"atoll.tokens", p.tokens},
                            {"atoll.weight", p.weight},
                            {"atoll.accepted", p.accepted},
                            {"atoll.reason", p.reason}},
                           p.accepted ? "" : p.reason});
  }
  for (const ContributionId& dropped : decision.dropped) job.granted_ms.erase(dropped);
  if (decision.version == kNoVersion) root.error = "every contribution was rejected";
  round.spans.insert(round.spans.begin(), root);
  if (decision.version == kNoVersion) {
    ended->insert(ended->end(), round.spans.begin(), round.spans.end());
    return;
  }
  round.spans.push_back(
      {trace_id, HexId(name + "/commit", 3), root.span_id, "commit", unix_ms, unix_ms, {}, ""});
  job.deciding.push_back(std::move(round));
  if (job.deciding.size() > kDecidingMax) job.deciding.pop_front();
}

void RoundSpans::OnVersion(int64_t unix_ms, Version version, Job& job, std::vector<Span>* ended) {
  while (!job.deciding.empty() && job.deciding.front().version <= version) {
    std::vector<Span>& spans = job.deciding.front().spans;
    spans.front().end_unix_ms = spans.back().end_unix_ms = unix_ms;
    ended->insert(ended->end(), spans.begin(), spans.end());
    job.deciding.pop_front();
  }
}

}  // namespace atl
