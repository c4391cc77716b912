#include "worker/pipeline/local_transport.h"

#include <algorithm>
#include <chrono>

#include "common/check.h"

namespace atl::worker {
namespace {

std::chrono::steady_clock::time_point ToSteady(Instant instant) {
  return std::chrono::steady_clock::time_point(instant.time_since_epoch());
}

std::string Describe(const MessageTag& tag) {
  return absl::StrCat(tag.gradient ? "gradient" : "activation", " of micro-batch ", tag.micro_batch,
                      " for stage ", tag.stage, " in step ", tag.step);
}

}  // namespace

absl::Status LocalTransport::Send(const std::string& from, const std::string& to,
                                  const MessageTag& tag, Backend& backend, Stream& stream,
                                  const Tensor& payload) {
  ATOLL_CHECK(payload.contiguous());
  Message message;
  message.dtype = payload.dtype;
  message.bytes.resize(static_cast<size_t>(payload.size() * SizeOf(payload.dtype)));
  backend.CopyToHost(stream, message.bytes.data(), payload);
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
  const auto size = static_cast<int64_t>(message.bytes.size());
  const std::lock_guard lock(mutex_);
  if (aborted_) return absl::AbortedError(reason_);
  if (bytes_ + size > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("messages that nobody has received hold ", bytes_, " of ", max_bytes_,
                     " bytes; no room for the ", Describe(tag), " from ", from));
  }
  ATOLL_CHECK(messages_.emplace(Key{to, tag}, std::move(message)).second,
              "sent twice: ", Describe(tag));
  bytes_ += size;
  BoundaryCounters& counters = counters_[{from, to}];
  counters.from = from;
  counters.to = to;
  ++counters.messages;
  counters.bytes += size;
  changed_.notify_all();
  return absl::OkStatus();
}

bool LocalTransport::Arrived(const std::string& device, const MessageTag& tag) {
  const std::lock_guard lock(mutex_);
  return ArrivedLocked({device, tag});
}

void LocalTransport::Wait(const std::string& device, std::span<const MessageTag> tags,
                          Instant deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, ToSteady(deadline), [&] {
    return std::any_of(tags.begin(), tags.end(), [&](const MessageTag& tag) {
      return ArrivedLocked({device, tag});
    });
  });
}

absl::Status LocalTransport::Receive(const std::string& device, const MessageTag& tag,
                                     Backend& backend, Stream& stream, const Tensor& into,
                                     Instant deadline) {
  const Key key{device, tag};
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, ToSteady(deadline), [&] { return ArrivedLocked(key); })) {
    return absl::DeadlineExceededError(
        absl::StrCat("the ", Describe(tag), " did not come to ", device));
  }
  if (aborted_) return absl::AbortedError(reason_);
  const auto found = messages_.find(key);
  const Message message = std::move(found->second);
  messages_.erase(found);
  bytes_ -= static_cast<int64_t>(message.bytes.size());
  lock.unlock();
  ATOLL_CHECK(message.dtype == into.dtype && into.contiguous() &&
                  static_cast<int64_t>(message.bytes.size()) == into.size() * SizeOf(into.dtype),
              Describe(tag), ": ", message.bytes.size(), " bytes into ", into.size(), " elements");
  backend.CopyToDevice(stream, into, message.bytes.data());
  return backend.Synchronize(stream);
}

void LocalTransport::Abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  aborted_ = true;
  reason_ = reason;
  changed_.notify_all();
}

void LocalTransport::Reset() {
  const std::lock_guard lock(mutex_);
  aborted_ = false;
  messages_.clear();
  bytes_ = 0;
}

std::vector<BoundaryCounters> LocalTransport::counters() const {
  const std::lock_guard lock(mutex_);
  std::vector<BoundaryCounters> all;
  for (const auto& [ends, counters] : counters_) all.push_back(counters);
  return all;
}

}  // namespace atl::worker
