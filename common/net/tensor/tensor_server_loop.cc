// The network thread's loop: receiving, authentication, sending of pulled tensors.

#include <algorithm>

#include "common/net/tensor/tensor_server.h"

namespace atl {
namespace {

constexpr int kMessagesPerTurn = 64;
constexpr int kChunksPerTurn = 8;
constexpr Duration kIdleCheckInterval = std::chrono::milliseconds(200);

}  // namespace

absl::StatusOr<std::unique_ptr<TensorServer>> TensorServer::Create(TensorServerOptions options,
                                                                   TensorHandler* handler) {
  std::unique_ptr<TensorServer> server(new TensorServer(std::move(options), handler));
  ATOLL_RETURN_IF_ERROR(server->Start());
  return server;
}

absl::Status TensorServer::Start() {
  ATOLL_RETURN_IF_ERROR(CheckSecurity(options_.security, options_.endpoint));
  ATOLL_RETURN_IF_ERROR(Open(options_.io_threads));
  ATOLL_ASSIGN_OR_RETURN(link_, MakeServer(options_.security.keys));
  Allow(options_.security.allowed_client_keys);
  ATOLL_ASSIGN_OR_RETURN(endpoint_, link_->Bind(options_.endpoint));
  Launch();
  return absl::OkStatus();
}

bool TensorServer::Turn() {
  link_->Flush();
  bool more = ReceiveSome();
  Count(&LinkCounters::frames_refused, link_->TakeRefused());
  more |= SendChunks();
  if (now_ >= next_idle_check_) DropIdle();
  return more;
}

Instant TensorServer::NextDue() const {
  return pace_.Ready(now_) ? next_idle_check_ : pace_.free_at();
}

bool TensorServer::ReceiveSome() {
  LinkFrame in;
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    if (!link_->Receive(&in)) return false;
    OnFrame(in);
    // Keep pullers supplied while pushers keep us busy.
    if (i % kChunksPerTurn == kChunksPerTurn - 1) SendChunks();
  }
  return true;
}

void TensorServer::OnFrame(LinkFrame& in) {
  if (!IsAllowed(in)) return Count(&LinkCounters::frames_refused);
  const v1::Frame& frame = in.frame;
  const bool opens = frame.has_push_open() || frame.has_pull_open();
  const Route route{in.from, frame.transfer()};
  absl::Status status = in.status;
  if (status.ok()) {
    // A transfer number used twice has no answer.
    if (opens && transfers_.contains(route)) return Count(&LinkCounters::frames_refused);
    switch (frame.body_case()) {
      case v1::Frame::kPushOpen:
        return OnPushOpen(route, frame.push_open());
      case v1::Frame::kPullOpen:
        return OnPullOpen(route, frame.pull_open());
      case v1::Frame::kChunk:
        return OnChunk(route, in);
      case v1::Frame::kCancel:
        return OnCancel(route);
      default:
        status = absl::InvalidArgumentError("a frame that only servers send");
    }
  }
  Count(&LinkCounters::frames_refused);
  // The opening of a transfer is answered, so that its client need not wait for its timeout.
  if (opens) {
    SendEnd(route, v1::TransferEnd::REFUSED, std::string(status.message()));
  } else if (absl::IsDataLoss(status)) {
    link_->Forget(in.from);  // its client begins another session and goes on
  }
}

bool TensorServer::IsAllowed(const LinkFrame& in) {
  sender_key_ = in.key;
  return options_.security.keys.empty() || client_keys_.count(sender_key_) > 0;
}

// Pushes that were handed over whole stay: their sender was allowed then.
void TensorServer::Allow(const std::vector<std::string>& public_keys) {
  if (options_.security.keys.empty()) return;
  link_->Admit(public_keys);
  client_keys_ = {public_keys.begin(), public_keys.end()};
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const Transfer& transfer = (it++)->second;
    const bool whole = transfer.is_push && transfer.stage == Transfer::kHandled;
    if (whole || client_keys_.contains(peers_.at(transfer.route.peer).key)) continue;
    End(transfer, v1::TransferEnd::REFUSED, "the key of this client is revoked");
  }
}

// Sends at most a few chunks: the connections in turn, from the one after the last served, and of
// one connection the oldest pull. Its client opens the next segment when the oldest is done, while
// the others keep the link busy. Stops where the pace or the bound on unsent bytes does.
bool TensorServer::SendChunks() {
  int sent = 0;
  for (size_t full = 0; sent < kChunksPerTurn && full < senders_.size() && pace_.Ready(now_);) {
    const auto next = senders_.upper_bound(last_served_);
    last_served_ = next == senders_.end() ? *senders_.begin() : *next;
    const bool took = SendChunk(last_served_);
    sent += took ? 1 : 0;
    full = took ? 0 : full + 1;
  }
  return sent >= kChunksPerTurn && pace_.Ready(now_);
}

bool TensorServer::SendChunk(const std::string& to) {
  Peer& peer = peers_[to];
  Transfer& pull = transfers_.at({to, *peer.sending.begin()});
  const int64_t bytes = pull.outgoing->next_bytes();
  if (!peer.account->Admits(bytes)) return false;
  v1::Frame frame = MakeFrame(pull.route.transfer);
  Message payload = pull.outgoing->Next(*pool_, peer.account, frame.mutable_chunk(),
                                        /*checksum=*/options_.security.keys.empty());
  if (link_->Send(to, std::move(frame), &payload) != SendOutcome::kSent) {
    Remove(pull, /*done=*/false);
    return true;
  }
  pace_.Spend(bytes, now_);
  Count(&LinkCounters::payload_bytes_sent, bytes);
  pull.active = peer.sent = now_;
  if (pull.outgoing->done()) Remove(pull, /*done=*/true);
  return true;
}

// A pull waits for this server, or for its connection to take what is before it.
bool TensorServer::IsIdle(const Transfer& transfer, Instant oldest) {
  if (transfer.active >= oldest) return false;
  if (transfer.stage == Transfer::kReceiving) return true;
  if (transfer.stage != Transfer::kSending) return false;
  Peer& peer = peers_[transfer.route.peer];
  return peer.sent < oldest && !peer.account->Admits(transfer.outgoing->next_bytes());
}

void TensorServer::DropIdle() {
  next_idle_check_ = now_ + kIdleCheckInterval;
  const Instant oldest = now_ - options_.idle_timeout;
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const Transfer& transfer = (it++)->second;
    if (!IsIdle(transfer, oldest)) continue;
    End(transfer, v1::TransferEnd::TRY_AGAIN, "no chunk was sent or taken for too long");
  }
  AdmitWaiting();
}

}  // namespace atl
