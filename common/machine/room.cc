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

// The limit of this process's addresses; 0: there is none.
int64_t ReadAddressLimit() {
  rlimit space;
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return 0;
  return static_cast<int64_t>(space.rlim_cur);
}

}  // namespace

absl::Status CheckRoom(int64_t bytes, const std::string& root) {
  constexpr char kStart[] = "to start (what --memory-bytes says is a part of it)";
  const MachineLimits limits = ReadMachineLimits(root);
  if (!limits.memory_by.empty() && limits.memory_bytes < bytes + kDaemonBytes) {
    return Refusal(kStart, limits.memory_by, limits.memory_bytes, bytes + kDaemonBytes);
  }
  const int64_t left = ReadAddressLimit() - ReadTaken("").addresses;
  if (ReadAddressLimit() == 0 || left >= bytes + kAddressBytes) return absl::OkStatus();
  return Refusal(kStart, kAddresses, left, bytes + kAddressBytes);
}

absl::Status CheckRoomLeft(int64_t bytes, const std::string& root) {
  constexpr char kMore[] = "for more";
  const MachineLimits limits = ReadMachineLimits(root);
  const Taken taken = ReadTaken(root);
  if (!limits.memory_by.empty() && limits.memory_bytes - taken.memory < bytes) {
    return Refusal(kMore, limits.memory_by, limits.memory_bytes - taken.memory, bytes);
  }
  const int64_t left = ReadAddressLimit() - taken.addresses;
  if (ReadAddressLimit() == 0 || left >= bytes) return absl::OkStatus();
  return Refusal(kMore, kAddresses, left, bytes);
}

}  // namespace atl
