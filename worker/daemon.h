// The worker daemon: WorkerCore between the coordinator's stream, the compute thread and transfers.
//
// Threads: the caller's runs the event loop and owns the core; one computes for an island that this
// worker leads, one for a leader that it follows; one may write a checkpoint; devices, links and
// the signal thread have their own. All of them only post events.

#ifndef ATOLL_WORKER_DAEMON_H_
#define ATOLL_WORKER_DAEMON_H_

#include "common/status.h"
#include "worker/daemon_options.h"

namespace atl::worker {

// Runs until SIGTERM, SIGINT or a final refusal. The process's exit code. An error says which
// option is wrong and what to do. After DaemonOptions::hours the process starts again, with these
// arguments, to wait for the next ones.
absl::StatusOr<int> RunDaemon(DaemonOptions options, char** arguments);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_DAEMON_H_
