#include "coordinator/planner/cluster/round_traffic.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes_text.h"

namespace atl::plan {
namespace {

constexpr int kStepsMost = 1 << 20;  // outer.steps_per_round

std::string FindNetworkSite(const Cluster& cluster, const std::string& site) {
  for (const Device& device : cluster.devices) {
    if (device.site == site) return NetworkSite(device);
  }
  return site;
}

}  // namespace

void RoundTraffic::Add(const Cluster& part, const Layout& layout, double step_s,
                       std::function<double(const std::string&)> exchange_s) {
  islands_.push_back({OwnedShares(part, costs_, layout), CountStepBytes(part, costs_, job_, layout),
                      step_s, std::move(exchange_s)});
}

SiteBytes RoundTraffic::OfDay(const Servers& servers, int steps_per_round) const {
  double fastest_s = INFINITY, shortest_round_s = INFINITY;
  std::vector<double> rounds_s;
  for (const Island& island : islands_) {
    const double train_s = steps_per_round * island.step_s;
    const double exchange_s = island.exchange_s ? island.exchange_s(servers.begin()->first) : 0;
    rounds_s.push_back(options_.overlap ? std::max(train_s, exchange_s) : train_s + exchange_s);
    fastest_s = std::min(fastest_s, island.step_s);
    shortest_round_s = std::min(shortest_round_s, rounds_s.back());
  }
  const auto parameters = static_cast<double>(costs_.model().parameters());
  IslandOptions options = options_;
  options.steps_per_round = steps_per_round;
  SiteBytes day;
  for (size_t i = 0; i < islands_.size(); ++i) {
    const Island& island = islands_[i];
    // Slower islands make fewer steps in the fastest one's round.
    const double round_s = options_.balance_steps ? shortest_round_s : rounds_s[i];
    const double steps = options.ComputeStepsPerRound(island.step_s, fastest_s);
    const double rounds = kSecondsPerDay / std::max(round_s, steps * island.step_s);
    for (const auto& [sites, bytes] : island.step) day[sites] += rounds * steps * bytes;
    for (const auto& [site, owned] : island.owned) {
      for (const auto& [server, share] : servers) {
        const std::string at = FindNetworkSite(cluster_, server);
        if (site == at || at.empty()) continue;
        const double each = rounds * owned * share * parameters;
        day[{site, at}] += each * options_.push_bytes_per_parameter;
        day[{at, site}] += each * options_.pull_bytes_per_parameter;
      }
    }
  }
  return day;
}

SiteBytes RoundTraffic::CountDay(const Servers& servers) const {
  return OfDay(servers, options_.steps_per_round);
}

int RoundTraffic::LeastSteps(const Servers& servers) const {
  const auto keeps = [&](int steps) { return CheckLimits(cluster_, OfDay(servers, steps)).ok(); };
  if (!keeps(kStepsMost)) return 0;
  int low = 1, high = kStepsMost;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    keeps(middle) ? high = middle : low = middle + 1;
  }
  return low;
}

absl::Status RoundTraffic::Check(const Servers& servers) const {
  const absl::Status kept = CheckLimits(cluster_, OfDay(servers, options_.steps_per_round));
  if (kept.ok()) return kept;
  const int least = LeastSteps(servers);
  return absl::FailedPreconditionError(absl::StrCat(
      "rounds of ", options_.steps_per_round, " steps with parameter servers at ",
      absl::StrJoin(
          servers, ", ",
          [](std::string* out, const auto& server) { absl::StrAppend(out, server.first); }),
      ": ", kept.message(),
      least > 0 ? absl::StrCat("; outer.steps_per_round = ", least, " or more would keep to it")
                : "; no outer.steps_per_round keeps to it: allow more, leave out the limit, or pin "
                  "sites (layout.sites)"));
}

std::string RoundTraffic::Text(const Servers& servers) const {
  const SiteBytes day = OfDay(servers, options_.steps_per_round);
  const std::pair<const std::pair<std::string, std::string>, double>* nearest = nullptr;
  double most = 0;
  for (const auto& limited : cluster_.bytes_per_day) {
    const auto sent = day.find(limited.first);
    if (sent == day.end() || sent->second / limited.second <= most) continue;
    most = sent->second / limited.second;
    nearest = &limited;
  }
  if (nearest == nullptr) return "";
  const auto text = [](double bytes) { return BytesText(std::llround(std::min(bytes, 9e18))); };
  return absl::StrCat(text(most * nearest->second), " a day from ", nearest->first.first, " to ",
                      nearest->first.second, " with rounds of ", options_.steps_per_round,
                      " steps, of ", text(nearest->second),
                      " allowed (bytes_per_day), which outer.steps_per_round = ",
                      LeastSteps(servers), " would keep to");
}

}  // namespace atl::plan
