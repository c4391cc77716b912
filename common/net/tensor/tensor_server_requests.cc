// The server's handling of each kind of frame, and of its handler's answers.

#include <algorithm>

#include "common/check.h"
#include "common/net/tensor/link_probe.h"
#include "common/net/tensor/tensor_server.h"

namespace atl {

void TensorServer::OnPushOpen(const Route& route, const v1::PushOpen& open) {
  const PushId id = MakePushId(open);
  if (const auto it = route_of_push_.find(id); it != route_of_push_.end()) {
    return Resume(transfers_.at(it->second), route, open);
  }
  Transfer push{.route = route,
                .is_push = true,
                .encoding = EncodingFromWire(open.encoding()),
                .chunk_bytes = open.chunk_bytes(),
                .active = now_,
                .opened = now_,
                .push_id = id,
                .element_count = open.element_count()};
  if (push.bytes() > std::min(options_.push_bytes_max, options_.assembly_bytes_max)) {
    Count(&LinkCounters::transfers_failed);
    return SendEnd(route, v1::TransferEnd::REFUSED,
                   absl::StrCat("it has ", push.bytes(), " bytes; this server takes ",
                                options_.push_bytes_max, " at most"));
  }
  if (waiting_.size() >= static_cast<size_t>(options_.waiting_pushes_max) || !AddPeer(route.peer)) {
    return SendEnd(route, v1::TransferEnd::TRY_AGAIN, "too many transfers wait");
  }
  route_of_push_[id] = route;
  transfers_.emplace(route, std::move(push));
  waiting_.push_back(id);
  AdmitWaiting();
}

void TensorServer::Resume(Transfer& push, const Route& route, const v1::PushOpen& open) {
  if (push.encoding != EncodingFromWire(open.encoding()) ||
      push.element_count != open.element_count() || push.chunk_bytes != open.chunk_bytes() ||
      !AddPeer(route.peer)) {
    return SendEnd(route, v1::TransferEnd::REFUSED,
                   "another push with this id, of another size or encoding, is on its way");
  }
  Count(&LinkCounters::restarts);
  RemovePeer(push.route);
  auto moved = transfers_.extract(push.route);
  moved.key() = push.route = route;
  transfers_.insert(std::move(moved));
  route_of_push_[push.push_id] = route;
  if (push.stage == Transfer::kHandled) route_of_token_[push.token] = route;
  push.active = now_;
  push.broken = false;
  if (push.stage == Transfer::kReceiving) SendStart(push, push.incoming->next());
}

void TensorServer::AdmitWaiting() {
  while (!waiting_.empty()) {
    const auto it = route_of_push_.find(waiting_.front());
    if (it != route_of_push_.end()) {
      Transfer& push = transfers_.at(it->second);
      if (push.stage == Transfer::kWaiting && !Begin(push)) return;
    }
    waiting_.pop_front();
  }
}

bool TensorServer::Begin(Transfer& push) {
  if (assembly_bytes_ + push.bytes() > options_.assembly_bytes_max) return false;
  const absl::Status admitted = Admit(push);
  if (!admitted.ok()) {
    End(push,
        absl::IsAlreadyExists(admitted) ? v1::TransferEnd::DUPLICATE : v1::TransferEnd::REFUSED,
        std::string(admitted.message()));
    return true;
  }
  assembly_bytes_ += push.bytes();
  push.stage = Transfer::kReceiving;
  push.active = now_;
  push.payload = pool_->Take(push.bytes());
  push.incoming.emplace(std::span(push.payload.data(), static_cast<size_t>(push.bytes())),
                        push.chunk_bytes);
  if (push.incoming->complete()) {
    Deliver(push);
  } else {
    SendStart(push, 0);  // if the client has disconnected, the push waits for its next attempt
  }
  return true;
}

absl::Status TensorServer::Admit(const Transfer& push) {
  if (push.push_id.job != kProbeJob) {
    return handler_->AdmitPush(push.push_id, push.encoding, push.element_count);
  }
  if (push.element_count <= kProbeElementsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a probe has at most ", kProbeElementsMax, " elements"));
}

void TensorServer::OnChunk(const Route& route, LinkFrame& in) {
  const auto it = transfers_.find(route);
  if (it == transfers_.end() || it->second.stage != Transfer::kReceiving || it->second.broken) {
    return Count(&LinkCounters::frames_refused);
  }
  Transfer& push = it->second;
  absl::Status status = in.opened;
  if (status.ok()) status = push.incoming->Accept(in.frame.chunk(), in.payload.bytes());
  if (!status.ok()) {
    // The attempt ends; the chunks before it stay, and the next attempt goes on after them.
    Count(&LinkCounters::frames_refused);
    push.broken = true;
    return SendEnd(route, v1::TransferEnd::TRY_AGAIN, std::string(status.message()));
  }
  Count(&LinkCounters::payload_bytes_received, in.payload.bytes().size());
  push.active = now_;
  if (!push.incoming->complete()) return;
  Deliver(push);
  AdmitWaiting();
}

void TensorServer::Deliver(Transfer& push) {
  push.stage = Transfer::kHandled;
  push.incoming.reset();
  if (push.push_id.job == kProbeJob) return End(push, v1::TransferEnd::DUPLICATE, "");
  push.token = {next_token_++};
  route_of_token_[push.token] = push.route;
  handler_->OnPush(push.push_id, push.encoding, push.element_count, std::move(push.payload),
                   push.token);
}

void TensorServer::OnPullOpen(const Route& route, const v1::PullOpen& open) {
  if (!AddPeer(route.peer)) {
    return SendEnd(route, v1::TransferEnd::REFUSED, "too many transfers at a time");
  }
  const ReplyToken token{next_token_++};
  route_of_token_[token] = route;
  transfers_.emplace(route, Transfer{.route = route,
                                     .stage = Transfer::kHandled,
                                     .chunk_bytes = open.chunk_bytes(),
                                     .token = token,
                                     .active = now_,
                                     .opened = now_,
                                     .held_version = open.held_version(),
                                     .first_chunk = open.first_chunk()});
  const PullRequest request = ToPullRequest(open);
  if (request.job == kProbeJob) return AnswerProbe(request, token);
  handler_->OnPull(request, token);
}

void TensorServer::AnswerProbe(const PullRequest& request, ReplyToken token) {
  if (request.elements < 1 || request.begin > kProbeElementsMax - request.elements) {
    return Refuse(token, PullRefusal::kUnknown, kNoVersion,
                  absl::StrCat("a probe has at most ", kProbeElementsMax, " elements"));
  }
  std::shared_ptr<const std::vector<float>> values = probe_values_.lock();
  if (values == nullptr) probe_values_ = values = MakeProbeValues();
  Reply(token, 0,
        std::span(*values).subspan(static_cast<size_t>(request.begin),
                                   static_cast<size_t>(request.elements)),
        values);
}

void TensorServer::OnCancel(const Route& route) {
  const auto it = transfers_.find(route);
  if (it == transfers_.end()) return;
  // A push that its handler has is acknowledged to no client.
  if (it->second.is_push && it->second.stage == Transfer::kHandled) return;
  Remove(it->second, /*done=*/false);
  AdmitWaiting();
}

TensorServer::Transfer* TensorServer::TakeHandled(ReplyToken token) {
  const auto it = route_of_token_.find(token);
  if (it == route_of_token_.end()) return nullptr;
  Transfer& transfer = transfers_.at(it->second);
  route_of_token_.erase(it);
  return &transfer;
}

void TensorServer::Acknowledge(ReplyToken token, PushStatus status, const std::string& reason) {
  const Transfer* const push = TakeHandled(token);
  if (push == nullptr) return;
  End(*push, static_cast<v1::TransferEnd::Outcome>(static_cast<int>(status) + 1), reason);
  AdmitWaiting();
}

void TensorServer::Reply(ReplyToken token, Version version, std::span<const float> values,
                         std::shared_ptr<const void> owner) {
  Transfer* const pull = TakeHandled(token);
  if (pull == nullptr) return;
  pull->stage = Transfer::kSending;
  pull->active = now_;
  pull->outgoing.emplace(std::as_bytes(values), std::move(owner), pull->chunk_bytes);
  const int64_t held = pull->held_version == version ? pull->first_chunk : 0;
  const int64_t first = std::min(held, pull->outgoing->chunk_count());
  pull->outgoing->SkipTo(first);
  const SendOutcome sent = SendStart(*pull, first, version, std::ssize(values));
  if (sent != SendOutcome::kSent || pull->outgoing->done()) {
    return Remove(*pull, sent == SendOutcome::kSent);
  }
  peers_[pull->route.peer].sending.insert(pull->route.transfer);
  senders_.insert(pull->route.peer);
}

void TensorServer::Refuse(ReplyToken token, PullRefusal refusal, Version current,
                          const std::string& reason) {
  const Transfer* const pull = TakeHandled(token);
  if (pull == nullptr) return;
  End(*pull,
      static_cast<v1::TransferEnd::Outcome>(v1::TransferEnd::NOT_YET + static_cast<int>(refusal)),
      reason, current);
}

void TensorServer::End(const Transfer& transfer, v1::TransferEnd::Outcome outcome,
                       const std::string& reason, Version current) {
  SendEnd(transfer.route, outcome, reason, current);
  Remove(transfer, outcome == v1::TransferEnd::STAGED || outcome == v1::TransferEnd::DUPLICATE);
}

void TensorServer::Remove(const Transfer& transfer, bool done) {
  if (done) {
    CountDone(now_ - transfer.opened);
  } else {
    Count(&LinkCounters::transfers_failed);
  }
  if (transfer.is_push) {
    if (transfer.stage != Transfer::kWaiting) assembly_bytes_ -= transfer.bytes();
    route_of_push_.erase(transfer.push_id);
  }
  route_of_token_.erase(transfer.token);
  RemovePeer(transfer.route);
  transfers_.erase(Route(transfer.route));
}

SendOutcome TensorServer::SendStart(const Transfer& transfer, int64_t first_chunk, Version version,
                                    int64_t element_count) {
  v1::Frame frame = MakeFrame(transfer.route.transfer);
  v1::TransferStart& start = *frame.mutable_transfer_start();
  start.set_first_chunk(first_chunk);
  start.set_version(version);
  start.set_element_count(element_count);
  return link_->Send(transfer.route.peer, frame);
}

// A client that has disconnected opens its transfer again.
void TensorServer::SendEnd(const Route& route, v1::TransferEnd::Outcome outcome,
                           const std::string& reason, Version current) {
  v1::Frame frame = MakeFrame(route.transfer);
  v1::TransferEnd& end = *frame.mutable_transfer_end();
  end.set_outcome(outcome);
  end.set_reason(reason.substr(0, kReasonBytesMax));
  end.set_current_version(current);
  link_->Send(route.peer, frame);
}

bool TensorServer::AddPeer(const std::string& peer) {
  Peer& entry = peers_[peer];
  if (entry.account == nullptr) entry.account = MakeAccount();
  entry.key = sender_key_;
  if (entry.transfers >= options_.transfers_per_client_max) return false;
  ++entry.transfers;
  return true;
}

void TensorServer::RemovePeer(const Route& route) {
  const auto it = peers_.find(route.peer);
  ATOLL_CHECK(it != peers_.end() && it->second.transfers > 0);
  Peer& peer = it->second;
  if (peer.sending.erase(route.transfer) > 0 && peer.sending.empty()) senders_.erase(route.peer);
  if (--peer.transfers == 0) peers_.erase(it);
}

}  // namespace atl
