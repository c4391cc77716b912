// JSON from untrusted files.

#ifndef ATOLL_COMMON_MODEL_JSON_H_
#define ATOLL_COMMON_MODEL_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>

#include "common/status.h"

namespace atl {

// An object, of nesting at most `max_depth`, in which no key of the outermost object is given
// twice. Never throws; messages start with `file`.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view file,
                                               int max_depth);

// A whole number in [min, max] that fits the type exactly (not 3.0, not "3").
absl::StatusOr<int64_t> JsonInteger(const nlohmann::json& value, int64_t min, int64_t max);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_JSON_H_
