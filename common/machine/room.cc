#include "common/machine/room.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/machine/limits.h"

namespace atl {
namespace {

// Stacks, and what the allocator reserves for threads: mostly never touched.
constexpr int64_t kAddressBytes = int64_t{768} << 20;

absl::Status Refusal(const std::string& by, int64_t left, int64_t needed) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no room to start: ", by, " leaves this process ", BytesText(left), ", and it needs ",
      BytesText(needed), "; raise that limit, or lower --memory-bytes"));
}

// Reads the bytes of addresses that this process has taken.
int64_t ReadAddressesTaken() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

absl::Status CheckRoom(int64_t bytes, const std::string& root) {
  const MachineLimits limits = ReadMachineLimits(root);
  if (!limits.memory_by.empty() && limits.memory_bytes < bytes + kDaemonBytes) {
    return Refusal(limits.memory_by, limits.memory_bytes, bytes + kDaemonBytes);
  }
  rlimit space;
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  const int64_t left = static_cast<int64_t>(space.rlim_cur) - ReadAddressesTaken();
  if (left >= bytes + kAddressBytes) return absl::OkStatus();
  return Refusal("the limit of its address space (ulimit -v)", left, bytes + kAddressBytes);
}

}  // namespace atl
