#include "worker/island/member/group_calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/event_loop.h"

namespace atl::worker {
namespace {

int64_t ClockNs() { return SteadyNow().time_since_epoch().count(); }

// The part of the link's queue to a peer that one call's chunks may take: a few calls send at a
// time, and what steps send to the same peer must always find room.
constexpr int64_t kQueueShare = 8;

// A call's chunks in flight to a peer. Of a large layer only so much is given to the link at
// once; whenever a chunk has arrived the next ones follow, on the link's thread. One that does not
// arrive is the last: its receiver has failed, or has timed out.
class Chunks : public std::enable_shared_from_this<Chunks> {
 public:
  // `arrived`: called after each chunk's arrival; may be null.
  Chunks(PeerLink* link, NodeId to, ChunkHeader header, std::shared_ptr<const OwnedParts> parts,
         int64_t bytes_max, std::function<void()> arrived)
      : link_(link),
        to_(std::move(to)),
        header_(std::move(header)),
        parts_(std::move(parts)),
        values_(ToPartMap(parts_->parts())),
        bytes_max_(bytes_max),
        arrived_(std::move(arrived)),
        part_(values_.begin()) {}

  absl::Status Send() {
    const std::lock_guard lock(mutex_);
    return SendMore();
  }

 private:
  absl::Status SendMore() {
    while (part_ != values_.end()) {
      const std::span<const float> left = part_->second.subspan(begin_);
      const auto values = left.first(std::min<size_t>(kChunkElements, left.size()));
      const auto bytes = static_cast<int64_t>(values.size_bytes());
      // One at least: the chunks of other calls in the queue leave it by themselves.
      if (under_way_ > 0 && under_way_ + bytes > bytes_max_) return absl::OkStatus();
      header_.part = part_->first;
      header_.offset = static_cast<int64_t>(begin_);
      PeerMessage message;
      message.channel = PeerChannel::kState;
      message.header = Serialize(header_);
      message.payload = std::as_bytes(values);
      message.owner = parts_;
      message.arrived = [self = shared_from_this(), bytes](const absl::Status& status, PeerTiming) {
        self->OnArrival(bytes, status);
      };
      const absl::Status sent = link_->Send(to_, std::move(message));
      if (absl::IsResourceExhausted(sent) && under_way_ > 0) return absl::OkStatus();
      ATOLL_RETURN_IF_ERROR(sent);
      under_way_ += bytes;
      begin_ += values.size();
      if (values.size() < left.size()) continue;
      ++part_;
      begin_ = 0;
    }
    return absl::OkStatus();
  }

  void OnArrival(int64_t bytes, const absl::Status& status) {
    if (status.ok() && arrived_ != nullptr) arrived_();
    const std::lock_guard lock(mutex_);
    under_way_ -= bytes;
    if (!status.ok() || !SendMore().ok()) part_ = values_.end();
  }

  PeerLink* const link_;
  const NodeId to_;
  std::mutex mutex_;
  ChunkHeader header_;  // guarded by mutex_
  const std::shared_ptr<const OwnedParts> parts_;
  const PartMap values_;
  const int64_t bytes_max_;
  const std::function<void()> arrived_;
  PartMap::const_iterator part_;  // guarded by mutex_; the next chunk's, and where it begins
  size_t begin_ = 0;              // guarded by mutex_
  int64_t under_way_ = 0;         // guarded by mutex_; bytes given to the link and not arrived
};

}  // namespace

// -------------------------------------------------------------------------- to other members ----

absl::StatusOr<CallId> GroupCalls::Call(const NodeId& to, GroupFrame frame) {
  const CallId id = Begin(to, Describe(frame));
  frame.call = id;
  frame.epoch = state_->epoch();
  const absl::Status sent = Send(to, frame);
  if (sent.ok()) return id;
  Fail(id, sent);
  return Await(id, Duration(0)).status();
}

void GroupCalls::Notify(const NodeId& to, GroupFrame frame) {
  frame.epoch = state_->epoch();
  (void)Send(to, frame);  // a lost member does not need it
}

void GroupCalls::Reply(const NodeId& to, CallId call, GroupReply reply) {
  Notify(to, {.call = call, .body = std::move(reply)});
}

absl::Status GroupCalls::Send(const NodeId& to, const GroupFrame& frame) {
  const auto bytes = std::make_shared<std::string>(Serialize(frame));
  if (static_cast<int64_t>(bytes->size()) > kFrameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes->size(), " bytes to ", to, " is too long"));
  }
  PeerMessage message;
  message.channel = PeerChannel::kCommand;
  message.payload = std::as_bytes(std::span(*bytes));
  message.owner = bytes;
  return link_->Send(to, std::move(message));
}

