#include "coordinator/core/islands/changes.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace atl::coord {

void Changes::Add(const std::string& subject, double size, const std::string& reason) {
  changes_[subject] = {size, reason};
  if (changes_.size() <= kKept) return;
  changes_.erase(
      std::min_element(changes_.begin(), changes_.end(),
                       [](const auto& a, const auto& b) { return a.second.size < b.second.size; }));
  ++dropped_;
}

void Changes::Forget(const Changes& considered) {
  std::erase_if(changes_, [&](const auto& change) {
    const auto known = considered.changes_.find(change.first);
    return known != considered.changes_.end() && known->second == change.second;
  });
  dropped_ = changes_.empty() ? 0 : std::max<int64_t>(0, dropped_ - considered.dropped_);
}

bool Changes::unusable() const {
  return std::any_of(changes_.begin(), changes_.end(),
                     [](const auto& change) { return change.second.size >= kUnusable; });
}

std::string Changes::Text() const {
  std::vector<const Change*> largest;
  for (const auto& [subject, change] : changes_) largest.push_back(&change);
  std::stable_sort(largest.begin(), largest.end(),
                   [](const Change* a, const Change* b) { return a->size > b->size; });
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, largest.size()); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", largest[i]->reason);
  }
  const int64_t more = static_cast<int64_t>(largest.size()) - static_cast<int64_t>(kNamed);
  if (more + dropped_ > 0) absl::StrAppend(&text, "; and ", more + dropped_, " more");
  return text;
}

}  // namespace atl::coord
