#include "common/machine/room.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/machine/limits.h"

namespace atl {
namespace {

// Stacks, and what the allocator reserves for threads: mostly never touched.
constexpr int64_t kAddressBytes = int64_t{768} << 20;

constexpr char kAddresses[] = "the limit of its address space (ulimit -v)";

absl::Status Refusal(absl::string_view for_what, const std::string& by, int64_t left,
                     int64_t needed) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no room ", for_what, ": ", by, " leaves this process ",
                   BytesText(std::max<int64_t>(0, left)), ", and it needs ", BytesText(needed),
                   "; raise that limit"));
}

// Taken is what this process has taken, in bytes.
struct Taken {
  int64_t addresses = 0, memory = 0;
};

Taken ReadTaken(const std::string& root) {
  Taken pages;
  std::ifstream(root + "/proc/self/statm") >> pages.addresses >> pages.memory;
  return {pages.addresses * sysconf(_SC_PAGESIZE), pages.memory * sysconf(_SC_PAGESIZE)};
}

// Looks at what the group leaves, and at the limit of addresses.
absl::Status Check(absl::string_view for_what, const MachineLimits& limits, int64_t memory_left,
                   int64_t bytes, int64_t address_bytes) {
  if (!limits.memory_by.empty() && memory_left < bytes) {
    return Refusal(for_what, limits.memory_by, memory_left, bytes);
  }
  rlimit space;
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  const int64_t left = static_cast<int64_t>(space.rlim_cur) - ReadTaken("").addresses;
  return left >= address_bytes ? absl::OkStatus()
                               : Refusal(for_what, kAddresses, left, address_bytes);
}

}  // namespace

absl::Status CheckRoom(int64_t bytes, const std::string& root) {
  const MachineLimits limits = ReadMachineLimits(root);
  return Check("to start (--memory-bytes is a part of it)", limits, limits.memory_bytes,
               bytes + kDaemonBytes, bytes + kAddressBytes);
}

absl::Status CheckRoomLeft(int64_t bytes, const std::string& root) {
  const MachineLimits limits = ReadMachineLimits(root);
  return Check("for more", limits, limits.memory_bytes - ReadTaken(root).memory, bytes, bytes);
}

}  // namespace atl
