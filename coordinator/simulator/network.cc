#include "coordinator/simulator/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace atl::sim {
namespace {

bool GoodBandwidth(double b) { return std::isfinite(b) && b > 0; }

absl::Status ValidateTrunk(const Trunk& trunk, size_t index) {
  if (!GoodBandwidth(trunk.bytes_per_s)) {
    return absl::InvalidArgumentError(
        absl::StrCat("trunk ", index, ": bandwidth ", trunk.bytes_per_s, " is not positive"));
  }
  Nanos before = 0;
  for (const BandwidthStep& step : trunk.trace) {
    if (step.from_ns <= before || !std::isfinite(step.bytes_per_s) || step.bytes_per_s < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("trunk ", index, ": trace step at ", step.from_ns, " ns must come after ",
                       before, " ns and have a bandwidth of at least 0, not ", step.bytes_per_s));
    }
    before = step.from_ns;
  }
  if (!trunk.trace.empty() && trunk.trace.back().bytes_per_s <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("trunk ", index, ": the trace ends in an outage that never ends"));
  }
  return absl::OkStatus();
}

absl::Status ValidateEdge(const Network& network, const Edge& edge) {
  if (!GoodBandwidth(edge.bytes_per_s)) {
    return absl::InvalidArgumentError(
        absl::StrCat("edge bandwidth ", edge.bytes_per_s, " is not positive"));
  }
  if (edge.latency_ns < 0 || edge.latency_ns > kForever / 1024) {
    return absl::InvalidArgumentError(absl::StrCat("edge latency ", edge.latency_ns, " ns"));
  }
  for (const int trunk : edge.trunks) {
    if (trunk < 0 || trunk >= static_cast<int>(network.trunks.size())) {
      return absl::InvalidArgumentError(absl::StrCat("there is no trunk ", trunk));
    }
    if (std::count(edge.trunks.begin(), edge.trunks.end(), trunk) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("an edge names trunk ", trunk, " twice"));
    }
  }
  return absl::OkStatus();
}

// Bandwidth of an edge alone, in bytes per nanosecond, before any trace.
double AloneRate(const Network& network, const Edge& edge) {
  double rate = edge.bytes_per_s;
  for (const int trunk : edge.trunks) rate = std::min(rate, network.trunks[trunk].bytes_per_s);
  return rate * 1e-9;
}

// Returns the bytes that an edge carries of a transfer that arrives at `at_ns`.
double CarriedBy(const EdgeOffer& offer, double at_ns) {
  const double effective = std::max(0.0, at_ns - offer.offset_ns) * offer.bytes_per_ns;
  return offer.sizes == nullptr ? effective : offer.sizes->BytesFromEffective(effective);
}

// Where edges have curves, what all carry until a time is linear between the curves' knees.
Split SplitOverCurves(double bytes, absl::Span<const EdgeOffer> offers,
                      const std::vector<int>& chosen) {
  Split split{0, std::vector<double>(offers.size(), 0.0)};
  if (chosen.size() == 1) {
    const EdgeOffer& offer = offers[chosen[0]];
    split.arrival_ns = offer.offset_ns + offer.sizes->EffectiveBytes(bytes) / offer.bytes_per_ns;
    split.bytes[chosen[0]] = bytes;
    return split;
  }
  std::vector<double> knees;
  double rate = 0;
  for (const int e : chosen) {
    const EdgeOffer& offer = offers[e];
    rate += offer.bytes_per_ns;
    knees.push_back(offer.offset_ns);
    if (offer.sizes == nullptr) continue;
    for (const double effective : offer.sizes->Knees()) {
      knees.push_back(offer.offset_ns + effective / offer.bytes_per_ns);
    }
  }
  std::sort(knees.begin(), knees.end());
  const auto carried = [&](double at_ns) {
    double sum = 0;
    for (const int e : chosen) sum += CarriedBy(offers[e], at_ns);
    return sum;
  };
  split.arrival_ns = knees[0];
  double before = 0;
  for (size_t k = 1; k < knees.size() && before < bytes; ++k) {
    const double now = carried(knees[k]);
    const double step_ns = knees[k] - knees[k - 1];
    const double part = now >= bytes ? (bytes - before) / (now - before) : 1;
    split.arrival_ns = knees[k - 1] + part * step_ns;
    before = now;
  }
  if (before < bytes) split.arrival_ns = knees.back() + (bytes - before) / rate;
  for (const int e : chosen) split.bytes[e] = CarriedBy(offers[e], split.arrival_ns);
  return split;
}

