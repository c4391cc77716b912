// From the host transport, another device, or NCCL to the device's stream.

#include <algorithm>
#include <cstring>

#include "worker/pipeline/device_transport_impl.h"

namespace atl::worker {

void DeviceTransport::ReceiveForEver(Port& port) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || (!aborted_ && !port.in_jobs.empty()); });
    if (stopping_) return;
    const InJob job = std::move(port.in_jobs.front());
    port.in_jobs.pop_front();
    port.receives = true;
    lock.unlock();
    const absl::Status done = Do(port, job);
    if (!done.ok()) {
      Abort(absl::StrCat(port.device, " receives from ", job.from, ": ", done.message()));
    }
    lock.lock();
    port.receives = false;
    changed_.notify_all();
  }
}

absl::Status DeviceTransport::Do(Port& port, const InJob& job) {
  if (job.peer != nullptr) return FromPeer(port, job);
  bool announced;
  {
    const std::lock_guard lock(mutex_);
    const auto path = paths_.find({job.from, port.device});
    if (path == paths_.end()) return absl::OkStatus();  // of another plan
    announced = path->second.route == Route::kNccl;
  }
  return announced ? Announced(port, job) : FromHost(port, job);
}

// A null block: it stays with the host transport.
absl::Status DeviceTransport::Put(Port& port, const MessageTag& tag, Block* block, DType dtype,
                                  int64_t elements) {
  const std::lock_guard lock(mutex_);
  if (!port.inbox.try_emplace(tag, Port::Message{block, dtype, elements}).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("the message of micro-batch ", tag.micro_batch, " came twice"));
  }
  changed_.notify_all();
  return absl::OkStatus();
}

// There is one for each message of a step that comes by NCCL or as a peer copy; a peer that sends
// more than the plan has ends the step.
absl::StatusOr<DeviceTransport::Block*> DeviceTransport::TakeIn(Port& port) {
  std::unique_lock lock(mutex_);
  Block* const block = AwaitBlock(lock, port.idle_in, SteadyNow() + block_limit_);
  if (aborted_) return absl::AbortedError(reason_);
  if (block != nullptr) return block;
  return absl::DeadlineExceededError(
      absl::StrCat("all ", port.in_blocks.size(), " blocks hold messages that were not received"));
}

absl::Status DeviceTransport::FromHost(Port& port, const InJob& job) {
  Block* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!port.idle_in.empty()) {
      block = port.idle_in.back();
      port.idle_in.pop_back();
    }
  }
  if (block == nullptr) return Put(port, job.tag, nullptr, job.dtype, 0);
  const absl::StatusOr<HostMessage> message = host_->Take(port.device, job.tag);
  if (absl::IsNotFound(message.status())) {
    Free(port.idle_in, block);
    return absl::OkStatus();
  }
  ATOLL_RETURN_IF_ERROR(message.status());
  const auto bytes = static_cast<int64_t>(message->bytes.size());
  if (bytes > block->bytes || bytes % GetElementSize(message->dtype) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes, " bytes; the plan's have at most ", block->bytes));
  }
  std::memcpy(port.staging.data(), message->bytes.data(), message->bytes.size());
  const int64_t elements = bytes / GetElementSize(message->dtype);
  port.receiving->Wait(*port.in_stream, *block->event);
  port.receiving->CopyToDevice(*port.in_stream, block->Of(message->dtype, elements),
                               port.staging.data());
  ATOLL_RETURN_IF_ERROR(port.receiving->Synchronize(*port.in_stream));
  return Put(port, job.tag, block, message->dtype, elements);
}

absl::Status DeviceTransport::FromPeer(Port& port, const InJob& job) {
  ATOLL_ASSIGN_OR_RETURN(Block* const block, TakeIn(port));
  const OutJob& lies = *job.lies;
  port.receiving->Wait(*port.in_stream, *lies.block->event);
  port.receiving->Wait(*port.in_stream, *block->event);
  port.receiving->CopyFromPeer(*port.in_stream, block->Of(lies.dtype, lies.elements),
                               *job.peer->sending, lies.block->Of(lies.dtype, lies.elements));
  ATOLL_RETURN_IF_ERROR(port.receiving->Synchronize(*port.in_stream));
  Free(job.peer->idle_out, lies.block);
  return Put(port, job.tag, block, lies.dtype, lies.elements);
}

