// P2P channels of GPUs: the Transport of a worker whose devices' memory the host cannot touch. It
// never stalls a device's computing stream, nor the thread that feeds it.
//
// Out: Send copies the message into a block of the device's memory, on the stream, and is done. A
// thread of the device takes it from there: to pinned host memory and on to the host transport, or
// by NCCL to a GPU of the same site. In: another thread brings a message into a block of its
// device's memory as soon as it can be had, from the host, from another device of this worker
// (peer copy) or by NCCL; only then has it arrived, and Receive is a copy on the stream. So copies
// out, copies in, collectives and computing are on four streams.
//
// NCCL's sends and receives match by their order, and a receive must not be posted before its send
// is about to be: the sender announces each message by a small one on the host transport, when it
// is next in order, with its number on that stage link; the receiver posts receives in the order of
// these numbers.
//
// Blocks are taken by Prepare and bounded: as many in as there are messages in a step where NCCL or
// peer copies bring them, since these may come long before they are due, otherwise a few; what the
// host transport brings beyond that stays in host memory until it is received.
//
// Devices that were not added, of host memory, go to the host transport as they are; so do all
// devices' commit votes.

#ifndef ATOLL_WORKER_PIPELINE_DEVICE_TRANSPORT_H_
#define ATOLL_WORKER_PIPELINE_DEVICE_TRANSPORT_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "worker/pipeline/local_transport.h"
#include "worker/pipeline/message_log.h"
#include "worker/pipeline/transport_selection.h"

namespace atl::worker {

class DeviceTransport final : public Transport {
 public:
  // `host`, and `log` of what NCCL carries (or null), outlive it. Nothing waits longer than
  // `timeout` for a block; longer under a plan of long steps (StepLimit).
  DeviceTransport(LocalTransport* host, Duration timeout, MessageLog* log = nullptr);
  ~DeviceTransport() override;

  // Adds a device, before the first Prepare. Both backends are the device's, for its two threads.
  void Add(const std::string& device, std::unique_ptr<Backend> sending,
           std::unique_ptr<Backend> receiving);
  // Whose messages go where under this plan, and memory for them, of at most `message_bytes` each.
  // Before the devices take on the plan; ends what an earlier one left. RESOURCE_EXHAUSTED: memory.
  absl::Status Prepare(const IslandPlan& plan, int64_t message_bytes);
  // Ends everything; communicators are destroyed. Only Prepare and Reset begin anew.
  void Close() { End("the job is closed"); }

  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override;
  bool Arrived(const std::string& device, const MessageTag& tag) override;
  void Wait(const std::string& device, std::span<const MessageTag> tags, Instant deadline) override;
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override;
  absl::Status SendVotes(const std::string& from, const std::string& to, const VoteTag& tag,
                         const std::vector<double>& votes) override {
    return host_->SendVotes(from, to, tag, votes);
  }
  absl::StatusOr<std::vector<double>> ReceiveVotes(const std::string& device, const VoteTag& tag,
                                                   Instant deadline) override {
    return host_->ReceiveVotes(device, tag, deadline);
  }
  void Abort(const std::string& reason) override;
  void Reset() override;
  // Returns the transfers of what goes by the host transport.
  std::vector<Transfer> TakeTransfers(const std::string& from, const std::string& to) override;
  std::string DescribeTransport(const std::string& from, const std::string& to) const override;
  // Returns false where there is no host between: a whole message is then as quick as its chunks.
  bool Cuts(const std::string& from, const std::string& to) const override;
  std::vector<PairGroup> ListPairGroups(const std::string& device) const override;
  void UsePair(const std::string& device, const PairGroup& pair,
               std::unique_ptr<Communicator> communicator) override;

 private:
  enum class Route { kHost, kPeer, kNccl };
  struct Path {
    Route route = Route::kHost;
    std::string transport;
    int64_t announced = 0, expected = 0;  // numbers of its NCCL messages
    std::shared_ptr<Communicator> out, in;
  };
  struct Block;
  struct OutJob;
  struct InJob;
  struct Port;
  using DevicePair = std::pair<std::string, std::string>;

  Port* Find(const std::string& device) const;
  Route RouteBetween(const IslandPlan& plan, const StageLink& stage_link,
                     std::string* transport) const;
  absl::Status TakeBlocks(Port& port, int64_t message_bytes, int out, int in);
  Block* AwaitBlock(std::unique_lock<std::mutex>& lock, std::vector<Block*>& idle,
                    Instant deadline);
  void Free(std::vector<Block*>& idle, Block* block);
  void Stop(const std::string& reason);  // Abort, but for the host transport
  void End(const std::string& reason);   // waits until all threads are idle
  absl::StatusOr<Block*> TakeIn(Port& port);

  void SendForEver(Port& port);
  absl::Status Do(Port& port, const OutJob& job);
  absl::Status SendByHost(Port& port, const OutJob& job);
  absl::Status SendByNccl(Port& port, const OutJob& job);
  void ReceiveForEver(Port& port);
  absl::Status Do(Port& port, const InJob& job);
  absl::Status FromHost(Port& port, const InJob& job);
  absl::Status FromPeer(Port& port, const InJob& job);
  absl::Status Announced(Port& port, const InJob& job);
  absl::Status FromNccl(Port& port, const InJob& job);
  absl::Status Put(Port& port, const MessageTag& tag, Block* block, DType dtype, int64_t elements);

  LocalTransport* const host_;
  const Duration timeout_;  // without a plan
  MessageLog* const log_;
  std::map<std::string, std::unique_ptr<Port>> ports_;
  std::mutex stop_mutex_;  // a Stop is at work, which must not be the last to hold a communicator

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<DevicePair, Path> paths_;  // all below, and what is in ports, guarded by mutex_
  Duration block_limit_;              // the plan's; longest wait for a block
  bool aborted_ = false;
  bool stopping_ = false;
  std::string reason_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_DEVICE_TRANSPORT_H_
