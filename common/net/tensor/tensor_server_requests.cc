// The server's handling of each kind of frame, and of its handler's answers.

#include <algorithm>

#include "common/check.h"
#include "common/net/tensor/tensor_server.h"

namespace atl {

void TensorServer::OnPushOpen(const Route& route, const v1::PushOpen& open) {
  if (push_of_route_.count(route) > 0 || pulls_.count(route) > 0) {
    return Count(&LinkCounters::frames_refused);  // a transfer number used twice
  }
  const PushId id = MakePushId(open);
  if (const auto it = pushes_.find(id); it != pushes_.end()) {
    if (!Resume(it->second, route, open)) {
      SendPushResult(route, v1::PushResult::REFUSED,
                     "another push with this id, of another size or encoding, is on its way");
    }
    return;
  }
  Push push{.id = id,
            .route = route,
            .encoding = EncodingFromWire(open.encoding()),
            .element_count = open.element_count(),
            .chunk_bytes = open.chunk_bytes(),
            .active = now_,
            .opened = now_};
  if (push.bytes() > std::min(options_.push_bytes_max, options_.assembly_bytes_max)) {
    Count(&LinkCounters::transfers_failed);
    return SendPushResult(route, v1::PushResult::REFUSED,
                          absl::StrCat("it has ", push.bytes(), " bytes; this server takes ",
                                       options_.push_bytes_max, " at most"));
  }
  if (waiting_.size() >= static_cast<size_t>(options_.waiting_pushes_max) ||
      !AddTransfer(route.peer)) {
    return SendPushResult(route, v1::PushResult::TRY_AGAIN, "too many transfers wait");
  }
  push_of_route_[route] = id;
  pushes_.emplace(id, std::move(push));
  waiting_.push_back(id);
  AdmitWaiting();
}

// A new attempt at a push that is here already takes the place of the old attempt.
bool TensorServer::Resume(Push& push, const Route& route, const v1::PushOpen& open) {
  if (push.encoding != EncodingFromWire(open.encoding()) ||
      push.element_count != open.element_count() || push.chunk_bytes != open.chunk_bytes() ||
      !AddTransfer(route.peer)) {
    return false;
  }
  Count(&LinkCounters::restarts);
  push_of_route_.erase(push.route);
  RemoveTransfer(push.route.peer);
  push.route = route;
  push.active = now_;
  push_of_route_[route] = push.id;
  if (push.stage == Push::kReceiving) Grant(push, /*first=*/true);
  return true;
}

void TensorServer::AdmitWaiting() {
  while (!waiting_.empty()) {
    const auto it = pushes_.find(waiting_.front());
    if (it != pushes_.end() && it->second.stage == Push::kWaiting && !Begin(it->second)) return;
    waiting_.pop_front();
  }
}

bool TensorServer::Begin(Push& push) {
  if (assembly_bytes_ + push.bytes() > options_.assembly_bytes_max) return false;
  const absl::Status admitted = handler_->AdmitPush(push.id, push.encoding, push.element_count);
  if (!admitted.ok()) {
    EndPush(push,
            admitted.code() == absl::StatusCode::kAlreadyExists ? v1::PushResult::DUPLICATE
                                                                : v1::PushResult::REFUSED,
            std::string(admitted.message()));
    return true;
  }
  assembly_bytes_ += push.bytes();
  push.stage = Push::kReceiving;
  push.active = now_;
  push.payload = pool_->Take(push.bytes());
  push.incoming.emplace(std::span(push.payload.data(), static_cast<size_t>(push.bytes())),
                        push.chunk_bytes);
  if (push.incoming->complete()) {
    Deliver(push);
  } else {
    Grant(push, /*first=*/true);
  }
  return true;
}

// Grants are sent by quarters of a window, so that there are few of them.
void TensorServer::Grant(Push& push, bool first) {
  const int64_t next = push.incoming->next();
  const int64_t limit = std::min(push.incoming->chunk_count(), next + options_.push_window_chunks);
  const int64_t step = std::max(1, options_.push_window_chunks / 4);
  const bool last = limit == push.incoming->chunk_count() && limit > push.granted;
  if (!first && !last && limit - push.granted < step) return;
  v1::Frame frame = MakeFrame(push.route.transfer);
  frame.mutable_push_grant()->set_first_chunk(next);
  frame.mutable_push_grant()->set_chunk_limit(limit);
  push.granted = limit;
  SendFrame(push.route,
            frame);  // if the client has disconnected, the push waits for its next attempt
}

void TensorServer::OnChunk(const Route& route, LinkFrame& in) {
  const auto it = push_of_route_.find(route);
  if (it == push_of_route_.end()) return Count(&LinkCounters::frames_refused);
  Push& push = pushes_.at(it->second);
  if (push.stage != Push::kReceiving) return Count(&LinkCounters::frames_refused);
  const v1::Chunk& chunk = in.frame.chunk();
  absl::Status status = in.opened;
  if (chunk.index() >= push.granted) {
    status = absl::InvalidArgumentError("a chunk that was not granted");
  }
  if (status.ok()) status = push.incoming->Accept(chunk, in.payload.bytes());
  if (!status.ok()) {
    // The attempt ends; the chunks before it stay, and the next attempt goes on after them.
    Count(&LinkCounters::frames_refused);
    SendPushResult(route, v1::PushResult::TRY_AGAIN, std::string(status.message()));
    push.granted = 0;
    return;
  }
  Count(&LinkCounters::payload_bytes_received, in.payload.bytes().size());
  push.active = now_;
  if (push.incoming->complete()) {
    Deliver(push);
  } else {
    Grant(push, /*first=*/false);
  }
}

void TensorServer::Deliver(Push& push) {
  push.stage = Push::kDelivered;
  push.incoming.reset();
  push.token = {next_token_++};
  push_of_token_[push.token.id] = push.id;
  handler_->OnPush(push.id, push.encoding, push.element_count, std::move(push.payload), push.token);
}

void TensorServer::Acknowledge(ReplyToken token, PushStatus status, const std::string& reason) {
  const auto it = push_of_token_.find(token.id);
  if (it == push_of_token_.end()) return;
  Push& push = pushes_.at(it->second);
  push_of_token_.erase(it);
  EndPush(push, static_cast<v1::PushResult::Outcome>(static_cast<int>(status) + 1), reason);
  AdmitWaiting();
}

void TensorServer::EndPush(Push& push, v1::PushResult::Outcome outcome, const std::string& reason) {
  SendPushResult(push.route, outcome, reason);
  if (outcome == v1::PushResult::STAGED || outcome == v1::PushResult::DUPLICATE) {
    CountDone(now_ - push.opened);
  } else {
    Count(&LinkCounters::transfers_failed);
  }
  if (push.stage != Push::kWaiting) assembly_bytes_ -= push.bytes();
  push_of_route_.erase(push.route);
  RemoveTransfer(push.route.peer);
  pushes_.erase(PushId(push.id));
}

void TensorServer::SendPushResult(const Route& route, v1::PushResult::Outcome outcome,
                                  const std::string& reason) {
  v1::Frame frame = MakeFrame(route.transfer);
  frame.mutable_push_result()->set_outcome(outcome);
  frame.mutable_push_result()->set_reason(reason.substr(0, kReasonBytesMax));
  SendFrame(route, frame);  // a client that has disconnected repeats its request
}

void TensorServer::OnPullOpen(const Route& route, const v1::PullOpen& open) {
  if (push_of_route_.count(route) > 0 || pulls_.count(route) > 0) {
    return Count(&LinkCounters::frames_refused);
  }
  if (!AddTransfer(route.peer)) {
    return SendPullRefused(route, v1::PullRefused::BAD_REQUEST, kNoVersion,
                           "too many transfers at a time");
  }
  const ReplyToken token{next_token_++};
  pull_of_token_[token.id] = route;
  pulls_[route] = Pull{.route = route,
                       .open = open,
                       .token = token,
                       .chunk_limit = open.chunk_limit(),
                       .active = now_,
                       .opened = now_};
  handler_->OnPull(ToPullRequest(open), token);
}

void TensorServer::OnPullCredit(const Route& route, int64_t chunk_limit) {
  const auto it = pulls_.find(route);
  if (it == pulls_.end()) return;  // credit for a pull that has just been finished
  Pull& pull = it->second;
  if (!pull.outgoing) return Count(&LinkCounters::frames_refused);  // credit before the reply
  pull.active = now_;
  // Credits never fall, and mean nothing beyond the tensor's end.
  pull.chunk_limit =
      std::min(pull.outgoing->chunk_count(), std::max(pull.chunk_limit, chunk_limit));
}

void TensorServer::OnCancel(const Route& route) {
  if (pulls_.count(route) > 0) {
    Count(&LinkCounters::transfers_failed);
    return EndPull(route);
  }
  const auto it = push_of_route_.find(route);
  if (it == push_of_route_.end()) return;
  Push& push = pushes_.at(it->second);
  if (push.stage == Push::kDelivered) return;  // its handler has it; the answer goes nowhere
  EndPush(push, v1::PushResult::REFUSED, "cancelled");
  AdmitWaiting();
}

void TensorServer::Reply(ReplyToken token, Version version, std::span<const float> values,
                         std::shared_ptr<const void> owner) {
  const auto it = pull_of_token_.find(token.id);
  if (it == pull_of_token_.end()) return;
  const Route route = it->second;
  pull_of_token_.erase(it);
  Pull& pull = pulls_.at(route);
  const int64_t held = pull.open.held_version() == version ? pull.open.first_chunk() : 0;
  pull.outgoing.emplace(EncodingFromWire(pull.open.encoding()), values, std::move(owner),
                        pull.open.chunk_bytes());
  const int64_t count = pull.outgoing->chunk_count();
  const int64_t first = std::min(held, count);
  pull.outgoing->SkipTo(first);
  pull.chunk_limit = std::min(count, pull.chunk_limit - pull.open.first_chunk() + first);
  pull.active = now_;
  v1::Frame frame = MakeFrame(route.transfer);
  frame.mutable_pull_reply()->set_version(version);
  frame.mutable_pull_reply()->set_element_count(static_cast<int64_t>(values.size()));
  frame.mutable_pull_reply()->set_first_chunk(first);
  const bool sent = SendFrame(route, frame) == SendOutcome::kSent;
  if (!sent) {
    Count(&LinkCounters::transfers_failed);
    EndPull(route);
  } else if (pull.outgoing->done()) {
    CountDone(now_ - pull.opened);
    EndPull(route);
  }
}

void TensorServer::Refuse(ReplyToken token, PullRefusal refusal, Version current,
                          const std::string& reason) {
  const auto it = pull_of_token_.find(token.id);
  if (it == pull_of_token_.end()) return;
  const Route route = it->second;
  Count(&LinkCounters::transfers_failed);
  SendPullRefused(route, static_cast<v1::PullRefused::Code>(static_cast<int>(refusal) + 1), current,
                  reason);
  EndPull(route);
}

void TensorServer::EndPull(const Route& route) {
  const auto it = pulls_.find(route);
  ATOLL_CHECK(it != pulls_.end());
  pull_of_token_.erase(it->second.token.id);
  const std::string peer = it->second.route.peer;
  pulls_.erase(it);
  RemoveTransfer(peer);
}

void TensorServer::SendPullRefused(const Route& route, v1::PullRefused::Code code, Version current,
                                   const std::string& reason) {
  v1::Frame frame = MakeFrame(route.transfer);
  frame.mutable_pull_refused()->set_code(code);
  frame.mutable_pull_refused()->set_current_version(current);
  frame.mutable_pull_refused()->set_reason(reason.substr(0, kReasonBytesMax));
  SendFrame(route, frame);
}

}  // namespace atl
