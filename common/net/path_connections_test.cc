#include "common/net/path_connections.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

constexpr int64_t kWindow = int64_t{2} << 20;

Instant At(double seconds) { return Instant() + FromSeconds(seconds); }

// Ten seconds of transfers over a link of so many bytes a second, each connection limited to a
// window a round trip.
int SimulateTransfers(PathConnections& path, double link_bytes_per_s, double round_trip_s) {
  path.RoundTrip(FromSeconds(round_trip_s));
  for (int i = 0; i < 1000; ++i) {
    const double rate = std::min(link_bytes_per_s, path.wanted() * kWindow / round_trip_s);
    path.Moved(static_cast<int64_t>(rate * 0.01), At(0.01 * i));
  }
  return path.wanted();
}

TEST_CASE("a_link_within_one_window_has_one_connection") {
  PathConnections local(kWindow, 16), slow(kWindow, 16);
  REQUIRE(SimulateTransfers(local, 4e9, 2e-4) == 1);
  REQUIRE(SimulateTransfers(slow, 12.5e6, 0.1) == 1);
}

TEST_CASE("a_fast_link_with_latency_has_connections_to_fill_it_with_some_to_spare") {
  PathConnections path(kWindow, 16);
  const int connections = SimulateTransfers(path, 125e6, 0.1);
  REQUIRE(connections * kWindow >= 125e6 * 0.1 * 1.25);
  REQUIRE(connections <= 9);
}

TEST_CASE("the_number_of_connections_is_bounded_and_does_not_fall") {
  PathConnections path(kWindow, 16);
  REQUIRE(SimulateTransfers(path, 1.25e9, 0.1) == 16);
  path.Idle();
  REQUIRE(SimulateTransfers(path, 1e6, 0.1) == 16);
}

TEST_CASE("without_a_round_trip_and_after_a_pause_nothing_is_concluded") {
  PathConnections unknown(kWindow, 16);
  for (int i = 0; i < 1000; ++i) unknown.Moved(int64_t{1} << 30, At(i));
  REQUIRE(unknown.wanted() == 1);
  PathConnections path(kWindow, 16);
  path.RoundTrip(FromSeconds(0.1));
  for (int i = 0; i < 100; ++i) {
    path.Moved(int64_t{64} << 20, At(i));
    path.Idle();
  }
  REQUIRE(path.wanted() == 1);
}

}  // namespace
}  // namespace atl
