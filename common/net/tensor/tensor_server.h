// The end of a tensor link that holds tensors: it takes pushes and answers pulls.
//
// Parameter servers use it. It answers probes of links itself (kProbeJob). One ROUTER socket,
// libzmq's I/O threads, and one network thread of its own that checks, assembles and cuts up. The
// protocol and its limits are in proto/frame.proto.
//
// Backpressure. Memory is bounded whatever arrives: a push takes memory, for all of it, only after
// the handler has admitted it, at most `assembly_bytes_max` bytes of pushes are unacknowledged at a
// time (later ones wait in a bounded queue, or are ordered to retry), and at most `send_bytes_max`
// bytes, 4 MiB a client of them, plus two chunks a client, are on their way out.

#ifndef ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_
#define ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/hash/hash.h"
#include "common/ids.h"
#include "common/net/chunks.h"
#include "common/net/link_end.h"
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
  int waiting_pushes_max = 4096;  // that wait for assembly room; more are ordered to retry
  int transfers_per_client_max = 1024;
  Duration idle_timeout = std::chrono::seconds(60);  // without a frame: a transfer is dropped

  // 0: as fast as it goes. For tests that need a slow link: bytes per second of pull payload sent.
  double bandwidth_limit_bytes_per_s = 0;
};

class TensorServer : public CountsTransfers, private LinkEnd {
 public:
  // Binds and starts. `handler` must outlive the server. Errors name the endpoint.
  static absl::StatusOr<std::unique_ptr<TensorServer>> Create(TensorServerOptions options,
                                                              TensorHandler* handler);
  // Stops: no handler call runs or starts after this. Clients see the connection close.
  ~TensorServer() { Stop(); }

  // The endpoint bound, with its real port.
  const std::string& endpoint() const { return endpoint_; }

  // The answers. Thread-safe; they return at once. An unknown or answered token does nothing.
  // kStaged guarantees that the push is durable (design: it is in the log, synced).
  void AcknowledgePush(ReplyToken token, PushStatus status, std::string reason = "") {
    tasks_->Post(
        [this, token, status, reason = std::move(reason)] { Acknowledge(token, status, reason); });
  }

  // Sends `values`, which stay unchanged for as long as `owner` is kept here: until the last byte
  // has left, or the puller has disconnected. fp32 is sent from where it lies, without a copy.
  void ReplyPull(ReplyToken token, Version version, std::span<const float> values,
                 std::shared_ptr<const void> owner) {
    tasks_->Post([this, token, version, values, owner = std::move(owner)] {
      Reply(token, version, values, owner);
    });
  }

  // `current`: the newest version held, kNoVersion if none.
  void RefusePull(ReplyToken token, PullRefusal refusal, Version current, std::string reason) {
    tasks_->Post([this, token, refusal, current, reason = std::move(reason)] {
      Refuse(token, refusal, current, reason);
    });
  }

  // With security.keys, lets these public keys, checked before, connect in place of those before.
  // Every transfer of a client whose key is not among them ends, and nothing more is taken from it.
  // Thread-safe; returns at once.
  void SetClientKeys(std::vector<std::string> public_keys) {
    tasks_->Post([this, keys = std::move(public_keys)] { Allow(keys); });
  }

  // Clients reach the server through these relays from now on, too. Thread-safe.
  void AcceptThrough(std::vector<LinkWay> relays) {
    tasks_->Post([this, relays = std::move(relays)] { link_->AcceptThrough(relays); });
  }

  // Bytes admitted and unacknowledged now; thread-safe.
  int64_t assembly_bytes() const { return assembly_bytes_; }

 private:
  TensorServer(TensorServerOptions options, TensorHandler* handler)
      : LinkEnd(options.idle_buffer_bytes_max, options.send_bytes_max),
        options_(std::move(options)),
        handler_(handler),
        pace_(options_.bandwidth_limit_bytes_per_s) {}
  absl::Status Start();

  // Where answers go: a connection's name, given by ROUTER, and the client's transfer number.
  struct Route {
    std::string peer;
    uint64_t transfer = 0;
    bool operator==(const Route&) const = default;
    template <class H>
    friend H AbslHashValue(H h, const Route& route) {
      return H::combine(std::move(h), route.peer, route.transfer);
    }
  };

