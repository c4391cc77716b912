// Transport selection: how messages go between two devices of an island, and which groups are
// NCCL's. Pure: every worker computes the same answer from the plan.

#ifndef ATOLL_WORKER_PIPELINE_TRANSPORT_SELECTION_H_
#define ATOLL_WORKER_PIPELINE_TRANSPORT_SELECTION_H_

#include <string>
#include <vector>

#include "common/protocol/island_plan.h"

namespace atl::worker {

enum class TransportKind {
  kWithin,  // two devices of one worker, which chooses by itself
  kNccl,    // from GPU to GPU
  kLink,    // over the peer link, through host memory
};

struct TransportChoice {
  TransportKind kind = TransportKind::kLink;
  std::string reason;  // "the sites north and south"
};

// REQUIRES: members of the plan own both devices.
TransportChoice SelectTransport(const IslandPlan& plan, const std::string& from,
                                const std::string& to);

// Returns whether NCCL reduces among these devices: their members have one version of it, and are
// one worker or of one known site.
bool SharesNccl(const IslandPlan& plan, const std::vector<std::string>& devices);

// A link from one device to another in the plan, one for each direction.
struct StageLink {
  std::string from, to;

  std::string Name() const { return absl::StrCat(from, " > ", to); }
  auto operator<=>(const StageLink&) const = default;
};
// Lists the links in order, each once.
std::vector<StageLink> ListStageLinks(const IslandPlan& plan);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_TRANSPORT_SELECTION_H_
