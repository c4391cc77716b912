// The history on disk: a file a job in STATE_DIR/history, replaced as a whole. Writes go on a
// thread of their own; what a crash loses of them is a minute of curves.

#ifndef ATOLL_COORDINATOR_HISTORY_HISTORY_FILES_H_
#define ATOLL_COORDINATOR_HISTORY_HISTORY_FILES_H_

#include <map>
#include <set>
#include <string>
#include <thread>

#include "common/event_loop.h"
#include "common/files.h"
#include "common/time.h"
#include "coordinator/history/history.h"

namespace atl {

class HistoryFiles {
 public:
  HistoryFiles(Files* files, std::string folder);
  ~HistoryFiles();  // writes what is queued

  // Reads every file into `history`; one that is damaged is left out, with a warning.
  void Load(History* history);
  // Queues what has changed, where it is time for that. When to call again at the latest.
  Instant Save(Instant now, History* history);
  // Queues everything that has changed.
  void SaveAll(History* history);

 private:
  struct Write {
    std::string path;
    std::string bytes;  // empty: remove the file
  };
  void Queue(const History& history, const JobId& job);
  std::string GetJobFilePath(const JobId& job) const { return folder_ + "/" + job; }
  void Run();

  Files* const files_;
  const std::string folder_;
  std::set<JobId> waiting_;
  Instant next_{};
  std::mutex mutex_;
  std::condition_variable filled_;
  std::map<std::string, Write> queue_;  // by path: a newer write replaces an older one
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_HISTORY_HISTORY_FILES_H_
