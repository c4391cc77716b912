// User requests for the trace of one step of an island: `atoll trace`.
//
// A request passes through the coordinator's shell and not through its core: it decides nothing,
// nothing of it is stored, and a restart ends the call that waits for it. This class only reads the
// core's view of the job. It sends TraceNextStep to the island's leader once that leads in the
// generation in force, and passes on the leader's answer. Requests for an island whose leader has
// got the request already share its answer.
//
// Every request ends: with a step; with the reason why none comes (the job does not run, there is
// no such island), at once; with the loss of the leader or of the step; or at its deadline with
// what the island is doing instead.
//
// Pure: time is an argument. Not thread-safe.

#ifndef ATOLL_COORDINATOR_TRACE_REQUEST_TABLE_H_
#define ATOLL_COORDINATOR_TRACE_REQUEST_TABLE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/control.h"
#include "common/time.h"
#include "coordinator/core/views.h"

namespace atl {

inline constexpr size_t kTraceRequestsMax = 64;
inline constexpr Duration kTraceLook = std::chrono::milliseconds(100);

struct TracedStep {
  IslandId island = 0;
  NodeId leader;
  Generation generation = 0;
  StepTrace measured;
  JobView job;  // as it was when the answer came
};

class TraceRequestTable {
 public:
  using OnDone = std::function<void(absl::StatusOr<TracedStep>)>;
  using Jobs = std::function<std::optional<JobView>(const JobId&)>;

  // `epoch`: of the coordinator; request numbers grow over its restarts.
  explicit TraceRequestTable(int64_t epoch) : last_request_(epoch << 32) {}

  // `island` absent: the first one that has a worker. `on_done` is called once, from Advance or
  // Close.
  void Query(Instant now, const JobId& job, std::optional<IslandId> island, Duration limit,
             OnDone on_done);
  void OnMessage(const FromWorker& from);

  struct Message {
    NodeId worker;
    Incarnation incarnation = 0;
    TraceNextStep message;
  };
  struct Work {
    std::vector<Message> send;
    Instant deadline = kNever;  // call again by then
  };
  // Call it after the two above, as often as you like, and at the deadline. What jobs have come to
  // is looked at kTraceLook after the last time, since views of them are large.
  Work Advance(Instant now, const Jobs& jobs);
  // Ends all requests.
  void Close(const std::string& reason);

 private:
  struct Request {
    JobId job;
    std::optional<IslandId> wanted;
    Instant ends;
    Duration limit;
    OnDone on_done;
    // The leader that it was sent to; 0: not sent yet.
    int64_t number = 0;
    IslandId island = 0;
    NodeId leader;
    Incarnation incarnation = 0;
    Generation generation = 0;
    std::optional<StepTraced> answer;
  };

  // Returns the result of the request; nothing: it waits.
  std::optional<absl::StatusOr<TracedStep>> Look(Instant now, const std::optional<JobView>& job,
                                                 Request& request, Work& work);
  void Send(Request& request, const IslandView& island, Work& work);

  int64_t last_request_;
  std::vector<Request> requests_;
  bool changed_ = false;  // a request or an answer since the last look
  Instant look_at_ = kNever;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRACE_REQUEST_TABLE_H_
