// Limits as /proc and /sys show them in containers, on machines with either version of control
// groups, and under taskset and ulimit: every case is a folder of such files.

#include "common/machine/limits.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace atl {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

constexpr char kV2Mount[] =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

// A machine of 16 GiB with 8 CPUs.
class Machine {
 public:
  Machine() {
    std::string name = (fs::temp_directory_path() / "atoll_limits_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root = name;
    Write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\n");
    Write("/sys/devices/system/cpu/online", "0-7\n");
    Write("/proc/self/status", "VmRSS:\t  51200 kB\nCpus_allowed_list:\t0-7\n");
    Write("/proc/self/limits",
          "Limit                     Soft Limit           Hard Limit           Units\n"
          "Max address space         unlimited            unlimited            bytes\n");
  }
  ~Machine() { fs::remove_all(root); }

  Machine& Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root + path).parent_path());
    std::ofstream(root + path) << text;
    return *this;
  }
  Machine& V2(const std::string& group) {
    return Write("/proc/self/cgroup", "0::" + group + "\n").Write("/proc/self/mountinfo", kV2Mount);
  }
  MachineLimits limits() const { return ReadMachineLimits(root); }

  std::string root;
};

TEST_CASE("machine_without_limits_gives_all_that_it_has") {
  Machine machine;
  CHECK(machine.limits().memory_bytes == int64_t{16} << 30);
  CHECK(machine.limits().memory_by.empty());
  CHECK(machine.limits().cpus == 8);
  CHECK(machine.limits().cpus_by.empty());
  machine.V2("/").Write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  CHECK(machine.limits().memory_bytes == int64_t{16} << 30);
  CHECK(ReadFreeMemory(machine.root) == int64_t{16} << 30);
}

TEST_CASE("smallest_memory_max_of_a_group_and_those_above_it_holds") {
  Machine machine;
  machine.V2("/pod/one")
      .Write("/sys/fs/cgroup/pod/one/memory.max", "max\n")
      .Write("/sys/fs/cgroup/pod/memory.max", "1073741824\n")
      .Write("/sys/fs/cgroup/memory.max", "2147483648\n");
  CHECK(machine.limits().memory_bytes == int64_t{1} << 30);
  CHECK_THAT(machine.limits().memory_by, Contains("/sys/fs/cgroup/pod (memory.max)"));
  CHECK(ReadFreeMemory(machine.root) == (int64_t{1} << 30) - (int64_t{51200} << 10));
}

TEST_CASE("group_of_a_container_that_is_mounted_itself_is_found") {
  Machine machine;
  machine.Write("/proc/self/cgroup", "0::/\n").Write("/proc/self/mountinfo", kV2Mount);
  machine.Write("/sys/fs/cgroup/memory.max", "536870912\n")
      .Write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  CHECK(machine.limits().memory_bytes == int64_t{512} << 20);
  CHECK(machine.limits().cpus == 1);
  // Version 1 without a name space: the group's path is the machine's, its mount the container's.
  machine.Write("/proc/self/cgroup", "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
      .Write("/proc/self/mountinfo",
             "31 30 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
             "32 30 0:28 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n")
      .Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n")
      .Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n")
      .Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(machine.limits().memory_bytes == int64_t{256} << 20);
  CHECK_THAT(machine.limits().memory_by, Contains("memory.limit_in_bytes"));
  CHECK(machine.limits().cpus == 3);
}

TEST_CASE("version_1_limits_of_groups_above_hold_too") {
  Machine machine;
  machine.Write("/proc/self/cgroup", "5:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/\n")
      .Write("/proc/self/mountinfo",
             "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
             "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n")
      .Write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n")
      .Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n")
      .Write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n")
      .Write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n")
      .Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n")
      .Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  CHECK(machine.limits().memory_bytes == int64_t{1} << 30);
  CHECK(machine.limits().cpus == 2);
}

TEST_CASE("affinity_cpusets_and_quotas_limit_cpus") {
  Machine machine;
  machine.Write("/proc/self/status", "Cpus_allowed_list:\t0-1,4\n");
  CHECK(machine.limits().cpus == 3);
  CHECK_THAT(machine.limits().cpus_by, Contains("affinity"));
  machine.V2("/g").Write("/sys/fs/cgroup/g/cpu.max", "max 100000\n");
  CHECK(machine.limits().cpus == 3);
  machine.Write("/sys/fs/cgroup/g/cpu.max", "250000 100000\n");
  CHECK(machine.limits().cpus == 2);
  CHECK_THAT(machine.limits().cpus_by, Contains("/sys/fs/cgroup/g (cpu.max)"));
  machine.Write("/sys/fs/cgroup/g/cpu.max", "50000 100000\n");
  CHECK(machine.limits().cpus == 1);
}

TEST_CASE("limit_of_the_address_space_is_one_of_memory") {
  Machine machine;
  machine.Write("/proc/self/limits",
                "Max address space         2147483648           unlimited            bytes\n");
  CHECK(machine.limits().memory_bytes == int64_t{2} << 30);
  CHECK_THAT(machine.limits().memory_by, Contains("ulimit -v"));
}

TEST_CASE("files_that_say_nothing_or_nonsense_limit_nothing") {
  Machine machine;
  machine.V2("/g")
      .Write("/sys/fs/cgroup/g/memory.max", "a lot\n")
      .Write("/sys/fs/cgroup/g/cpu.max", "0 0\n")
      .Write("/proc/self/status", "Cpus_allowed_list:\t9-\n");
  CHECK(machine.limits().memory_bytes == int64_t{16} << 30);
  CHECK(machine.limits().cpus == 8);
  machine.Write("/proc/self/mountinfo", "x - y\n\n1 2\n");
  CHECK(machine.limits().cpus == 8);
}

TEST_CASE("processes_that_were_ended_for_memory_since_the_last_start_are_reported") {
  Machine machine;
  CHECK_FALSE(ReadMemoryKills(machine.root).has_value());
  machine.V2("/g").Write("/sys/fs/cgroup/g/memory.max", "125829120\n");
  machine.Write("/sys/fs/cgroup/g/memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n");
  const auto first = ReadMemoryKills(machine.root);
  REQUIRE(first == MemoryKills{"/sys/fs/cgroup/g", 1});
  CHECK(DescribeMemoryKills(std::nullopt, *first, machine.limits()).empty());
  CHECK(DescribeMemoryKills(first, *first, machine.limits()).empty());
  machine.Write("/sys/fs/cgroup/g/memory.events", "oom 4\noom_kill 3\noom_group_kill 0\n");
  const auto now = ReadMemoryKills(machine.root);
  REQUIRE(now.has_value());
  CHECK_THAT(DescribeMemoryKills(first, *now, machine.limits()),
             Contains("ended 2 processes of its control group /sys/fs/cgroup/g"));
  CHECK(DescribeMemoryKills(MemoryKills{"/other", 1}, *now, machine.limits()).empty());
}

TEST_CASE("version_1_counts_processes_ended_for_memory_too") {
  Machine machine;
  machine.Write("/proc/self/cgroup", "5:memory:/a\n")
      .Write("/proc/self/mountinfo",
             "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
      .Write("/sys/fs/cgroup/memory/a/memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  CHECK(ReadMemoryKills(machine.root) == MemoryKills{"/sys/fs/cgroup/memory/a", 7});
}

}  // namespace
}  // namespace atl