absl::Status DeviceTransport::Announced(Port& port, const InJob& job) {
  const absl::StatusOr<HostMessage> message = host_->Take(port.device, job.tag);
  if (absl::IsNotFound(message.status())) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(message.status());
  InJob announced_job = job;
  announced_job.dtype = message->dtype;
  announced_job.announced.emplace();
  if (message->bytes.size() != sizeof(Announcement)) {
    return absl::InvalidArgumentError("an announcement of another size");
  }
  std::memcpy(&*announced_job.announced, message->bytes.data(), sizeof(Announcement));
  std::vector<InJob> turns;
  {
    const std::lock_guard lock(mutex_);
    Path& path = paths_.at({job.from, port.device});
    auto& early = port.early[{job.from, port.device}];
    // No more can be under way than there are blocks.
    const auto most = static_cast<int64_t>(port.in_blocks.size());
    if (announced_job.announced->number >= path.expected + most) {
      return absl::InvalidArgumentError("more messages are announced than the plan has");
    }
    if (announced_job.announced->number < path.expected ||
        !early.try_emplace(announced_job.announced->number, announced_job).second) {
      return absl::InvalidArgumentError("an announcement came twice");
    }
    while (!early.empty() && early.begin()->first == path.expected) {
      turns.push_back(early.begin()->second);
      early.erase(early.begin());
      ++path.expected;
    }
  }
  for (const InJob& turn : turns) ATOLL_RETURN_IF_ERROR(FromNccl(port, turn));
  return absl::OkStatus();
}

absl::Status DeviceTransport::FromNccl(Port& port, const InJob& job) {
  std::shared_ptr<Communicator> pair;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return absl::AbortedError(reason_);
    pair = paths_.at({job.from, port.device}).in;
  }
  // Steps begin when all members have set up the plan.
  if (pair == nullptr) return absl::FailedPreconditionError("it is announced before its step");
  ATOLL_ASSIGN_OR_RETURN(Block* const block, TakeIn(port));
  const int64_t elements = job.announced->elements;
  if (elements < 0 || elements > block->bytes / GetElementSize(job.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", elements, " elements"));
  }
  port.receiving->Wait(*port.in_stream, *block->event);
  ATOLL_RETURN_IF_ERROR(
      pair->Receive(*port.receiving, *port.in_stream, block->Of(job.dtype, elements), /*from=*/0));
  ATOLL_RETURN_IF_ERROR(port.receiving->Synchronize(*port.in_stream));
  return Put(port, job.tag, block, job.dtype, elements);
}

bool DeviceTransport::Arrived(const std::string& device, const MessageTag& tag) {
  Port* const port = Find(device);
  if (port == nullptr) return host_->Arrived(device, tag);
  const std::lock_guard lock(mutex_);
  return aborted_ || port->inbox.contains(tag);
}

void DeviceTransport::Wait(const std::string& device, std::span<const MessageTag> tags,
                           Instant deadline) {
  Port* const port = Find(device);
  if (port == nullptr) return host_->Wait(device, tags, deadline);
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, ToSteady(deadline), [&] {
    return aborted_ || std::any_of(tags.begin(), tags.end(), [&](const MessageTag& tag) {
             return port->inbox.contains(tag);
           });
  });
}

absl::Status DeviceTransport::Receive(const std::string& device, const MessageTag& tag,
                                      Backend& backend, Stream& stream, const Tensor& into,
                                      Instant deadline) {
  Port* const port = Find(device);
  if (port == nullptr) return host_->Receive(device, tag, backend, stream, into, deadline);
  ATOLL_CHECK(into.contiguous());
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, ToSteady(deadline),
                      [&] { return aborted_ || port->inbox.contains(tag); });
  if (aborted_) return absl::AbortedError(reason_);
  const auto found = port->inbox.find(tag);
  const Port::Message message =
      found == port->inbox.end() ? Port::Message() : std::move(found->second);
  lock.unlock();
  if (message.block == nullptr) {
    // Not there, or left with the host transport: it waits or has it, and says what is missing.
    absl::Status status = host_->Receive(device, tag, backend, stream, into, deadline);
    if (status.ok()) {
      lock.lock();
      port->inbox.erase(tag);
    }
    return status;
  }
  if (message.dtype != into.dtype || message.elements != into.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", message.elements,
                                                   " elements for ", into.size(), ", to ", device));
  }
  const Tensor flat(into.data, into.dtype, 1, into.size());
  backend.Run(stream, Convert{message.block->Of(message.dtype, message.elements), flat});
  backend.Record(stream, *message.block->event);
  lock.lock();
  port->inbox.erase(tag);
  port->idle_in.push_back(message.block);
  changed_.notify_all();
  return absl::OkStatus();
}

}  // namespace atl::worker
