// Catch2 2.13 cannot skip a case. A test that its machine cannot run (no network namespaces, no
// GPU) calls SkipCase and returns: the case is then counted as skipped, by name, never as passed.

#ifndef ATOLL_TESTS_CATCH_SKIP_H_
#define ATOLL_TESTS_CATCH_SKIP_H_

#include <string_view>

namespace atl::testing {

// Marks the running test case as skipped and prints why.
void SkipCase(std::string_view reason);

}  // namespace atl::testing

#endif  // ATOLL_TESTS_CATCH_SKIP_H_
