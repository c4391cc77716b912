// The network as the simulator sees it: directed links made of edges, and trunks that links share.
//
// A transfer of n bytes over one edge takes its latency plus n / bandwidth; the latency follows the
// serialisation, so the edge is free for the next transfer when the last byte has left. Where times
// of several sizes were measured, n stands for the bytes that would take as long (size_curve.h). A
// link with several edges splits a transfer so that all parts arrive together: with offsets a_e
// (time until edge e can start, plus its latency) and bandwidths b_e, it arrives at
//   (n + sum a_e b_e) / sum b_e,
// edges being added by rising a_e while a_e is less than that. At most one edge of a conflict set
// takes part in a transfer (NVLink or PCIe within one kernel, for example).
//
// Trunks model what several links share: a network card, a site's uplink. A trunk carries one
// transfer at a time at full speed, in the order of requests. Its bandwidth may follow a trace.

#ifndef ATOLL_COORDINATOR_SIMULATOR_NETWORK_H_
#define ATOLL_COORDINATOR_SIMULATOR_NETWORK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/simulator/size_curve.h"

namespace atl::sim {

// Simulated time: nanoseconds since the start of the simulated step.
using Nanos = int64_t;
inline constexpr Nanos kForever = INT64_MAX / 4;

// A step of bandwidth: from `from_ns` on the trunk carries `bytes_per_s` (until the next step).
// Zero: an outage.
struct BandwidthStep {
  Nanos from_ns = 0;
  double bytes_per_s = 0;
};

struct Trunk {
  double bytes_per_s = 0;
  std::vector<BandwidthStep> trace;  // rising from_ns > 0; overrides bytes_per_s from then on
};

struct Edge {
  Nanos latency_ns = 0;
  double bytes_per_s = 0;
  std::vector<int> trunks;  // indices into Network::trunks; may be empty
  int conflict_set = -1;    // -1: excludes no other edge
  SizeCurvePtr sizes = {};
};

struct Link {
  std::vector<Edge> edges;
  int lane = -1;  // below Network::lanes; -1: none
};

struct Network {
  std::vector<Trunk> trunks;
  // Turnstiles that several links may share: one message at a time passes a lane, and the next
  // starts when the last byte of the one before has left. Of those that wait, the one of the lowest
  // micro-batch, then of the lowest replica, is next; one that is not ready is skipped.
  int lanes = 0;
  std::vector<Link> links;
};

// Says what is wrong with a network: indices out of range, bandwidths that are not positive and
// finite, negative latencies, more than 16 edges, a trace that does not rise or that ends in an
// outage.
absl::Status Validate(const Network& network);

// One edge's part in a split transfer. Offsets are relative to the time of the request.
struct EdgeOffer {
  double offset_ns = 0;  // waiting until the edge is free, plus its latency
  double bytes_per_ns = 0;
  int conflict_set = -1;
  const SizeCurve* sizes = nullptr;  // of the part that it carries
};

// The split of a transfer. `arrival_ns` is relative to the time of the request; `bytes[e]` is what
// edge e carries (0: not used).
struct Split {
  double arrival_ns = 0;
  std::vector<double> bytes;
};

// The fastest split of `bytes` over the offered edges (at most 16). Exact: every choice of one edge
// per conflict set is tried. REQUIRES: at least one offer.
Split SplitTransfer(double bytes, absl::Span<const EdgeOffer> offers);

// Returns when a transfer of `bytes` alone on this link arrives, trunks included at their first
// bandwidth.
Nanos AloneTransferNs(const Network& network, const Link& link, int64_t bytes);

// The serialisation part of that: how long a message of `bytes` keeps the link from the next one.
Nanos AloneSerialNs(const Network& network, const Link& link, int64_t bytes);

// At least so long, whatever its trunks do; not rounded.
double LeastSerialNs(const Link& link, int64_t bytes);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_NETWORK_H_
