#include "coordinator/member_service.h"

#include <google/protobuf/arena.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "common/logging.h"
#include "common/net/control/grpc_status.h"
#include "common/protocol/wire.h"
#include "common/status.h"
#include "coordinator/streams.h"
#include "coordinator/trust/authorizer.h"
#include "proto/control.grpc.pb.h"

namespace atl {
namespace {

constexpr size_t kMaxQueued = 4096;  // messages to one member that it has not read
constexpr int kMaxStreams = 20000;

// The CURVE key that a member registers by saying hello; empty: none.
std::string CurveKeyIn(const FromWorker& up) {
  const auto* hello = std::get_if<WorkerHello>(&up.message);
  return hello == nullptr ? "" : hello->peer_public_key;
}
std::string CurveKeyIn(const FromServer&) { return ""; }

// A certificate is what TLS has seen, whatever the member says.
void SetCertificate(const std::string& certificate, FromWorker* up) {
  auto* hello = std::get_if<WorkerHello>(&up->message);
  if (hello != nullptr) hello->certificate = certificate;
}
void SetCertificate(const std::string&, FromServer*) {}

struct WorkerKind {
  static constexpr int kReadAhead = 1;
  using Up = FromWorker;
  using Down = ToWorker;
  using WireUp = v1::FromWorker;
  using WireDown = v1::ToWorker;
  static constexpr MemberKind kKind = MemberKind::kWorker;
  static const NodeId& Name(const Up& up) { return up.worker; }
  static const NodeId& Name(const Down& down) { return down.worker; }
  static void Address(const NodeId& name, WireDown* wire) { wire->set_worker(name); }
  static v1::ClientKeys Keys(const AccessControl& access) { return access.refused(); }
};
struct ServerKind {
  // A server says of each part of each contribution that it is staged.
  static constexpr int kReadAhead = 64;
  using Up = FromServer;
  using Down = ToServer;
  using WireUp = v1::FromServer;
  using WireDown = v1::ToServer;
  static constexpr MemberKind kKind = MemberKind::kServer;
  static const NodeId& Name(const Up& up) { return up.server; }
  static const NodeId& Name(const Down& down) { return down.server; }
  static void Address(const NodeId& name, WireDown* wire) { wire->set_server(name); }
  static v1::ClientKeys Keys(const AccessControl& access) { return access.keys(); }
};

using BytesReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
constexpr size_t kArenaBytes = 256 << 10;     // more than nearly all orders take
constexpr size_t kSmallArenaBytes = 4 << 10;  // more than nearly all heartbeats take

google::protobuf::ArenaOptions Within(char* block, size_t bytes) {
  google::protobuf::ArenaOptions options;
  options.initial_block = block;
  options.initial_block_size = bytes;
  return options;
}

template <class Kind>
class Stream;

// The streams of one kind of member, by name and incarnation. Loop's thread only.
template <class Kind>
class Registry {
 public:
  Registry(CoordinatorLoop* loop, AccessControl* access) : loop_(loop), access_(access) {}

  AccessControl* access() const { return access_; }

  void EndRevoked(Instant now) {
    for (const auto& [name, runs] : streams_) {
      for (const auto& [incarnation, stream] : runs) {
        const Verdict verdict = stream->StillAllowed();
        if (verdict.ok()) continue;
        SendTo(*stream,
               {name, incarnation, loop_->core().epoch(),
                Refused{absl::StrCat(DenialName(verdict.denial), ": ", verdict.reason), true},
                loop_->core().cluster()});
        stream->End(ToGrpc(ToStatus(verdict)));
        loop_->Step(now, ConnectionLost{Kind::kKind, name, incarnation, /*revoked=*/true});
      }
    }
  }

  void Add(const std::shared_ptr<Stream<Kind>>& stream) {
    loop_->CommitFor(stream->name());
    std::shared_ptr<Stream<Kind>>& slot = streams_[stream->name()][stream->incarnation()];
    if (slot != nullptr) {
      slot->End(
          grpc::Status(grpc::StatusCode::ABORTED, "a newer connection has replaced this one"));
    }
    slot = stream;
    if (!SendKeys()) SendKeysTo(*stream);
  }

  // To all if they have changed, else false.
  bool SendKeys() {
    if (streams_.empty()) return false;
    typename Kind::WireDown wire;
    *wire.mutable_client_keys() = Kind::Keys(*access_);
    std::string keys = wire.SerializeAsString();
    if (keys == keys_) return false;
    keys_ = std::move(keys);
    keys_slice_ = grpc::Slice(keys_);
    for (const auto& [name, runs] : streams_) {
      for (const auto& [incarnation, stream] : runs) SendKeysTo(*stream);
    }
    return true;
  }

