#include "worker/island/member/calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {
namespace {}  // namespace

CallId Calls::Begin(const NodeId& to, std::string what) {
  const std::lock_guard lock(mutex_);
  const CallId id = next_++;
  Waiting& waiting = calls_[id];
  waiting.to = to;
  waiting.what = std::move(what);
  waiting.since = SteadyNow();
  return id;
}

absl::StatusOr<GroupReply> Calls::Await(CallId id, Instant deadline) {
  std::unique_lock lock(mutex_);
  Waiting& waiting = calls_.at(id);
  changed_.wait_until(lock, ToSteady(deadline), [&] { return waiting.result.has_value(); });
  const NodeId to = waiting.to;
  const std::string late = absl::StrCat(
      to, " has not answered \"", waiting.what, "\" within ",
      std::llround(Seconds(SteadyNow() - waiting.since)),
      " s, though its link is up: it is overloaded or hangs; its log says what it does");
  std::optional<absl::StatusOr<GroupReply>> result = std::move(waiting.result);
  calls_.erase(id);
  if (!result) return absl::DeadlineExceededError(late);
  if (!result->ok()) return result->status();
  ATOLL_RETURN_IF_ERROR(Annotate(StatusFromReply(**result), to));
  return *std::move(result);
}

void Calls::OnReply(const NodeId& from, CallId id, GroupReply reply) {
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(id);
  if (it == calls_.end() || it->second.to != from || it->second.result) return;
  it->second.result = std::move(reply);
  changed_.notify_all();
}

void Calls::OnPeerLost(const NodeId& peer, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, waiting] : calls_) {
    if (waiting.to != peer || waiting.result) continue;
    waiting.result = absl::UnavailableError(absl::StrCat(peer, " is lost: ", reason));
  }
  changed_.notify_all();
}

void Calls::Fail(CallId id, const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  calls_.at(id).result = why;
  changed_.notify_all();
}

void Calls::Fail(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, waiting] : calls_) {
    if (!waiting.result) waiting.result = why;
  }
  changed_.notify_all();
}

void StateInbox::Expect(const Key& key, PartMap parts, std::string what) {
  const std::lock_guard lock(mutex_);
  Incoming& incoming = incoming_[key];
  ATOLL_CHECK(incoming.parts.empty(), "expected twice");
  for (const auto& [part, to] : parts) incoming.elements += static_cast<int64_t>(to.size());
  incoming.missing = incoming.elements;
  incoming.parts = std::move(parts);
  incoming.what = std::move(what);
}

absl::Status StateInbox::Await(const Key& key, Duration patience, Instant last) {
  std::unique_lock lock(mutex_);
  const Instant begun = SteadyNow();
  Incoming& incoming = incoming_.at(key);
  const auto over = [&] { return incoming.missing == 0 || !incoming.status.ok(); };
  for (;;) {
    const Instant until = std::min(std::max(begun, incoming.grown_at) + patience, last);
    if (over() || SteadyNow() >= until) break;
    changed_.wait_until(lock, ToSteady(until));
  }
  absl::Status status = incoming.status;
  if (status.ok() && incoming.missing > 0) {
    status = absl::DeadlineExceededError(absl::StrCat(
        incoming.what, " from ", key.from, ": ", 4 * (incoming.elements - incoming.missing), " of ",
        4 * incoming.elements, " bytes have come after ", Seconds(SteadyNow() - begun), " s",
        incoming.grown_at > begun
            ? absl::StrCat(", the last ", Seconds(SteadyNow() - incoming.grown_at), " s ago")
            : "",
        ": is the link between the workers up, and fast enough?"));
  }
  incoming_.erase(key);
  return status;
}

void StateInbox::Drop(const Key& key) {
  const std::lock_guard lock(mutex_);
  incoming_.erase(key);
}

absl::Status StateInbox::Admit(const NodeId&, absl::string_view header, int64_t payload_bytes) {
  const auto parsed = ParseChunkHeader(header, payload_bytes);
  if (!parsed.ok()) return parsed.status();
  const std::lock_guard lock(mutex_);
  return parsed->epoch < epoch_ ? absl::AbortedError("of an earlier attempt") : absl::OkStatus();
}

void StateInbox::OnChunk(Instant now, PeerDelivery delivery) {
  Chunk chunk;
  chunk.at = now;
  chunk.header = *ParseChunkHeader(delivery.header, delivery.payload.size());  // admitted
  const Key key{delivery.from, chunk.header.call};
  chunk.delivery = std::move(delivery);
  const std::lock_guard lock(mutex_);
  if (chunk.header.epoch < epoch_) return;
  const auto it = incoming_.find(key);
  if (it == incoming_.end()) return;  // the call has ended
  Put(it->second, chunk);
  changed_.notify_all();
}

void StateInbox::Put(Incoming& incoming, const Chunk& chunk) {
  const auto it = incoming.parts.find(chunk.header.part);
  const int64_t elements = chunk.delivery.payload.size() / 4;
  int64_t& next = incoming.next[chunk.header.part];
  if (it == incoming.parts.end() || chunk.header.offset != next ||
      next + elements > static_cast<int64_t>(it->second.size())) {
    incoming.status = absl::InvalidArgumentError(
        absl::StrCat("a chunk of layer state from ", chunk.delivery.from, " does not fit"));
    return;
  }
  std::memcpy(it->second.data() + next, chunk.delivery.payload.data(),
              static_cast<size_t>(chunk.delivery.payload.size()));
  next += elements;
  incoming.missing -= elements;
  incoming.grown_at = chunk.at;
}

void StateInbox::OnPeerLost(const NodeId& peer, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, incoming] : incoming_) {
    if (key.from != peer || incoming.missing == 0) continue;
    incoming.status = absl::UnavailableError(absl::StrCat(peer, " is lost: ", reason));
  }
  changed_.notify_all();
}

void StateInbox::Fail(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, incoming] : incoming_) {
    if (incoming.missing > 0) incoming.status = why;
  }
  changed_.notify_all();
}

void StateInbox::BeginEpoch(int64_t epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
}

}  // namespace atl::worker
