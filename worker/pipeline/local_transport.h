// A Transport between devices of one process: a queue of messages in host memory.

#ifndef ATOLL_WORKER_PIPELINE_LOCAL_TRANSPORT_H_
#define ATOLL_WORKER_PIPELINE_LOCAL_TRANSPORT_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "worker/pipeline/transport.h"

namespace atl::worker {

// Any number of threads. The base of the transport to other workers, and what one for other memory
// (device_transport.h) works on.
class LocalTransport : public Transport {
 public:
  // Holds at most `max_bytes` of messages that have not been received, kMessageCost for each.
  static constexpr int64_t kMessageCost = 256;
  explicit LocalTransport(int64_t max_bytes) : max_bytes_(max_bytes) {}

  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override;
  // Thread-safe, and never waits. `owner` keeps the bytes, unchanged. What `announces` a message
  // that another transport carries is not counted or logged, and waits for no grant.
  virtual absl::Status SendBytes(const std::string& from, const std::string& to,
                                 const MessageTag& tag, DType dtype,
                                 std::span<const std::byte> bytes,
                                 std::shared_ptr<const void> owner, bool announces = false);
  // Calls this when Abort, or what aborts by itself, first ends all waits until Reset; on the
  // thread that does it: it must not wait nor call back. Null ends that. No call is under way when
  // OnAbort or any Abort returns.
  using Aborted = std::function<void(const std::string& reason)>;
  void OnAbort(Aborted aborted);
  // Calls this for whatever arrives for the device, on the thread that brings it and with locks
  // held: it must not wait nor call back. Null ends that; no call runs after it has returned.
  using Arrival = std::function<void(const std::string& from, const MessageTag& tag)>;
  void OnArrival(const std::string& device, Arrival arrival);
  // Returns what has arrived; NOT_FOUND: it has been taken, or dropped.
  absl::StatusOr<HostMessage> Take(const std::string& device, const MessageTag& tag);
  // Puts in a message that came from elsewhere; its bytes live as long as `owner`, and of votes are
  // of doubles. One that has no room, or is there already, aborts this queue: its sender and we do
  // not work by the same plan.
  void Deliver(const std::string& from, const std::string& to,
               const std::variant<MessageTag, VoteTag>& tag, DType dtype,
               std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

  bool Arrived(const std::string& device, const MessageTag& tag) override;
  void Wait(const std::string& device, std::span<const MessageTag> tags, Instant deadline) override;
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override;
  absl::Status SendVotes(const std::string& from, const std::string& to, const VoteTag& tag,
                         const std::vector<double>& votes) override;
  absl::StatusOr<std::vector<double>> ReceiveVotes(const std::string& device, const VoteTag& tag,
                                                   Instant deadline) override;
  void Abort(const std::string& reason) override;
  void Reset() override;

 private:
  using Key = std::pair<std::string, std::variant<MessageTag, VoteTag>>;

  absl::Status Put(Key key, HostMessage message);
  absl::Status PutLocked(Key key, HostMessage message);
  absl::StatusOr<HostMessage> AwaitMessage(const Key& key, Instant deadline);
  HostMessage TakeLocked(const Key& key);
  bool ArrivedLocked(const Key& key) const { return aborted_ || messages_.contains(key); }

  const int64_t max_bytes_;
  std::mutex abort_mutex_;  // held by an Abort until on_abort_ has returned; taken before mutex_
  Aborted on_abort_;        // guarded by abort_mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, HostMessage> messages_;      // all below guarded by mutex_
  std::map<std::string, Arrival> arrivals_;  // by device
  int64_t bytes_ = 0;
  bool aborted_ = false;
  std::string reason_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_LOCAL_TRANSPORT_H_
