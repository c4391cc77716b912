// A coordinator, parameter servers and workers as processes of this machine, on loopback.

#ifndef ATOLL_CLI_RUN_LOCAL_CLUSTER_H_
#define ATOLL_CLI_RUN_LOCAL_CLUSTER_H_

#include <memory>
#include <string>
#include <vector>

#include "cli/run/child_process.h"
#include "cli/run/interrupts.h"
#include "common/status.h"

namespace atl::cli {

struct LocalClusterOptions {
  std::string folder;  // absolute; states and logs of all daemons
  int workers = 2;
  int servers = 1;
};

// One thread calls everything. No daemon outlives that thread.
class LocalCluster {
 public:
  // Returns when the coordinator accepts connections and members have been started. ABORTED: a
  // signal came meanwhile, which `*interrupted` is.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(LocalClusterOptions options,
                                                             Interrupts* interrupts,
                                                             int* interrupted);

  const std::string& coordinator() const { return coordinator_; }  // "127.0.0.1:7000"
  const std::string& page() const { return page_; }                // "http://127.0.0.1:7080/"
  const std::string& threads_text() const { return threads_text_; }

  // Starts a daemon again that a signal has ended, and returns lines that say so. The error names a
  // daemon that ended by itself, or that signals end again and again, with the end of its log.
  absl::StatusOr<std::string> Check();

  // Workers first, the coordinator last, so that all of them keep what they have. False: a signal
  // came meanwhile, and those that still ran were killed.
  bool Stop(Interrupts* interrupts);

 private:
  struct Daemon {
    std::string name;
    std::vector<std::string> arguments;
    int restarts = 0;
    ChildProcess process;
  };

  LocalCluster() = default;
  absl::Status StartCoordinator(const std::string& folder, Interrupts* interrupts,
                                int* interrupted);
  absl::Status StartMembers(const LocalClusterOptions& options);
  absl::Status Add(const std::string& kind, const std::string& name, const std::string& folder,
                   std::vector<std::string> flags);
  static absl::Status Ended(const Daemon& daemon);

  std::string coordinator_, page_, threads_text_;
  std::vector<Daemon> daemons_;  // in the order of their start
};

}  // namespace atl::cli

#endif  // ATOLL_CLI_RUN_LOCAL_CLUSTER_H_
