// The newest lines of the log, in memory, in groups as they are stored: one value a step. Pure.

#ifndef ATOLL_COORDINATOR_ETCD_LOG_LINES_H_
#define ATOLL_COORDINATOR_ETCD_LOG_LINES_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/store.h"

namespace atl {

class LogLines {
 public:
  // Lines of one step, in any order; they are found under the lowest of their numbers.
  void Add(const std::vector<LogEntry>& lines);

  // Do what Store::ReadLog and Store::FindLogTail do.
  std::vector<LogEntry> Find(const LogQuery& query, int64_t limit) const;
  int64_t Tail(const LogQuery& query, int64_t count) const;

  // Forgets groups of the oldest lines as long as `kept` lines remain; returns the number under
  // which the first group that remains is, if any went.
  std::optional<int64_t> Trim(int64_t kept);

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }

 private:
  std::map<int64_t, LogEntry> lines_;  // by number
  std::map<int64_t, int64_t> groups_;  // number of the first line: of the last one
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_LOG_LINES_H_
