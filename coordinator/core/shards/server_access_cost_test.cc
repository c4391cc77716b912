#include "coordinator/core/shards/server_access_cost.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace atl {
namespace {

std::vector<IslandLink> At(const std::vector<std::string>& sites) {
  std::vector<IslandLink> links;
  for (const std::string& site : sites) links.push_back({site});
  return links;
}

TEST_CASE("a_server_beside_all_islands_costs_one") {
  CHECK(ComputeServerAccessCost("paris", At({"paris", "paris"}), {}).cost == 1);
}

TEST_CASE("what_is_not_known_counts_as_near") {
  CHECK(ComputeServerAccessCost("", At({"paris"}), {}).cost == 1);
  CHECK(ComputeServerAccessCost("paris", At({"", ""}), {}).cost == 1);
}

TEST_CASE("a_remote_site_without_measurement_costs_twice_as_much") {
  CHECK(ComputeServerAccessCost("oslo", At({"paris"}), {}).cost == 2);
  CHECK(ComputeServerAccessCost("oslo", At({"paris", "oslo"}), {}).cost == 1.5);
}

TEST_CASE("a_measured_link_costs_what_it_takes_longer_than_the_links_inside") {
  const SiteRates rates = {{{"paris", "paris"}, 1e8}, {{"paris", "oslo"}, 1e7}};
  CHECK(ComputeServerAccessCost("oslo", At({"paris"}), rates).cost == Approx(10));
  CHECK(ComputeServerAccessCost("oslo", At({"paris", "oslo"}), rates).cost == Approx(5.5));
}

TEST_CASE("a_site_without_links_inside_is_compared_with_its_fastest_link") {
  const SiteRates rates = {{{"paris", "rome"}, 1e8}, {{"oslo", "paris"}, 1e7}};
  CHECK(ComputeServerAccessCost("oslo", At({"paris"}), rates).cost == Approx(10));
  CHECK(ComputeServerAccessCost("rome", At({"paris"}), rates).cost == Approx(1));
}

TEST_CASE("the_cost_of_a_very_slow_link_is_bounded") {
  const SiteRates rates = {{{"paris", "paris"}, 1e9}, {{"paris", "oslo"}, 1}};
  CHECK(ComputeServerAccessCost("oslo", At({"paris"}), rates).cost == kServerAccessCostMax);
}

TEST_CASE("what_pulls_have_measured_counts_before_what_sites_say") {
  const SiteRates rates = {{{"paris", "paris"}, 1e8}, {{"paris", "oslo"}, 1e7}};
  CHECK(ComputeServerAccessCost("oslo", {{"paris", 2e7, 1e8}}, rates).cost == Approx(5));
  CHECK(ComputeServerAccessCost("paris", {{"paris", 2e7, 1e8}}, rates).cost == Approx(5));
  CHECK(ComputeServerAccessCost("", {{"", 2e7, 1e8}}, {}).cost == Approx(5));
  CHECK(ComputeServerAccessCost("oslo", {{"paris", 2e7, 1e8}, {"oslo"}}, rates).cost == Approx(3));
}

TEST_CASE("pulls_of_about_the_same_speed_make_no_difference") {
  CHECK(ComputeServerAccessCost("oslo", {{"paris", 5e7, 1e8}}, {}).cost == 1);
}

}  // namespace
}  // namespace atl
