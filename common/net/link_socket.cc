#include "common/net/link_socket.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/net/frame.h"

namespace atl {
namespace {

constexpr Duration kConnectAgainDelay = std::chrono::milliseconds(200);
constexpr Duration kAnswerTimeout = std::chrono::seconds(5);  // of a hello
constexpr int kHandshakeFramesPerCall = 64;
// Payloads of one socket that are being opened. With more, the network thread waits for the first.
constexpr size_t kOpeningMax = 64;

constexpr char kParts[] = "a message has one or two frames";

v1::LinkRefusal MakeRefusal(v1::LinkRefusal::Code code) {
  v1::LinkRefusal refusal;
  refusal.set_code(code);
  return refusal;
}

// A header that was opened, or needs no opening, with what followed it.
LinkFrame MakeLinkFrame(absl::string_view header, Message* payload) {
  LinkFrame in;
  in.has_payload = payload != nullptr;
  in.status = ParseFrame(header, in.has_payload, &in.frame);
  if (in.has_payload) in.payload = std::move(*payload);
  return in;
}

// Chunks are sealed in sessions, and nowhere else.
void CheckTag(bool in_session, LinkFrame* in) {
  if (!in->status.ok() || !in->frame.has_chunk()) return;
  if (in->frame.chunk().tag().empty() == !in_session) return;
  in->status = absl::InvalidArgumentError(in_session ? "a chunk in a session is not sealed"
                                                     : "a sealed chunk outside a session");
}

// Passes on a frame of a session that has come: into `in` (true), or into the queue.
bool TakeOrQueue(LinkFrame frame, Session& session, SealQueue& queue,
                 const std::function<void()>& wake, LinkFrame* in) {
  CheckTag(/*in_session=*/true, &frame);
  if (frame.status.ok() && frame.frame.has_chunk()) {
    const SealKey key = session.GetChunkKey(frame.frame.chunk());
    queue.PushToOpen(std::move(frame), key, wake);
    if (queue.working() >= kOpeningMax) queue.AwaitFront();
  } else if (queue.empty()) {
    *in = std::move(frame);
    return true;
  } else {
    queue.Push(std::move(frame));
  }
  return false;
}

bool TakeFront(SealQueue& queue, LinkFrame* in) {
  LinkFrame* const front = queue.Front();
  if (front == nullptr) return false;
  *in = std::move(*front);
  queue.Pop();
  return true;
}

void Queue(v1::Frame frame, Message* payload, Session& session, SealQueue& queue,
           const std::function<void()>& wake) {
  LinkFrame out;
  out.frame = std::move(frame);
  out.has_payload = payload != nullptr;
  if (payload != nullptr) out.payload = std::move(*payload);
  if (!out.frame.has_chunk()) return queue.Push(std::move(out));
  const SealKey key = session.KeyForChunk(&out.frame);
  queue.PushToSeal(std::move(out), key, wake);
}

// Sends what is done of a queue; `to`: at a ROUTER.
SendOutcome SendDone(SealQueue& queue, Session& session, Socket& socket, const std::string* to) {
  while (LinkFrame* const front = queue.Front()) {
    std::vector<Message> parts;
    if (to != nullptr) parts.push_back(Message::Of(*to));
    parts.push_back(Message::Of(session.SealHeader(front->frame.SerializeAsString())));
    if (front->has_payload) parts.push_back(std::move(front->payload));
    const SendOutcome outcome = socket.Send(parts);
    if (outcome != SendOutcome::kSent) {
      if (front->has_payload) front->payload = std::move(parts.back());
      return outcome;
    }
    session.HeaderSent();
    queue.Pop();
  }
  return SendOutcome::kSent;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkClient>> LinkClient::Create(ZmqContext& context,
                                                               const KeyPair& own,
                                                               const std::string& server_key,
                                                               std::function<void()> wake) {
  std::unique_ptr<LinkClient> client(new LinkClient(context, own, server_key, std::move(wake)));
  ATOLL_ASSIGN_OR_RETURN(client->dealer_, context.MakeTensorSocket(ZMQ_DEALER));
  ATOLL_ASSIGN_OR_RETURN(client->watch_, WatchConnection(context, client->dealer_));
  return client;
}

LinkClient::~LinkClient() {
  if (dealer_.get() != nullptr) zmq_socket_monitor(dealer_.get(), nullptr, 0);
}

absl::Status LinkClient::Connect(const std::string& endpoint) {
  return route_.Connect(context_, dealer_, endpoint);
}

absl::Status LinkClient::ConnectAgain(Instant now) {
  if (!connect_at_ || now < *connect_at_) return absl::OkStatus();
  connect_at_ = now + kConnectAgainDelay;
  EndSession();
  return route_.ConnectAgain(context_, dealer_);
}

void LinkClient::EndSession() {
  handshake_.reset();
  in_.reset();
  out_.reset();
  session_.reset();
  ending_.reset();
}

void LinkClient::SayHello(Instant now) {
  EndSession();
  handshake_.emplace(own_, server_key_);
  answer_by_ = now + kAnswerTimeout;
  v1::Frame frame = MakeFrame(++hello_number_);
  *frame.mutable_link_hello() = handshake_->hello();
  Message part = Message::Of(frame.SerializeAsString());
  dealer_.Send(
      {&part, 1});  // where it cannot be sent, the connection has ended, or no answer comes
}

std::optional<ConnectionEvent> LinkClient::Next(Instant now, int* descriptor) {
  const std::optional<ConnectionEvent> event = NextEvent(now, descriptor);
  if (!event) {
    if (!up_ && route_.TryNext(context_, dealer_, now)) {
      EndSession();
      connect_at_.reset();
    }
    return event;
  }
  connect_at_.reset();
  if (*event == ConnectionEvent::kConnected) {
    route_.NoteConnected(now);
    return event;
  }
  if (*event == ConnectionEvent::kRetried) {
    route_.NoteFailed(now);
    return event;
  }
  const bool was_up = std::exchange(up_, *event == ConnectionEvent::kUp);
  if (up_) {
    route_.NoteUp(context_, now);
    return event;
  }
  connect_at_ = now + kConnectAgainDelay;
  was_up&&* event == ConnectionEvent::kLost ? route_.NoteLost(now) : route_.NoteFailed(now);
  return event;
}

std::optional<ConnectionEvent> LinkClient::NextEvent(Instant now, int* descriptor) {
  while (const std::optional<ConnectionEvent> event = NextConnectionEvent(watch_, descriptor)) {
    if (!keyed() || *event == ConnectionEvent::kConnected) return event;
    if (*event != ConnectionEvent::kUp) {
      EndSession();
      return event;
    }
    SayHello(now);
  }
  if (handshake_) return AwaitWelcome(now);
  const std::optional<ConnectionEvent> ending = ending_;
  if (ending) EndSession();
  return ending;
}

std::optional<ConnectionEvent> LinkClient::AwaitWelcome(Instant now) {
  std::vector<Message> parts;
  for (int i = 0; i < kHandshakeFramesPerCall && dealer_.Receive(&parts, 2); ++i) {
    v1::Frame frame;
    // Any other frame is of an earlier connection.
    if (parts.size() != 1 || !ParseFrame(parts[0].text(), false, &frame).ok()) continue;
    if (frame.transfer() != hello_number_) continue;
    if (frame.has_link_refusal()) {
      const bool proven = frame.link_refusal().code() == v1::LinkRefusal::UNKNOWN_KEY &&
                          handshake_->IsRefusal(frame.link_refusal());
      handshake_.reset();
      return proven ? ConnectionEvent::kUnknownKey : ConnectionEvent::kHandshakeFailed;
    }
    if (!frame.has_link_welcome()) continue;
    absl::StatusOr<Session> session = handshake_->OnWelcome(frame.link_welcome());
    handshake_.reset();
    if (!session.ok()) return ConnectionEvent::kHandshakeFailed;
    session_.emplace(*std::move(session));
    in_ = std::make_unique<SealQueue>();
    out_ = std::make_unique<SealQueue>();
    return ConnectionEvent::kUp;
  }
  if (now < answer_by_) return std::nullopt;
  handshake_.reset();
  return ConnectionEvent::kHandshakeFailed;
}

SendOutcome LinkClient::Send(v1::Frame frame, Message* payload) {
  if (!keyed()) {
    Message parts[2] = {Message::Of(frame.SerializeAsString()), Message()};
    if (payload != nullptr) parts[1] = std::move(*payload);
    return dealer_.Send(std::span(parts, payload != nullptr ? 2 : 1));
  }
  if (!session_) return SendOutcome::kUnreachable;
  Queue(std::move(frame), payload, *session_, *out_, wake_);
  Flush();
  return SendOutcome::kSent;
}

void LinkClient::Flush() {
  if (session_ && !out_->empty()) SendDone(*out_, *session_, dealer_, nullptr);
}

bool LinkClient::Receive(LinkFrame* in) {
  std::vector<Message> parts;
  if (keyed() && (!session_ || ending_)) {
    // Frames of no session any more are dropped. A handshake reads for itself.
    for (int i = 0; i < kHandshakeFramesPerCall && !handshake_ && !ending_; ++i) {
      if (!dealer_.Receive(&parts, 2)) break;
    }
    return false;
  }
  for (;;) {
    if (keyed() && TakeFront(*in_, in)) return true;
    if (!dealer_.Receive(&parts, 2)) return false;
    if (keyed()) {
      if (TakeSealed(parts, in)) return true;
      if (ending_) return false;
      continue;
    }
    *in = MakeLinkFrame(parts[0].text(), parts.size() > 1 ? &parts[1] : nullptr);
    if (parts.size() > 2) in->status = absl::InvalidArgumentError(kParts);
    CheckTag(/*in_session=*/false, in);
    if (!in->status.ok() || !in->frame.has_link_refusal()) return true;
    ending_ = ConnectionEvent::kHandshakeFailed;
    return false;
  }
}

bool LinkClient::TakeSealed(std::vector<Message>& parts, LinkFrame* in) {
  if (!session_->IsNamed(parts[0].text())) {
    // The frame is of an earlier connection, unless the other end has forgotten this one.
    v1::Frame frame;
    const bool refused = parts.size() == 1 && ParseFrame(parts[0].text(), false, &frame).ok() &&
                         frame.has_link_refusal();
    if (refused) ending_ = ConnectionEvent::kLost;
    return false;
  }
  const absl::StatusOr<std::string> header = session_->OpenHeader(parts[0].text());
  if (!header.ok()) {
    ending_ = ConnectionEvent::kSessionBroken;
    return false;
  }
  LinkFrame frame = MakeLinkFrame(*header, parts.size() > 1 ? &parts[1] : nullptr);
  if (parts.size() > 2) frame.status = absl::InvalidArgumentError(kParts);
  return TakeOrQueue(std::move(frame), *session_, *in_, wake_, in);
}

void LinkClient::AddTo(std::vector<Socket*>* sockets) {
  sockets->push_back(&dealer_);
  sockets->push_back(&watch_.socket());
}

absl::StatusOr<std::unique_ptr<LinkServer>> LinkServer::Create(ZmqContext& context,
                                                               const KeyPair& own,
                                                               std::function<void()> wake) {
  std::unique_ptr<LinkServer> server(new LinkServer(context, own, std::move(wake)));
  ATOLL_ASSIGN_OR_RETURN(server->router_, context.MakeTensorSocket(ZMQ_ROUTER));
  ATOLL_ASSIGN_OR_RETURN(server->guard_,
                         AcceptGuard::Create(context, server->router_, server->keyed()));
  return server;
}

LinkServer::~LinkServer() {
  AcceptThrough({});
  if (router_.get() != nullptr) zmq_socket_monitor(router_.get(), nullptr, 0);
}

void LinkServer::AddTo(std::vector<Socket*>* sockets) {
  sockets->push_back(&router_);
  sockets->push_back(&guard_->socket());
}

absl::StatusOr<std::string> LinkServer::Bind(const std::string& endpoint) {
  return atl::Bind(router_, endpoint);
}

void LinkServer::AcceptThrough(const std::vector<LinkWay>& relays) {
  if (relays.empty() && relay_port_ == 0) return;
  absl::Status status;
  if (relay_port_ == 0) {
    const absl::StatusOr<std::string> bound = Bind("tcp://127.0.0.1:*");
    status = bound.status();
    if (bound.ok()) relay_port_ = std::stoi(bound->substr(bound->rfind(':') + 1));
  }
  if (status.ok()) status = context_.tunnels().Await(relay_port_, relays);
  if (!status.ok()) LogWarning("net", "no connections through relays: ", status.message());
}

void LinkServer::Admit(const std::vector<std::string>& public_keys) {
  admitted_ = {public_keys.begin(), public_keys.end()};
}

bool LinkServer::Receive(LinkFrame* in) {
  if (TakeOpened(in)) return true;
  std::vector<Message> parts;
  for (int i = 0; i < kHandshakeFramesPerCall && router_.Receive(&parts, 3); ++i) {
    if (keyed() ? TakeSealed(parts, in) : TakePlain(parts, in)) return true;
    if (TakeOpened(in)) return true;
  }
  return false;
}

bool LinkServer::TakeOpened(LinkFrame* in) {
  for (auto it = opening_.begin(); it != opening_.end();) {
    const auto peer = peers_.find(*it);
    if (peer != peers_.end() && TakeFront(peer->second->in, in)) return true;
    const bool over = peer == peers_.end() || peer->second->in.empty();
    it = over ? opening_.erase(it) : std::next(it);
  }
  return false;
}

bool LinkServer::TakePlain(std::vector<Message>& parts, LinkFrame* in) {
  const bool whole = parts.size() == 2 || parts.size() == 3;
  *in = MakeLinkFrame(whole ? parts[1].text() : "", parts.size() == 3 ? &parts[2] : nullptr);
  in->from = std::string(parts[0].text());
  if (!whole) in->status = absl::InvalidArgumentError(kParts);
  CheckTag(/*in_session=*/false, in);
  if (!in->status.ok() || !in->frame.has_link_hello()) return true;
  ++refused_;
  Refuse(in->from, in->frame.transfer(), MakeRefusal(v1::LinkRefusal::NO_KEYS));
  return false;
}

bool LinkServer::TakeSealed(std::vector<Message>& parts, LinkFrame* in) {
  const std::string from(parts[0].text());
  const auto it = peers_.find(from);
  const bool named =
      it != peers_.end() && parts.size() > 1 && it->second->session.IsNamed(parts[1].text());
  if (!named) {
    v1::Frame frame;
    if (parts.size() == 2 && ParseFrame(parts[1].text(), false, &frame).ok() &&
        frame.has_link_hello()) {
      OnHello(from, frame, parts[1]);
    } else {
      ++refused_;
      Refuse(from, 1, MakeRefusal(v1::LinkRefusal::NO_SESSION));
    }
    return false;
  }
  Peer& peer = *it->second;
  const absl::StatusOr<std::string> header = peer.session.OpenHeader(parts[1].text());
  LinkFrame frame;
  if (header.ok()) {
    peer.received = true;
    frame = MakeLinkFrame(*header, parts.size() > 2 ? &parts[2] : nullptr);
    if (parts.size() > 3) frame.status = absl::InvalidArgumentError(kParts);
  } else {
    frame.status = header.status();
  }
  frame.from = from;
  frame.key = peer.key;
  if (TakeOrQueue(std::move(frame), peer.session, peer.in, wake_, in)) return true;
  opening_.insert(from);
  return false;
}

void LinkServer::OnHello(const std::string& from, const v1::Frame& frame, Message& message) {
  const v1::LinkHello& hello = frame.link_hello();
  const std::string key = ReadHelloKey(hello);
  if (!admitted_.contains(key)) {
    ++refused_;
    const absl::StatusOr<v1::LinkRefusal> refusal = RefuseHello(own_, hello);
    if (refusal.ok()) Refuse(from, frame.transfer(), *refusal);
    return;
  }
  v1::Frame answer = MakeFrame(frame.transfer());
  absl::StatusOr<Session> session = AcceptHello(own_, hello, answer.mutable_link_welcome());
  if (!session.ok()) {
    ++refused_;
    return Refuse(from, frame.transfer(), MakeRefusal(v1::LinkRefusal::BAD_HELLO));
  }
  guard_->Trust(message, SteadyNow());
  if (!peers_.contains(from) && peers_.size() >= kSessionsMax) MakeRoom();
  std::unique_ptr<Peer>& peer = peers_[from];
  peer.reset(new Peer{.session = *std::move(session), .key = key, .number = next_number_++});
  SendPlain(from, answer);
}

// A hello that was recorded and is sent again begins a session in which nothing can follow.
void LinkServer::MakeRoom() {
  const auto first =
      std::min_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second->received, a.second->number) <
               std::pair(b.second->received, b.second->number);
      });
  Forget(std::string(first->first));
}

