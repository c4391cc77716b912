#include "worker/island/member/group_calls.h"

#include <algorithm>
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
  Calls::OnReply(from, frame.call, std::move(reply));
}

void GroupCalls::OnClockCall(const NodeId& from, CallId call, const ClockCall& clock) {
  GroupReply reply;
  reply.requested_ns = clock.requested_ns;
  reply.clock_ns = ClockNs();
  Reply(from, call, std::move(reply));
}

}  // namespace atl::worker
