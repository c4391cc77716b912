// The end of a tensor link that holds tensors: it takes pushes and answers pulls.
//
// Parameter servers use it. One ROUTER socket, libzmq's I/O threads, and one network thread of its
// own that checks, assembles and cuts up. The protocol and its limits are in proto/frame.proto.
//
// Backpressure. Memory is bounded whatever arrives: a push takes memory only after the handler has
// admitted it, at most `assembly_bytes_max` bytes of pushes are unacknowledged at a time (later
// ones wait in a bounded queue, or are ordered to retry), a client sends only the chunks it was
// granted, and at most `send_bytes_max` bytes, 4 MiB a client of them, plus two chunks a client,
// are on their way out.

#ifndef ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_
#define ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/ids.h"
#include "common/net/chunks.h"
#include "common/net/link_socket.h"
#include "common/net/payload.h"
#include "common/net/security.h"
#include "common/net/tensor/tensor_types.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

// Names a request that waits for its answer. Copy it freely; it means nothing in another server.
struct ReplyToken {
  uint64_t id = 0;
  auto operator<=>(const ReplyToken&) const = default;
};

// The tensors' owner, which carries out requests. All calls come on the server's network thread,
// which must not wait: decide from memory, or enqueue and return.
class TensorHandler {
 public:
  virtual ~TensorHandler() = default;

  // Decides whether to take a push of which only the description has come; no memory is taken for
  // it yet. OK: its bytes are requested and OnPush follows, or nothing if the sender dies.
  // AlreadyExists: answered kDuplicate, and its bytes are not sent. Anything else: answered
  // kRefused with the message as reason.
  virtual absl::Status AdmitPush(const PushId& id, Encoding encoding, int64_t element_count) = 0;

  // A push that was admitted is here, whole and with its checksums verified. `payload` holds
  // element_count elements as encoded (see codec.h). Answer once with AcknowledgePush. While the
  // answer is outstanding, the same push sent again is not delivered again: it shares the answer.
  virtual void OnPush(const PushId& id, Encoding encoding, int64_t element_count, Payload payload,
                      ReplyToken token) = 0;

  // Answer once with ReplyPull or RefusePull, now or later. A puller that has ended meanwhile is
  // forgotten: answering it does nothing.
  virtual void OnPull(const PullRequest& request, ReplyToken token) = 0;
};

struct TensorServerOptions {
  std::string endpoint;  // "tcp://127.0.0.1:7071"; "tcp://[::1]:*" takes any free port
  ServerSecurity security;
  int io_threads = 2;  // libzmq's threads, which move bytes between sockets and memory

  int64_t push_bytes_max = int64_t{4} << 30;      // of one push, as encoded; larger is refused
  int64_t assembly_bytes_max = int64_t{4} << 30;  // of all pushes admitted and unacknowledged
  int64_t send_bytes_max = int64_t{256} << 20;    // of all chunks handed to libzmq and not yet sent
  int64_t idle_buffer_bytes_max = int64_t{1} << 30;  // kept to be used again
  int push_window_chunks = 16;                       // that one push may have in flight
  int waiting_pushes_max = 4096;  // that wait for assembly room; more are ordered to retry
  int transfers_per_client_max = 1024;
  Duration idle_timeout = std::chrono::seconds(60);  // without a frame: a transfer is dropped

  // 0: as fast as it goes. For tests that need a slow link: bytes per second of pull payload sent.
  double bandwidth_limit_bytes_per_s = 0;
};

class TensorServer : public CountsTransfers {
 public:
  // Binds and starts. `handler` must outlive the server. Errors name the endpoint.
  static absl::StatusOr<std::unique_ptr<TensorServer>> Create(TensorServerOptions options,
                                                              TensorHandler* handler);
  // Stops: no handler call runs or starts after this. Clients see the connection close.
  ~TensorServer();
  TensorServer(const TensorServer&) = delete;
  TensorServer& operator=(const TensorServer&) = delete;

  // The endpoint bound, with its real port.
  const std::string& endpoint() const { return endpoint_; }

  // The answers. Thread-safe; they return at once. An unknown or answered token does nothing.
  // kStaged guarantees that the push is durable (design: it is in the log, synced).
  void AcknowledgePush(ReplyToken token, PushStatus status, std::string reason = "") {
    tasks_.Post(
        [this, token, status, reason = std::move(reason)] { Acknowledge(token, status, reason); });
  }

  // Sends `values`, which stay unchanged for as long as `owner` is kept here: until the last byte
  // has left, or the puller has disconnected. fp32 is sent from where it lies, without a copy.
  void ReplyPull(ReplyToken token, Version version, std::span<const float> values,
                 std::shared_ptr<const void> owner) {
    tasks_.Post([this, token, version, values, owner = std::move(owner)] {
      Reply(token, version, values, owner);
    });
  }

  // `current`: the newest version held, kNoVersion if none.
  void RefusePull(ReplyToken token, PullRefusal refusal, Version current, std::string reason) {
    tasks_.Post([this, token, refusal, current, reason = std::move(reason)] {
      Refuse(token, refusal, current, reason);
    });
  }

