// atoll-load: attaches thousands of fake members to a coordinator, each by a connection of its own,
// until the end of its input. Lines on its input: "leave N" ends N workers'
// connections at once.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <thread>
#include <vector>

#include "bench/members/connection.h"
#include "common/wall_clock.h"

namespace atl::bench {
namespace {

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
    const auto staged = [all = cluster.get()](const ShardPlacement& at, const PushId& push,
                                              Encoding) {
      for (auto& server : all->servers_) {
        if (server->name() == at.server) server->Say(PushStaged{push});
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
