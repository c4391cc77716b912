#include "worker/core/boundary_news.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atl::worker {

std::vector<std::string> BoundaryNews::Tell(Instant now, const std::vector<BoundaryState>& seen) {
  std::vector<std::string> lines;
  std::map<std::pair<std::string, std::string>, int> counts;
  std::set<Key> here;
  for (const BoundaryState& boundary : seen) {
    const Key key{boundary.from, boundary.to, counts[{boundary.from, boundary.to}]++};
    here.insert(key);
    Told& told = told_[key];
    if (boundary.reason != told.reason) {
      told.changes += boundary.reason.empty() ? 0 : 1;
      told.reason = boundary.reason;
    }
    if (told.changes == 0 || told.reason.empty()) continue;
    if (told.any && now < told.at + kRepeatAfter) continue;
    std::string often;
    if (told.changes > 1) {
      const auto passed = std::chrono::duration_cast<std::chrono::seconds>(now - told.at);
      often = absl::StrCat("changed ", told.changes, " times in ", passed.count(), " s; now ");
    }
    lines.push_back(absl::StrCat(boundary.from, " > ", boundary.to, ": ", often, told.reason));
    told.at = now;
    told.changes = 0;
    told.any = true;
  }
  std::erase_if(told_, [&](const auto& entry) {
    const Told& told = entry.second;
    return !here.contains(entry.first) && (!told.any || now >= told.at + kRepeatAfter);
  });
  return lines;
}

}  // namespace atl::worker
