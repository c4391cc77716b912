// The network thread of a TensorClient; see tensor_client.h. Private to common/net.

#ifndef ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_IMPL_H_
#define ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_IMPL_H_

#include <map>
#include <optional>
#include <set>
#include <thread>

#include "common/net/chunks.h"
#include "common/net/link_socket.h"
#include "common/net/path_connections.h"
#include "common/net/tensor/pull_rates.h"
#include "common/net/tensor/tensor_client.h"

namespace atl {

class TensorClient::Impl final : public TensorClient {
 public:
  explicit Impl(TensorClientOptions options)
      : options_(std::move(options)),
        pool_(BufferPool::Create(options_.send_bytes_max)),
        push_pace_(options_.bandwidth_limit_bytes_per_s),
        pull_pace_(options_.bandwidth_limit_bytes_per_s) {}
  ~Impl() override;

  absl::Status Start();
  TransferId Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                  std::span<const float> source, std::shared_ptr<const void> owner,
                  Duration timeout, Done done) override;
  TransferId Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                  int64_t element_count, std::span<const std::byte> source,
                  std::shared_ptr<const void> owner, Duration timeout, Done done) override;
  TransferId Pull(const ServerAddress& server, const PullRequest& request,
                  std::span<float> destination, Duration timeout, Done done) override;
  void Cancel(TransferId id) override;
  LinkCounters counters() const override;
  std::map<std::string, double> pull_rates() const override;

 private:
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
  void Count(int64_t LinkCounters::*counter, int64_t amount = 1);

  const TensorClientOptions options_;
  const int64_t window_bytes_ = ConnectionWindowBytes();
  const std::shared_ptr<BufferPool> pool_;
  const std::shared_ptr<SendAccount::Total> unsent_bytes_ = std::make_shared<SendAccount::Total>(0);
  TaskQueue tasks_;
  std::unique_ptr<ZmqContext> context_;
  std::atomic<TransferId> next_id_ = 1;
  mutable std::mutex counters_mutex_;
  LinkCounters counters_;  // guarded by counters_mutex_, like pull_rates_
  PullRates pull_rates_;

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

struct TensorClient::Impl::Connection {
  std::unique_ptr<LinkClient> link;
  std::string last_error;
  size_t transfers = 0;
  int moving = 0;  // of these, those that have bytes to move, as StartSegments counts them
  std::shared_ptr<SendAccount> account;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_IMPL_H_
