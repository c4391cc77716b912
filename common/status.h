// Short forms for handing absl::Status on.

#ifndef ATOLL_COMMON_STATUS_H_
#define ATOLL_COMMON_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace atl {

// The same error with `where` before its message: "job.toml: field ...". OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view where) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

}  // namespace atl

#define ATOLL_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                     \
    if (absl::Status atoll_status = (expression); !atoll_status.ok()) return atoll_status; \
  } while (false)

#define ATOLL_STATUS_CONCAT_INNER(a, b) a##b
#define ATOLL_STATUS_CONCAT(a, b) ATOLL_STATUS_CONCAT_INNER(a, b)

// ATOLL_ASSIGN_OR_RETURN(auto value, ComputeValue());
#define ATOLL_ASSIGN_OR_RETURN(target, expression) \
  ATOLL_ASSIGN_OR_RETURN_INNER(ATOLL_STATUS_CONCAT(atoll_result_, __LINE__), target, expression)
#define ATOLL_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return result.status();                      \
  target = std::move(result).value()

#endif  // ATOLL_COMMON_STATUS_H_
