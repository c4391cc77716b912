// Activations and gradients between devices of different workers, over the peer link; between
// devices of this worker, through its queue (worker/pipeline/local_transport.h). Messages over
// links that the plan shares go in the send order (shared_link_scheduler.h).

#ifndef ATOLL_WORKER_ISLAND_MEMBER_PEER_TRANSPORT_H_
#define ATOLL_WORKER_ISLAND_MEMBER_PEER_TRANSPORT_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/net/peer/peer_link.h"
#include "worker/island/messages/wire.h"
#include "worker/island/shared_link_scheduler.h"
#include "worker/pipeline/local_transport.h"
#include "worker/pipeline/message_log.h"

namespace atl::worker {

class PeerTransport final : public LocalTransport {
 public:
  // Holds at most `max_bytes` of messages that have come and not been received, as LocalTransport.
  PeerTransport(NodeId worker, int64_t max_bytes, SharedLinkScheduler::SendCall send_call)
      : LocalTransport(max_bytes),
        worker_(worker),
        scheduler_(std::move(worker), std::move(send_call)) {}

  // Sets the link, before anything else; it outlives all use.
  void Use(PeerLink* link) { link_ = link; }
  // Numbers the attempts at setting up a plan: from the next Reset on, what is sent is of this one,
  // and what others send of another one is refused. Given before the engine that uses this is
  // configured.
  void BeginEpoch(int64_t epoch);

  // Whose messages are admitted from now on, and have an order. Nothing of an earlier plan waits
  // any more, nor is sent: whatever sends has ended.
  void SetPlan(const IslandPlan& plan);

  int64_t grants_used() const { return scheduler_.grants_used(); }
  // Stops the scheduler, before the link is destroyed.
  void Stop() { scheduler_.Stop(); }

  // Admits a message for the link's handler, on its thread. A message that the plan does not have
  // is refused.
  absl::Status Admit(const NodeId& from, absl::string_view header, int64_t payload_bytes);
  void OnMessage(PeerDelivery delivery);
  void OnSharedLinkCall(const NodeId& from, const SharedLinkCall& call) {
    scheduler_.OnCall(from, call);
  }

  absl::Status SendBytes(const std::string& from, const std::string& to, const MessageTag& tag,
                         DType dtype, std::span<const std::byte> bytes,
                         std::shared_ptr<const void> owner, bool announces = false) override;
  absl::Status SendVotes(const std::string& from, const std::string& to, const VoteTag& tag,
                         const std::vector<double>& votes) override;
  void Abort(const std::string& reason) override;
  void Reset() override;
  std::vector<Transfer> TakeTransfers(const std::string& from, const std::string& to) override;

  // The log of messages to other workers; also for what sends them by another transport.
  MessageLog& log() { return *log_; }

 private:
  // `message`: without its epoch.
  PeerMessage MakePeerMessage(TensorHeader message, std::span<const std::byte> bytes,
                              std::shared_ptr<const void> owner);
  void Log(SentMessage sent, PeerMessage* message);
  bool PlannedLocked(const TensorHeader& message) const;
  bool PlannedLocked(const TensorHeader& message, const VoteTag& tag) const;
  bool PlannedLocked(const TensorHeader& message, const MessageTag& tag) const;

  using DevicePair = std::pair<std::string, std::string>;
  struct Counted {
    std::mutex mutex;
    std::map<DevicePair, std::deque<Transfer>> arrived;  // guarded by mutex; not taken yet
  };

  const NodeId worker_;
  PeerLink* link_ = nullptr;
  // Callbacks of the link hold it too.
  const std::shared_ptr<Counted> counted_ = std::make_shared<Counted>();
  const std::shared_ptr<MessageLog> log_ = std::make_shared<MessageLog>();  // likewise

  std::mutex mutex_;
  int64_t epoch_ = 0, next_epoch_ = 0;  // all guarded by mutex_
  std::vector<PlanReplica> replicas_;
  std::vector<std::string> devices_;
  SharedLinkScheduler scheduler_;  // its thread uses all of the above
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_PEER_TRANSPORT_H_
