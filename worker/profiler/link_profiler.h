// Times messages to other workers over the peer link that training uses, and fits each link. Before
// anything counts, messages grow until one lasts two round trips: congestion control has to find
// the link's rate first, and paces even small messages below it until then.
//
// The sender needs nothing of the receiver but that it takes probes (IsProbe) and drops them. Both
// ends have met (PeerLink::AwaitPeers). Blocks for seconds; use a thread that may.

#ifndef ATOLL_WORKER_PROFILER_LINK_PROFILER_H_
#define ATOLL_WORKER_PROFILER_LINK_PROFILER_H_

#include <functional>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/net/peer/peer_link.h"
#include "common/protocol/control.h"
#include "common/protocol/device_profile.h"
#include "common/status.h"
#include "common/time.h"

namespace atl::worker {

struct LinkProfileOptions {
  // The largest counted message takes about so much longer than the smallest, of 1 KiB: with less,
  // a long link's bandwidth would be lost in its latency, and what passes at once (a shaper's
  // burst, a switch's buffer) would be taken for its rate.
  Duration long_enough = std::chrono::milliseconds(25);
  int64_t bytes_max = int64_t{32} << 20;
  int runs = 5;  // of each size, from the largest down, each an eighth; the quickest counts
  // A size is done, with two counted runs at least, once it has taken so long.
  Duration size_limit = std::chrono::milliseconds(300);
  Duration message_timeout = std::chrono::seconds(5);
  // Called before each link: its number, how many there are, to whom.
  std::function<void(size_t, size_t, const NodeId&)> progress;
};

struct LinksFound {
  std::vector<LinkProfile> links;
  std::vector<LinkFailure> failed;
};

// Measures from this worker to each of `peers`, one after the other.
LinksFound ProfileLinks(PeerLink& link, const std::vector<NodeId>& peers,
                        const LinkProfileOptions& options);

// The same over connections of their own (PeerLink::Sample), whatever the link's peers do
// meanwhile. Each is tried for `connect_limit`. Of several edges one after the other is measured,
// and the link has the sum of their bandwidths.
LinksFound ProfileLinksDuringSteps(const PeerLink& link, const std::vector<IslandMember>& members,
                                   const LinkProfileOptions& options, Duration connect_limit);

// Returns whether a message's header says that it is a probe, to be dropped.
bool IsProbe(absl::string_view header);
// The largest payload of a probe that a receiver should take.
inline constexpr int64_t kProbeBytesMax = int64_t{64} << 20;

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PROFILER_LINK_PROFILER_H_
