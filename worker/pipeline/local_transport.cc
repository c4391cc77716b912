#include "worker/pipeline/local_transport.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {
namespace {

std::string Describe(const std::variant<MessageTag, VoteTag>& what) {
  if (const auto* vote = std::get_if<VoteTag>(&what)) {
    return absl::StrCat("commit vote of device ", vote->sender, " for step ", vote->step);
  }
  const auto& tag = std::get<MessageTag>(what);
  return absl::StrCat(tag.gradient ? "gradient" : "activation", " of micro-batch ", tag.micro_batch,
                      " for stage ", tag.stage, " in step ", tag.step);
}

// An empty one is not for nothing: messages are bounded in number, too.
int64_t ComputeQueueCost(const HostMessage& message) {
  return static_cast<int64_t>(message.bytes.size()) + LocalTransport::kMessageCost;
}

}  // namespace

absl::Status LocalTransport::Send(const std::string& from, const std::string& to,
                                  const MessageTag& tag, Backend& backend, Stream& stream,
                                  const Tensor& payload) {
  ATOLL_CHECK(payload.contiguous());
  const auto bytes = std::make_shared<std::vector<std::byte>>(
      static_cast<size_t>(payload.size() * GetElementSize(payload.dtype)));
  backend.CopyToHost(stream, bytes->data(), payload);
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
  return SendBytes(from, to, tag, payload.dtype, *bytes, bytes);
}

absl::Status LocalTransport::SendBytes(const std::string& from, const std::string& to,
                                       const MessageTag& tag, DType dtype,
                                       std::span<const std::byte> bytes,
                                       std::shared_ptr<const void> owner, bool /*announces*/) {
  return Put({to, tag}, {from, dtype, bytes, std::move(owner)});
}

void LocalTransport::Deliver(const std::string& from, const std::string& to,
                             const std::variant<MessageTag, VoteTag>& tag, DType dtype,
                             std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  absl::Status status;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    status = PutLocked({to, tag}, {from, dtype, bytes, std::move(owner)});
  }
  if (!status.ok()) LocalTransport::Abort(std::string(status.message()));
}

absl::Status LocalTransport::Put(Key key, HostMessage message) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return absl::AbortedError(reason_);
  return PutLocked(std::move(key), std::move(message));
}

absl::Status LocalTransport::PutLocked(Key key, HostMessage message) {
  const int64_t size = ComputeQueueCost(message);
  if (bytes_ + size > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("messages that were not received hold ", bytes_, " of ", max_bytes_,
                     " bytes; no room for the ", Describe(key.second), " from ", message.from));
  }
  const auto [it, added] = messages_.try_emplace(std::move(key), std::move(message));
  if (!added) {
    return absl::AlreadyExistsError(
        absl::StrCat("the ", Describe(it->first.second), " came twice from ", message.from));
  }
  bytes_ += size;
  changed_.notify_all();
  const auto arrival = arrivals_.find(it->first.first);
  const auto* tag = std::get_if<MessageTag>(&it->first.second);
  if (arrival != arrivals_.end() && tag != nullptr) arrival->second(it->second.from, *tag);
  return absl::OkStatus();
}

HostMessage LocalTransport::TakeLocked(const Key& key) {
  const auto found = messages_.find(key);
  HostMessage message = std::move(found->second);
  messages_.erase(found);
  bytes_ -= ComputeQueueCost(message);
  return message;
}

void LocalTransport::OnArrival(const std::string& device, Arrival arrival) {
  const std::lock_guard lock(mutex_);
  if (arrival == nullptr) {
    arrivals_.erase(device);
  } else {
    arrivals_[device] = std::move(arrival);
  }
}

absl::StatusOr<HostMessage> LocalTransport::Take(const std::string& device, const MessageTag& tag) {
  const std::lock_guard lock(mutex_);
  if (messages_.contains({device, tag})) return TakeLocked({device, tag});
  return absl::NotFoundError(absl::StrCat("the ", Describe(tag), " is not here"));
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

absl::StatusOr<HostMessage> LocalTransport::AwaitMessage(const Key& key, Instant deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, ToSteady(deadline), [&] { return ArrivedLocked(key); })) {
    return absl::DeadlineExceededError(
        absl::StrCat("the ", Describe(key.second), " did not come to ", key.first));
  }
  if (aborted_) return absl::AbortedError(reason_);
  return TakeLocked(key);
}

absl::Status LocalTransport::Receive(const std::string& device, const MessageTag& tag,
                                     Backend& backend, Stream& stream, const Tensor& into,
                                     Instant deadline) {
  ATOLL_ASSIGN_OR_RETURN(const HostMessage message, AwaitMessage({device, tag}, deadline));
  ATOLL_CHECK(into.contiguous());
  if (message.dtype != into.dtype ||
      static_cast<int64_t>(message.bytes.size()) != into.size() * GetElementSize(into.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("the ", Describe(tag), " has ",
                                                   message.bytes.size(), " bytes for ", into.size(),
                                                   " elements"));
  }
  backend.CopyToDevice(stream, into, message.bytes.data());
  return backend.Synchronize(stream);
}

absl::Status LocalTransport::SendVotes(const std::string& from, const std::string& to,
                                       const VoteTag& tag, const std::vector<double>& votes) {
  const auto copy = std::make_shared<const std::vector<double>>(votes);
  return Put({to, tag}, {from, DType::kFloat64, std::as_bytes(std::span(*copy)), copy});
}

absl::StatusOr<std::vector<double>> LocalTransport::ReceiveVotes(const std::string& device,
                                                                 const VoteTag& tag,
                                                                 Instant deadline) {
  ATOLL_ASSIGN_OR_RETURN(const HostMessage message, AwaitMessage({device, tag}, deadline));
  std::vector<double> votes(message.bytes.size() / sizeof(double));
  if (!votes.empty())
    std::memcpy(votes.data(), message.bytes.data(), votes.size() * sizeof(double));
  return votes;
}

void LocalTransport::OnAbort(Aborted aborted) {
  const std::lock_guard abort_lock(abort_mutex_);
  on_abort_ = std::move(aborted);
}

void LocalTransport::Abort(const std::string& reason) {
  const std::lock_guard abort_lock(abort_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    reason_ = reason;
    changed_.notify_all();
  }
  if (on_abort_ != nullptr) on_abort_(reason);
}

void LocalTransport::Reset() {
  const std::lock_guard lock(mutex_);
  aborted_ = false;
  messages_.clear();
  bytes_ = 0;
}

}  // namespace atl::worker
