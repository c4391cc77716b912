// The worker daemon: WorkerCore between the coordinator's stream, the compute thread and transfers.
//
// Threads: the caller's runs the event loop and owns the core; one computes; one may write a
// checkpoint; the attach client, the tensor client and the signal thread have their own. All of
// them only post events.

#ifndef ATOLL_WORKER_DAEMON_H_
#define ATOLL_WORKER_DAEMON_H_

#include <cstdint>
#include <string>

#include "common/net/security.h"
#include "common/net/tls.h"
#include "common/status.h"

namespace atl::worker {

struct DaemonOptions {
  std::string coordinator;  // "host:port"
  std::string name;
  std::string state_dir;
  std::string backend = "cpu";  // this, device and compute: see BackendOptions
  std::string device;
  std::string compute;
  int threads = 0;           // 0: as many as there are cores
  int64_t memory_bytes = 0;  // 0: the device's, or the machine's
  double emulate_slowdown = 1;
  double emulate_step_ms = 0;  // see IslandOptions
  TlsOptions tls;
  std::string curve_key_path;  // secret key for tensor links (security.h); empty: plaintext
};

// Runs until SIGTERM, SIGINT or a final refusal. The process's exit code. An error says which
// option is wrong and what to do.
absl::StatusOr<int> RunDaemon(DaemonOptions options);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_DAEMON_H_
