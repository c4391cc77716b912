// Suggestions for a name that does not exist.

#ifndef ATOLL_COMMON_NEAREST_H_
#define ATOLL_COMMON_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace atl {

// The nearest of `names`, the first of several; empty when none is near enough to be meant.
std::string NearestName(absl::string_view word, const std::vector<std::string>& names);

// "did you mean momentum?": the nearest of them, or where none is near all: "there are: a, b".
std::string Suggestion(absl::string_view word, const std::vector<std::string>& names);

}  // namespace atl

#endif  // ATOLL_COMMON_NEAREST_H_
