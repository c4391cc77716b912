#include "coordinator/etcd/log_lines.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace atl {
namespace {

// A query, prepared for many lines.
class Matcher {
 public:
  explicit Matcher(const LogQuery& query)
      : query_(query), contains_(absl::AsciiStrToLower(query.contains)) {}

  bool operator()(const LogEntry& line) const {
    return (query_.job.empty() || line.event.job == query_.job) &&
           line.event.sequence > query_.after_sequence &&
           line.unix_time_ms >= query_.since_unix_ms && line.event.severity >= query_.severity &&
           (contains_.empty() ||
            absl::StrContains(absl::AsciiStrToLower(line.event.text), contains_));
  }

 private:
  const LogQuery& query_;
  const std::string contains_;
};

}  // namespace

void LogLines::Add(const std::vector<LogEntry>& lines) {
  if (lines.empty()) return;
  int64_t first = lines[0].event.sequence, last = first;
  for (const LogEntry& line : lines) {
    first = std::min(first, line.event.sequence);
    last = std::max(last, line.event.sequence);
    lines_[line.event.sequence] = line;
  }
  groups_[first] = last;
}

std::vector<LogEntry> LogLines::Find(const LogQuery& query, int64_t limit) const {
  const Matcher matches(query);
  std::vector<LogEntry> found;
  for (auto it = lines_.upper_bound(query.after_sequence);
       it != lines_.end() && static_cast<int64_t>(found.size()) < limit; ++it) {
    if (matches(it->second)) found.push_back(it->second);
  }
  return found;
}

int64_t LogLines::Tail(const LogQuery& query, int64_t count) const {
  const Matcher matches(query);
  int64_t found = 0;
  for (auto it = lines_.rbegin(); it != lines_.rend() && it->first > query.after_sequence; ++it) {
    if (matches(it->second) && ++found == count) return it->first - 1;
  }
  return query.after_sequence;
}

std::optional<int64_t> LogLines::Trim(int64_t kept) {
  bool went = false;
  while (groups_.size() > 1) {
    const auto end = lines_.upper_bound(groups_.begin()->second);
    const auto going = std::distance(lines_.begin(), end);
    if (size() - going < kept) break;
    lines_.erase(lines_.begin(), end);
    groups_.erase(groups_.begin());
    went = true;
  }
  if (!went) return std::nullopt;
  return groups_.begin()->first;
}

}  // namespace atl
