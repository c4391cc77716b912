// Members of a cluster that hold no model: they send over real Attach streams what workers and
// parameter servers send (hellos, heartbeats, progress), so that the coordinator's own cost can be
// measured with thousands of them on one machine.
//
// Cores like the daemons' own, events in and messages out, but without failures: each answers what
// it is requested to, at once or after the time that a step or a push is said to take.

#ifndef ATOLL_BENCH_MEMBERS_FAKE_MEMBERS_H_
#define ATOLL_BENCH_MEMBERS_FAKE_MEMBERS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/control.h"

namespace atl::bench {

struct FakeTimings {
  int workers_a_site = 1;  // sites have names, so nothing is measured between them
  Duration step = std::chrono::milliseconds(500);
  Duration push = std::chrono::milliseconds(500);  // of a whole contribution
};

// A push that was granted is due. What is called says it to the server without a byte being sent,
// or sends it.
using Staged = std::function<void(const ShardPlacement& at, const PushId& push, Encoding)>;

class FakeWorker {
 public:
  FakeWorker(const FakeTimings* timings, int number, Staged staged);

  const NodeId& name() const { return name_; }
  WorkerHello Hello() const;
  WorkerHeartbeat Heartbeat() const;
  // Answers the message.
  std::vector<WorkerMessage> On(Instant now, const ToWorkerMessage& message);
  // Returns messages that it sends by itself; to be called now and then.
  std::vector<WorkerMessage> Turn(Instant now);

 private:
  std::vector<WorkerMessage> OnOrder(const IslandOrder& order);
  WorkerMessage Push(Version base) const;
  JobFacts Facts(const JobSpec& spec) const;

  const FakeTimings* const timings_;
  const Staged staged_;
  NodeId name_;
  std::string site_;
  std::optional<IslandOrder> order_;    // leads
  std::optional<MemberOrder> follows_;  // follows
  // State of the island that it leads.
  Version base_ = kNoVersion;
  std::vector<PositionRange> leased_;
  bool lease_requested_ = false;  // for leases
  int64_t request_ = 0;
  std::optional<Instant> pushes_at_;  // its steps are made
  std::optional<Instant> pushed_at_;  // its shards are staged
  std::vector<GrantedPush> granted_;
  bool pushing_ = false;
  int64_t steps_ = 0, tokens_ = 0;
};

class FakeServer {
 public:
  explicit FakeServer(int number);

  const NodeId& name() const { return name_; }
  ServerHello Hello() const;
  ServerHeartbeat Heartbeat() const;
  std::vector<ServerMessage> On(const ToServerMessage& message);

 private:
  struct Held {
    AssignShards assignment;
    Version version = kNoVersion;
    bool ended = false;
  };
  NodeId name_;
  std::map<JobId, Held> jobs_;
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_MEMBERS_FAKE_MEMBERS_H_
