// Devices that jobs of one owner, or of several, are to have. Who submits a job owns it: the name
// in the certificate that it was submitted with. Beyond a quota jobs have what is idle, until
// jobs that are within theirs need it; see divide.h. Pure.

#ifndef ATOLL_COORDINATOR_CORE_SHARING_QUOTAS_H_
#define ATOLL_COORDINATOR_CORE_SHARING_QUOTAS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atl {

struct DeviceQuota {
  std::string owners;   // a name, or how names begin: "vision-*", "*"
  int64_t devices = 0;  // of all their jobs together

  template <class V>
  void VisitFields(V& v) {
    v(owners, devices);
  }
};

inline constexpr size_t kQuotasMax = 1024;

// Parses each of "alice=8", "vision-*=16". The error names the one that is wrong.
absl::StatusOr<std::vector<DeviceQuota>> ParseQuotas(const std::vector<std::string>& texts);

// Returns the index of the owner's quota: its name's, or that of the longest beginning of it.
// Nothing: it has none, and may have all devices.
std::optional<size_t> FindQuota(const std::vector<DeviceQuota>& quotas, absl::string_view owner);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_SHARING_QUOTAS_H_
