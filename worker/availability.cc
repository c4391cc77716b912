#include "worker/availability.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/service_manager.h"
#include "worker/working_hours.h"

namespace atl::worker {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(2);

// A service manager sees a service that runs.
void AwaitHours(const WorkingHours& hours) {
  if (GetWorkingTime(hours, GetSecondOfDay()) > kLeavingLead) return;
  LogInfo("worker", "idle until the hours at which this machine works");
  ServiceManager service;
  service.NotifyReady();
  while (GetWorkingTime(hours, GetSecondOfDay()) <= kLeavingLead) {
    (void)service.KeepAlive(SteadyNow());
    std::this_thread::sleep_for(kLookEvery);
  }
}

}  // namespace

absl::Status BeginWork(const DaemonOptions& options) {
  const int nice = std::max(options.nice, getpriority(PRIO_PROCESS, 0));
  if (options.nice > 0 && setpriority(PRIO_PROCESS, 0, nice) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("--nice: ", strerror(errno)));
  }
  if (options.hours.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const WorkingHours hours, ParseWorkingHours(options.hours));
  AwaitHours(hours);
  return absl::OkStatus();
}

std::unique_ptr<NoticeWatcher> WatchForNotice(const DaemonOptions& options, RequestShutdown end) {
  if (options.notice_command.empty()) return nullptr;
  return std::make_unique<NoticeWatcher>(
      options.notice_command, std::chrono::seconds(options.notice_every_seconds),
      [end = std::move(end)](Notice notice) {
        end({"its machine is about to go", notice.within});
      },
      [](const std::string& trouble) {
        if (!trouble.empty()) LogWarning("worker", "--notice-command: ", trouble);
      });
}

std::unique_ptr<NoticeWatcher> WatchHours(const DaemonOptions& options, RequestShutdown end,
                                          std::atomic<bool>* ended) {
  const absl::StatusOr<WorkingHours> hours = ParseWorkingHours(options.hours);
  if (!hours.ok()) return nullptr;
  const auto look = [hours = *hours]() -> absl::StatusOr<std::optional<Notice>> {
    const Duration left = GetWorkingTime(hours, GetSecondOfDay());
    return left > kLeavingLead ? std::nullopt : std::optional(Notice{left});
  };
  return std::make_unique<NoticeWatcher>(
      look, kLookEvery,
      [end = std::move(end), ended](Notice notice) {
        *ended = true;
        end({"the hours at which its machine works are over", notice.within});
      },
      [](const std::string&) {});
}

int StartAgain(char** arguments) {
  // Signals that the run before has blocked would stay so.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv("/proc/self/exe", arguments);
  std::perror("atoll-worker: cannot start again");
  return 1;
}

}  // namespace atl::worker
