#include "worker/island/member/calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/event_loop.h"

namespace atl::worker {

CallId Calls::Begin(const NodeId& to, std::string what, PartMap parts) {
  const std::lock_guard lock(mutex_);
  const CallId id = next_++;
  Waiting& waiting = calls_[id];
  waiting.to = to;
  waiting.what = std::move(what);
  waiting.since = SteadyNow();
  for (const auto& [part, values] : parts) waiting.elements += std::ssize(values);
  waiting.missing = waiting.elements;
  waiting.parts = std::move(parts);
  return id;
}

absl::StatusOr<GroupReply> Calls::Await(CallId id, Duration timeout) {
  std::unique_lock lock(mutex_);
  Waiting& waiting = calls_.at(id);
  changed_.wait_until(lock, ToSteady(SteadyNow() + timeout),
                      [&] { return waiting.result.has_value(); });
  absl::StatusOr<GroupReply> result = absl::DeadlineExceededError(absl::StrCat(
      waiting.to, " has not answered \"", waiting.what, "\" within ",
      std::llround(Seconds(SteadyNow() - waiting.since)),
      " s, though its link is up: it is overloaded or hangs; its log says what it does"));
  if (waiting.result) result = *waiting.result;
  if (result.ok()) {
    const absl::Status said = Annotate(StatusFromReply(*result), waiting.to);
    if (!said.ok()) result = said;
  }
  if (!result.ok() || waiting.parts.empty()) calls_.erase(id);
  return result;
}

absl::Status Calls::AwaitChunks(CallId id, Duration patience, Instant last) {
  std::unique_lock lock(mutex_);
  const Instant begun = SteadyNow();
  Waiting& waiting = calls_.at(id);
  for (;;) {
    const Instant until = std::min(std::max(begun, waiting.grown_at) + patience, last);
    if (waiting.missing == 0 || !waiting.chunks.ok() || SteadyNow() >= until) break;
    changed_.wait_until(lock, ToSteady(until));
  }
  absl::Status status = waiting.chunks;
  if (status.ok() && waiting.missing > 0) {
    status = absl::DeadlineExceededError(absl::StrCat(
        waiting.what, " from ", waiting.to, ": ", 4 * (waiting.elements - waiting.missing), " of ",
        4 * waiting.elements, " bytes have come after ", Seconds(SteadyNow() - begun), " s",
        waiting.grown_at > begun
            ? absl::StrCat(", the last ", Seconds(SteadyNow() - waiting.grown_at), " s ago")
            : "",
        ": is the link between the workers up, and fast enough?"));
  }
  calls_.erase(id);
  return status;
}

void Calls::Drop(CallId id) {
  const std::lock_guard lock(mutex_);
  calls_.erase(id);
}

void Calls::OnReply(const NodeId& from, CallId id, GroupReply reply) {
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(id);
  if (it == calls_.end() || it->second.to != from || it->second.result) return;
  it->second.result = std::move(reply);
  changed_.notify_all();
}

absl::Status Calls::AdmitChunk(absl::string_view header, int64_t payload_bytes) {
  const auto parsed = ParseChunkHeader(header, payload_bytes);
  if (!parsed.ok()) return parsed.status();
  const std::lock_guard lock(mutex_);
  return parsed->epoch < epoch_ ? absl::AbortedError("of an earlier attempt") : absl::OkStatus();
}

void Calls::OnChunk(Instant now, const PeerDelivery& delivery) {
  const ChunkHeader header =
      *ParseChunkHeader(delivery.header, delivery.payload.size());  // admitted
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(header.call);
  if (header.epoch < epoch_ || it == calls_.end() || it->second.to != delivery.from) return;
  it->second.grown_at = now;
  Put(it->second, header, delivery);
  changed_.notify_all();
}

void Calls::Put(Waiting& waiting, const ChunkHeader& header, const PeerDelivery& delivery) {
  const auto it = waiting.parts.find(header.part);
  const int64_t elements = delivery.payload.size() / 4;
  int64_t& next = waiting.next[header.part];
  if (it == waiting.parts.end() || header.offset != next ||
      next + elements > std::ssize(it->second)) {
    waiting.chunks = absl::InvalidArgumentError(
        absl::StrCat("a chunk of layer state from ", delivery.from, " does not fit"));
    return;
  }
  std::memcpy(it->second.data() + next, delivery.payload.data(),
              static_cast<size_t>(delivery.payload.size()));
  next += elements;
  waiting.missing -= elements;
}

void Calls::Waiting::Fail(const absl::Status& why) {
  if (!result) result = why;
  if (missing > 0) chunks = why;
}

void Calls::OnPeerLost(const NodeId& peer, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, waiting] : calls_) {
    if (waiting.to != peer) continue;
    waiting.Fail(absl::UnavailableError(absl::StrCat(peer, " is lost: ", reason)));
  }
  changed_.notify_all();
}

void Calls::Fail(CallId id, const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  calls_.at(id).Fail(why);
  changed_.notify_all();
}

void Calls::Fail(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, waiting] : calls_) waiting.Fail(why);
  changed_.notify_all();
}

void Calls::BeginEpoch(int64_t epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
}

}  // namespace atl::worker