  void Remove(Instant now, const Stream<Kind>& stream) {
    auto runs = streams_.find(stream.name());
    if (runs == streams_.end()) return;
    const auto stream_of_run = runs->second.find(stream.incarnation());
    if (stream_of_run == runs->second.end() || stream_of_run->second.get() != &stream) return;
    runs->second.erase(stream_of_run);
    if (runs->second.empty()) streams_.erase(runs);
    loop_->Step(now, ConnectionLost{Kind::kKind, stream.name(), stream.incarnation(),
                                    /*revoked=*/false, stream.left()});  // if it counts
  }

  void Send(const typename Kind::Down& message) {
    const auto runs = streams_.find(Kind::Name(message));
    if (runs == streams_.end()) return;
    const auto stream_of_run = runs->second.find(message.incarnation);
    if (stream_of_run == runs->second.end()) return;
    SendTo(*stream_of_run->second, message);
  }

 private:
  void SendTo(Stream<Kind>& stream, const typename Kind::Down& message) {
    const absl::StatusOr<grpc::ByteBuffer> bytes = Bytes(message);
    if (!bytes.ok()) {
      // The member would refuse it, and with it the connection.
      return LogWarning("server", "a message to ", Kind::Name(message),
                        " is not sent: ", bytes.status().message());
    }
    if (stream.Send(*bytes, kMaxQueued)) return;
    stream.End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                            "the member does not read what it is sent"));
  }

  // The keys are the same for all: bytes of two messages one after the other are one message of
  // both's fields.
  void SendKeysTo(Stream<Kind>& stream) {
    typename Kind::WireDown wire;
    Kind::Address(stream.name(), &wire);
    wire.set_incarnation(stream.incarnation());
    const grpc::Slice slices[] = {grpc::Slice(wire.SerializeAsString()), keys_slice_};
    stream.SendNewest(grpc::ByteBuffer(slices, 2));
  }

  // An order to one of an island's many workers has thousands of parts. They live in one block of
  // memory, which the next message reuses.
  absl::StatusOr<grpc::ByteBuffer> Bytes(const typename Kind::Down& message) {
    google::protobuf::Arena arena(Within(block_.data(), block_.size()));
    auto* wire = google::protobuf::Arena::CreateMessage<typename Kind::WireDown>(&arena);
    ATOLL_RETURN_IF_ERROR(Encode(message, wire));
    auto text = std::make_unique<std::string>(wire->SerializeAsString());
    std::string* const owned = text.get();
    const grpc::Slice bytes(
        owned->data(), owned->size(), [](void* that) { delete static_cast<std::string*>(that); },
        text.release());
    return grpc::ByteBuffer(&bytes, 1);
  }

  CoordinatorLoop* const loop_;
  AccessControl* const access_;
  std::vector<char> block_ = std::vector<char>(kArenaBytes);
  std::map<NodeId, std::map<Incarnation, std::shared_ptr<Stream<Kind>>>> streams_;
  std::string keys_;  // all streams have been sent these
  grpc::Slice keys_slice_;
};

template <class Kind>
class Stream : public SendingStream<BytesReactor, grpc::ByteBuffer> {
 public:
  // `count` is decremented when the stream has ended.
  static Stream* Begin(CoordinatorLoop* loop, Registry<Kind>* registry,
                       const grpc::CallbackServerContext& context, std::atomic<int>* count) {
    auto stream = std::shared_ptr<Stream>(new Stream(loop, registry, context, count));
    stream->self_ = stream;
    if (count->fetch_add(1) >= kMaxStreams) {
      stream->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many members"));
    } else {
      stream->StartRead(&stream->read_);
    }
    return stream.get();
  }

  const NodeId& name() const { return name_; }
  Incarnation incarnation() const { return incarnation_; }
  Verdict StillAllowed() { return watch_.Check(); }
  // Once it has ended: the member closed it, and still read the answer.
  bool left() const { return closed_ && !cancelled_; }

  void OnReadDone(bool ok) override {
    if (!ok) {
      closed_ = !this->ended();
      return this->End(grpc::Status::OK);
    }
    absl::StatusOr<typename Kind::Up> message = Parse();
    if (message.ok() && !name_.empty() &&
        (Kind::Name(*message) != name_ || message->incarnation != incarnation_)) {
      message = absl::InvalidArgumentError("a connection speaks for one member only");
    }
    if (message.ok() && name_.empty()) {
      const absl::Status allowed = registry_->access()->CheckName(caller_, Kind::Name(*message));
      if (allowed.ok()) registry_->access()->NoteCurveKey(caller_, CurveKeyIn(*message));
      if (!allowed.ok()) message = allowed;
    }
    if (!message.ok()) {
      LogWarning("attach", peer_, " ", name_, " sent a bad message: ", message.status().message());
      return this->End(ToGrpc(message.status()));
    }
    SetCertificate(certificate_, &*message);
    const bool first = name_.empty();
    if (first) {
      name_ = Kind::Name(*message);
      incarnation_ = message->incarnation;
    }
    auto step = [self = self_, first, up = *std::move(message)](Instant now) {
      if (self->ended()) return;
      if (first) self->registry_->Add(self);
      if (const Verdict verdict = self->StillAllowed(); first && !verdict.ok()) {
        return self->End(ToGrpc(ToStatus(verdict)));  // revoked since the call began
      }
      self->loop_->Step(now, up);
      if (self->handed_over_.fetch_sub(1) == Kind::kReadAhead) self->Read();
    };
    if (!loop_->PostEvent(std::move(step))) {
      this->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the coordinator has too much to do"));
    }
    // Counted when it is in the queue: the next message must not come before it.
    if (handed_over_.fetch_add(1) + 1 < Kind::kReadAhead) Read();
  }

