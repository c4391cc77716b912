#include "worker/core/stage_link_log.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atl::worker {

std::vector<std::string> StageLinkLog::LinesDue(Instant now,
                                                const std::vector<StageLinkState>& seen) {
  std::vector<std::string> lines;
  std::map<std::pair<std::string, std::string>, int> counts;
  std::set<Key> here;
  for (const StageLinkState& link : seen) {
    const Key key{link.from, link.to, counts[{link.from, link.to}]++};
    here.insert(key);
    Logged& logged = logged_[key];
    if (link.reason != logged.reason) {
      logged.changes += link.reason.empty() ? 0 : 1;
      logged.reason = link.reason;
    }
    if (logged.changes == 0 || logged.reason.empty()) continue;
    if (logged.any && now < logged.at + kRepeatAfter) continue;
    std::string often;
    if (logged.changes > 1) {
      const auto passed = std::chrono::duration_cast<std::chrono::seconds>(now - logged.at);
      often = absl::StrCat("changed ", logged.changes, " times in ", passed.count(), " s; now ");
    }
    lines.push_back(absl::StrCat(link.from, " > ", link.to, ": ", often, logged.reason));
    logged.at = now;
    logged.changes = 0;
    logged.any = true;
  }
  std::erase_if(logged_, [&](const auto& entry) {
    const Logged& logged = entry.second;
    return !here.contains(entry.first) && (!logged.any || now >= logged.at + kRepeatAfter);
  });
  return lines;
}

}  // namespace atl::worker
