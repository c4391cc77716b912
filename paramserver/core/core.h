// The parameter server as a pure state machine: events in, ordered actions out. Start here.
//
// It holds some shards of each job's global model, stages islands' pushes, and applies the rounds
// that the coordinator has decided (design: "An outer round"). job_driver.h has what it does with
// one job; this is what jobs share: the conversation with the coordinator, memory, which jobs there
// are. Guarantees:
//  * A push is acknowledged as staged, to its worker and to the coordinator, only after its log
//    record is durable (LogSynced). The same push again changes nothing, also when it has long been
//    applied or dropped.
//  * A committed round is applied once, to exactly the version before it, after its record is
//    durable; RoundApplied follows. So whatever was reported to the coordinator survives any crash.
//  * A pull names a version and gets precisely that one or a refusal. A reply is a lease of an
//    immutable tensor: rounds applied meanwhile go to a copy.
//  * No bytes from outside make it crash or grow without bound (limits below).
//
// Not thread-safe: one thread calls Step. There is no
// clock, no I/O, no randomness here; arithmetic runs on the pool given, with the same results for
// any number of threads.

#ifndef ATOLL_PARAMSERVER_CORE_CORE_H_
#define ATOLL_PARAMSERVER_CORE_CORE_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/protocol/control.h"
#include "common/thread_pool.h"
#include "common/time.h"
#include "paramserver/core/events.h"
#include "paramserver/core/job_driver.h"
#include "paramserver/core/push_gate.h"

namespace atl::ps {

class ServerCore {
 public:
  static constexpr size_t kMaxJobs = 256;   // beyond it an assignment gets a ServerFault
  static constexpr size_t kLeftMax = 4096;  // jobs whose removal from here is remembered

  // `recovered`: what was found on disk (JobReplay), in any order. `pool` outlives the core.
  ServerCore(ServerOptions options, std::vector<RecoveredJob> recovered, ThreadPool* pool);
  ServerCore(const ServerCore&) = delete;  // drivers of jobs point into it
  ServerCore& operator=(const ServerCore&) = delete;

  Actions Step(Instant now, const Event& event);

  // Where the tensor link came to listen. Before the first ConnectionUp.
  void SetEndpoint(std::string endpoint) { server_.options.endpoint = std::move(endpoint); }

  // The gate before the first Step: of the recovered jobs. Each Step says what changes in it.
  PushGate MakeGate() const;

  // For tests and status pages. kNoVersion for unknown jobs; empty for unknown shards.
  Version version(const JobId& job) const;
  std::vector<float> Parameters(const JobId& job, ShardId shard) const;

 private:
  // A job that is not served: found damaged on disk, or on its way from there.
  struct Unserved {
    std::string damage;           // how it was found damaged
    bool removing = false;        // the storage is at it
    bool put_aside = false;       // likewise, and it begins anew
    int64_t removed_at = 0;       // RemoveJob::placement
    Instant next_fault = kNever;  // when the damage is reported again
  };

  void On(const FromCoordinator& event, Turn& turn);
  void On(const PushArrived& event, Turn& turn);
  void On(const PullArrived& event, Turn& turn);
  void On(const JobErased& event, Turn& turn);
  void On(const EraseFailed& event, Turn& turn);
  void On(const SnapshotDone& event, Turn& turn);
  void On(const ConnectionUp& event, Turn& turn);
  void On(const ConnectionDown& event, Turn& turn);
  void On(const PartFetched& event, Turn& turn);
  void On(const PushForwarded& event, Turn& turn);
  void On(const Tick& event, Turn& turn);
  // Handles what concerns one job alone.
  template <class Event>
  void On(const Event& event, Turn& turn) {
    if (JobDriver* job = server_.Find(event.job)) job->On(event, turn);
  }

  void Execute(const Welcome& message, Turn& turn);
  void Execute(const Refused& message, Turn& turn);
  void Execute(const AssignShards& message, Turn& turn);
  void Execute(const ReceiveShards& message, Turn& turn);
  void Execute(const RemoveJob& message, Turn& turn);
  template <class Message>
  void Execute(const Message& message, Turn& turn) {
    if (JobDriver* job = server_.Find(message.job)) job->Execute(message, turn);
  }

  bool IsForThisServer(const ToServer& message, Turn& turn);
  // Returns whether an order of this placement is older than the removal of the job from here.
  bool HasLeft(const JobId& job, int64_t placement) const;
  void Leave(const JobId& job, int64_t placement);
  // Why there can be no further one.
  absl::Status CheckNumber(const JobId& job) const;
  absl::Status RoomFor(const AssignShards& assignment) const;
  JobDriver& FindOrAdd(const JobId& job);
  template <class Event>
  void OnTransferred(const Event& event, Turn& turn);
  bool HasWork() const;
  void UpdateRoom();
  void SendHello(Turn& turn);
  void SendHeartbeat(Turn& turn);
  void SendDue(Turn& turn);
  Instant NextDeadline() const;

  Server server_;
  std::map<JobId, Unserved> unserved_;  // none of server_.jobs
  // Jobs that were removed here, with the placement of the removal; also those removed for good.
  // The newest orders may overtake older ones after a reconnect.
  std::deque<JobId> left_order_;  // of `left_`, the first to leave first
  std::map<JobId, int64_t> left_;
  JobId worked_last_;  // whose arithmetic ran last

  ClusterMark remembered_;  // as it is on the disk
  Instant remember_at_ = kNever;
  std::string refused_;             // what was noted of a coordinator of another cluster
  std::vector<RelayPlace> relays_;  // that it is reached through
  bool connected_ = false;
  bool welcomed_ = false;
  Duration heartbeat_interval_ = kHeartbeatInterval;
  Instant next_hello_ = kNever;
  Instant next_heartbeat_ = kNever;
  Tick counters_;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_CORE_H_
