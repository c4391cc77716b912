// How a job's fields are refused: by name, with the value and the rule. Included by the sources
// that validate a JobSpec, and by no other.

#ifndef ATOLL_COMMON_PROTOCOL_JOB_SPEC_IMPL_H_
#define ATOLL_COMMON_PROTOCOL_JOB_SPEC_IMPL_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/protocol/job_spec.h"

namespace atl {

inline constexpr int64_t kMany = int64_t{1} << 40;

inline absl::Status Bad(absl::string_view field, const absl::AlphaNum& value,
                        absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", rule));
}

// [low, high)
inline absl::Status InRange(absl::string_view field, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value < high) return absl::OkStatus();
  if (high == std::numeric_limits<double>::infinity()) {
    return Bad(field, value, absl::StrCat("at least ", low));
  }
  return Bad(field, value, absl::StrCat("at least ", low, " and below ", high));
}

inline absl::Status IntInRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Bad(field, value, absl::StrCat("between ", low, " and ", high));
}

inline absl::Status Required(absl::string_view field, const std::string& value) {
  if (!value.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is missing: the job needs it"));
}

// Refuses a layout that no plan can have, whatever devices there are.
absl::Status ValidateLayout(const JobSpec& spec);

absl::Status ValidateAdapter(const AdapterSpec& a, const ModelSpec& model);
absl::Status ValidateObjective(const JobSpec& spec);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_JOB_SPEC_IMPL_H_