absl::Status GroupCalls::SendParts(const LayerRequest& request,
                                   const std::shared_ptr<const OwnedParts>& parts) {
  const ChunkHeader header{.call = request.call, .epoch = state_->epoch()};
  const int64_t bytes_max = options_.queued_bytes_max / kQueueShare;
  return std::make_shared<Chunks>(link_, request.from, header, parts, bytes_max,
                                  options_.on_arrival)
      ->Send();
}

// ---------------------------------------------------------------------------- what comes back ----

absl::Status GroupCalls::FetchLayer(const NodeId& from, const LayerShard& shard, Range elements,
                                    GetLayerCall of, const ShardParts& out) {
  of.shard = shard;
  of.parts = MakePartMask(out);
  of.elements = elements;
  GroupFrame frame{.body = of};
  const PartMap parts = ToPartMap(out);
  const CallId call = Begin(from, Describe(frame), parts);
  frame.call = call;
  frame.epoch = state_->epoch();
  if (const absl::Status sent = Send(from, frame); !sent.ok()) Fail(call, sent);
  ATOLL_ASSIGN_OR_RETURN(const GroupReply reply, Await(call, options_.timeout));
  if (of.of_save != 0 && !reply.copies_taken) {
    Drop(call);
    return absl::NotFoundError(
        absl::StrCat(from, " has no copy of ", ToString(shard), " from save ", of.of_save));
  }
  // Waits while chunks come, however slowly: two receivers of one source may need minutes for a
  // layer, and a timeout would only restart it.
  int64_t bytes = 0;
  for (const auto& [part, values] : parts) bytes += std::ssize(values) * 4;
  return AwaitChunks(call, options_.timeout,
                     SteadyNow() + options_.timeout + GetStateTransferLimit(bytes));
}

// ------------------------------------------------------------- on the link's network thread ----

void GroupCalls::OnReply(const NodeId& from, GroupFrame frame) {
  GroupReply& reply = std::get<GroupReply>(frame.body);
  reply.received_ns = ClockNs();
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(frame.call);
  if (it == calls_.end() || it->second.to != from || it->second.result) return;
  it->second.result = std::move(reply);
  changed_.notify_all();
}

void GroupCalls::OnClockCall(const NodeId& from, CallId call, const ClockCall& clock) {
  GroupReply reply;
  reply.requested_ns = clock.requested_ns;
  reply.clock_ns = ClockNs();
  Reply(from, call, std::move(reply));
}

// -------------------------------------------------------------------------- what waits ----

CallId GroupCalls::Begin(const NodeId& to, std::string what, PartMap parts) {
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

absl::StatusOr<GroupReply> GroupCalls::Await(CallId id, Duration timeout) {
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

absl::Status GroupCalls::AwaitChunks(CallId id, Duration patience, Instant last) {
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

void GroupCalls::Drop(CallId id) {
  const std::lock_guard lock(mutex_);
  calls_.erase(id);
}

absl::Status GroupCalls::AdmitChunk(absl::string_view header, int64_t payload_bytes) {
  const auto parsed = ParseChunkHeader(header, payload_bytes);
  if (!parsed.ok()) return parsed.status();
  return parsed->epoch < state_->epoch() ? absl::AbortedError("of an earlier attempt")
                                         : absl::OkStatus();
}

void GroupCalls::OnChunk(Instant now, const PeerDelivery& delivery) {
  const ChunkHeader header =
      *ParseChunkHeader(delivery.header, delivery.payload.size());  // admitted
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(header.call);
  if (header.epoch < state_->epoch() || it == calls_.end() || it->second.to != delivery.from)
    return;
  it->second.grown_at = now;
  Put(it->second, header, delivery);
  changed_.notify_all();
}

void GroupCalls::Put(Waiting& waiting, const ChunkHeader& header, const PeerDelivery& delivery) {
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

void GroupCalls::Waiting::Fail(const absl::Status& why) {
  if (!result) result = why;
  if (missing > 0) chunks = why;
}

void GroupCalls::OnPeerLost(const NodeId& peer, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, waiting] : calls_) {
    if (waiting.to != peer) continue;
    waiting.Fail(absl::UnavailableError(absl::StrCat(peer, " is lost: ", reason)));
  }
  changed_.notify_all();
}

void GroupCalls::Fail(CallId id, const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  calls_.at(id).Fail(why);
  changed_.notify_all();
}

void GroupCalls::Fail(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, waiting] : calls_) waiting.Fail(why);
  changed_.notify_all();
}

}  // namespace atl::worker
