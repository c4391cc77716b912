#include "coordinator/tracing/round_spans.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_format.h"

namespace atl {
namespace {

constexpr size_t kDecidingMax = 64;  // of a job; the oldest are left out

std::string HexId(const std::string& text, uint64_t seed) {
  return absl::StrFormat("%016x", XXH3_64bits_withSeed(text.data(), text.size(), seed));
}

}  // namespace

std::vector<Span> RoundSpans::On(const JobEvent& event) {
  std::vector<Span> ended;
  if (std::holds_alternative<RemovedJob>(event.what)) {
    deciding_.erase(event.job);
  } else if (const auto* decided = std::get_if<RoundDecided>(&event.what)) {
    return OnDecision(event.unix_ms, *decided);
  } else if (const auto* progressed = std::get_if<JobProgressed>(&event.what)) {
    std::deque<Round>& deciding = deciding_[event.job];
    while (!deciding.empty() && deciding.front().version <= progressed->record->version) {
      std::vector<Span>& spans = deciding.front().spans;
      spans.front().end_unix_ms = spans.back().end_unix_ms = event.unix_ms;
      ended.insert(ended.end(), spans.begin(), spans.end());
      deciding.pop_front();
    }
  }
  return ended;
}

std::vector<Span> RoundSpans::OnDecision(int64_t unix_ms, const RoundDecided& decided) {
  const DecisionRecord& decision = *decided.record;
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
  for (size_t i = 0; i < decision.participants.size(); ++i) {
    const DecisionParticipant& p = decision.participants[i];
    const int64_t begin = decided.granted_ms[i] == 0 ? unix_ms : decided.granted_ms[i];
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
  if (decision.version == kNoVersion) root.error = "every contribution was rejected";
  round.spans.insert(round.spans.begin(), root);
  if (decision.version == kNoVersion) return round.spans;
  round.spans.push_back(
      {trace_id, HexId(name + "/commit", 3), root.span_id, "commit", unix_ms, unix_ms, {}, ""});
  std::deque<Round>& deciding = deciding_[decision.job];
  deciding.push_back(std::move(round));
  if (deciding.size() > kDecidingMax) deciding.pop_front();
  return {};
}

}  // namespace atl
