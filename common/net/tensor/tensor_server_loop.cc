// The network thread's loop: waiting, receiving, authentication, sending of pulled tensors.

#include <algorithm>
#include <limits>

#include "common/check.h"
#include "common/net/tensor/tensor_server.h"

namespace atl {
namespace {

constexpr int kMessagesPerTurn = 64;
constexpr int kChunksPerTurn = 8;
constexpr Duration kIdleCheckInterval = std::chrono::milliseconds(200);

Instant Now() { return Instant(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace

absl::StatusOr<std::unique_ptr<TensorServer>> TensorServer::Create(TensorServerOptions options,
                                                                   TensorHandler* handler) {
  std::unique_ptr<TensorServer> server(new TensorServer(std::move(options), handler));
  ATOLL_RETURN_IF_ERROR(server->Start());
  return server;
}

absl::Status TensorServer::Start() {
  ATOLL_RETURN_IF_ERROR(CheckSecurity(options_.security, options_.endpoint));
  ATOLL_RETURN_IF_ERROR(tasks_.Check());
  ATOLL_ASSIGN_OR_RETURN(context_, ZmqContext::Create(options_.io_threads));
  ATOLL_ASSIGN_OR_RETURN(
      link_, LinkServer::Create(*context_, options_.security.keys, [this] { tasks_.Wake(); }));
  Allow(options_.security.allowed_client_keys);
  ATOLL_ASSIGN_OR_RETURN(endpoint_, link_->Bind(options_.endpoint));
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

TensorServer::~TensorServer() {
  if (thread_.joinable()) {
    tasks_.Post([this] { stopping_ = true; });
    thread_.join();
  }
}

void TensorServer::Run() {
  bool more = false;
  std::vector<Socket*> sockets;
  link_->AddTo(&sockets);
  while (!stopping_) {
    Socket::Poll(sockets, tasks_.descriptor(), more ? 0 : WaitMs());
    now_ = Now();
    tasks_.RunAll();
    link_->Flush();
    more = ReceiveSome();
    Count(&LinkCounters::frames_refused, link_->TakeRefused());
    more |= SendChunks();
    if (now_ >= next_idle_check_) DropIdle();
  }
}

int TensorServer::WaitMs() const {
  Instant until = now_ + kIdleCheckInterval;
  if (pace_.limited()) until = std::min(until, std::max(now_, pace_.free_at()));
  return static_cast<int>(
      std::chrono::ceil<std::chrono::milliseconds>(std::max(until - Now(), Duration(0))).count());
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
  absl::Status status = in.status;
  const Route route{in.from, frame.transfer()};
  if (status.ok()) {
    switch (frame.body_case()) {
      case v1::Frame::kPushOpen:
        return OnPushOpen(route, frame.push_open());
      case v1::Frame::kChunk:
        return OnChunk(route, in);
      case v1::Frame::kPullOpen:
        return OnPullOpen(route, frame.pull_open());
      case v1::Frame::kPullCredit:
        return OnPullCredit(route, frame.pull_credit().chunk_limit());
      case v1::Frame::kCancel:
        return OnCancel(route);
      default:
        status = absl::InvalidArgumentError("a frame that only servers send");
    }
  }
  Count(&LinkCounters::frames_refused);
  // The opening of a transfer is answered, so that its client need not wait for its timeout.
  if (frame.has_push_open()) {
    SendPushResult(route, v1::PushResult::REFUSED, std::string(status.message()));
  } else if (frame.has_pull_open()) {
    SendPullRefused(route, v1::PullRefused::BAD_REQUEST, kNoVersion, std::string(status.message()));
  } else if (absl::IsDataLoss(status)) {
    link_->Forget(in.from);  // its client begins another session and goes on
  }
}

bool TensorServer::IsAllowed(const LinkFrame& in) {
  sender_key_ = in.key;
  return options_.security.keys.empty() || client_keys_.count(sender_key_) > 0;
}

void TensorServer::Allow(const std::vector<std::string>& public_keys) {
  if (options_.security.keys.empty()) return;
  link_->Admit(public_keys);
  client_keys_ = {public_keys.begin(), public_keys.end()};
  std::vector<std::string> revoked;
  for (const auto& [name, peer] : peers_) {
    if (client_keys_.count(peer.key) == 0) revoked.push_back(name);
  }
  for (const std::string& peer : revoked) EndTransfers(peer);
}

// Pushes that were handed over whole stay: their sender was allowed then.
void TensorServer::EndTransfers(const std::string& peer) {
  std::vector<PushId> pushes;
  for (const auto& [id, push] : pushes_) {
    if (push.route.peer == peer && push.stage != Push::kDelivered) pushes.push_back(id);
  }
  for (const PushId& id : pushes) {
    EndPush(pushes_.at(id), v1::PushResult::REFUSED, "the key of this client is revoked");
  }
  std::vector<Route> pulls;
  for (const auto& [route, pull] : pulls_) {
    if (route.peer == peer) pulls.push_back(route);
  }
  for (const Route& route : pulls) {
    SendPullRefused(route, v1::PullRefused::BAD_REQUEST, kNoVersion,
                    "the key of this client is revoked");
    EndPull(route);
  }
}

SendOutcome TensorServer::SendFrame(const Route& route, const v1::Frame& frame, Message* payload) {
  return link_->Send(route.peer, frame, payload);
}

// Sends at most a few chunks: highest priority first, among equal ones the connections in turn, and
// of one connection the oldest pull. Its client opens the next segment when the oldest is done,
// while the others keep the link busy. Stops where credits, the pace or the bound on unsent bytes
// do.
bool TensorServer::SendChunks() {
  for (int sent = 0; sent < kChunksPerTurn && pace_.Ready(now_); ++sent) {
    Pull* best = nullptr;
    // From the connection after the last served, round to it.
    auto it = pulls_.upper_bound({last_served_, std::numeric_limits<uint64_t>::max()});
    for (size_t i = 0; i < pulls_.size(); ++i, ++it) {
      if (it == pulls_.end()) it = pulls_.begin();
      Pull& pull = it->second;
      if (!pull.outgoing || pull.outgoing->next() >= pull.chunk_limit) continue;
      if (!peers_[pull.route.peer].account->Admits(pull.outgoing->next_bytes())) continue;
      if (best == nullptr || pull.open.priority() > best->open.priority()) best = &pull;
    }
    if (best == nullptr) return false;
    SendChunk(*best);
  }
  return pace_.Ready(now_);
}

void TensorServer::SendChunk(Pull& pull) {
  const Route route = pull.route;
  last_served_ = route.peer;
  const int64_t bytes = pull.outgoing->next_bytes();
  v1::Frame frame = MakeFrame(route.transfer);
  Message payload = pull.outgoing->Next(*pool_, peers_[route.peer].account, frame.mutable_chunk(),
                                        /*checksum=*/options_.security.keys.empty());
  if (SendFrame(route, frame, &payload) != SendOutcome::kSent) {
    Count(&LinkCounters::transfers_failed);
    return EndPull(route);
  }
  pace_.Spend(bytes, now_);
  Count(&LinkCounters::payload_bytes_sent, bytes);
  pull.active = peers_[route.peer].sent = now_;
  if (pull.outgoing->done()) {
    CountDone(now_ - pull.opened);
    EndPull(route);
  }
}

// A pull with credit waits for this server, or for its connection to take what is before it.
bool TensorServer::IsIdle(const Pull& pull, Instant oldest) {
  if (!pull.outgoing || pull.active >= oldest) return false;
  if (pull.outgoing->next() >= pull.chunk_limit) return true;
  Peer& peer = peers_[pull.route.peer];
  return peer.sent < oldest && !peer.account->Admits(pull.outgoing->next_bytes());
}

void TensorServer::DropIdle() {
  next_idle_check_ = now_ + kIdleCheckInterval;
  const Instant oldest = now_ - options_.idle_timeout;
  std::vector<PushId> idle_pushes;
  for (const auto& [id, push] : pushes_) {
    if (push.stage == Push::kReceiving && push.active < oldest) idle_pushes.push_back(id);
  }
  for (const PushId& id : idle_pushes) {
    EndPush(pushes_.at(id), v1::PushResult::TRY_AGAIN, "no chunk came for too long");
  }
  std::vector<Route> idle_pulls;
  for (const auto& [route, pull] : pulls_) {
    if (IsIdle(pull, oldest)) idle_pulls.push_back(route);
  }
  for (const Route& route : idle_pulls) {
    Count(&LinkCounters::transfers_failed);
    EndPull(route);
  }
  if (!waiting_.empty()) AdmitWaiting();
}

bool TensorServer::AddTransfer(const std::string& peer) {
  Peer& entry = peers_[peer];
  if (entry.account == nullptr) {
    entry.account = std::make_shared<SendAccount>(unsent_bytes_, options_.send_bytes_max,
                                                  [this] { tasks_.Wake(); });
  }
  entry.key = sender_key_;
  if (entry.transfers >= options_.transfers_per_client_max) return false;
  ++entry.transfers;
  return true;
}

void TensorServer::RemoveTransfer(const std::string& peer) {
  const auto it = peers_.find(peer);
  ATOLL_CHECK(it != peers_.end() && it->second.transfers > 0);
  if (--it->second.transfers == 0) peers_.erase(it);
}

}  // namespace atl