  void OnCancel() override {
    cancelled_ = true;
    SendingStream::OnCancel();
  }

  void OnDone() override {
    count_->fetch_sub(1);
    auto self = std::move(self_);
    // The registry drops it; a loop that has ended does not need that any more.
    if (!self->name_.empty()) {
      self->loop_->PostEvent([self](Instant now) { self->registry_->Remove(now, *self); });
    }
  }

 private:
  Stream(CoordinatorLoop* loop, Registry<Kind>* registry,
         const grpc::CallbackServerContext& context, std::atomic<int>* count)
      : loop_(loop),
        registry_(registry),
        peer_(context.peer()),
        caller_(CallerFrom(registry->access(), context)),
        certificate_(GetPeerCertificate(*context.auth_context())),
        watch_(registry->access(), context),
        count_(count) {}

  void Read() {
    this->IfOpen([this] { this->StartRead(&read_); });
  }

  absl::StatusOr<typename Kind::Up> Parse() {
    alignas(std::max_align_t) std::array<char, kSmallArenaBytes> block;
    google::protobuf::Arena arena(Within(block.data(), block.size()));
    auto* wire = google::protobuf::Arena::CreateMessage<typename Kind::WireUp>(&arena);
    const grpc::Status status =
        grpc::SerializationTraits<typename Kind::WireUp>::Deserialize(&read_, wire);
    if (!status.ok()) return absl::InvalidArgumentError(status.error_message());
    return Decode(wire);
  }

  CoordinatorLoop* const loop_;
  Registry<Kind>* const registry_;
  const std::string peer_;
  const Caller caller_;
  const std::string certificate_;  // PEM; empty: plaintext
  AccessWatch watch_;              // loop's thread
  std::atomic<int>* const count_;
  std::shared_ptr<Stream> self_;  // until OnDone
  grpc::ByteBuffer read_;
  std::atomic<int> handed_over_ = 0;  // messages that the loop has not run
  std::atomic<bool> closed_ = false, cancelled_ = false;
  NodeId name_;  // set by the first message, before other threads see the stream
  Incarnation incarnation_ = 0;
};

}  // namespace

class MemberService::Impl {
 public:
  Impl(CoordinatorLoop* loop, AccessControl* access)
      : loop(loop), workers(loop, access, &streams), servers(loop, access, &streams) {
    loop->send_to_worker = [this](const ToWorker& m) { workers.registry.Send(m); };
    loop->send_to_server = [this](const ToServer& m) { servers.registry.Send(m); };
  }

  template <class Kind, class Base>
  struct Service : Base {
    Service(CoordinatorLoop* loop, AccessControl* access, std::atomic<int>* streams)
        : loop(loop), streams(streams), registry(loop, access) {}
    BytesReactor* Attach(grpc::CallbackServerContext* context) override {
      return Stream<Kind>::Begin(loop, &registry, *context, streams);
    }

    CoordinatorLoop* const loop;
    std::atomic<int>* const streams;
    Registry<Kind> registry;
  };

  CoordinatorLoop* const loop;
  std::atomic<int> streams = 0;
  Service<WorkerKind, v1::WorkerControl::WithRawCallbackMethod_Attach<v1::WorkerControl::Service>>
      workers;
  Service<ServerKind, v1::ServerControl::WithRawCallbackMethod_Attach<v1::ServerControl::Service>>
      servers;
};

MemberService::MemberService(CoordinatorLoop* loop, AccessControl* access)
    : impl_(std::make_unique<Impl>(loop, access)) {}
MemberService::~MemberService() = default;

void MemberService::EndRevoked() {
  impl_->loop->Post([impl = impl_.get()](Instant now) {
    impl->workers.registry.EndRevoked(now);
    impl->servers.registry.EndRevoked(now);
  });
}

void MemberService::SendKeys() {
  impl_->loop->Post([impl = impl_.get()](Instant) {
    impl->workers.registry.SendKeys();
    impl->servers.registry.SendKeys();
  });
}

std::vector<grpc::Service*> MemberService::services() { return {&impl_->workers, &impl_->servers}; }

}  // namespace atl
