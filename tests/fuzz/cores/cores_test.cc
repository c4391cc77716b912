// `./dev fuzz cores` tries twenty times as many.

#include "tests/fuzz/cores/cores.h"

#include <catch2/catch.hpp>

namespace atl::fuzz {
namespace {

constexpr int64_t kMessages = 5000;

void CheckMostWereTaken(const Tried& tried) {
  CHECK(tried.messages == kMessages);
  CHECK(tried.taken > kMessages / 5);  // what is refused shows nothing of the core
}

TEST_CASE("no_message_to_the_coordinator_ends_it_or_leaves_a_store_that_it_cannot_read") {
  CheckMostWereTaken(TryCoordinator(1, kMessages));
}

TEST_CASE("no_message_to_a_parameter_server_ends_it_or_leaves_a_log_that_it_cannot_read") {
  CheckMostWereTaken(TryParameterServer(1, kMessages));
}

TEST_CASE("no_message_to_a_worker_ends_it_or_makes_it_say_what_the_coordinator_refuses") {
  CheckMostWereTaken(TryWorker(1, kMessages));
}

}  // namespace
}  // namespace atl::fuzz
