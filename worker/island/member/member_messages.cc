// GroupMember: its messages to and from other members.

#include <utility>

#include "common/event_loop.h"
#include "worker/island/member/member.h"
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

void GroupMember::Notify(const NodeId& to, GroupFrame frame) {
  if (to == name()) {
    if (const SaveDone* done = BodyIf<SaveDone>(frame)) return On(to, *done);
    if (const GoOnSaving* go_on = BodyIf<GoOnSaving>(frame)) return On(to, *go_on);
    if (const ForgetSaves* forget = BodyIf<ForgetSaves>(frame)) return On(to, *forget);
  }
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
      return calls_.AdmitChunk(header, payload_bytes);
    case PeerChannel::kCollective:
      return blocks_.Admit(header, payload_bytes);
  }
  return absl::InvalidArgumentError("no such channel");
}

void GroupMember::OnMessage(PeerDelivery delivery) {
  // The message came just before this worker joined another plan.
  if (!state_.SpeaksUnder(delivery.fence)) return;
  switch (delivery.channel) {
    case PeerChannel::kTensor:
      return transport_.OnMessage(std::move(delivery));
    case PeerChannel::kState:
      return calls_.OnChunk(SteadyNow(), delivery);
    case PeerChannel::kCollective:
      return blocks_.OnMessage(std::move(delivery));
    case PeerChannel::kCommand:
      break;
  }
  const absl::string_view bytes(reinterpret_cast<const char*>(delivery.payload.data()),
                                static_cast<size_t>(delivery.payload.size()));
  absl::StatusOr<GroupFrame> frame = ParseGroupFrame(bytes);
  if (!frame.ok()) {
    return link_->Lose(delivery.from,
                       absl::StrCat("it broke the protocol: ", frame.status().message()));
  }
  OnFrame(delivery.fence, delivery.from, *std::move(frame));
}

void GroupMember::OnFrame(const PeerFence& fence, const NodeId& from, GroupFrame frame) {
  if (BodyIf<GroupReply>(frame) != nullptr) return OnReply(from, std::move(frame));
  if (const Interruption* interrupt = BodyIf<Interruption>(frame)) {
    if (state_.TakeInterrupt(fence, frame.epoch)) Interrupt(interrupt->reason);
    return;
  }
  if (OnBody(from, frame)) return;
  const CallId call = frame.call;
  const GetLayerCall* layer = BodyIf<GetLayerCall>(frame);
  const bool taken = layer != nullptr       ? AddTransfer({from, call, *layer})
                     : IsBesideSteps(frame) ? DoLater(from, frame)
                                            : Serve(from, frame);
  if (taken) return;
  GroupReply reply;
  SetStatus(absl::UnavailableError("it serves no leader now"), &reply);
  Reply(from, call, std::move(reply));
}

void GroupMember::OnReply(const NodeId& from, GroupFrame frame) {
  const absl::Status status = StatusFromReply(std::get<GroupReply>(frame.body));
  const int64_t epoch = frame.epoch;
  calls_.OnReply(from, std::move(frame));
  if (status.ok() || epoch != state_.epoch()) return;
  const std::lock_guard calling(hooks_mutex_);
  if (hooks_.save_done) InterruptWork(absl::StrCat(from, ": ", status.message()));  // it leads
}

// Handles messages that need no reply, or have it at once.
bool GroupMember::OnBody(const NodeId& from, const GroupFrame& frame) {
  const bool current = frame.epoch == epoch();
  return std::visit(
      [&]<class Body>(const Body& body) {
        if constexpr (std::is_same_v<Body, ClockCall>) {
          calls_.OnClockCall(from, frame.call, body);
        } else if constexpr (std::is_same_v<Body, SharedLinkCall>) {
          if (current) transport_.OnSharedLinkCall(from, body);
        } else if constexpr (requires { this->On(from, body); }) {
          if (current) On(from, body);
        } else if constexpr (std::is_constructible_v<TransferFrame, const Body&>) {
          const std::lock_guard calling(hooks_mutex_);
          if (current && on_transfer_) on_transfer_(from, body);
        } else {
          return false;
        }
        return true;
      },
      frame.body);
}

// These two: whether it is taken on.
bool GroupMember::Serve(const NodeId& from, GroupFrame& frame) {
  const std::lock_guard calling(hooks_mutex_);
  if (hooks_.serve) hooks_.serve(from, std::move(frame));
  return hooks_.serve != nullptr;
}

bool GroupMember::DoLater(const NodeId& from, const GroupFrame& frame) {
  const std::shared_ptr<const IslandPlan> plan = state_.plan();
  const bool leads = !plan->members.empty() && plan->members.front().worker == from;
  if (frame.epoch != epoch() || !leads) return false;
  const CaptureDelta* make = BodyIf<CaptureDelta>(frame);
  const bool digests = make != nullptr && make->digests;
  const auto done = [this, from, call = frame.call, digests](const absl::Status& status) {
    GroupReply reply;
    if (status.ok() && digests) reply.digests = outer_exchange_.digests();
    SetStatus(status, &reply);
    Reply(from, call, std::move(reply));
  };
  if (make != nullptr) return outer_exchange_.DoLater(*make, done);
  return outer_exchange_.DoLater(std::get<ApplyCall>(frame.body), done);
}

void GroupMember::On(const NodeId&, const GoOnSaving& go_on) { saves_.GoOn(go_on.save); }

void GroupMember::On(const NodeId&, const ForgetSaves& forget) {
  saves_.Forget(forget.save, forget.tier);
}

void GroupMember::On(const NodeId& from, const SaveDone& done) {
  const std::lock_guard calling(hooks_mutex_);
  if (hooks_.save_done) hooks_.save_done(from, done);
}

bool GroupMember::AddTransfer(LayerRequest request) {
  return transfers_.Add([this, request = std::move(request)] { AnswerTransfer(request); });
}

void GroupMember::AnswerTransfer(const LayerRequest& request) {
  GroupReply reply;
  if (request.what.of_save != 0) {
    // Not an error: those that are interrupt what goes on at the leader.
    const absl::StatusOr<bool> sent = saves_.Send(request);
    reply.copies_taken = sent.ok() && *sent;
  } else {
    const bool of_outer = (request.what.parts & kOuterParts) != 0;
    SetStatus(of_outer ? outer_exchange_.Send(request) : layers_.Send(request), &reply);
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
  if (on_transfer_) on_transfer_(peer, Lost());
}

}  // namespace atl::worker
