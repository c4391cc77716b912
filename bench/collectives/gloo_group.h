// All-reduces by Gloo's ring over TCP on loopback, the peer that the peer link is compared with.

#ifndef ATOLL_BENCH_COLLECTIVES_GLOO_GROUP_H_
#define ATOLL_BENCH_COLLECTIVES_GLOO_GROUP_H_

#include <memory>
#include <vector>

#include "common/time.h"

namespace gloo {
class Context;
}

namespace atl::bench {

// A group whose members are threads of this process, each with a device and connections of its own.
class GlooGroup {
 public:
  // Connects all members to each other. A wait longer than `timeout` ends the process.
  GlooGroup(int size, Duration timeout);

  // Every member makes `calls` all-reduces of its numbers, all of one size, on a thread of its own.
  void AllReduceAll(std::vector<std::vector<float>>& numbers, int calls);

 private:
  std::vector<std::shared_ptr<::gloo::Context>> members_;
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_COLLECTIVES_GLOO_GROUP_H_
