// Limits of time in tests. A machine that runs tests may be many times slower than usual, so a
// limit ends what hangs and decides nothing else.

#ifndef ATOLL_TESTS_CATCH_LIMITS_H_
#define ATOLL_TESTS_CATCH_LIMITS_H_

#include <chrono>

namespace atl::testing {

// Bounds a wait for what comes unless something hangs.
inline constexpr std::chrono::seconds kHangLimit(120);

// Bounds a wait for what comes on no machine.
inline constexpr std::chrono::milliseconds kNothingComes(500);

// Returns attempt(limit) of the first limit at which expected(result) holds: `first`, twice that,
// and so on; the result of the last attempt, which has a limit of a minute or more, if it holds at
// none. For what ends at a limit on purpose: where the machine is slow, a short limit comes before
// what should come first.
template <class Attempt, class Expected>
auto WithGrowingLimit(std::chrono::nanoseconds first, const Attempt& attempt,
                      const Expected& expected) {
  for (std::chrono::nanoseconds limit = first;; limit *= 2) {
    auto result = attempt(limit);
    if (expected(result) || limit >= std::chrono::minutes(1)) return result;
  }
}

}  // namespace atl::testing

#endif  // ATOLL_TESTS_CATCH_LIMITS_H_
