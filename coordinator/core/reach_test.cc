#include "coordinator/core/reach.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

TEST_CASE("a_server_beside_all_islands_costs_one") {
  CHECK(ReachOf("paris", {"paris", "paris"}, {}).cost == 1);
}

TEST_CASE("what_is_not_known_counts_as_near") {
  CHECK(ReachOf("", {"paris"}, {}).cost == 1);
  CHECK(ReachOf("paris", {"", ""}, {}).cost == 1);
}

TEST_CASE("a_remote_site_without_measurement_costs_twice_as_much") {
  CHECK(ReachOf("oslo", {"paris"}, {}).cost == 2);
  CHECK(ReachOf("oslo", {"paris", "oslo"}, {}).cost == 1.5);
}

TEST_CASE("a_measured_link_costs_what_it_takes_longer_than_the_links_inside") {
  const SiteRates rates = {{{"paris", "paris"}, 1e8}, {{"paris", "oslo"}, 1e7}};
  CHECK(ReachOf("oslo", {"paris"}, rates).cost == Approx(10));
  CHECK(ReachOf("oslo", {"paris", "oslo"}, rates).cost == Approx(5.5));
}

TEST_CASE("a_site_without_links_inside_is_compared_with_its_fastest_link") {
  const SiteRates rates = {{{"paris", "rome"}, 1e8}, {{"oslo", "paris"}, 1e7}};
  CHECK(ReachOf("oslo", {"paris"}, rates).cost == Approx(10));
  CHECK(ReachOf("rome", {"paris"}, rates).cost == Approx(1));
}

TEST_CASE("the_cost_of_a_very_slow_link_is_bounded") {
  const SiteRates rates = {{{"paris", "paris"}, 1e9}, {{"paris", "oslo"}, 1}};
  CHECK(ReachOf("oslo", {"paris"}, rates).cost == kReachMost);
}

}  // namespace
}  // namespace atl
