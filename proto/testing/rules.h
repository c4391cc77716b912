// Rules that every_kind.proto names.

#ifndef ATOLL_PROTO_TESTING_RULES_H_
#define ATOLL_PROTO_TESTING_RULES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "proto/testing/every_kind.pb.h"

namespace atl {

inline bool IsShort(absl::string_view text) { return text.size() < 6; }

inline std::string FaultIn(const v1::EveryKind& m) {
  return m.small() <= m.bounded() ? "" : "small is larger than bounded";
}

}  // namespace atl

#endif  // ATOLL_PROTO_TESTING_RULES_H_