  // A push or a pull, from its opening to its end.
  struct Transfer {
    Route route;  // of the newest attempt
    bool is_push = false;
    enum {
      kWaiting,    // for room
      kReceiving,  // chunks of a push
      kHandled,    // its handler is to answer
      kSending     // chunks of a pull
    } stage = kWaiting;
    Encoding encoding = Encoding::kFloat32;
    int64_t chunk_bytes = 0;
    ReplyToken token;  // once it has been handled
    Instant active;    // of the last frame
    Instant opened;

    PushId push_id;
    int64_t element_count = 0;  // of a push
    Payload payload;            // while kReceiving
    std::optional<IncomingTensor> incoming;
    bool broken = false;  // nothing more is taken before the next attempt

    Version held_version = kNoVersion;  // of a pull
    int64_t first_chunk = 0;
    std::optional<OutgoingTensor> outgoing;  // while kSending

    int64_t bytes() const { return EncodedBytes(encoding, element_count); }  // of a push
  };

  struct Peer {
    int transfers = 0;
    std::string key;  // with which it was let in
    std::shared_ptr<SendAccount> account;
    std::set<uint64_t> sending;  // numbers of its pulls with chunks to send
    Instant sent;                // the last chunk of a pull
  };

  // loop
  void AddTo(std::vector<Socket*>* sockets) override { link_->AddTo(sockets); }
  Instant NextDue() const override;
  bool Turn() override;
  bool ReceiveSome();  // whether more may be waiting
  void OnFrame(LinkFrame& in);
  // Returns whether the sender's key is still among those that may connect: sessions outlive the
  // list.
  bool IsAllowed(const LinkFrame& in);
  void Allow(const std::vector<std::string>& public_keys);
  bool SendChunks();                      // whether there is more to send at once
  bool SendChunk(const std::string& to);  // false: the connection takes nothing now
  void DropIdle();
  bool IsIdle(const Transfer& transfer, Instant oldest);

  // requests
  void OnPushOpen(const Route& route, const v1::PushOpen& open);
  void OnPullOpen(const Route& route, const v1::PullOpen& open);
  void OnChunk(const Route& route, LinkFrame& in);
  void OnCancel(const Route& route);
  // A new attempt takes the place of the one before.
  void Resume(Transfer& push, const Route& route, const v1::PushOpen& open);
  void AdmitWaiting();
  bool Begin(Transfer& push);  // whether there was room; a refused push is ended
  absl::Status Admit(const Transfer& push);
  void Deliver(Transfer& push);
  void AnswerProbe(const PullRequest& request, ReplyToken token);
  void Acknowledge(ReplyToken token, PushStatus status, const std::string& reason);
  void Reply(ReplyToken token, Version version, std::span<const float> values,
             std::shared_ptr<const void> owner);
  void Refuse(ReplyToken token, PullRefusal refusal, Version current, const std::string& reason);
  // Returns what the handler was to answer; null: it has ended, or been answered.
  Transfer* TakeHandled(ReplyToken token);
  bool AddPeer(const std::string& peer);  // for a transfer more
  void RemovePeer(const Route& route);    // of this transfer
  // Ends a transfer, with or without a word to its client.
  void End(const Transfer& transfer, v1::TransferEnd::Outcome outcome, const std::string& reason,
           Version current = kNoVersion);
  void Remove(const Transfer& transfer, bool done);
  SendOutcome SendStart(const Transfer& transfer, int64_t first_chunk, Version version = 0,
                        int64_t element_count = 0);
  void SendEnd(const Route& route, v1::TransferEnd::Outcome outcome, const std::string& reason,
               Version current = kNoVersion);

  const TensorServerOptions options_;
  TensorHandler* const handler_;
  std::string endpoint_;
  std::unique_ptr<LinkServer> link_;
  std::atomic<int64_t> assembly_bytes_ = 0;

  // The network thread's own.
  std::set<std::string> client_keys_;  // Z85; with keys
  std::string sender_key_;             // of the frame under way
  Instant next_idle_check_;
  uint64_t next_token_ = 1;
  std::unordered_map<Route, Transfer, absl::Hash<Route>> transfers_;
  std::map<PushId, Route> route_of_push_;
  std::map<ReplyToken, Route> route_of_token_;
  std::deque<PushId> waiting_;  // in order of arrival; may name pushes that have ended
  std::unordered_map<std::string, Peer> peers_;
  std::set<std::string> senders_;                         // of peers_, that have pulls to send
  std::string last_served_;                               // of senders_
  std::weak_ptr<const std::vector<float>> probe_values_;  // while a probe uses them
  Pace pace_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_
