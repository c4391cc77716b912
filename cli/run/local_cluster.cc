#include "cli/run/local_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/run/program.h"
#include "cli/write_file.h"
#include "common/event_loop.h"
#include "common/net/tcp_probe.h"
#include "common/paths.h"
#include "common/plural.h"

namespace atl::cli {
namespace {

constexpr int kCoordinatorPort = 7000;  // the command line's default
constexpr int kPagePort = 7080;
constexpr int kPortTries = 5;
constexpr int kRestartsMax = 3;
constexpr int kLogLines = 15;
constexpr Duration kStartLimit = std::chrono::seconds(60);
constexpr Duration kStopLimit = std::chrono::seconds(60);  // of all workers, then of all servers
constexpr Duration kPollTurn = std::chrono::milliseconds(20);

std::string Loopback(int port) { return absl::StrCat("127.0.0.1:", port); }

// `preferred` if it is free, else another one below those that the kernel gives to outgoing
// connections.
absl::StatusOr<int> ChoosePort(int preferred, int other_than) {
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int port = attempt == 0 ? preferred : 20'000 + static_cast<int>(random() % 12'000);
    if (port != other_than && CheckCanListen(Loopback(port)).ok()) return port;
  }
  return absl::UnavailableError("of 100 ports of 127.0.0.1 none is free");
}

int64_t MachineMemoryBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(LocalClusterOptions options,
                                                                  Interrupts* interrupts,
                                                                  int* interrupted) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster());
  ATOLL_RETURN_IF_ERROR(cluster->StartCoordinator(options.folder, interrupts, interrupted));
  ATOLL_RETURN_IF_ERROR(cluster->StartMembers(options));
  return cluster;
}

absl::Status LocalCluster::Add(const std::string& kind, const std::string& name,
                               const std::string& folder, std::vector<std::string> flags) {
  ATOLL_ASSIGN_OR_RETURN(const std::string program, FindProgram("atoll-" + kind));
  const std::string config = absl::StrCat(folder, "/", kind, ".toml");
  ATOLL_ASSIGN_OR_RETURN(const auto written, FindPath(config));  // by a user, perhaps
  if (!written) {
    ATOLL_RETURN_IF_ERROR(WriteFile(
        config, absl::StrCat("# More flags of atoll-", kind, ", one `flag = value` a line.\n")));
  }
  flags.insert(flags.begin(), program);
  flags.push_back("--config=" + config);
  flags.push_back(absl::StrCat("--state-dir=", folder, "/", name));
  ATOLL_ASSIGN_OR_RETURN(ChildProcess process,
                         ChildProcess::Start(flags, absl::StrCat(folder, "/", name, ".log")));
  daemons_.push_back({name, std::move(flags), 0, std::move(process)});
  return absl::OkStatus();
}

absl::Status LocalCluster::StartCoordinator(const std::string& folder, Interrupts* interrupts,
                                            int* interrupted) {
  for (int attempt = 1;; ++attempt) {
    ATOLL_ASSIGN_OR_RETURN(const int port, ChoosePort(kCoordinatorPort, 0));
    ATOLL_ASSIGN_OR_RETURN(const int page, ChoosePort(kPagePort, port));
    coordinator_ = Loopback(port);
    page_ = absl::StrCat("http://", Loopback(page), "/");
    ATOLL_RETURN_IF_ERROR(Add("coordinator", "coordinator", folder,
                              {"--listen=" + coordinator_, "--http-listen=" + Loopback(page)}));
    const Instant limit = SteadyNow() + kStartLimit;
    while (!IsListening(Loopback(page)) && !daemons_[0].process.HasEnded()) {
      if ((*interrupted = interrupts->Wait(kPollTurn)) != 0)
        return absl::AbortedError("interrupted");
      if (SteadyNow() > limit) {
        return absl::DeadlineExceededError(absl::StrCat("the coordinator does not listen after ",
                                                        atl::Seconds(kStartLimit), " s; see ",
                                                        daemons_[0].process.log_path()));
      }
    }
    if (!daemons_[0].process.HasEnded()) return absl::OkStatus();
    // Another program may have taken a port meanwhile.
    const bool taken = !CheckCanListen(Loopback(port)).ok() || !CheckCanListen(Loopback(page)).ok();
    if (!taken || attempt == kPortTries) return Ended(daemons_[0]);
    daemons_.clear();
  }
}

absl::Status LocalCluster::StartMembers(const LocalClusterOptions& options) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = std::max(1, cores / options.workers);
  threads_text_ = CountText(threads, "thread");
  const int64_t memory = MachineMemoryBytes();
  for (int i = 1; i <= options.servers; ++i) {
    const std::string name = absl::StrCat("server-", i);
    ATOLL_RETURN_IF_ERROR(
        Add("paramserver", name, options.folder,
            {"--coordinator=" + coordinator_, "--name=" + name, "--listen=tcp://127.0.0.1:0",
             absl::StrCat("--memory-bytes=", memory / 4 / options.servers)}));
  }
  for (int i = 1; i <= options.workers; ++i) {
    const std::string name = absl::StrCat("worker-", i);
    ATOLL_RETURN_IF_ERROR(
        Add("worker", name, options.folder,
            {"--coordinator=" + coordinator_, "--name=" + name, absl::StrCat("--threads=", threads),
             absl::StrCat("--memory-bytes=", memory / 2 / options.workers)}));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::Ended(const Daemon& daemon) {
  return absl::UnavailableError(absl::StrCat(
      daemon.name, " ", daemon.process.EndText(),
      daemon.restarts == 0 ? "" : absl::StrCat(" for the ", daemon.restarts + 1, "th time"),
      "; the end of its log, ", daemon.process.log_path(), ":\n",
      daemon.process.LogEnd(kLogLines)));
}

absl::StatusOr<std::string> LocalCluster::Check() {
  std::string text;
  for (Daemon& daemon : daemons_) {
    if (!daemon.process.HasEnded()) continue;
    if (!daemon.process.ended_by_signal() || daemon.restarts == kRestartsMax) return Ended(daemon);
    ++daemon.restarts;
    absl::StrAppend(&text, daemon.name, " ", daemon.process.EndText(),
                    "; it is started again, and its log is ", daemon.process.log_path(), "\n");
    ATOLL_ASSIGN_OR_RETURN(daemon.process,
                           ChildProcess::Start(daemon.arguments, daemon.process.log_path()));
  }
  return text;
}

bool LocalCluster::Stop(Interrupts* interrupts) {
  for (const char* kind : {"worker-", "server-", "coordinator"}) {
    const auto is_of_kind = [&](const Daemon& daemon) {
      return absl::StartsWith(daemon.name, kind);
    };
    for (Daemon& daemon : daemons_) {
      if (is_of_kind(daemon)) daemon.process.Signal(SIGTERM);
    }
    const Instant limit = SteadyNow() + kStopLimit;
    while (std::any_of(daemons_.begin(), daemons_.end(), [&](Daemon& daemon) {
      return is_of_kind(daemon) && !daemon.process.HasEnded();
    })) {
      if (interrupts->Wait(kPollTurn) != 0) {
        daemons_.clear();
        return false;
      }
      if (SteadyNow() < limit) continue;
      for (Daemon& daemon : daemons_) {
        if (is_of_kind(daemon)) daemon.process.Signal(SIGKILL);
      }
    }
  }
  daemons_.clear();
  return true;
}

}  // namespace atl::cli
