// Reads how much of its machine this process may take: the machine's own, or less by a control
// group (version 1 or 2), the threads' affinity or a limit of the address space. Everything that
// sizes itself by the machine uses these.

#ifndef ATOLL_COMMON_MACHINE_LIMITS_H_
#define ATOLL_COMMON_MACHINE_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace atl {

struct MachineLimits {
  int64_t memory_bytes = 0;
  std::string memory_by;  // "" or what limits it: "control group /a/b (memory.max)"
  int cpus = 1;           // threads that run at the same time
  std::string cpus_by;    // "" or what limits them: "affinity", "control group /a (cpu.max)"
};

// Reads ROOT/proc and the control groups that it names. `root` is "" but in tests. What cannot be
// read limits nothing.
MachineLimits ReadMachineLimits(const std::string& root = "");

// Returns how many bytes a program may still take: memory_bytes, less what this process has already
// where something limits it.
int64_t ReadFreeMemory(const std::string& root = "");

// min(cpus, most).
int CoresUpTo(int most);

// How often the kernel ended a process of this one's control group for want of memory.
struct MemoryKills {
  std::string group;  // its folder
  int64_t count = 0;

  bool operator==(const MemoryKills&) const = default;
};
// nullopt: there is no group, or it does not say.
std::optional<MemoryKills> ReadMemoryKills(const std::string& root = "");

// "" or that processes of the group were ended since `before`, which an earlier run stored.
std::string DescribeMemoryKills(const std::optional<MemoryKills>& before, const MemoryKills& now,
                                const MachineLimits& limits);

}  // namespace atl

#endif  // ATOLL_COMMON_MACHINE_LIMITS_H_
