// Looks periodically whether this machine is about to be reclaimed: by an operator's command, as
// for spot instances (exit status 0 means so), or by other means.

#ifndef ATOLL_WORKER_NOTICE_H_
#define ATOLL_WORKER_NOTICE_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/status.h"
#include "common/time.h"

namespace atl::worker {

struct Notice {
  // Until the machine goes: the number that the command's output begins with. None: it said none.
  std::optional<Duration> within;
};

// Returns the notice of a command that ended with exit status 0 after this output, which may be
// anything.
Notice NoticeFrom(const std::string& output);

// Runs `command` by /bin/sh once, and ends it, and what it has begun, after `limit`. No notice: any
// other exit status than 0. FAILED_PRECONDITION: the shell did not find it, or may not run it.
// DEADLINE_EXCEEDED: it was ended.
absl::StatusOr<std::optional<Notice>> RunNoticeCommand(const std::string& command, Duration limit);

class NoticeWatcher {
 public:
  // Returns a notice where there is one, as RunNoticeCommand does.
  using Look = std::function<absl::StatusOr<std::optional<Notice>>()>;

  // `on_notice` is called at most once, `on_trouble` whenever the trouble is another than before
  // (empty: none any more); both on a thread of this object.
  NoticeWatcher(Look look, Duration every, std::function<void(Notice)> on_notice,
                std::function<void(const std::string&)> on_trouble);
  // The same with a command.
  NoticeWatcher(std::string command, Duration every, std::function<void(Notice)> on_notice,
                std::function<void(const std::string&)> on_trouble);
  ~NoticeWatcher();  // waits for the look under way
  NoticeWatcher(const NoticeWatcher&) = delete;
  NoticeWatcher& operator=(const NoticeWatcher&) = delete;

 private:
  void Run();

  const Look look_;
  const Duration every_;
  const std::function<void(Notice)> on_notice_;
  const std::function<void(const std::string&)> on_trouble_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;   // guarded by mutex_
  std::thread thread_;  // last: it uses the others
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_NOTICE_H_
