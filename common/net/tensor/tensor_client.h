// The client end of a tensor link: it pushes tensors to servers and pulls tensors from them.
//
// Workers use it (and `atoll export`). One network thread serves all transfers to all servers; it
// converts to and from the encoding of messages chunk by chunk, so no second copy of a tensor
// exists.
//
// A lost connection is replaced and its transfers continue from the last chunk that arrived, over
// another connection where there is one; a corrupt chunk is sent again. A push repeated is the same
// push (promise N2). Every transfer ends, at its timeout at the latest, with one call of its
// `done`.
//
// Large transfers go in segments of about 8 MiB, cut at the same elements by every sender: a
// server acknowledges and keeps each, so a push repeated after any failure sends only the others.
// What counters() counts are then segments.

#ifndef ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_H_
#define ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "common/ids.h"
#include "common/net/chunks.h"
#include "common/net/link_socket.h"
#include "common/net/path_connections.h"
#include "common/net/security.h"
#include "common/net/tensor/pull_rates.h"
#include "common/net/tensor/tensor_types.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

struct ServerAddress {
  std::string endpoint;    // "tcp://host:port"
  std::string public_key;  // of the server, Z85; empty: plaintext
  auto operator<=>(const ServerAddress&) const = default;
};

// How a push or a pull ends. Status, besides OK: DeadlineExceeded (and what it was waiting for),
// Cancelled, Unauthenticated (the server does not know our key), InvalidArgument (a bad request or
// address), FailedPrecondition (the server refused; its reason follows).
struct TransferResult {
  absl::Status status;
  PushStatus push_status = PushStatus::kRefused;  // of a push: kStaged or kDuplicate when OK
  // The version that was pulled; when refused, the server's newest.
  Version version = kNoVersion;
  std::optional<PullRefusal> refusal = std::nullopt;  // set when the server refused a pull
};
using PushResult = TransferResult;
using PullResult = TransferResult;

using TransferId = uint64_t;

struct TensorClientOptions {
  ClientSecurity security;
  int io_threads = 1;  // libzmq's threads, which move bytes between sockets and memory
  // Connections from the first transfer on, and as many as bandwidth and latency turn out to need
  // (path_connections.h). Transfers and their segments are spread over them.
  int connections_per_server = 1;
  int connections_per_server_max = 16;
  int64_t chunk_bytes = int64_t{1} << 20;      // of a payload frame; a multiple of 4
  int pull_window_chunks = 16;                 // that one pull may have in flight
  int64_t send_bytes_max = int64_t{64} << 20;  // with libzmq and not yet sent; 4 MiB a connection
  int transfers_max = 1024;                    // at a time; more are refused at once

  // 0: as fast as it goes. For tests that need a slow link: bytes per second of payload, in each
  // direction, for this client as a whole.
  double bandwidth_limit_bytes_per_s = 0;
};

class TensorClient : public CountsTransfers {
 public:
  using Done = std::function<void(TransferResult)>;

  static absl::StatusOr<std::unique_ptr<TensorClient>> Create(TensorClientOptions options);

  // Ends every transfer with Cancelled, then stops. No `done` runs after this.
  ~TensorClient();
  TensorClient(const TensorClient&) = delete;
  TensorClient& operator=(const TensorClient&) = delete;

  // All of these are thread-safe and return at once. `done` runs once, on the network thread, and
  // must not hold it up: it enqueues, or starts the next transfer. It must not destroy the client.

