// Point-to-point (P2P) channels: activations and gradients between the devices of an island.
// Implementations: queues within a process, the peer link between workers (ZeroMQ), NCCL within a
// GPU site.
//
// Sends and receives never stall compute: Send returns at once, Arrived polls, and only Receive
// waits. Messages are identified by their tag alone, so their order on the wire does not matter.
// Memory is bounded: a transport holds at most the messages of the steps' programs, which a plan
// bounds, and refuses (RESOURCE_EXHAUSTED, which is fatal for the step) what would exceed its
// limit.
//
// Threads: one per device calls Send, Arrived, Wait and Receive for that device; Abort is for any
// thread.

#ifndef ATOLL_WORKER_PIPELINE_TRANSPORT_H_
#define ATOLL_WORKER_PIPELINE_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/time.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "proto/group.plain.h"

namespace atl::worker {

// One message that has arrived.
struct Transfer {
  bool gradient = false;
  int64_t bytes = 0;
  double seconds = 0;  // from its first byte's departure to its last one's arrival
};

// Two devices whose messages go from the first to the second by a communicator of their own.
struct PairGroup {
  std::string name;
  std::string from, to;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // `payload` (contiguous, of reals) is read when the stream has come to this point; its memory
  // is free for reuse by later operations of the stream.
  virtual absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                            Backend& backend, Stream& stream, const Tensor& payload) = 0;

  // Returns whether Receive would return at once. Also true when it would fail at once.
  virtual bool Arrived(const std::string& device, const MessageTag& tag) = 0;
  // Returns when any of the tags has arrived, when aborted, or at the deadline: whatever comes
  // first.
  virtual void Wait(const std::string& device, std::span<const MessageTag> tags,
                    Instant deadline) = 0;
  // Waits for the message and puts it into `into`, of exactly its size and type. Each message can
  // be received once. DEADLINE_EXCEEDED names what did not come and from whom; ABORTED after Abort.
  virtual absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                               Stream& stream, const Tensor& into, Instant deadline) = 0;

  // Commit votes lie in host memory, are small and go between any two devices; they are no part of
  // any stage link, nor of what is known of links. As Send and Receive.
  virtual absl::Status SendVotes(const std::string& from, const std::string& to, const VoteTag& tag,
                                 const std::vector<double>& votes) = 0;
  virtual absl::StatusOr<std::vector<double>> ReceiveVotes(const std::string& device,
                                                           const VoteTag& tag,
                                                           Instant deadline) = 0;

  // Ends every wait, now and later, until Reset; what has not been received is dropped by Reset.
  virtual void Abort(const std::string& reason) = 0;
  virtual void Reset() = 0;

  // Returns what has arrived at `to` from `from` since the last call, oldest first, as far as it is
  // known and kept (at least the newest 64). For the thread of `from`.
  virtual std::vector<Transfer> TakeTransfers(const std::string& /*from*/,
                                              const std::string& /*to*/) {
    return {};
  }

  // ---- How they go. ----
  // For display: "peer copy", "NCCL: GPUs of site north".
  virtual std::string DescribeTransport(const std::string& /*from*/,
                                        const std::string& /*to*/) const {
    return "";
  }
  // Returns whether it can help to cut this pair's messages into chunks.
  virtual bool Cuts(const std::string& /*from*/, const std::string& /*to*/) const { return true; }
  // The communicators that the device's messages need, in one order everywhere; the plan's set-up
  // makes them and passes them in before the first message.
  virtual std::vector<PairGroup> ListPairGroups(const std::string& /*device*/) const { return {}; }
  virtual void UsePair(const std::string& /*device*/, const PairGroup& /*pair*/,
                       std::unique_ptr<Communicator> /*communicator*/) {}
};

// A message that lies in host memory.
struct HostMessage {
  std::string from;
  DType dtype = DType::kFloat32;
  std::span<const std::byte> bytes;  // live as long as `owner`
  std::shared_ptr<const void> owner;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_TRANSPORT_H_
