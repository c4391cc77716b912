// How the leader gathers what all members recorded of a step.

#include "common/event_loop.h"
#include "worker/island/group_trainer.h"

namespace atl::worker {
namespace {

constexpr int kClockRounds = 5;
constexpr Duration kTraceTimeout = std::chrono::seconds(10);  // of one answer

}  // namespace

absl::StatusOr<std::map<NodeId, ClockOffset>> GroupTrainer::MeasureClocks() {
  (void)member_->calls().clocks().Take();
  for (int round = 0; round < kClockRounds; ++round) {
    IslandControl::Calls calls;
    for (const NodeId& follower : control_.Followers()) {
      ATOLL_ASSIGN_OR_RETURN(const CallId call, member_->calls().RequestClock(follower));
      calls.emplace_back(follower, call);
    }
    ATOLL_RETURN_IF_ERROR(control_.AwaitAll(calls, kTraceTimeout));
  }
  std::map<NodeId, ClockOffset> clocks;
  for (const auto& [worker, samples] : member_->calls().clocks().Take()) {
    clocks[worker] = EstimateOffset(samples);
  }
  return clocks;
}

absl::StatusOr<StepTrace> GroupTrainer::CollectTrace(Instant begun, int64_t sequences) {
  StepTrace trace;
  trace.plan_number = control_.alone() ? 0 : control_.plan().number;
  trace.step = control_.steps();
  trace.sequences = sequences;
  trace.step_ns = (SteadyNow() - begun).count();
  const int64_t start_ns = begun.time_since_epoch().count();
  Merge(member_->ReadTrace(member_->newest_step()), {}, start_ns, &trace);
  ATOLL_RETURN_IF_ERROR(control_.Drain());  // all members have done the step
  ATOLL_ASSIGN_OR_RETURN(const auto clocks, MeasureClocks());
  ATOLL_ASSIGN_OR_RETURN(const IslandControl::Calls calls,
                         control_.CallAll({.body = TraceCall{control_.number()}}));
  absl::Status status;
  for (const auto& [follower, call] : calls) {  // each call is awaited, also after an error
    auto reply = member_->calls().Await(call, kTraceTimeout);
    const auto clock = clocks.find(follower);
    if (reply.ok() && clock == clocks.end()) {
      reply = absl::UnavailableError(absl::StrCat(follower, " did not say what time it is"));
    }
    auto member =
        reply.ok() ? ReadTrace(follower, *reply) : absl::StatusOr<MemberTrace>(reply.status());
    if (!member.ok()) {
      if (status.ok()) status = member.status();
      continue;
    }
    Merge(*member, clock->second, start_ns, &trace);
    trace.clocks.push_back({follower, clock->second.uncertainty_ns});
  }
  ATOLL_RETURN_IF_ERROR(Annotate(status, "what the step did could not be gathered"));
  for (const TraceDevice& device : trace.devices) {
    trace.step_ns = std::max(trace.step_ns, device.end_ns);
  }
  Arrange(control_.plan(), &trace);
  return trace;
}

}  // namespace atl::worker
