// Numbers of things in messages.

#ifndef ATOLL_COMMON_PLURAL_H_
#define ATOLL_COMMON_PLURAL_H_

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace atl {

// "1 file", "2 files", "0 classes".
inline std::string CountText(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : absl::EndsWith(noun, "s") ? "es" : "s");
}

}  // namespace atl

#endif  // ATOLL_COMMON_PLURAL_H_
