// What kernels/communicator.h promises, as cases that every implementation runs.

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

std::vector<CommunicatorCase> CommunicatorCases();

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_COMMUNICATOR_CASES_H_
