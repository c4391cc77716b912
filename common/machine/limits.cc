#include "common/machine/limits.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes_text.h"

namespace atl {
namespace {

// Control groups of both versions have numbers beyond any machine's where there is no limit.
constexpr int64_t kNoLimit = int64_t{1} << 60;
constexpr int kMostGroups = 64;  // one above the other

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string ReadFirstLine(const std::string& path) {
  const std::vector<std::string> lines = ReadLines(path);
  return lines.empty() ? "" : lines[0];
}

// The number behind "NAME:" or "NAME " in a file of such lines.
std::optional<int64_t> ReadNumber(const std::string& path, absl::string_view name) {
  for (const std::string& line : ReadLines(path)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, name)) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(rest, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    int64_t number = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &number)) return number;
  }
  return std::nullopt;
}

// A limit's file: a number, "max" or -1.
std::optional<int64_t> ReadLimit(const std::string& path) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(ReadFirstLine(path), &number)) return std::nullopt;
  return number < static_cast<uint64_t>(kNoLimit) ? std::optional(static_cast<int64_t>(number))
                                                  : std::nullopt;
}

// A control group's folder and those above it, up to where its hierarchy is mounted.
struct GroupPath {
  bool v2 = false;
  std::vector<std::string> folders;  // the group's own first
};

// The group of `controller` (of version 1; "" is version 2), as /proc has it.
std::optional<GroupPath> FindGroup(const std::string& root, absl::string_view controller) {
  std::string path;
  for (const std::string& line : ReadLines(root + "/proc/self/cgroup")) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      path = parts[2];
    }
  }
  if (path.empty()) return std::nullopt;
  for (const std::string& line : ReadLines(root + "/proc/self/mountinfo")) {
    // 36 35 98:0 ROOT MOUNT OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<absl::string_view> left = absl::StrSplit(halves.first, ' ');
    const std::vector<absl::string_view> right = absl::StrSplit(halves.second, ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const std::vector<absl::string_view> options = absl::StrSplit(right[2], ',');
    const bool is_it = controller.empty()
                           ? right[0] == "cgroup2"
                           : right[0] == "cgroup" && std::find(options.begin(), options.end(),
                                                               controller) != options.end();
    if (!is_it) continue;
    // In a container the group itself may be what is mounted.
    absl::string_view below = path;
    if (left[3] != "/") {
      const absl::string_view rest = absl::StripPrefix(below, left[3]);
      if (rest.empty() || rest[0] == '/') below = rest;
    }
    GroupPath group{controller.empty(), {}};
    std::string rest(below == "/" ? "" : below);
    for (int i = 0; i < kMostGroups; ++i) {
      group.folders.push_back(absl::StrCat(root, left[4], rest));
      if (rest.empty()) break;
      const size_t parent = rest.rfind('/');
      rest.resize(parent == std::string::npos ? 0 : parent);
    }
    return group;
  }
  return std::nullopt;
}

// The group's name in messages, without the tests' root.
std::string Named(const std::string& root, const std::string& folder, absl::string_view file) {
  return absl::StrCat("control group ", absl::string_view(folder).substr(root.size()), " (", file,
                      ")");
}

void LimitMemory(std::optional<int64_t> bytes, const std::string& by, MachineLimits* limits) {
  if (!bytes.has_value() || (limits->memory_bytes > 0 && *bytes >= limits->memory_bytes)) return;
  limits->memory_bytes = *bytes;
  limits->memory_by = by;
}

void LimitMemoryByGroups(const std::string& root, MachineLimits* limits) {
  for (const char* controller : {"", "memory"}) {
    const auto group = FindGroup(root, controller);
    if (!group.has_value()) continue;
    const char* const file = group->v2 ? "memory.max" : "memory.limit_in_bytes";
    for (const std::string& folder : group->folders) {
      LimitMemory(ReadLimit(absl::StrCat(folder, "/", file)), Named(root, folder, file), limits);
    }
  }
}

// CPU time a period of it, in whole CPUs: a thread more than that waits in every period.
std::optional<int> ReadQuota(const std::string& folder, bool v2) {
  std::vector<std::string> numbers;
  if (v2) {
    numbers = absl::StrSplit(ReadFirstLine(folder + "/cpu.max"), ' ');
  } else {
    numbers = {ReadFirstLine(folder + "/cpu.cfs_quota_us"),
               ReadFirstLine(folder + "/cpu.cfs_period_us")};
  }
  int64_t quota = 0, period = 0;
  if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &quota) ||
      !absl::SimpleAtoi(numbers[1], &period) || quota <= 0 || period <= 0) {
    return std::nullopt;
  }
  return static_cast<int>(std::clamp<int64_t>(quota / period, 1, 1 << 20));
}

