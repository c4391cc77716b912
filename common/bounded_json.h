// JSON from outside: nested no deeper than said, so that what walks over it has a stack for it (the
// library copies and prints by recursion), and memory in proportion to the text.

#ifndef ATOLL_COMMON_BOUNDED_JSON_H_
#define ATOLL_COMMON_BOUNDED_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

namespace atl {

// Returns what the text says; discarded (is_discarded()): it is no JSON, or nested deeper. Never
// throws. `Json` is the library's type, ordered or not.
template <class Json>
Json ParseBoundedJson(absl::string_view text, int max_depth) {
  bool too_deep = false;
  const auto watch = [&](int depth, typename Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > max_depth;
    return depth <= max_depth;
  };
  Json parsed = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : parsed;
}

}  // namespace atl

#endif  // ATOLL_COMMON_BOUNDED_JSON_H_
