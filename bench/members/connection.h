// One fake member's Attach stream to a coordinator. For benchmarks; includes gRPC.

#ifndef ATOLL_BENCH_MEMBERS_CONNECTION_H_
#define ATOLL_BENCH_MEMBERS_CONNECTION_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bench/members/fake_members.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "common/net/control/channel.h"
#include "common/protocol/wire.h"
#include "proto/control.grpc.pb.h"

namespace atl::bench {

struct WorkerSide {
  using Fake = FakeWorker;
  using Message = WorkerMessage;
  using Down = ToWorker;
  using WireUp = v1::FromWorker;
  using WireDown = v1::ToWorker;
  using Service = v1::WorkerControl;
  static FromWorker Envelope(const NodeId& name, Incarnation incarnation, Message message) {
    return {name, incarnation, std::move(message)};
  }
};
struct ServerSide {
  using Fake = FakeServer;
  using Message = ServerMessage;
  using Down = ToServer;
  using WireUp = v1::FromServer;
  using WireDown = v1::ToServer;
  using Service = v1::ServerControl;
  static FromServer Envelope(const NodeId& name, Incarnation incarnation, Message message) {
    return {name, incarnation, std::move(message)};
  }
};

// One member's connection. A member that is evicted says hello again, and one that is disconnected
// reconnects, as daemons do: where this machine stalls, a job that needs all of them would never
// begin. The first ten of each are reported.
template <class Side>
class Connection : public grpc::ClientBidiReactor<typename Side::WireUp, typename Side::WireDown> {
 public:
  Connection(typename Side::Fake fake, std::shared_ptr<grpc::Channel> channel,
             Incarnation incarnation)
      : fake_(std::move(fake)), incarnation_(incarnation), stub_(Side::Service::NewStub(channel)) {}

  void Open() {
    stub_->async()->Attach(context_.get(), this);
    this->AddHold();  // Say() writes from outside of reactions
    this->StartRead(&wire_);
    Say(fake_.Hello());
    this->StartCall();
  }

  void Say(typename Side::Message message) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    queue_.emplace_back();
    const absl::Status status =
        Encode(Side::Envelope(fake_.name(), incarnation_, std::move(message)), &queue_.back());
    ATOLL_CHECK(status.ok(), status.message());
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
  }

  // Heartbeats and whatever is due by itself.
  void Turn(Instant now) {
    if (IsToReopen(now)) return Open();
    std::vector<typename Side::Message> says;
    {
      const std::lock_guard lock(fake_mutex_);
      if (!welcome_) return;
      if (now >= beat_at_) {
        says.push_back(fake_.Heartbeat());
        beat_at_ = std::max(beat_at_ + interval_, now);
      }
      if constexpr (std::is_same_v<Side, WorkerSide>) {
        for (auto& message : fake_.Turn(now)) says.push_back(std::move(message));
      }
    }
    for (auto& message : says) Say(std::move(message));
  }

  void Leave() {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
    context_->TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    auto message = Decode(&wire_);
    if (message.ok()) {
      std::vector<typename Side::Message> says;
      {
        const std::lock_guard lock(fake_mutex_);
        if (const auto* welcome = std::get_if<Welcome>(&message->message)) {
          interval_ = welcome->heartbeat_interval;
          if (!std::exchange(welcome_, true)) {
            beat_at_ = SteadyNow() + interval_ * (std::hash<NodeId>()(fake_.name()) % 100) / 100;
          }
        } else if (const auto* refused = std::get_if<Refused>(&message->message)) {
          static std::atomic<int> shown = 0;
          if (shown.fetch_add(1) < 10) {
            std::fprintf(stderr, "%s is refused: %s\n", fake_.name().c_str(),
                         refused->reason.c_str());
          }
          if (std::exchange(welcome_, false) && !refused->final) says.push_back(fake_.Hello());
        } else {
          says = Answer(message->message);
        }
      }
      for (auto& said : says) Say(std::move(said));
    }
    this->StartRead(&wire_);
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (!ok || over_) return;
    queue_.pop_front();
    if (!queue_.empty()) this->StartWrite(&queue_.front());
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    over_ = done_ = true;
    reopens_at_ = SteadyNow() + kReopensAfter;
    static std::atomic<int> printed = 0;
    if (status.error_code() != grpc::StatusCode::CANCELLED && printed.fetch_add(1) < 10) {
      std::fprintf(stderr, "%s: %s\n", fake_.name().c_str(), status.error_message().c_str());
    }
  }
  bool welcome() {
    const std::lock_guard lock(fake_mutex_);
    return welcome_;
  }
  bool done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  const NodeId& name() const { return fake_.name(); }

 private:
  static constexpr Duration kReopensAfter = std::chrono::seconds(1);

  std::vector<typename Side::Message> Answer(const auto& message) {
    if constexpr (std::is_same_v<Side, WorkerSide>) return fake_.On(SteadyNow(), message);
    if constexpr (std::is_same_v<Side, ServerSide>) return fake_.On(message);
  }
  // True once: its connection was lost, and everything of it is over.
  bool IsToReopen(Instant now) {
    const std::lock_guard fake_lock(fake_mutex_);
    const std::lock_guard lock(mutex_);
    if (!done_ || leaves_ || now < reopens_at_) return false;
    over_ = done_ = welcome_ = false;
    queue_.clear();
    context_ = std::make_unique<grpc::ClientContext>();
    return true;
  }
  void End() {
    const std::lock_guard lock(mutex_);
    if (!over_) this->RemoveHold();
    over_ = true;
  }

  std::mutex fake_mutex_;  // before mutex_
  typename Side::Fake fake_;
  bool welcome_ = false;
  Instant beat_at_{};
  Duration interval_ = kHeartbeatInterval;
  const Incarnation incarnation_;
  std::unique_ptr<typename Side::Service::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  typename Side::WireDown wire_;
  std::mutex mutex_;
  std::deque<typename Side::WireUp> queue_;
  bool over_ = false, done_ = false, leaves_ = false;
  Instant reopens_at_{};  // once it is done
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_MEMBERS_CONNECTION_H_
