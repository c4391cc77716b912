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

// Any number of threads.
class LocalTransport : public HostTransport {
 public:
  // Holds at most `max_bytes` of messages that have not been received, kMessageCost for each.
  static constexpr int64_t kMessageCost = 256;
  explicit LocalTransport(int64_t max_bytes) : max_bytes_(max_bytes) {}

  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override;
  // Puts in a message that came from elsewhere; its bytes live as long as `owner`. One that has no
  // room, or is there already, aborts: its sender and we do not work by the same plan.
  void Deliver(const std::string& from, const std::string& to, const MessageTag& tag, DType dtype,
               std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  absl::Status SendBytes(const std::string& from, const std::string& to, const MessageTag& tag,
                         DType dtype, std::span<const std::byte> bytes,
                         std::shared_ptr<const void> owner) override;
  absl::Status Announce(const std::string& from, const std::string& to, const MessageTag& tag,
                        DType dtype, std::span<const std::byte> bytes,
                        std::shared_ptr<const void> owner) override;
  void OnAbort(Aborted aborted) override;
  void OnArrival(const std::string& device, Arrival arrival) override;
  absl::StatusOr<HostMessage> Take(const std::string& device, const MessageTag& tag) override;
  bool Arrived(const std::string& device, const MessageTag& tag) override;
  void Wait(const std::string& device, std::span<const MessageTag> tags, Instant deadline) override;
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override;
  absl::Status SendVotes(const std::string& from, const std::string& to, const VoteTag& tag,
                         const std::vector<double>& votes) override;
  // Delivers as Deliver does; the bytes are of doubles.
  void DeliverVotes(const std::string& from, const std::string& to, const VoteTag& tag,
                    std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  absl::StatusOr<std::vector<double>> ReceiveVotes(const std::string& device, const VoteTag& tag,
                                                   Instant deadline) override;
  void Abort(const std::string& reason) override;
  void Reset() override;
  std::vector<StageLinkCounters> counters() const override;

 private:
  using Key = std::pair<std::string, std::variant<MessageTag, VoteTag>>;

  void Deliver(Key key, HostMessage message);
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
  std::map<std::pair<std::string, std::string>, StageLinkCounters> counters_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_LOCAL_TRANSPORT_H_
