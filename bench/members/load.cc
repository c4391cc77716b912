// atoll-load: attaches thousands of fake members to a coordinator, each by a connection of its own,
// until the end of its input. Lines on its input: "leave N" ends N workers'
// connections at once.

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <deque>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

#include "bench/members/fake_members.h"
#include "common/event_loop.h"
#include "common/net/channel.h"
#include "common/protocol/wire.h"
#include "common/wall_clock.h"
#include "proto/control.grpc.pb.h"

namespace atl::bench {
namespace {

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

// One member's connection. A member that is refused or disconnected does not reconnect; the first
// ten are reported.
template <class Side>
class Connection : public grpc::ClientBidiReactor<typename Side::WireUp, typename Side::WireDown> {
 public:
  Connection(typename Side::Fake fake, std::shared_ptr<grpc::Channel> channel,
             Incarnation incarnation)
      : fake_(std::move(fake)), incarnation_(incarnation), stub_(Side::Service::NewStub(channel)) {}

  void Open() {
    stub_->async()->Attach(&context_, this);
    this->AddHold();  // Say() writes from outside of reactions
    this->StartRead(&wire_);
    Say(fake_.Hello());
    this->StartCall();
  }

  void Say(typename Side::Message message) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    queue_.emplace_back();
    Encode(Side::Envelope(fake_.name(), incarnation_, std::move(message)), &queue_.back());
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
  }

  // Heartbeats and whatever is due by itself.
  void Turn(Instant now) {
    std::vector<typename Side::Message> says;
    {
      const std::lock_guard lock(fake_mutex_);
      if (!welcome_) return;
      if (now >= beat_at_) {
        says.push_back(fake_.Heartbeat());
        beat_at_ = std::max(beat_at_ + kHeartbeatInterval, now);
      }
      if constexpr (std::is_same_v<Side, WorkerSide>) {
        for (auto& message : fake_.Turn(now)) says.push_back(std::move(message));
      }
    }
    for (auto& message : says) Say(std::move(message));
  }

  void Leave() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    auto message = Decode(&wire_);
    if (message.ok()) {
      std::vector<typename Side::Message> says;
      {
        const std::lock_guard lock(fake_mutex_);
        if (std::holds_alternative<Welcome>(message->message)) {
          welcome_ = true;
          beat_at_ =
              SteadyNow() + kHeartbeatInterval * (std::hash<NodeId>()(fake_.name()) % 100) / 100;
        } else if (const auto* refused = std::get_if<Refused>(&message->message)) {
          std::fprintf(stderr, "%s is refused: %s\n", fake_.name().c_str(),
                       refused->reason.c_str());
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
    static std::atomic<int> told = 0;
    if (status.error_code() != grpc::StatusCode::CANCELLED && told.fetch_add(1) < 10) {
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
  std::vector<typename Side::Message> Answer(const auto& message) {
    if constexpr (std::is_same_v<Side, WorkerSide>) return fake_.On(SteadyNow(), message);
    if constexpr (std::is_same_v<Side, ServerSide>) return fake_.On(message);
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
  const Incarnation incarnation_;
  std::unique_ptr<typename Side::Service::Stub> stub_;
  grpc::ClientContext context_;
  typename Side::WireDown wire_;
  std::mutex mutex_;
  std::deque<typename Side::WireUp> queue_;
  bool over_ = false, done_ = false;
};

struct Load {
  std::string coordinator;
  TlsOptions tls;
  int workers = 1000, servers = 2, at_once = 200;
  Scene scene;
};

// All members, made before any of them is opened: nothing of it changes afterwards.
class Cluster {
 public:
  static absl::StatusOr<std::unique_ptr<Cluster>> Make(const Load& load) {
    auto cluster = std::unique_ptr<Cluster>(new Cluster(load));
    const Incarnation incarnation = UnixTimeMs();
    for (int i = 0; i < load.servers; ++i) {
      ATOLL_ASSIGN_OR_RETURN(auto channel, OpenChannel(load.tls, load.coordinator));
      cluster->servers_.push_back(
          std::make_unique<Connection<ServerSide>>(FakeServer(i), channel, incarnation));
    }
    const auto staged = [all = cluster.get()](const NodeId& name, const PushId& push) {
      for (auto& server : all->servers_) {
        if (server->name() == name) server->Say(PushStaged{push});
      }
    };
    for (int i = 0; i < load.workers; ++i) {
      ATOLL_ASSIGN_OR_RETURN(auto channel, OpenChannel(load.tls, load.coordinator));
      cluster->workers_.push_back(std::make_unique<Connection<WorkerSide>>(
          FakeWorker(&cluster->load_.scene, i, staged), channel, incarnation));
    }
    return cluster;
  }

  // Some at a time, so that no handshake waits for its deadline.
  void Open() {
    for (auto& server : servers_) server->Open();
    size_t open = 0;
    for (auto& worker : workers_) {
      worker->Open();
      if (++open % load_.at_once != 0 && open < workers_.size()) continue;
      while (!worker->welcome() && !worker->done()) Pause();
      std::printf("attached %zu\n", open);
      std::fflush(stdout);
    }
  }

  // Sends heartbeats and whatever else is due; never returns.
  void Run() {
    for (;; Pause()) {
      for (auto& server : servers_) server->Turn(SteadyNow());
      for (auto& worker : workers_) worker->Turn(SteadyNow());
    }
  }

  // The last ones: who leads an island is among the first of its site.
  void Leave(size_t count) {
    for (size_t i = 0; i < std::min(count, workers_.size()); ++i) {
      workers_[workers_.size() - 1 - i]->Leave();
    }
  }

 private:
  explicit Cluster(const Load& load) : load_(load) {}
  static void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  const Load load_;
  std::vector<std::unique_ptr<Connection<ServerSide>>> servers_;
  std::vector<std::unique_ptr<Connection<WorkerSide>>> workers_;
};

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  CLI::App app("Fake members, to load a coordinator with.", "atoll-load");
  atl::bench::Load load;
  double step_ms = 500, push_ms = 500;
  app.add_option("--coordinator", load.coordinator, "host:port")->required();
  app.add_option("--workers", load.workers)->check(CLI::Range(1, 99'999));
  app.add_option("--servers", load.servers)->check(CLI::Range(0, 64));
  app.add_option("--workers-a-site", load.scene.workers_a_site)->check(CLI::Range(1, 10'000));
  app.add_option("--at-once", load.at_once, "connections that are opened at a time")
      ->check(CLI::Range(1, 10'000));
  app.add_option("--step-ms", step_ms, "of an island");
  app.add_option("--push-ms", push_ms, "of a contribution");
  atl::AddTlsFlags(app, &load.tls);
  CLI11_PARSE(app, argc, argv);
  load.scene.step = atl::FromSeconds(step_ms / 1e3);
  load.scene.push = atl::FromSeconds(push_ms / 1e3);
  auto cluster = atl::bench::Cluster::Make(load);
  if (!cluster.ok()) {
    std::fprintf(stderr, "atoll-load: %s\n", std::string(cluster.status().message()).c_str());
    return 1;
  }
  std::thread([&] { (*cluster)->Run(); }).detach();
  (*cluster)->Open();
  std::string word;
  for (size_t count = 0; std::cin >> word >> count;) {
    if (word == "leave") (*cluster)->Leave(count);
  }
  std::_Exit(0);  // what is connected ends with the process
}
