#include "coordinator/core/shards/server_access_cost.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/number_text.h"

namespace atl {
namespace {

constexpr double kUnmeasured = 2;

double FindSiteRate(const SiteRates& rates, const std::string& from, const std::string& to) {
  const auto there = rates.find({from, to});
  if (there != rates.end()) return there->second;
  const auto back = rates.find({to, from});
  return back == rates.end() ? 0 : back->second;
}

// Returns the rate of the site's links inside, else of its fastest one.
double OwnRate(const SiteRates& rates, const std::string& site) {
  if (const double inside = FindSiteRate(rates, site, site); inside > 0) return inside;
  double fastest = 0;
  for (const auto& [pair, rate] : rates) {
    if (pair.first == site || pair.second == site) fastest = std::max(fastest, rate);
  }
  return fastest;
}

std::string Mbit(double bytes_per_s, const std::string& from) {
  return absl::StrCat(NumberText(8e-6 * bytes_per_s, 3), " Mbit/s from ",
                      from.empty() ? "an island" : from);
}

struct Step {
  bool known = false;
  double cost = 1;
  std::string why;
};

Step ByPulls(const IslandLink& link) {
  const double ratio = link.fastest_bytes_per_s / link.bytes_per_s / link.doubt;
  if (ratio < kLinkRatioNoise) return {true, 1, ""};
  return {true, std::min(ratio, kServerAccessCostMax), Mbit(link.bytes_per_s, link.site)};
}

Step BySites(const std::string& site, const std::string& island, const SiteRates& rates) {
  if (site.empty() || island.empty()) return {};
  if (island == site) return {true, 1, ""};
  const double rate = FindSiteRate(rates, island, site);
  if (rate <= 0) return {true, kUnmeasured, absl::StrCat("remote from ", island, ", not measured")};
  return {true, std::clamp(OwnRate(rates, island) / rate, 1.0, kServerAccessCostMax),
          Mbit(rate, island)};
}

}  // namespace

ServerAccessCost ComputeServerAccessCost(const std::string& site,
                                         const std::vector<IslandLink>& islands,
                                         const SiteRates& rates) {
  double sum = 0, farthest = 1;
  int known = 0;
  std::string why;
  for (const IslandLink& link : islands) {
    const Step step = link.bytes_per_s > 0 ? ByPulls(link) : BySites(site, link.site, rates);
    if (!step.known) continue;
    ++known;
    if (why.empty() || step.cost > farthest) why = step.why;
    farthest = std::max(farthest, step.cost);
    sum += step.cost;
  }
  if (known == 0) {
    return {1, site.empty() ? "its site is not known" : "the sites of its islands are not known"};
  }
  const double cost = sum / known;
  if (why.empty()) return {1, "beside its islands"};
  return {cost,
          absl::StrCat(NumberText(cost, 3), " times as far as one beside its islands: ", why)};
}

}  // namespace atl
