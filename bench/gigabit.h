// A machine's loopback device as a link of 1 Gbit/s.

#ifndef ATOLL_BENCH_GIGABIT_H_
#define ATOLL_BENCH_GIGABIT_H_

#include <sched.h>

#include <cstdlib>

namespace atl::bench {

// From now on this process is in a network namespace of its own, whose loopback device passes
// 1 Gbit/s. False: this system does not allow one. REQUIRES: one thread.
inline bool EnterGigabitNetwork() {
  return (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) &&
         std::system(
             "ip link set lo up && "
             "tc qdisc add dev lo root tbf rate 1gbit burst 256kb latency 100ms") == 0;
}

}  // namespace atl::bench

#endif  // ATOLL_BENCH_GIGABIT_H_
