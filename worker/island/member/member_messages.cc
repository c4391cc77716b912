// GroupMember: its messages to and from other members.

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/island/member/member.h"
#include "worker/island/messages/save_wire.h"
#include "worker/pipeline/role.h"
#include "worker/profiler/link_profiler.h"

namespace atl::worker {
namespace {

int64_t ClockNs() { return SteadyNow().time_since_epoch().count(); }

// Of the link's queue to a peer, that one call's chunks may take: a few calls send at a time, and
// what steps send to the same peer must always find room.
constexpr int64_t kQueueShare = 8;

// A call's chunks on their way to a peer. Of a large layer only so much is given to the link at
// once; whenever a chunk has arrived the next ones follow, on the link's thread. One that does not
// arrive is the last: its receiver has failed, or has timed out.
class Chunks : public std::enable_shared_from_this<Chunks> {
 public:
  // `arrived`: called after each chunk's arrival; may be null.
  Chunks(PeerLink* link, NodeId to, v1::ChunkHeader header, std::shared_ptr<const OwnedParts> parts,
         int64_t bytes_max, std::function<void()> arrived)
      : link_(link),
        to_(std::move(to)),
        header_(std::move(header)),
        parts_(std::move(parts)),
        values_(PartsOf(parts_->parts())),
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
      header_.set_part(part_->first);
      header_.set_offset(static_cast<int64_t>(begin_));
      PeerMessage message;
      message.channel = PeerChannel::kState;
      message.header = header_.SerializeAsString();
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
  v1::ChunkHeader header_;  // guarded by mutex_
  const std::shared_ptr<const OwnedParts> parts_;
  const PartMap values_;
  const int64_t bytes_max_;
  const std::function<void()> arrived_;
  PartMap::const_iterator part_;  // guarded by mutex_; the next chunk's, and where it begins
  size_t begin_ = 0;              // guarded by mutex_
  int64_t under_way_ = 0;         // guarded by mutex_; bytes given to the link and not arrived
};

}  // namespace

void GroupMember::SetOnTransfer(OnTransfer on_transfer) {
  const std::lock_guard lock(hooks_mutex_);
  on_transfer_ = std::move(on_transfer);
}

void GroupMember::SetHooks(Hooks hooks) {
  const std::lock_guard lock(hooks_mutex_);
  hooks_ = std::move(hooks);
}

absl::StatusOr<CallId> GroupMember::Call(const NodeId& to, v1::GroupFrame frame) {
  const CallId id = calls_.Begin(to, Describe(frame));
  frame.set_call(id);
  frame.set_epoch(epoch_);
  const absl::Status sent = SendFrame(to, frame);
  if (sent.ok()) return id;
  calls_.Fail(id, sent);
  return calls_.Await(id, Instant()).status();
}

absl::StatusOr<v1::GroupReply> GroupMember::Await(CallId id, Duration timeout) {
  return calls_.Await(id, SteadyNow() + timeout);
}

absl::StatusOr<CallId> GroupMember::AskClock(const NodeId& to) {
  v1::GroupFrame frame;
  frame.mutable_clock()->set_asked_ns(ClockNs());
  return Call(to, std::move(frame));
}

void GroupMember::Tell(const NodeId& to, v1::GroupFrame frame) {
  const bool of_save =
      frame.has_save_done() || frame.has_go_on_saving() || frame.has_forget_saves();
  if (of_save && to == name()) return OnSaveFrame(to, frame);
  frame.set_epoch(epoch_);
  (void)SendFrame(to, frame);  // a lost member does not need it
}

void GroupMember::Reply(const NodeId& to, CallId call, v1::GroupReply reply) {
  v1::GroupFrame frame;
  frame.set_call(call);
  *frame.mutable_reply() = std::move(reply);
  Tell(to, std::move(frame));
}

absl::Status GroupMember::TellAll(v1::GroupFrame frame) {
  std::vector<IslandMember> members;
  {
    const std::lock_guard lock(state_mutex_);
    members = plan_.members;
  }
  frame.set_epoch(epoch_);
  for (const IslandMember& member : members) {
    if (member.worker == name() || link_->IsLost(member.worker)) continue;
    ATOLL_RETURN_IF_ERROR(SendFrame(member.worker, frame));
  }
  return absl::OkStatus();
}

absl::Status GroupMember::SendFrame(const NodeId& to, const v1::GroupFrame& frame) {
  const auto bytes = std::make_shared<std::string>(frame.SerializeAsString());
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

absl::Status GroupMember::SendParts(const NodeId& to, CallId call,
                                    const std::shared_ptr<const OwnedParts>& parts) {
  v1::ChunkHeader header;
  header.set_call(call);
  header.set_epoch(epoch_);
  const int64_t bytes_max = options_.link.queued_bytes_max / kQueueShare;
  return std::make_shared<Chunks>(link_.get(), to, std::move(header), parts, bytes_max,
                                  options_.on_transfer_due)
      ->Send();
}

// ------------------------------------------------------------- on the link's network thread ----

absl::Status GroupMember::Admit(const NodeId& from, PeerChannel channel, absl::string_view header,
                                int64_t payload_bytes) {
  switch (channel) {
    case PeerChannel::kCommand:
      return payload_bytes <= kFrameBytesMax ? absl::OkStatus()
                                             : absl::InvalidArgumentError("too long");
    case PeerChannel::kTensor:
      // They belong to no island, and are dropped as soon as they are there.
      if (IsProbe(header)) {
        return payload_bytes <= kProbeBytesMax ? absl::OkStatus()
                                               : absl::InvalidArgumentError("too long");
      }
      return transport_.Admit(from, header, payload_bytes);
    case PeerChannel::kState:
      return inbox_.Admit(from, header, payload_bytes);
    case PeerChannel::kSum:
      return blocks_.Admit(header, payload_bytes);
  }
  return absl::InvalidArgumentError("no such channel");
}

void GroupMember::OnMessage(PeerDelivery delivery) {
  {
    // What came just before we joined another plan.
    const std::lock_guard lock(state_mutex_);
    if (delivery.fence != fence_) return;
  }
  switch (delivery.channel) {
    case PeerChannel::kTensor:
      return transport_.OnMessage(std::move(delivery));
    case PeerChannel::kState:
      return inbox_.OnChunk(SteadyNow(), std::move(delivery));
    case PeerChannel::kSum:
      return blocks_.OnMessage(std::move(delivery));
    case PeerChannel::kCommand:
      break;
  }
  const absl::string_view bytes(reinterpret_cast<const char*>(delivery.payload.data()),
                                static_cast<size_t>(delivery.payload.size()));
  absl::StatusOr<v1::GroupFrame> frame = ParseGroupFrame(bytes);
  if (!frame.ok()) {
    return link_->Lose(delivery.from,
                       absl::StrCat("it broke the protocol: ", frame.status().message()));
  }
  OnFrame(delivery.fence, delivery.from, *std::move(frame));
}

void GroupMember::OnFrame(const PeerFence& fence, const NodeId& from, v1::GroupFrame frame) {
  switch (frame.body_case()) {
    case v1::GroupFrame::kReply: {
      const absl::Status status = StatusOf(frame.reply());
      if (frame.reply().clock_ns() != 0) {
        clocks_.Add(from, {frame.reply().asked_ns(), frame.reply().clock_ns(), ClockNs()});
      }
      calls_.OnReply(from, frame.call(), std::move(*frame.mutable_reply()));
      if (status.ok() || frame.epoch() != epoch_) return;
      const std::lock_guard calling(hooks_mutex_);
      if (hooks_.call_failed) hooks_.call_failed(from, absl::StrCat(from, ": ", status.message()));
      return;
    }
    case v1::GroupFrame::kRendezvous:
      return rendezvous_.OnEntry(frame.epoch(), frame.rendezvous().key(),
                                 frame.rendezvous().value());
    case v1::GroupFrame::kLine:
      if (frame.epoch() == epoch_) transport_.OnLineCall(from, FromWire(frame.line()));
      return;
    case v1::GroupFrame::kInterrupt:
      if (TakeInterrupt(fence, frame.epoch())) Interrupt(frame.interrupt().reason());
      return;
    case v1::GroupFrame::kClock: {
      v1::GroupReply reply;
      reply.set_asked_ns(frame.clock().asked_ns());
      reply.set_clock_ns(ClockNs());
      return Reply(from, frame.call(), std::move(reply));
    }
    case v1::GroupFrame::kSaveDone:
    case v1::GroupFrame::kGoOnSaving:
    case v1::GroupFrame::kForgetSaves:
      if (frame.epoch() == epoch_) OnSaveFrame(from, frame);
      return;
    case v1::GroupFrame::kTransfer: {
      if (frame.epoch() != epoch_) return;
      const std::lock_guard calling(hooks_mutex_);
      if (on_transfer_) on_transfer_(from, frame.transfer());
      return;
    }
    case v1::GroupFrame::kOuter:
      if (frame.outer().beside() ? DoLater(from, frame) : Serve(from, frame)) return;
      break;
    case v1::GroupFrame::kGetLayer:
      if (AddTransfer({from, frame.call(), frame.get_layer(), interrupts_})) return;
      break;
    default:
      if (Serve(from, frame)) return;
  }
  v1::GroupReply reply;
  ToWire(absl::UnavailableError("it serves no leader now"), &reply);
  Reply(from, frame.call(), std::move(reply));
}

bool GroupMember::TakeInterrupt(const PeerFence& fence, int64_t epoch) {
  const std::lock_guard lock(state_mutex_);
  // Another plan, joined since OnMessage looked, counts its attempts from the beginning.
  if (fence != fence_ || epoch < epoch_) return false;
  interrupted_epoch_ = std::max<int64_t>(interrupted_epoch_, epoch);
  return true;
}

// These two: whether it is taken on.
bool GroupMember::Serve(const NodeId& from, v1::GroupFrame& frame) {
  const std::lock_guard calling(hooks_mutex_);
  if (hooks_.serve) hooks_.serve(from, std::move(frame));
  return hooks_.serve != nullptr;
}

bool GroupMember::DoLater(const NodeId& from, v1::GroupFrame& frame) {
  const IslandPlan plan = this->plan();
  const bool leads = !plan.members.empty() && plan.members.front().worker == from;
  if (frame.epoch() != epoch_ || !leads) return false;
  return outer_work_.Add(
      [this, from, call = frame.call(), interrupts = interrupts_.load(), what = frame.outer()] {
        v1::GroupReply reply;
        ToWire(interrupts == interrupts_ ? DoDuringSteps(what) : absl::AbortedError("interrupted"),
               &reply);
        Reply(from, call, std::move(reply));
      });
}

void GroupMember::OnSaveFrame(const NodeId& from, const v1::GroupFrame& frame) {
  if (frame.has_go_on_saving()) {
    GoOnSaving(frame.go_on_saving().save());
  } else if (frame.has_forget_saves()) {
    ForgetSaves(frame.forget_saves().save(), TierFromWire(frame.forget_saves().tier()));
  } else {
    const std::lock_guard calling(hooks_mutex_);
    if (hooks_.save_done) hooks_.save_done(from, frame.save_done());
  }
}

bool GroupMember::AddTransfer(OutgoingTransfer outgoing) {
  return transfers_.Add([this, outgoing = std::move(outgoing)] { AnswerTransfer(outgoing); });
}

void GroupMember::OnPeerLost(const NodeId& peer, const std::string& reason) {
  bool works = false;  // with us
  {
    const std::lock_guard lock(state_mutex_);
    for (const std::string& device : DevicesOf(plan_)) {
      works = works || WorkerOfDevice(device) == peer;
    }
    works = works || (!plan_.members.empty() && plan_.members[0].worker == peer);
  }
  calls_.OnPeerLost(peer, reason);
  inbox_.OnPeerLost(peer, reason);
  blocks_.OnPeerLost();
  const std::string what = absl::StrCat(peer, " is lost: ", reason);
  if (works) InterruptWork(what);
  const std::lock_guard calling(hooks_mutex_);
  if (hooks_.peer_lost) hooks_.peer_lost(peer, reason);
  if (on_transfer_) on_transfer_(peer, v1::TransferCall());
}

}  // namespace atl::worker
