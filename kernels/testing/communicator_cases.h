// The contract of kernels/communicator.h, as cases that every implementation runs.

#ifndef ATOLL_KERNELS_TESTING_COMMUNICATOR_CASES_H_
#define ATOLL_KERNELS_TESTING_COMMUNICATOR_CASES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/time.h"
#include "kernels/communicator.h"

namespace atl::testing {

using Members = std::vector<std::unique_ptr<Communicator>>;

// A group in this process, by rank, whose calls wait for at most `timeout`.
using MakeMembers = std::function<Members(int size, Duration timeout)>;

struct CommunicatorCase {
  std::string name;
  std::function<void(const MakeMembers&)> run;  // fails by Catch2's REQUIRE
};

// Limits of an implementation.
struct CommunicatorLimits {
  int members = 5;                                    // the most of a group, 2 or more
  Duration shortest = std::chrono::milliseconds(60);  // a wait without a result
};

std::vector<CommunicatorCase> CommunicatorCases(const CommunicatorLimits& limits = {});

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_COMMUNICATOR_CASES_H_
