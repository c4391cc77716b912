// Reports of members about a step: stage links, memory, and, on request, all that they recorded of
// it.

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "worker/island/control/leader.h"

namespace atl::worker {
namespace {

constexpr int kClockRounds = 5;
constexpr Duration kTraceTimeout = std::chrono::seconds(10);  // of one answer

}  // namespace

absl::StatusOr<std::map<NodeId, ClockOffset>> IslandLeader::MeasureClocks() {
  std::map<NodeId, std::vector<ClockSample>> samples;
  for (int round = 0; round < kClockRounds; ++round) {
    ATOLL_ASSIGN_OR_RETURN(
        const Replies replies,
        Broadcast(
            [this](const NodeId&) {
              return GroupFrame{.body = ClockCall{port_->Now().time_since_epoch().count()}};
            },
            {Followers(), kTraceTimeout, OnFailure::kReport, nullptr, /*own_part=*/false}));
    for (const auto& [follower, reply] : replies) {
      samples[follower].push_back({reply.requested_ns, reply.clock_ns, reply.received_ns});
    }
  }
  std::map<NodeId, ClockOffset> clocks;
  for (const auto& [worker, of_it] : samples) clocks[worker] = EstimateOffset(of_it);
  return clocks;
}

// Between two steps, which that delays by a handful of round trips, once.
absl::StatusOr<StepTrace> IslandLeader::CollectTrace(Instant begun, int64_t sequences) {
  StepTrace trace;
  trace.plan_number = alone_ ? 0 : plan_.number;
  trace.step = steps_;
  trace.sequences = sequences;
  trace.step_ns = (port_->Now() - begun).count();
  const int64_t start_ns = begun.time_since_epoch().count();
  ATOLL_RETURN_IF_ERROR(Drain());  // all members have done the step
  ATOLL_ASSIGN_OR_RETURN(auto clocks, MeasureClocks());
  clocks[name()] = ClockOffset();
  const absl::StatusOr<Replies> replies = Broadcast(
      ToAll({.body = TraceCall{number_}}), {Followers(), kTraceTimeout, OnFailure::kReport});
  ATOLL_RETURN_IF_ERROR(Annotate(replies.status(), "what the step did could not be gathered"));
  for (const auto& [member, reply] : *replies) {
    const auto clock = clocks.find(member);
    if (clock == clocks.end()) {
      return absl::UnavailableError(absl::StrCat(member, " did not say what time it is"));
    }
    ATOLL_ASSIGN_OR_RETURN(const MemberTrace seen, ReadTrace(member, reply));
    Merge(seen, clock->second, start_ns, &trace);
    if (member != name()) trace.clocks.push_back({member, clock->second.uncertainty_ns});
  }
  for (const TraceDevice& device : trace.devices) {
    trace.step_ns = std::max(trace.step_ns, device.end_ns);
  }
  Arrange(plan_, &trace);
  return trace;
}

// ------------------------------------------------------------------------------ of each step ----

// Only steps' replies say something about stage links, of members that send any.
void IslandLeader::NoteReply(const NodeId& from, const GroupReply& reply) {
  if (!reply.memory.empty()) {
    std::vector<DeviceMemoryState>& memory = memory_[from];
    memory.clear();
    for (const DeviceMemoryState& device : reply.memory) {
      if (WorkerFromDevice(device.device) == from) memory.push_back(device);
    }
  }
  if (reply.stage_links.empty()) return;
  stage_links_[from] = {.stage_links = reply.stage_links, .plan_wanted = reply.plan_wanted};
}

void IslandLeader::ReportStageLinks() {
  if (alone_) return;
  StageLinksSeen all;
  all.plan_number = plan_.number;
  for (const auto& [member, seen] : stage_links_) {
    all.stage_links.insert(all.stage_links.end(), seen.stage_links.begin(), seen.stage_links.end());
    if (all.plan_wanted.empty()) all.plan_wanted = seen.plan_wanted;
  }
  // The job's log has this once a minute at most; the worker's log has all of it.
  for (const StageLinkState& now : all.stage_links) {
    const bool already_logged =
        now.reason.empty() ||
        std::any_of(
            said_.stage_links.begin(), said_.stage_links.end(), [&](const StageLinkState& before) {
              return before.from == now.from && before.to == now.to && before.reason == now.reason;
            });
    if (!already_logged) LogDebug("adapter", now.from, " > ", now.to, ": ", now.reason);
  }
  said_ = all;
  hooks_.post(std::move(all));
}

void IslandLeader::ReportMemory() {
  MemorySeen all;
  for (const auto& [member, devices] : memory_) {
    all.devices.insert(all.devices.end(), devices.begin(), devices.end());
  }
  if (all.devices == memory_said_.devices) return;
  memory_said_ = all;
  hooks_.post(std::move(all));
}

}  // namespace atl::worker
