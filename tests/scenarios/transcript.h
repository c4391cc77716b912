// Runs a transcript: lines "> command" (see coordinator/core/testing/world.h) followed by what the
// coordinator did. Lines with # and empty ones are kept as they are.

#ifndef ATOLL_TESTS_SCENARIOS_TRANSCRIPT_H_
#define ATOLL_TESTS_SCENARIOS_TRANSCRIPT_H_

#include <string>

namespace atl::testing {

// The transcript with what really follows each command.
std::string Replay(const std::string& transcript);

// The whole file. CHECKs that it can be read.
std::string ReadText(const std::string& path);

}  // namespace atl::testing

#endif  // ATOLL_TESTS_SCENARIOS_TRANSCRIPT_H_
