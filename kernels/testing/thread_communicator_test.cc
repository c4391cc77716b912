#include "kernels/thread_communicator.h"

#include <catch2/catch.hpp>

#include "kernels/testing/communicator_cases.h"
#include "kernels/testing/reference/reference.h"

namespace atl::testing {
namespace {

TEST_CASE("threads of one process keep the contract of communicators") {
  for (const CommunicatorCase& communicator_case : CommunicatorCases()) {
    DYNAMIC_SECTION(communicator_case.name) { communicator_case.run(NewThreadCommunicators); }
  }
}

TEST_CASE("a deadline names who was not there") {
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  float x = 1;
  auto members = NewThreadCommunicators(3, std::chrono::milliseconds(5));
  REQUIRE(members[1]->AllReduceSum(*backend, *stream, {&x, DType::kFloat32, 1, 1}).message() ==
          "rank 1 of 3 waited 0.005 s in a collective; not there: rank 0, 2");
}

}  // namespace
}  // namespace atl::testing