  // With security.keys, lets these public keys, checked before, connect in place of those before.
  // Every transfer of a client whose key is not among them ends, and nothing more is taken from it.
  // Thread-safe; returns at once.
  void SetClientKeys(std::vector<std::string> public_keys) {
    tasks_.Post([this, keys = std::move(public_keys)] { Allow(keys); });
  }

  // Bytes admitted and unacknowledged now; thread-safe.
  int64_t assembly_bytes() const { return assembly_bytes_; }

 private:
  TensorServer(TensorServerOptions options, TensorHandler* handler)
      : options_(std::move(options)),
        handler_(handler),
        pool_(BufferPool::Create(options_.idle_buffer_bytes_max)),
        pace_(options_.bandwidth_limit_bytes_per_s) {}
  absl::Status Start();

  // Where answers go: a connection's name, given by ROUTER, and the client's transfer number.
  struct Route {
    std::string peer;
    uint64_t transfer = 0;
    auto operator<=>(const Route&) const = default;
  };

  struct Push {
    PushId id;
    Route route;  // of the newest attempt
    Encoding encoding;
    int64_t element_count = 0;
    int64_t chunk_bytes = 0;
    enum { kWaiting, kReceiving, kDelivered } stage = kWaiting;
    Payload payload;                         // while kReceiving
    std::optional<IncomingTensor> incoming;  // while kReceiving
    int64_t granted = 0;                     // chunk limit sent to the client
    ReplyToken token;                        // while kDelivered
    Instant active;                          // of the last frame or, once delivered, irrelevant
    Instant opened;

    int64_t bytes() const { return EncodedBytes(encoding, element_count); }
  };

  struct Pull {
    Route route;
    v1::PullOpen open;
    ReplyToken token;
    std::optional<OutgoingTensor> outgoing;  // once answered
    int64_t chunk_limit = 0;
    Instant active;
    Instant opened;
  };

  struct Peer {
    int transfers = 0;
    std::string key;  // with which it was let in
    std::shared_ptr<SendAccount> account;
    Instant sent;  // the last chunk of a pull
  };

  void Acknowledge(ReplyToken token, PushStatus status, const std::string& reason);
  void Reply(ReplyToken token, Version version, std::span<const float> values,
             std::shared_ptr<const void> owner);
  void Refuse(ReplyToken token, PullRefusal refusal, Version current, const std::string& reason);
  void Allow(const std::vector<std::string>& public_keys);
  void Run();
  bool ReceiveSome();  // whether more may be waiting
  void OnFrame(LinkFrame& in);
  void OnPushOpen(const Route& route, const v1::PushOpen& open);
  void OnChunk(const Route& route, LinkFrame& in);
  void OnPullOpen(const Route& route, const v1::PullOpen& open);
  void OnPullCredit(const Route& route, int64_t chunk_limit);
  void OnCancel(const Route& route);

  bool Resume(Push& push, const Route& route, const v1::PushOpen& open);
  void AdmitWaiting();
  bool Begin(Push& push);  // whether there was room; a refused push is ended
  void Grant(Push& push, bool first);
  void Deliver(Push& push);
  void EndPush(Push& push, v1::PushResult::Outcome outcome, const std::string& reason);
  void EndPull(const Route& route);
  void SendPushResult(const Route& route, v1::PushResult::Outcome outcome,
                      const std::string& reason);
  void SendPullRefused(const Route& route, v1::PullRefused::Code code, Version current,
                       const std::string& reason);
  SendOutcome SendFrame(const Route& route, const v1::Frame& frame, Message* payload = nullptr);

  bool SendChunks();  // whether there is more to send at once
  void SendChunk(Pull& pull);
  void DropIdle();
  bool IsIdle(const Pull& pull, Instant oldest);
  // Returns whether the sender's key is still among those that may connect: sessions outlive the
  // list.
  bool IsAllowed(const LinkFrame& in);
  void EndTransfers(const std::string& peer);
  bool AddTransfer(const std::string& peer);
  void RemoveTransfer(const std::string& peer);
  int WaitMs() const;

  const TensorServerOptions options_;
  TensorHandler* const handler_;
  const std::shared_ptr<BufferPool> pool_;
  const std::shared_ptr<SendAccount::Total> unsent_bytes_ = std::make_shared<SendAccount::Total>(0);
  TaskQueue tasks_;
  std::string endpoint_;
  std::unique_ptr<ZmqContext> context_;
  std::unique_ptr<LinkServer> link_;
  std::atomic<int64_t> assembly_bytes_ = 0;

  // The network thread's own.
  bool stopping_ = false;
  std::set<std::string> client_keys_;  // Z85; with keys
  std::string sender_key_;             // of the frame under way
  Instant now_;
  Instant next_idle_check_;
  uint64_t next_token_ = 1;
  std::map<PushId, Push> pushes_;
  std::map<Route, PushId> push_of_route_;
  std::map<uint64_t, PushId> push_of_token_;
  std::deque<PushId> waiting_;  // in order of arrival; may name pushes that have ended
  std::map<Route, Pull> pulls_;
  std::map<uint64_t, Route> pull_of_token_;
  std::map<std::string, Peer> peers_;
  std::string last_served_;  // the connection
  Pace pace_;
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_
