#include "common/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace atl {
namespace {

constexpr size_t kLeastBeginning = 3;  // that names a longer word

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string NearestName(absl::string_view word, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = word.size() / 2 + 1;
  for (const std::string& name : names) {
    const bool begins = word.size() >= kLeastBeginning && absl::StartsWith(name, word);
    const size_t distance = begins ? 1 : EditDistance(word, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string Suggestion(absl::string_view word, const std::vector<std::string>& names) {
  const std::string best = NearestName(word, names);
  if (!best.empty()) return absl::StrCat("did you mean ", best, "?");
  return absl::StrCat("there are: ", absl::StrJoin(names, ", "));
}

}  // namespace atl