Split SplitOver(double bytes, absl::Span<const EdgeOffer> offers, const std::vector<int>& chosen) {
  for (const int e : chosen) {
    if (offers[e].sizes != nullptr) return SplitOverCurves(bytes, offers, chosen);
  }
  std::vector<int> order = chosen;
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return offers[a].offset_ns < offers[b].offset_ns; });
  double weighted = bytes;
  double rate = 0;
  size_t used = 0;
  for (; used < order.size(); ++used) {
    const EdgeOffer& offer = offers[order[used]];
    if (rate > 0 && offer.offset_ns >= weighted / rate) break;
    weighted += offer.offset_ns * offer.bytes_per_ns;
    rate += offer.bytes_per_ns;
  }
  Split split{weighted / rate, std::vector<double>(offers.size(), 0.0)};
  for (size_t i = 0; i < used; ++i) {
    const EdgeOffer& offer = offers[order[i]];
    split.bytes[order[i]] = (split.arrival_ns - offer.offset_ns) * offer.bytes_per_ns;
  }
  return split;
}

std::vector<EdgeOffer> AloneOffers(const Network& network, const Link& link) {
  std::vector<EdgeOffer> offers;
  for (const Edge& edge : link.edges) {
    offers.push_back({static_cast<double>(edge.latency_ns), AloneRate(network, edge),
                      edge.conflict_set, edge.sizes.get()});
  }
  return offers;
}

}  // namespace

absl::Status Validate(const Network& network) {
  for (size_t i = 0; i < network.trunks.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(ValidateTrunk(network.trunks[i], i));
  }
  for (size_t i = 0; i < network.links.size(); ++i) {
    const Link& link = network.links[i];
    if (link.edges.empty() || link.edges.size() > 16) {
      return absl::InvalidArgumentError(
          absl::StrCat("link ", i, " has ", link.edges.size(), " edges; it takes 1 to 16"));
    }
    if (link.lane < -1 || link.lane >= network.lanes) {
      return absl::InvalidArgumentError(absl::StrCat("link ", i, ": there is no lane ", link.lane));
    }
    for (const Edge& edge : link.edges) {
      ATOLL_RETURN_IF_ERROR(Annotate(ValidateEdge(network, edge), absl::StrCat("link ", i)));
    }
  }
  return absl::OkStatus();
}

Split SplitTransfer(double bytes, absl::Span<const EdgeOffer> offers) {
  ATOLL_CHECK(!offers.empty() && offers.size() <= 16);
  // Groups of edges of which one may be chosen; an edge without a conflict set is its own group.
  std::vector<std::vector<int>> groups;
  std::vector<int> set_of_group;
  for (size_t e = 0; e < offers.size(); ++e) {
    const int set = offers[e].conflict_set;
    const auto found =
        set < 0 ? set_of_group.end() : std::find(set_of_group.begin(), set_of_group.end(), set);
    if (found == set_of_group.end()) {
      groups.push_back({static_cast<int>(e)});
      set_of_group.push_back(set < 0 ? -1 - static_cast<int>(e) : set);
    } else {
      groups[found - set_of_group.begin()].push_back(static_cast<int>(e));
    }
  }
  std::vector<size_t> pick(groups.size(), 0);
  Split best;
  while (true) {
    std::vector<int> chosen;
    for (size_t g = 0; g < groups.size(); ++g) chosen.push_back(groups[g][pick[g]]);
    Split split = SplitOver(bytes, offers, chosen);
    if (best.bytes.empty() || split.arrival_ns < best.arrival_ns) best = std::move(split);
    size_t g = 0;
    while (g < groups.size() && ++pick[g] == groups[g].size()) pick[g++] = 0;
    if (g == groups.size()) return best;
  }
}

Nanos AloneTransferNs(const Network& network, const Link& link, int64_t bytes) {
  const double arrival =
      SplitTransfer(static_cast<double>(bytes), AloneOffers(network, link)).arrival_ns;
  return static_cast<Nanos>(std::ceil(arrival - 1e-6));
}

Nanos AloneSerialNs(const Network& network, const Link& link, int64_t bytes) {
  const std::vector<EdgeOffer> offers = AloneOffers(network, link);
  const Split split = SplitTransfer(static_cast<double>(bytes), offers);
  double serial = 0;
  for (size_t e = 0; e < offers.size(); ++e) {
    serial = std::max(serial,
                      EffectiveBytes(link.edges[e].sizes, split.bytes[e]) / offers[e].bytes_per_ns);
  }
  return static_cast<Nanos>(std::ceil(serial - 1e-6));
}

double LeastSerialNs(const Link& link, int64_t bytes) {
  const auto n = static_cast<double>(bytes);
  if (link.edges.size() == 1) {
    return EffectiveBytes(link.edges[0].sizes, n) / link.edges[0].bytes_per_s * 1e9;
  }
  double rate = 0;
  for (const Edge& edge : link.edges) rate += FastestRate(edge.sizes, edge.bytes_per_s);
  return n / rate * 1e9;
}

}  // namespace atl::sim