  // Sends `source`, encoded (not quantised), as the push `id`. `source` stays unchanged while
  // `owner` is kept here: until the last byte has left. That may be slightly after `done`.
  TransferId Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                  std::span<const float> source, std::shared_ptr<const void> owner,
                  Duration timeout, Done done);

  // The same with bytes that are encoded already, in whatever encoding: EncodedBytes(encoding,
  // element_count) of them.
  TransferId Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                  int64_t element_count, std::span<const std::byte> source,
                  std::shared_ptr<const void> owner, Duration timeout, Done done);

  // (Both: id.elements is what is pushed, or 0 for a whole shard.)

  // Fills `destination`, which must stay valid until `done` and have exactly as many elements as
  // were requested.
  // Its content is unspecified unless the result is OK.
  TransferId Pull(const ServerAddress& server, const PullRequest& request,
                  std::span<float> destination, Duration timeout, Done done);

  // Ends a transfer with Cancelled, unless it has ended. A push may have been taken all the same.
  void Cancel(TransferId id);

  // Bytes a second that pulls have come in with lately, by endpoint (pull_rates.h).
  std::map<std::string, double> pull_rates() const;

 private:
  explicit TensorClient(TensorClientOptions options)
      : options_(std::move(options)),
        pool_(BufferPool::Create(options_.send_bytes_max)),
        push_pace_(options_.bandwidth_limit_bytes_per_s),
        pull_pace_(options_.bandwidth_limit_bytes_per_s) {}
  absl::Status Start();

  struct Connection;

  // A push or a pull, from the call to its `done`.
  struct Transfer {
    TransferId id = 0;
    ServerAddress server;
    bool is_push = false;
    PushId push_id;
    PullRequest request;
    Encoding encoding = Encoding::kFloat32;
    std::span<const float> source;            // of a push, or else
    std::span<const std::byte> source_bytes;  // what is encoded already
    int64_t element_count = 0;
    std::shared_ptr<const void> owner;
    std::span<float> destination;
    Done done;
    Instant opened;
    Instant deadline;

    Connection* connection = nullptr;
    uint64_t attempt = 0;  // number of the present attempt; 0: none is open
    Instant opened_at;     // when it was opened, until its first answer
    Instant not_before;    // of the next attempt
    int attempts = 0;
    std::string waiting_for = "a connection";
    std::string last_error;                  // of attempts that failed
    std::optional<OutgoingTensor> outgoing;  // a push that was granted
    int64_t chunk_limit = 0;                 // push: granted to us; pull: granted by us
    std::optional<IncomingTensor> incoming;  // a pull
    Version version = kNoVersion;            // of the chunks held
    bool replied = false;                    // a pull whose PullReply has come in this attempt

    std::string Name() const;
    int64_t elements() const {
      return is_push ? element_count : static_cast<int64_t>(destination.size());
    }
  };

  // Thread-safe.
  TransferId Submit(std::unique_ptr<Transfer> transfer, Duration timeout);
  void Run();
  int WaitMs() const;
  // A large transfer. It is never on the wire itself: its segments are transfers of their own.
  struct Split {
    std::unique_ptr<Transfer> whole;
    int64_t next = 0;  // the first element without a segment
    std::set<TransferId> open;
    std::optional<TransferResult> failure;  // the first
    bool staged = false;                    // some segment was
    Version version = kNoVersion;
  };

  void Begin(std::unique_ptr<Transfer> transfer);
  void Connect(Transfer& added);
  int64_t SegmentElements(const Transfer& transfer) const;
  bool IsSplit(const Transfer& transfer) const;
  void StartSegments();
  bool HasRoom(const ServerAddress& server, size_t open);
  void StartSegment(TransferId id, Split& split);
  void SegmentDone(TransferId id, TransferId segment, TransferResult result);
  void FailSplit(TransferId id, TransferResult failure);
  void EndSplit(TransferId id);

  absl::StatusOr<Connection*> ConnectionTo(const ServerAddress& server);
  absl::Status AddConnection(const ServerAddress& server);
  void AddConnections();  // where more are wanted
  void MoveToAnother(Transfer& transfer);
  PathConnections& PathTo(const ServerAddress& server);
  absl::Status Connect(const ServerAddress& server, Connection* connection);

  void ReadMonitor(Connection& connection);
  void OnConnectionLost(Connection& connection, ConnectionEvent event);
  bool ReceiveSome(Connection& connection);
  void OnFrame(Connection& connection, LinkFrame& in);
  void OnPushGrant(Transfer& transfer, const v1::PushCredit& grant);
  void OnPushResult(Transfer& transfer, const v1::PushResult& result);
  void OnPullReply(Transfer& transfer, const v1::PullReply& reply);
  void OnPullRefused(Transfer& transfer, const v1::PullRefused& refused);
  void OnChunk(Transfer& transfer, LinkFrame& in);

  void Pump();  // opens, sends chunks and credits, ends what is late
  void Open(Transfer& transfer);
  bool SendChunk(Transfer& transfer);
  void SendCredit(Transfer& transfer);
  void EndLate();
  int64_t NextCredit(Transfer& transfer, int64_t held);
  // Ends the attempt; the next one starts after `delay`.
  void TryAgain(Transfer& transfer, const std::string& why, Duration delay);
  void End(Transfer& transfer, absl::Status status, PushStatus push_status = PushStatus::kRefused,
           std::optional<PullRefusal> refusal = std::nullopt);
  SendOutcome SendFrame(Connection& connection, const v1::Frame& frame, Message* payload = nullptr);

  const TensorClientOptions options_;
  const int64_t window_bytes_ = ConnectionWindowBytes();
  const std::shared_ptr<BufferPool> pool_;
  const std::shared_ptr<SendAccount::Total> unsent_bytes_ = std::make_shared<SendAccount::Total>(0);
  TaskQueue tasks_;
  std::unique_ptr<ZmqContext> context_;
  std::atomic<TransferId> next_id_ = 1;
  mutable std::mutex rates_mutex_;
  PullRates pull_rates_;  // guarded by rates_mutex_

  // The network thread's own.
  bool stopping_ = false;
  bool busy_ = false;  // there is more to send at once
  Instant now_;
  uint64_t next_attempt_ = 1;
  Pace push_pace_;
  Pace pull_pace_;
  std::map<TransferId, std::unique_ptr<Transfer>> transfers_;
  std::map<uint64_t, Transfer*> transfer_by_attempt_;
  std::map<TransferId, Split> splits_;
  std::map<ServerAddress, std::vector<std::unique_ptr<Connection>>> connections_;
  std::map<ServerAddress, PathConnections> paths_;
  std::thread thread_;
};

struct TensorClient::Connection {
  std::unique_ptr<LinkClient> link;
  std::string last_error;
  size_t transfers = 0;
  int moving = 0;  // of these, those that have bytes to move, as StartSegments counts them
  std::shared_ptr<SendAccount> account;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_H_