void LinkServer::Forget(const std::string& connection) {
  if (peers_.erase(connection) == 0) return;
  opening_.erase(connection);
  sealing_.erase(connection);
  Refuse(connection, 1, MakeRefusal(v1::LinkRefusal::NO_SESSION));
}

void LinkServer::Refuse(const std::string& to, uint64_t number, v1::LinkRefusal refusal) {
  v1::Frame frame = MakeFrame(number);
  *frame.mutable_link_refusal() = std::move(refusal);
  SendPlain(to, frame);
}

SendOutcome LinkServer::SendPlain(const std::string& to, const v1::Frame& frame, Message* payload) {
  Message parts[3] = {Message::Of(to), Message::Of(frame.SerializeAsString()), Message()};
  if (payload != nullptr) parts[2] = std::move(*payload);
  return router_.Send(std::span(parts, payload != nullptr ? 3 : 2));
}

SendOutcome LinkServer::Send(const std::string& to, v1::Frame frame, Message* payload) {
  if (!keyed()) return SendPlain(to, frame, payload);
  const auto it = peers_.find(to);
  if (it == peers_.end()) return SendOutcome::kUnreachable;
  if (it->second->out.size() >= kQueuedMax) {  // it reads nothing
    Forget(to);
    return SendOutcome::kUnreachable;
  }
  Queue(std::move(frame), payload, it->second->session, it->second->out, wake_);
  return Flush(to, *it->second);
}

SendOutcome LinkServer::Flush(const std::string& to, Peer& peer) {
  const SendOutcome outcome = SendDone(peer.out, peer.session, router_, &to);
  if (outcome == SendOutcome::kUnreachable) {  // the connection has ended
    opening_.erase(to);
    sealing_.erase(to);
    peers_.erase(to);
    return outcome;
  }
  if (peer.out.empty()) {
    sealing_.erase(to);
  } else {
    sealing_.insert(to);
  }
  return SendOutcome::kSent;
}

void LinkServer::Flush() {
  guard_->Run(SteadyNow());
  const std::vector<std::string> names(sealing_.begin(), sealing_.end());
  for (const std::string& name : names) {
    const auto it = peers_.find(name);
    if (it != peers_.end()) Flush(name, *it->second);
  }
}

}  // namespace atl