void LimitCpusByGroups(const std::string& root, MachineLimits* limits) {
  for (const char* controller : {"", "cpu"}) {
    const auto group = FindGroup(root, controller);
    if (!group.has_value()) continue;
    for (const std::string& folder : group->folders) {
      const auto cpus = ReadQuota(folder, group->v2);
      if (!cpus.has_value() || *cpus >= limits->cpus) continue;
      limits->cpus = *cpus;
      limits->cpus_by = Named(root, folder, group->v2 ? "cpu.max" : "cpu.cfs_quota_us");
    }
  }
}

// Counts a list's CPUs: 5 for "0-3,8". The kernel's list is what the affinity and the groups'
// cpusets leave.
int CountListed(absl::string_view list) {
  int count = 0;
  for (const absl::string_view part : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(ends[0]), &first)) return 0;
    last = first;
    if (ends.size() > 1 && !absl::SimpleAtoi(absl::StripAsciiWhitespace(ends[1]), &last)) return 0;
    if (last < first || last > 1 << 20) return 0;
    count += last - first + 1;
  }
  return count;
}

int CountAllowed(const std::string& root) {
  for (const std::string& line : ReadLines(root + "/proc/self/status")) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "Cpus_allowed_list:")) return CountListed(rest);
  }
  return 0;
}

int CountOnline(const std::string& root) {
  return CountListed(ReadFirstLine(root + "/sys/devices/system/cpu/online"));
}

// The soft limit, in bytes.
std::optional<int64_t> ReadAddressSpace(const std::string& root) {
  for (const std::string& line : ReadLines(root + "/proc/self/limits")) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "Max address space")) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(rest, ' ', absl::SkipEmpty());
    int64_t bytes = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &bytes)) return bytes;
  }
  return std::nullopt;
}

}  // namespace

MachineLimits ReadMachineLimits(const std::string& root) {
  MachineLimits limits;
  limits.memory_bytes = ReadNumber(root + "/proc/meminfo", "MemTotal").value_or(0) * 1024;
  if (limits.memory_bytes == 0) {
    limits.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  }
  LimitMemoryByGroups(root, &limits);
  LimitMemory(ReadAddressSpace(root), "the limit of its address space (ulimit -v)", &limits);
  const int online = CountOnline(root), allowed = CountAllowed(root);
  limits.cpus = std::max(1, online);
  if (online == 0) limits.cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (allowed > 0 && allowed < limits.cpus) {
    limits.cpus = allowed;
    limits.cpus_by = "affinity or a control group's cpuset";
  }
  LimitCpusByGroups(root, &limits);
  return limits;
}

int64_t ReadFreeMemory(const std::string& root) {
  const MachineLimits limits = ReadMachineLimits(root);
  if (limits.memory_by.empty()) return limits.memory_bytes;
  const int64_t taken = ReadNumber(root + "/proc/self/status", "VmRSS").value_or(0) * 1024;
  return std::max<int64_t>(limits.memory_bytes / 2, limits.memory_bytes - taken);
}

int CoresUpTo(int most) { return std::clamp(ReadMachineLimits().cpus, 1, most); }

std::optional<MemoryKills> ReadMemoryKills(const std::string& root) {
  for (const char* controller : {"", "memory"}) {
    const auto group = FindGroup(root, controller);
    if (!group.has_value()) continue;
    const std::string& folder = group->folders[0];
    const char* const file = group->v2 ? "/memory.events" : "/memory.oom_control";
    const auto count = ReadNumber(folder + file, "oom_kill ");
    if (count.has_value()) return MemoryKills{folder.substr(root.size()), *count};
  }
  return std::nullopt;
}

std::string DescribeMemoryKills(const std::optional<MemoryKills>& before, const MemoryKills& now,
                                const MachineLimits& limits) {
  if (!before.has_value() || before->group != now.group || now.count <= before->count) return "";
  return absl::StrCat("since its last start the kernel ended ", now.count - before->count,
                      now.count - before->count == 1 ? " process" : " processes",
                      " of its control group ", now.group,
                      " for want of memory (out of memory; the limit is ",
                      BytesText(limits.memory_bytes),
                      "): give the group more, or give the worker a smaller --memory-bytes");
}

}  // namespace atl
