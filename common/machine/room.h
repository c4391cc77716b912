// Checks that this process may take the memory that it needs, before it begins: libraries end a
// process that cannot make a thread.

#ifndef ATOLL_COMMON_MACHINE_ROOM_H_
#define ATOLL_COMMON_MACHINE_ROOM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace atl {

// For a daemon's threads and libraries, besides what it is to hold.
inline constexpr int64_t kDaemonBytes = int64_t{64} << 20;  // idle, it has 35 MiB

// RESOURCE_EXHAUSTED, which names the limit, what is left of it and what is needed: a daemon that
// holds `bytes` does not fit into what a control group or a limit of the address space leaves. Of
// the address space threads take much more than they use. `root` is "" but in tests.
absl::Status CheckRoom(int64_t bytes, const std::string& root = "");

// The same of a daemon that runs, before it takes on something new of so many bytes: what it has
// taken already counts.
absl::Status CheckRoomLeft(int64_t bytes, const std::string& root = "");

}  // namespace atl

#endif  // ATOLL_COMMON_MACHINE_ROOM_H_
