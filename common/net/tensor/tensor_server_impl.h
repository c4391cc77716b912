// The network thread of a TensorServer; see tensor_server.h. Private to common/net.

#ifndef ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_IMPL_H_
#define ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_IMPL_H_

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "common/net/chunks.h"
#include "common/net/link_socket.h"
#include "common/net/tensor/tensor_server.h"

namespace atl {

class TensorServer::Impl final : public TensorServer {
 public:
  Impl(TensorServerOptions options, TensorHandler* handler)
      : options_(std::move(options)),
        handler_(handler),
        pool_(BufferPool::Create(options_.idle_buffer_bytes_max)),
        pace_(options_.bandwidth_limit_bytes_per_s) {}
  ~Impl() override;

  absl::Status Start();
  const std::string& endpoint() const override { return endpoint_; }
  void AcknowledgePush(ReplyToken token, PushStatus status, std::string reason) override {
    tasks_.Post(
        [this, token, status, reason = std::move(reason)] { Acknowledge(token, status, reason); });
  }
  void ReplyPull(ReplyToken token, Version version, std::span<const float> values,
                 std::shared_ptr<const void> owner) override {
    tasks_.Post([this, token, version, values, owner = std::move(owner)] {
      Reply(token, version, values, owner);
    });
  }
  void RefusePull(ReplyToken token, PullRefusal refusal, Version current,
                  std::string reason) override {
    tasks_.Post([this, token, refusal, current, reason = std::move(reason)] {
      Refuse(token, refusal, current, reason);
    });
  }
  void SetClientKeys(std::vector<std::string> public_keys) override {
    tasks_.Post([this, keys = std::move(public_keys)] { Allow(keys); });
  }
  LinkCounters counters() const override;
  int64_t assembly_bytes() const override { return assembly_bytes_; }

 private:
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
  void Count(int64_t LinkCounters::*counter, int64_t amount = 1);
  void CountDone(Instant opened);
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
  mutable std::mutex counters_mutex_;
  LinkCounters counters_;  // guarded by counters_mutex_

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

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_IMPL_H_
