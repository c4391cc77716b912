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
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/net/chunks.h"
#include "common/net/link_end.h"
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
  int64_t send_bytes_max = int64_t{64} << 20;  // with libzmq and not yet sent; 4 MiB a connection
  int transfers_max = 1024;                    // at a time; more are refused at once

  // 0: as fast as it goes. For tests that need a slow link: bytes per second of pushes.
  double bandwidth_limit_bytes_per_s = 0;
};

class TensorClient : public CountsTransfers, private LinkEnd {
 public:
  using Done = std::function<void(TransferResult)>;

  static absl::StatusOr<std::unique_ptr<TensorClient>> Create(TensorClientOptions options);

  // Stops, and ends every transfer with Cancelled. No `done` runs after this.
  ~TensorClient();

  using LinkEnd::ListUnreached;
  using LinkEnd::UseOwnRelay;

  // All of these are thread-safe and return at once. `done` runs once, on the network thread (or
  // in the destructor), and must not hold it up: it enqueues, or starts the next transfer. It must
  // not destroy the client.

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
      : LinkEnd(options.send_bytes_max, options.send_bytes_max),
        options_(std::move(options)),
        pace_(options_.bandwidth_limit_bytes_per_s) {}

  // A push or a pull, from the call to its `done`. It goes in segments, one or more.
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

    int64_t next = 0;                       // the first element without a segment
    int open = 0;                           // segments
    std::optional<TransferResult> failure;  // the first; its other segments are of no use
    bool staged = false;                    // some segment was
    Version version = kNoVersion;

    std::string Name() const;
  };

  struct Connection : LinkConnection {
    size_t segments = 0;
    int moving = 0;  // of these, those that have bytes to move, as StartSegments counts them
  };

  // A range of a transfer's elements, which is on the wire by itself.
  struct Segment {
    Transfer* whole = nullptr;
    uint64_t id = 0;
    int64_t begin = 0, end = 0;
    Instant opened;

    Connection* connection = nullptr;
    uint64_t attempt = 0;  // number of the present attempt; 0: none is open
    Instant opened_at;     // when it was opened, until its first answer
    Instant not_before;    // of the next attempt
    int attempts = 0;
    std::string waiting_for = "a connection";
    std::string last_error;                  // of attempts that failed
    std::optional<OutgoingTensor> outgoing;  // a push that was started
    std::optional<IncomingTensor> incoming;  // a pull
    Version version = kNoVersion;            // of the chunks held
    bool replied = false;                    // a pull that has been started in this attempt
  };

  // transfers and their segments
  TransferId Submit(Transfer transfer, Duration timeout);  // thread-safe
  void Begin(Transfer transfer);
  void Fail(Transfer& transfer, absl::Status why);
  void Finish(Transfer& transfer);
  static bool IsSplit(const Transfer& transfer);
  void StartSegments();
  bool HasRoom(const ServerAddress& server, size_t open);
  void StartSegment(Transfer& whole);
  void End(Segment& segment, TransferResult result);

  // loop
  void AddTo(std::vector<Socket*>* sockets) override;
  Instant NextDue() const override;
  bool Turn() override;
  absl::StatusOr<Connection*> ConnectionTo(const ServerAddress& server);
  absl::Status AddConnection(const ServerAddress& server);
  void AddConnections();  // where more are wanted
  void MoveToAnother(Segment& segment);
  PathConnections& PathTo(const ServerAddress& server);
  void OnEvent(Connection& connection, ConnectionEvent event);
  void EndLate();

  // messages
  bool Pump();  // opens and sends chunks; whether there is more to send at once
  void Open(Segment& segment);
  bool SendChunk(Segment& segment);
  void SendCancel(Segment& segment);
  void OnFrame(Connection& connection, LinkFrame& in);
  void OnPushStart(Segment& segment, const v1::TransferStart& start);
  void OnPullStart(Segment& segment, const v1::TransferStart& start);
  void OnEnd(Segment& segment, const v1::TransferEnd& end);
  void OnChunk(Segment& segment, LinkFrame& in);
  // Ends the attempt; the next one starts after `delay`.
  void TryAgain(Segment& segment, const std::string& why, Duration delay);

  const TensorClientOptions options_;
  const int64_t window_bytes_ = ConnectionWindowBytes();
  std::atomic<uint64_t> next_id_ = 1;  // of transfers and segments
  mutable std::mutex rates_mutex_;
  PullRates pull_rates_;  // guarded by rates_mutex_

  // The network thread's own.
  uint64_t next_attempt_ = 1;
  Pace pace_;
  std::map<TransferId, Transfer> transfers_;
  std::map<uint64_t, Segment> segments_;
  std::map<uint64_t, Segment*> segment_by_attempt_;
  std::map<ServerAddress, std::vector<std::unique_ptr<Connection>>> connections_;
  std::map<ServerAddress, PathConnections> paths_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_H_
