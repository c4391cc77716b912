// GroupMember: its messages to and from other members.

#include <utility>

#include "worker/island/member/member.h"
#include "worker/island/messages/save_wire.h"
#include "worker/pipeline/role.h"
#include "worker/profiler/link_profiler.h"

namespace atl::worker {

void GroupMember::SetOnTransfer(OnTransfer on_transfer) {
  const std::lock_guard lock(hooks_mutex_);
  on_transfer_ = std::move(on_transfer);
}

void GroupMember::SetHooks(Hooks hooks) {
  const std::lock_guard lock(hooks_mutex_);
  hooks_ = std::move(hooks);
}

void GroupMember::Notify(const NodeId& to, v1::GroupFrame frame) {
  const bool of_save =
      frame.has_save_done() || frame.has_go_on_saving() || frame.has_forget_saves();
  if (of_save && to == name()) return OnSaveFrame(to, frame);
  calls_.Notify(to, std::move(frame));
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
      return calls_.AdmitChunk(from, header, payload_bytes);
    case PeerChannel::kCollective:
      return blocks_.Admit(header, payload_bytes);
  }
  return absl::InvalidArgumentError("no such channel");
}

void GroupMember::OnMessage(PeerDelivery delivery) {
  // What came just before we joined another plan.
  if (!state_.SpeaksUnder(delivery.fence)) return;
  switch (delivery.channel) {
    case PeerChannel::kTensor:
      return transport_.OnMessage(std::move(delivery));
    case PeerChannel::kState:
      return calls_.OnChunk(std::move(delivery));
    case PeerChannel::kCollective:
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
      const absl::Status status = StatusFromReply(frame.reply());
      const int64_t epoch = frame.epoch();
      calls_.OnReply(from, std::move(frame));
      if (status.ok() || epoch != state_.epoch()) return;
      const std::lock_guard calling(hooks_mutex_);
      if (hooks_.call_failed) hooks_.call_failed(from, absl::StrCat(from, ": ", status.message()));
      return;
    }
    case v1::GroupFrame::kRendezvous:
      return rendezvous_.OnEntry(frame.epoch(), frame.rendezvous().key(),
                                 frame.rendezvous().value());
    case v1::GroupFrame::kLink:
      if (frame.epoch() == epoch()) transport_.OnSharedLinkCall(from, FromWire(frame.link()));
      return;
    case v1::GroupFrame::kInterrupt:
      if (state_.TakeInterrupt(fence, frame.epoch())) Interrupt(frame.interrupt().reason());
      return;
    case v1::GroupFrame::kClock:
      return calls_.OnClockCall(from, frame);
    case v1::GroupFrame::kSaveDone:
    case v1::GroupFrame::kGoOnSaving:
    case v1::GroupFrame::kForgetSaves:
      if (frame.epoch() == epoch()) OnSaveFrame(from, frame);
      return;
    case v1::GroupFrame::kTransfer: {
      if (frame.epoch() != epoch()) return;
      const std::lock_guard calling(hooks_mutex_);
      if (on_transfer_) on_transfer_(from, frame.transfer());
      return;
    }
    case v1::GroupFrame::kOuter:
      if (frame.outer().during_steps() ? DoLater(from, frame) : Serve(from, frame)) return;
      break;
    case v1::GroupFrame::kGetLayer:
      if (AddTransfer({from, frame.call(), frame.get_layer()})) return;
      break;
    default:
      if (Serve(from, frame)) return;
  }
  v1::GroupReply reply;
  ToWire(absl::UnavailableError("it serves no leader now"), &reply);
  Reply(from, frame.call(), std::move(reply));
}

// These two: whether it is taken on.
bool GroupMember::Serve(const NodeId& from, v1::GroupFrame& frame) {
  const std::lock_guard calling(hooks_mutex_);
  if (hooks_.serve) hooks_.serve(from, std::move(frame));
  return hooks_.serve != nullptr;
}

bool GroupMember::DoLater(const NodeId& from, v1::GroupFrame& frame) {
  const std::shared_ptr<const IslandPlan> plan = state_.plan();
  const bool leads = !plan->members.empty() && plan->members.front().worker == from;
  if (frame.epoch() != epoch() || !leads) return false;
  return outer_exchange_.DoLater(frame.outer(),
                                 [this, from, call = frame.call()](const absl::Status& status) {
                                   v1::GroupReply reply;
                                   ToWire(status, &reply);
                                   Reply(from, call, std::move(reply));
                                 });
}

void GroupMember::OnSaveFrame(const NodeId& from, const v1::GroupFrame& frame) {
  if (frame.has_go_on_saving()) {
    saves_.GoOn(frame.go_on_saving().save());
  } else if (frame.has_forget_saves()) {
    saves_.Forget(frame.forget_saves().save(), TierFromWire(frame.forget_saves().tier()));
  } else {
    const std::lock_guard calling(hooks_mutex_);
    if (hooks_.save_done) hooks_.save_done(from, frame.save_done());
  }
}

bool GroupMember::AddTransfer(LayerRequest request) {
  return transfers_.Add([this, request = std::move(request)] { AnswerTransfer(request); });
}

void GroupMember::AnswerTransfer(const LayerRequest& request) {
  v1::GroupReply reply;
  if (request.what.of_save() != 0) {
    // Not an error: those that are interrupt what goes on at the leader.
    const absl::StatusOr<bool> sent = saves_.Send(request);
    reply.set_copies_taken(sent.ok() && *sent);
  } else {
    const bool of_outer = (request.what.parts() & kOuterParts) != 0;
    ToWire(of_outer ? outer_exchange_.Send(request) : layers_.Send(request), &reply);
  }
  Reply(request.from, request.call, std::move(reply));
}

void GroupMember::OnPeerLost(const NodeId& peer, const std::string& reason) {
  bool works = false;  // with us
  {
    const std::shared_ptr<const IslandPlan> plan = state_.plan();
    for (const std::string& device : ListDevices(*plan)) {
      works = works || WorkerFromDevice(device) == peer;
    }
    works = works || (!plan->members.empty() && plan->members[0].worker == peer);
  }
  calls_.OnPeerLost(peer, reason);
  blocks_.OnPeerLost();
  const std::string what = absl::StrCat(peer, " is lost: ", reason);
  if (works) InterruptWork(what);
  const std::lock_guard calling(hooks_mutex_);
  if (hooks_.peer_lost) hooks_.peer_lost(peer, reason);
  if (on_transfer_) on_transfer_(peer, v1::TransferCall());
}

}  // namespace atl::worker
