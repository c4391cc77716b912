// Decides whether NCCL joins the GPUs of two members of an island: workers and plans decide alike.

#ifndef ATOLL_COMMON_PROTOCOL_NCCL_JOINS_H_
#define ATOLL_COMMON_PROTOCOL_NCCL_JOINS_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "common/protocol/island_plan.h"

namespace atl {

// Returns why it does not, human-readable; empty: it does. Members have one version of it, and are
// one worker or of one known site.
inline std::string NcclLacks(const IslandMember& a, const IslandMember& b) {
  if (a.nccl.empty() || b.nccl.empty()) {
    return absl::StrCat((a.nccl.empty() ? a : b).worker, " has no GPUs that NCCL joins");
  }
  if (a.nccl != b.nccl) return absl::StrCat("NCCL ", a.nccl, " and ", b.nccl);
  if (a.worker == b.worker) return "";
  if (a.site.empty() || b.site.empty()) {
    return absl::StrCat("the site of ", (a.site.empty() ? a : b).worker, " is not known");
  }
  return a.site == b.site ? "" : absl::StrCat("the sites ", a.site, " and ", b.site);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_NCCL_JOINS_H_
