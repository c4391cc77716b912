// Runs messages with extreme values against a whole core, with what surrounds it in tests. After
// each the core starts again from what it has stored; a failed check ends the program.

#ifndef ATOLL_TESTS_FUZZ_CORES_CORES_H_
#define ATOLL_TESTS_FUZZ_CORES_CORES_H_

#include <cstdint>

namespace atl::fuzz {

struct Tried {
  int64_t messages = 0;
  int64_t taken = 0;  // that the conversion did not refuse
};

Tried TryCoordinator(uint64_t seed, int64_t messages);
Tried TryParameterServer(uint64_t seed, int64_t messages);
Tried TryWorker(uint64_t seed, int64_t messages);

}  // namespace atl::fuzz

#endif  // ATOLL_TESTS_FUZZ_CORES_CORES_H_
