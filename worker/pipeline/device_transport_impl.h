// State that the parts of the device transport share.

#ifndef ATOLL_WORKER_PIPELINE_DEVICE_TRANSPORT_IMPL_H_
#define ATOLL_WORKER_PIPELINE_DEVICE_TRANSPORT_IMPL_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/pipeline/device_transport.h"

namespace atl::worker {

// A notice that travels ahead of a message by NCCL.
struct Announcement {
  int64_t number = 0;
  int64_t elements = 0;
};

// Pinned memory that is kept for the next message, and the backend that it is of.
struct PinnedPool {
  explicit PinnedPool(std::shared_ptr<Backend> backend) : backend(std::move(backend)) {}
  const std::shared_ptr<Backend> backend;
  std::mutex mutex;
  std::vector<Buffer> idle;  // guarded by mutex
};

struct DeviceTransport::Block {
  void* data = nullptr;
  int64_t bytes = 0;
  // Out: the message is in it. In: the device has copied it out.
  std::unique_ptr<Event> event;

  Tensor Of(DType dtype, int64_t elements) const { return {data, dtype, 1, elements}; }
};

struct DeviceTransport::OutJob {
  std::string to;
  MessageTag tag;
  DType dtype = DType::kFloat32;
  int64_t elements = 0;
  Block* block = nullptr;
  Instant sent{};
};

struct DeviceTransport::InJob {
  std::string from;
  MessageTag tag;
  // Set for a peer copy: the place of its source.
  Port* peer = nullptr;
  std::optional<OutJob> lies;
  // Set for NCCL: what was announced.
  std::optional<Announcement> announced;
  DType dtype = DType::kFloat32;
};

struct DeviceTransport::Port {
  std::string device;
  std::shared_ptr<Backend> sending, receiving;
  std::unique_ptr<Stream> out_stream, in_stream;
  std::shared_ptr<PinnedPool> pinned;  // out
  Buffer staging;                      // in, pinned
  Buffer out_memory, in_memory;
  std::vector<Block> out_blocks, in_blocks;

  // Guarded by the transport's mutex.
  std::vector<Block*> idle_out, idle_in;
  std::deque<OutJob> out_jobs;
  std::deque<InJob> in_jobs;
  std::map<DevicePair, std::map<int64_t, InJob>> early;  // announced before they are due
  bool sends = false, receives = false;                  // a thread is at work
  struct Message {
    Block* block = nullptr;  // null: it is still with the host transport
    DType dtype = DType::kFloat32;
    int64_t elements = 0;
  };
  std::map<MessageTag, Message> inbox;

  std::thread out, in;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_DEVICE_TRANSPORT_IMPL_H_
