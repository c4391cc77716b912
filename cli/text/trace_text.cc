#include "cli/text/trace_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/text/render.h"
#include "cli/text/trace_reasons.h"
#include "common/plural.h"
#include "common/protocol/wire.h"
#include "common/status.h"

namespace atl::cli {
namespace {

using Interval = std::pair<int64_t, int64_t>;

constexpr const char* kPartNames[] = {"F ms",          "B ms",      "W ms",         "waits ms",
                                      "all-reduce ms", "commit ms", "optimizer ms", "other ms"};

// Returns the part of `inside` that none of the sorted `others` covers. Both are lists of one
// device's spans.
int64_t Uncovered(Interval inside, const std::vector<Interval>& others) {
  int64_t covered = 0;
  int64_t until = inside.first;
  for (const auto& [begin, end] : others) {
    const int64_t from = std::max(begin, until), to = std::min(end, inside.second);
    if (from >= to) continue;
    covered += to - from;
    until = to;
  }
  return inside.second - inside.first - covered;
}

std::optional<StepPart> ToStepPart(TraceKind kind) {
  switch (kind) {
    case TraceKind::kForward:
      return StepPart::kForward;
    case TraceKind::kInputGradient:
      return StepPart::kBackward;
    case TraceKind::kWeightGradient:
      return StepPart::kWeights;
    case TraceKind::kOptimizer:
      return StepPart::kOptimizer;
    case TraceKind::kSyncWait:
      return StepPart::kAllReduce;
    case TraceKind::kCommit:
      return StepPart::kCommit;
    case TraceKind::kWait:  // only what is left of it
    case TraceKind::kSync:  // beside the device's work
      break;
  }
  return std::nullopt;
}

std::string Clocks(const StepTrace& measured) {
  if (measured.clocks.empty()) return "";
  std::vector<std::string> parts;
  for (const TraceClock& clock : measured.clocks) {
    parts.push_back(absl::StrFormat("%s %.3f ms", clock.worker,
                                    static_cast<double>(clock.uncertainty_ns) * 1e-6));
  }
  return absl::StrCat("clocks, aligned by round trips, may be off the leader's by: ",
                      absl::StrJoin(parts, ", "), "\n");
}

std::vector<std::string> Row(const std::string& device, const std::string& what,
                             const PartTimes& times, bool joined) {
  std::vector<std::string> row = {device, what};
  for (int part = 0; part < kStepParts; ++part) {
    const bool in_b = joined && part == static_cast<int>(StepPart::kWeights);
    row.push_back(in_b ? "in B" : Ms(times.ns[static_cast<size_t>(part)]));
  }
  row.push_back(absl::StrFormat("%.1f%%", 100 * times.bubble()));
  return row;
}

std::vector<std::string> DifferenceRow(const PartTimes& predicted, const PartTimes& measured,
                                       bool joined) {
  std::vector<std::string> row = {"", "difference"};
  for (size_t part = 0; part < kStepParts; ++part) {
    const bool in_b = joined && part == static_cast<size_t>(StepPart::kWeights);
    row.push_back(
        in_b ? ""
             : absl::StrFormat("%+.2f",
                               static_cast<double>(measured.ns[part] - predicted.ns[part]) * 1e-6));
  }
  row.push_back(absl::StrFormat("%+.1f", 100 * (measured.bubble() - predicted.bubble())));
  return row;
}

std::string DevicesTable(const TraceAnswer& answer) {
  std::vector<std::string> header = {"device", "step"};
  header.insert(header.end(), std::begin(kPartNames), std::end(kPartNames));
  header.push_back("bubble");
  Table table(std::move(header));
  for (const TraceDevice& device : answer.measured.devices) {
    const TraceDevice* plan =
        answer.predicted ? FindDevice(*answer.predicted, device.device) : nullptr;
    const bool joined = JoinsWeights(device) || (plan != nullptr && JoinsWeights(*plan));
    const PartTimes measured = ComputePartTimes(answer.measured, device, joined);
    if (plan == nullptr) {
      table.Add(Row(device.device, "measured", measured, joined));
      continue;
    }
    const PartTimes predicted = ComputePartTimes(*answer.predicted, *plan, joined);
    table.Add(Row(device.device, "predicted", predicted, joined));
    table.Add(Row("", "measured", measured, joined));
    table.Add(DifferenceRow(predicted, measured, joined));
  }
  return table.Text();
}

}  // namespace

double PartTimes::bubble() const {
  const int64_t busy = of(StepPart::kForward) + of(StepPart::kBackward) + of(StepPart::kWeights) +
                       of(StepPart::kOptimizer);
  return step_ns <= 0 ? 0 : 1 - static_cast<double>(busy) / static_cast<double>(step_ns);
}

absl::StatusOr<TraceAnswer> ToAnswer(v1::TraceReply reply) {
  TraceAnswer answer;
  answer.job = reply.job();
  answer.island = reply.island();
  answer.leader = reply.leader();
  answer.generation = reply.generation();
  answer.no_prediction = reply.no_prediction();
  ATOLL_ASSIGN_OR_RETURN(answer.measured, Decode(reply.mutable_measured()));
  if (reply.has_predicted()) {
    ATOLL_ASSIGN_OR_RETURN(answer.predicted, Decode(reply.mutable_predicted()));
  }
  return answer;
}

PartTimes ComputePartTimes(const StepTrace& trace, const TraceDevice& device, bool joined) {
  PartTimes times;
  times.step_ns = trace.step_ns;
  const auto add = [&](StepPart part, int64_t ns) { times.ns[static_cast<size_t>(part)] += ns; };
  std::vector<Interval> work;
  for (const TraceSpan& span : device.spans) {
    const std::optional<StepPart> part = ToStepPart(span.kind);
    if (!part) continue;
    work.emplace_back(span.start_ns, span.end_ns);
    const bool moves = joined && *part == StepPart::kWeights;
    add(moves ? StepPart::kBackward : *part, span.end_ns - span.start_ns);
  }
  std::sort(work.begin(), work.end());
  for (const TraceSpan& span : device.spans) {
    if (span.kind != TraceKind::kWait) continue;
    add(StepPart::kWait, Uncovered({span.start_ns, span.end_ns}, work));
  }
  add(StepPart::kCommit, std::max<int64_t>(0, trace.step_ns - device.end_ns));
  int64_t known = 0;
  for (const int64_t ns : times.ns) known += ns;
  add(StepPart::kOther, trace.step_ns - known);
  return times;
}

std::string TraceText(const TraceAnswer& answer) {
  const StepTrace& measured = answer.measured;
  std::string text = absl::StrCat(answer.job, ", island ", answer.island, " led by ", answer.leader,
                                  ", generation ", answer.generation);
  if (measured.plan_number > 0) absl::StrAppend(&text, ", plan ", measured.plan_number);
  absl::StrAppend(&text, ": step ", measured.step, ", ", CountText(measured.sequences, "sequence"),
                  "\n");
  if (answer.predicted) {
    const double ratio = static_cast<double>(measured.step_ns) /
                         static_cast<double>(std::max<int64_t>(1, answer.predicted->step_ns));
    absl::StrAppendFormat(&text, "predicted %s ms, measured %s ms (%+.1f%%); %s\n",
                          Ms(answer.predicted->step_ns), Ms(measured.step_ns), 100 * (ratio - 1),
                          answer.predicted->about);
  } else {
    absl::StrAppend(&text, "measured ", Ms(measured.step_ns),
                    " ms; no prediction: ", answer.no_prediction, "\n");
  }
  absl::StrAppend(&text, Clocks(measured));
  if (measured.left_out > 0) {
    absl::StrAppend(&text, measured.left_out, " spans or messages are missing: the step has more ",
                    "than a trace may hold, or the arrival of a message was not reported\n");
  }
  absl::StrAppend(&text, "\n", DevicesTable(answer));
  if (!answer.predicted) return text;
  const std::vector<std::string> differences = Differences(*answer.predicted, measured, 3);
  absl::StrAppend(&text, differences.empty() ? "\nnothing differs by half a percent of the step\n"
                                             : "\nlargest differences\n");
  for (const std::string& line : differences) absl::StrAppend(&text, "  ", line, "\n");
  return text;
}

}  // namespace atl::cli
