#include "coordinator/core/reach.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atl {
namespace {

constexpr double kUnmeasured = 2;

double RateOf(const SiteRates& rates, const std::string& from, const std::string& to) {
  const auto there = rates.find({from, to});
  if (there != rates.end()) return there->second;
  const auto back = rates.find({to, from});
  return back == rates.end() ? 0 : back->second;
}

// Of the site's links inside, else of its fastest one.
double OwnRate(const SiteRates& rates, const std::string& site) {
  if (const double inside = RateOf(rates, site, site); inside > 0) return inside;
  double fastest = 0;
  for (const auto& [pair, rate] : rates) {
    if (pair.first == site || pair.second == site) fastest = std::max(fastest, rate);
  }
  return fastest;
}

}  // namespace

Reach ReachOf(const std::string& site, const std::vector<std::string>& islands,
              const SiteRates& rates) {
  if (site.empty()) return {1, "its site is not known"};
  double sum = 0, farthest = 1;
  int known = 0;
  std::string why;
  for (const std::string& island : islands) {
    if (island.empty()) continue;
    ++known;
    double cost = 1;
    if (island != site) {
      const double rate = RateOf(rates, island, site);
      cost = rate > 0 ? std::clamp(OwnRate(rates, island) / rate, 1.0, kReachMost) : kUnmeasured;
      const std::string link = rate > 0
                                   ? absl::StrFormat("%.3g Mbit/s from %s", 8e-6 * rate, island)
                                   : absl::StrCat("remote from ", island, ", not measured");
      if (why.empty() || cost > farthest) why = link;
    }
    farthest = std::max(farthest, cost);
    sum += cost;
  }
  if (known == 0) return {1, "the sites of its islands are not known"};
  const double cost = sum / known;
  if (why.empty()) return {1, "beside its islands"};
  return {cost, absl::StrFormat("%.3g times as far as one beside its islands: %s", cost, why)};
}

}  // namespace atl
