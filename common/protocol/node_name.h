// Names of daemons.

#ifndef ATOLL_COMMON_PROTOCOL_NODE_NAME_H_
#define ATOLL_COMMON_PROTOCOL_NODE_NAME_H_

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace atl {

inline bool IsNodeLetter(char c) {
  return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
}

// Returns whether it is 1 to 63 letters, digits, '-', '_' and '.', of which '-' and '.' are not the
// first.
inline bool IsNodeName(absl::string_view name) {
  return !name.empty() && name.size() <= 63 && name[0] != '-' && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), IsNodeLetter);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_NODE_NAME_H_
