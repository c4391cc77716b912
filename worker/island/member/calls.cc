#include "worker/island/member/calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/island/messages/wire.h"

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

absl::StatusOr<v1::GroupReply> Calls::Await(CallId id, Instant deadline) {
  std::unique_lock lock(mutex_);
  Waiting& waiting = calls_.at(id);
  changed_.wait_until(lock, ToSteady(deadline), [&] { return waiting.result.has_value(); });
  const NodeId to = waiting.to;
  const std::string late = absl::StrCat(
      to, " has not answered \"", waiting.what, "\" within ",
      std::llround(Seconds(SteadyNow() - waiting.since)),
      " s, though its link is up: it is overloaded or hangs; its log says what it does");
  std::optional<absl::StatusOr<v1::GroupReply>> result = std::move(waiting.result);
  calls_.erase(id);
  if (!result) return absl::DeadlineExceededError(late);
  if (!result->ok()) return result->status();
  ATOLL_RETURN_IF_ERROR(Annotate(StatusOf(**result), to));
  return *std::move(result);
}

void Calls::OnReply(const NodeId& from, CallId id, v1::GroupReply reply) {
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
  Place& place = places_[key];
  ATOLL_CHECK(place.parts.empty(), "expected twice");
  for (const auto& [part, to] : parts) place.elements += static_cast<int64_t>(to.size());
  place.missing = place.elements;
  place.parts = std::move(parts);
  place.what = std::move(what);
}

absl::Status StateInbox::Await(const Key& key, Duration patience, Instant last) {
  std::unique_lock lock(mutex_);
  const Instant begun = SteadyNow();
  Place& place = places_.at(key);
  const auto over = [&] { return place.missing == 0 || !place.status.ok(); };
  for (;;) {
    const Instant until = std::min(std::max(begun, place.grown_at) + patience, last);
    if (over() || SteadyNow() >= until) break;
    changed_.wait_until(lock, ToSteady(until));
  }
  absl::Status status = place.status;
  if (status.ok() && place.missing > 0) {
    status = absl::DeadlineExceededError(absl::StrCat(
        place.what, " from ", key.from, ": ", 4 * (place.elements - place.missing), " of ",
        4 * place.elements, " bytes have come after ", Seconds(SteadyNow() - begun), " s",
        place.grown_at > begun
            ? absl::StrCat(", the last ", Seconds(SteadyNow() - place.grown_at), " s ago")
            : "",
        ": is the line between the workers up, and fast enough?"));
  }
  places_.erase(key);
  return status;
}

void StateInbox::Drop(const Key& key) {
  const std::lock_guard lock(mutex_);
  places_.erase(key);
}

absl::Status StateInbox::Admit(const NodeId&, absl::string_view header, int64_t payload_bytes) {
  const auto parsed = ParseChunkHeader(header, payload_bytes);
  if (!parsed.ok()) return parsed.status();
  const std::lock_guard lock(mutex_);
  return parsed->epoch() < epoch_ ? absl::AbortedError("of an earlier attempt") : absl::OkStatus();
}

void StateInbox::OnChunk(Instant now, PeerDelivery delivery) {
  Chunk chunk;
  chunk.at = now;
  chunk.header = *ParseChunkHeader(delivery.header, delivery.payload.size());  // admitted
  const Key key{delivery.from, chunk.header.call()};
  chunk.delivery = std::move(delivery);
  const std::lock_guard lock(mutex_);
  if (chunk.header.epoch() < epoch_) return;
  const auto it = places_.find(key);
  if (it == places_.end()) return;  // the call has ended
  Put(it->second, chunk);
  changed_.notify_all();
}

void StateInbox::Put(Place& place, const Chunk& chunk) {
  const auto it = place.parts.find(chunk.header.part());
  const int64_t elements = chunk.delivery.payload.size() / 4;
  int64_t& next = place.next[chunk.header.part()];
  if (it == place.parts.end() || chunk.header.offset() != next ||
      next + elements > static_cast<int64_t>(it->second.size())) {
    place.status = absl::InvalidArgumentError(
        absl::StrCat("a chunk of layer state from ", chunk.delivery.from, " does not fit"));
    return;
  }
  std::memcpy(it->second.data() + next, chunk.delivery.payload.data(),
              static_cast<size_t>(chunk.delivery.payload.size()));
  next += elements;
  place.missing -= elements;
  place.grown_at = chunk.at;
}

void StateInbox::OnPeerLost(const NodeId& peer, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, place] : places_) {
    if (key.from != peer || place.missing == 0) continue;
    place.status = absl::UnavailableError(absl::StrCat(peer, " is lost: ", reason));
  }
  changed_.notify_all();
}

void StateInbox::Fail(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, place] : places_) {
    if (place.missing > 0) place.status = why;
  }
  changed_.notify_all();
}

void StateInbox::BeginEpoch(int64_t epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
}

}  // namespace atl::worker
