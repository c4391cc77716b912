// atoll-load: attaches thousands of fake members to a coordinator, each by a connection of its own,
// until the end of its input. Lines on its input:
//   leave N      ends N workers' connections at once
//   watch N JOB  opens N calls that watch the job and N that watch the cluster, and reads none

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "bench/members/connection.h"
#include "bench/members/watchers.h"
#include "common/logging.h"
#include "common/trust/authority.h"
#include "common/wall_clock.h"

namespace atl::bench {
namespace {

struct Load {
  std::string coordinator;
  std::string authority, identities;  // folders; empty: plaintext
  int workers = 1000, servers = 2, at_once = 200;
  FakeTimings timings;
};

// Times as a member's, but that the generator may stall for longer than a member's host.
constexpr ChannelTimes kTimes{.keepalive_ms = kMemberKeepaliveMs, .keepalive_timeout_ms = 60'000};

absl::StatusOr<std::shared_ptr<grpc::Channel>> Open(const TlsOptions& tls,
                                                    const std::string& address) {
  ATOLL_ASSIGN_OR_RETURN(const auto credentials, ClientCredentials(tls, address));
  return OpenChannelWith(credentials, address, kTimes);
}

// A channel with a certificate of its own for each name, as if it had joined.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const Load& load, const Identity& identity) {
  if (load.authority.empty()) return Open({}, load.coordinator);
  const IdentityFolder folder(
      absl::StrCat(load.identities, "/", RoleName(identity.role), "-", identity.name));
  ATOLL_RETURN_IF_ERROR(AuthorityFolder(load.authority)
                            .Issue(identity, folder, UnixTimeMs() / 1000, /*lifetime_s=*/86400));
  return Open(folder.tls(), load.coordinator);
}

// All members, made before any of them is opened: nothing of it changes afterwards.
class Cluster {
 public:
  static absl::StatusOr<std::unique_ptr<Cluster>> Make(const Load& load) {
    auto cluster = std::unique_ptr<Cluster>(new Cluster(load));
    const Incarnation incarnation = UnixTimeMs();
    for (int i = 0; i < load.servers; ++i) {
      FakeServer server(i);
      ATOLL_ASSIGN_OR_RETURN(auto channel, Dial(load, {Role::kParameterServer, server.name()}));
      cluster->servers_.push_back(
          std::make_unique<Connection<ServerSide>>(std::move(server), channel, incarnation));
    }
    const auto staged = [all = cluster.get()](const ShardPlacement& at, const PushId& push,
                                              Encoding) {
      for (auto& server : all->servers_) {
        if (server->name() == at.server) server->Say(PushStaged{push});
      }
    };
    for (int i = 0; i < load.workers; ++i) {
      FakeWorker worker(&cluster->load_.timings, i, staged);
      ATOLL_ASSIGN_OR_RETURN(auto channel, Dial(load, {Role::kWorker, worker.name()}));
      cluster->workers_.push_back(
          std::make_unique<Connection<WorkerSide>>(std::move(worker), channel, incarnation));
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

  absl::Status Watch(size_t count, const JobId& job) {
    for (size_t i = 0; i < count; ++i) {
      ATOLL_ASSIGN_OR_RETURN(const auto channel,
                             Dial(load_, {Role::kViewer, absl::StrCat("v", job_watchers_.size())}));
      job_watchers_.push_back(std::make_unique<JobWatcher>(channel, job));
      cluster_watchers_.push_back(std::make_unique<ClusterWatcher>(channel));
    }
    return absl::OkStatus();
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
  std::vector<std::unique_ptr<JobWatcher>> job_watchers_;
  std::vector<std::unique_ptr<ClusterWatcher>> cluster_watchers_;
};

int Run(const Load& load) {
  auto cluster = Cluster::Make(load);
  if (!cluster.ok()) {
    std::fprintf(stderr, "atoll-load: %s\n", std::string(cluster.status().message()).c_str());
    return 1;
  }
  std::thread([&] { (*cluster)->Run(); }).detach();
  (*cluster)->Open();
  std::string word, job;
  for (size_t count = 0; std::cin >> word >> count;) {
    if (word == "leave") (*cluster)->Leave(count);
    if (word != "watch" || !(std::cin >> job)) continue;
    const absl::Status watching = (*cluster)->Watch(count, job);
    if (!watching.ok()) std::fprintf(stderr, "%s\n", std::string(watching.message()).c_str());
    std::printf("watching %zu\n", count);
    std::fflush(stdout);
  }
  std::_Exit(0);  // what is connected ends with the process
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as the coordinator
  CLI::App app("Fake members, to load a coordinator with.", "atoll-load");
  atl::bench::Load load;
  double step_ms = 500, push_ms = 500;
  app.add_option("--coordinator", load.coordinator, "host:port")->required();
  app.add_option("--workers", load.workers)->check(CLI::Range(1, 99'999));
  app.add_option("--servers", load.servers)->check(CLI::Range(0, 64));
  app.add_option("--workers-a-site", load.timings.workers_a_site)->check(CLI::Range(1, 10'000));
  app.add_option("--at-once", load.at_once, "connections that are opened at a time")
      ->check(CLI::Range(1, 10'000));
  app.add_option("--step-ms", step_ms, "of an island");
  app.add_option("--push-ms", push_ms, "of a contribution");
  app.add_option("--authority", load.authority,
                 "the coordinator's STATE_DIR/trust: members show certificates of it");
  app.add_option("--identities", load.identities, "folder for these certificates");
  CLI11_PARSE(app, argc, argv);
  if (!atl::SetLogLevel("error").ok()) return 2;  // each certificate that ends soon is a warning
  load.timings.step = atl::FromSeconds(step_ms / 1e3);
  load.timings.push = atl::FromSeconds(push_ms / 1e3);
  return atl::bench::Run(load);
}
