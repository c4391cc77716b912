// A worker on a machine that is not the cluster's own: it works at certain hours, behind others'
// processes, and leaves when the machine is about to go.

#ifndef ATOLL_WORKER_AVAILABILITY_H_
#define ATOLL_WORKER_AVAILABILITY_H_

#include <atomic>
#include <functional>
#include <memory>

#include "common/status.h"
#include "worker/core/actions.h"
#include "worker/daemon_options.h"
#include "worker/notice.h"

namespace atl::worker {

// Sets --nice, then waits for the hours at which the machine works. REQUIRES: CheckOptions accepts
// the options; the process has one thread.
absl::Status BeginWork(const DaemonOptions& options);

using RequestShutdown = std::function<void(ShutdownRequested)>;

// Calls `end` when the operator's command says that the machine goes. Null: there is none.
std::unique_ptr<NoticeWatcher> WatchForNotice(const DaemonOptions& options, RequestShutdown end);

// Sets `ended` and calls `end` when the hours end. Null: the machine works at all hours.
std::unique_ptr<NoticeWatcher> WatchHours(const DaemonOptions& options, RequestShutdown end,
                                          std::atomic<bool>* ended);

// Starts the program again in this process. Returns, with an exit code, only if that fails.
int StartAgain(char** arguments);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_AVAILABILITY_H_
