// From the device's stream to the host transport, another device, or NCCL.

#include "worker/pipeline/device_transport_impl.h"

namespace atl::worker {

DeviceTransport::Block* DeviceTransport::AwaitBlock(std::unique_lock<std::mutex>& lock,
                                                    std::vector<Block*>& idle, Instant deadline) {
  changed_.wait_until(lock, ToSteady(deadline), [&] { return aborted_ || !idle.empty(); });
  if (aborted_ || idle.empty()) return nullptr;
  Block* block = idle.back();
  idle.pop_back();
  return block;
}

void DeviceTransport::Free(std::vector<Block*>& idle, Block* block) {
  const std::lock_guard lock(mutex_);
  idle.push_back(block);
  changed_.notify_all();
}

absl::Status DeviceTransport::Send(const std::string& from, const std::string& to,
                                   const MessageTag& tag, Backend& backend, Stream& stream,
                                   const Tensor& payload) {
  Port* const port = Find(from);
  if (port == nullptr) return host_->Send(from, to, tag, backend, stream, payload);
  ATOLL_CHECK(payload.contiguous());
  OutJob job{to, tag, payload.dtype, payload.size(), nullptr, SteadyNow()};
  std::unique_lock lock(mutex_);
  job.block = AwaitBlock(lock, port->idle_out, SteadyNow() + block_limit_);
  if (aborted_) return absl::AbortedError(reason_);
  if (job.block == nullptr) {
    return absl::DeadlineExceededError(
        absl::StrCat("messages do not leave ", from, " within ", Seconds(block_limit_), " s"));
  }
  lock.unlock();
  ATOLL_CHECK(payload.size() * GetElementSize(payload.dtype) <= job.block->bytes, "a message of ",
              payload.size(), " elements is larger than the plan's");
  const Tensor flat(payload.data, payload.dtype, 1, payload.size());
  backend.Run(stream, Convert{flat, job.block->Of(job.dtype, job.elements)});
  backend.Record(stream, *job.block->event);
  lock.lock();
  const auto path = paths_.find({from, to});
  ATOLL_CHECK(path != paths_.end(), from, " > ", to, " is no stage link of the plan");
  if (path->second.route == Route::kPeer) {
    InJob in;
    in.from = from;
    in.tag = tag;
    in.peer = port;
    in.lies = job;
    Find(to)->in_jobs.push_back(std::move(in));
  } else {
    port->out_jobs.push_back(std::move(job));
  }
  changed_.notify_all();
  return absl::OkStatus();
}

void DeviceTransport::SendForEver(Port& port) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || (!aborted_ && !port.out_jobs.empty()); });
    if (stopping_) return;
    const OutJob job = std::move(port.out_jobs.front());
    port.out_jobs.pop_front();
    port.sends = true;
    lock.unlock();
    const absl::Status done = Do(port, job);
    if (!done.ok()) {
      Abort(absl::StrCat(port.device, " sends to ", job.to, ": ", done.message()));
    } else {
      Free(port.idle_out, job.block);
    }
    lock.lock();
    port.sends = false;
    changed_.notify_all();
  }
}

absl::Status DeviceTransport::Do(Port& port, const OutJob& job) {
  Route route;
  {
    const std::lock_guard lock(mutex_);
    route = paths_.at({port.device, job.to}).route;
  }
  return route == Route::kNccl ? SendByNccl(port, job) : SendByHost(port, job);
}

absl::Status DeviceTransport::SendByHost(Port& port, const OutJob& job) {
  const auto bytes = static_cast<size_t>(job.elements * GetElementSize(job.dtype));
  Buffer pinned;
  {
    const std::lock_guard lock(port.pinned->mutex);
    if (!port.pinned->idle.empty()) {
      pinned = std::move(port.pinned->idle.back());
      port.pinned->idle.pop_back();
    }
  }
  if (pinned.bytes() < job.block->bytes) {
    ATOLL_ASSIGN_OR_RETURN(pinned, port.sending->AllocateHost(job.block->bytes));
  }
  port.sending->Wait(*port.out_stream, *job.block->event);
  port.sending->CopyToHost(*port.out_stream, pinned.data(), job.block->Of(job.dtype, job.elements));
  ATOLL_RETURN_IF_ERROR(port.sending->Synchronize(*port.out_stream));
  const auto* data = static_cast<const std::byte*>(pinned.data());
  auto* kept = new Buffer(std::move(pinned));
  const std::shared_ptr<const void> owner(kept, [pool = port.pinned](Buffer* buffer) {
    const std::lock_guard lock(pool->mutex);
    pool->idle.push_back(std::move(*buffer));
    delete buffer;
  });
  return host_->SendBytes(port.device, job.to, job.tag, job.dtype, {data, bytes}, owner);
}

absl::Status DeviceTransport::SendByNccl(Port& port, const OutJob& job) {
  std::shared_ptr<Communicator> pair;
  const auto announcement = std::make_shared<Announcement>();
  announcement->elements = job.elements;
  const DevicePair ends{port.device, job.to};
  {
    const std::lock_guard lock(mutex_);
    Path& path = paths_.at(ends);
    pair = path.out;
    announcement->number = path.announced++;
    if (aborted_) return absl::AbortedError(reason_);
  }
  ATOLL_CHECK(pair != nullptr, "no communicator was made for ", port.device, " > ", job.to);
  const int64_t bytes = job.elements * GetElementSize(job.dtype), step = job.tag.step;
  const bool logged = log_ != nullptr && log_->records(step);
  const size_t log_index =
      logged ? log_->OnSent({port.device, job.to, job.tag, bytes, job.sent, {}, {}}) : 0;
  ATOLL_RETURN_IF_ERROR(host_->SendBytes(
      port.device, job.to, job.tag, job.dtype,
      {reinterpret_cast<const std::byte*>(announcement.get()), sizeof(Announcement)}, announcement,
      /*announces=*/true));
  const Instant start = SteadyNow();
  port.sending->Wait(*port.out_stream, *job.block->event);
  ATOLL_RETURN_IF_ERROR(pair->Send(*port.sending, *port.out_stream,
                                   job.block->Of(job.dtype, job.elements), /*to=*/1));
  ATOLL_RETURN_IF_ERROR(port.sending->Synchronize(*port.out_stream));
  if (logged) log_->OnArrived(step, log_index, start, SteadyNow());
  return absl::OkStatus();
}

}  // namespace atl::worker
