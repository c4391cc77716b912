// One step of an island, recorded on request: `atoll trace`. Without a request, a step only checks
// whether there is one.
//
// The leader marks the step's calls; every member keeps what its devices and its messages did.
// Then, between two steps, the leader reads all members' clocks a few times (clocks.h), fetches
// what they kept, and converts it to its own clock: that delays the island by a handful of round
// trips, once.

#ifndef ATOLL_WORKER_ISLAND_TRACING_H_
#define ATOLL_WORKER_ISLAND_TRACING_H_

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "common/protocol/control.h"
#include "common/status.h"
#include "worker/island/control/clocks.h"
#include "worker/island/messages/wire.h"
#include "worker/pipeline/engine.h"
#include "worker/pipeline/message_log.h"

namespace atl::worker {

// The most entries that fit into one GroupFrame with little else.
inline constexpr int kMemberEntriesMax = 12'000;

// A part of a step's trace, on the clock of the worker that it is of.
struct MemberTrace {
  StepTrace trace;      // devices and messages: times since `base`
  int64_t base_ns = 0;  // of that worker's steady clock
};

// Returns the trace of this worker's devices. Messages that are not known to have arrived are left
// out and counted; so is what is beyond `entries_max`, the latest first.
MemberTrace TraceOfMember(const StepOutcome& outcome, const std::vector<SentMessage>& messages,
                          int entries_max = kMemberEntriesMax);

// Into a reply, cut so that it fits into a frame.
void SetTrace(const MemberTrace& member, GroupReply* reply);
// INVALID_ARGUMENT: it breaks a limit, or speaks of devices that are not `from`'s.
absl::StatusOr<MemberTrace> ReadTrace(const NodeId& from, const GroupReply& reply);

// Adds a member's part to the island's, on the leader's clock, since `start_ns` of it.
void Merge(const MemberTrace& member, const ClockOffset& clock, int64_t start_ns, StepTrace* trace);

// The plan's stages, and the devices in their order.
void Arrange(const IslandPlan& plan, StepTrace* trace);

// The leader's requests. Thread-safe.
class StepTracer {
 public:
  using OnTraced = std::function<void(StepTraced)>;

  explicit StepTracer(OnTraced on_traced) : on_traced_(std::move(on_traced)) {}

  // Replaces a request that has not been answered.
  void Request(const TraceNextStep& request);
  bool wanted() const { return wanted_; }

  // Answers the request, if there is one.
  void Answer(absl::StatusOr<StepTrace> trace);

 private:
  const OnTraced on_traced_;
  std::atomic<bool> wanted_ = false;
  std::mutex mutex_;
  std::optional<TraceNextStep> request_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_TRACING_H_
