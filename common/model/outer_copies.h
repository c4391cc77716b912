// Workers that keep copies of elements with other owners for the exchange with the parameter
// servers, and how much host memory each worker needs. Pure.

#ifndef ATOLL_COMMON_MODEL_OUTER_COPIES_H_
#define ATOLL_COMMON_MODEL_OUTER_COPIES_H_

#include <map>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/job_spec.h"

namespace atl {

// Adds to the holders, where fewer than `copies` + 1 workers own an element, the workers behind the
// first one, in the plan's order, as far as there are any: they keep copies.
std::vector<NodeId> WithCopies(const IslandPlan& plan, std::vector<NodeId> holders, int32_t copies);

// Returns the number of elements that each worker keeps, where it keeps any, with one shard for
// each layer: how layers are cut into shards moves no more than a block between workers. `block` as
// in CutByOwners.
std::map<NodeId, int64_t> KeptElements(const IslandPlan& plan, const std::vector<LayerSize>& layers,
                                       int32_t copies, int64_t block);

// Memory of a worker's host that the model takes under a plan, beside what its devices hold.
struct HostCopies {
  int64_t exchange_bytes = 0;  // with the parameter servers: what it owns, and copies for others
  int64_t save_bytes = 0;      // what it owns, while that is written to its disk
  int64_t peer_bytes = 0;      // saved states in memory, its own and others': an old and a new one
  int64_t staging_bytes = 0;   // layers in transit between the exchange and its devices
  int64_t validation_bytes = 0;  // its parameters, while theta_base is validated in their place

  // Returns the bytes without those that it does without where memory is short.
  int64_t needed_bytes() const {
    return exchange_bytes + save_bytes + staging_bytes + validation_bytes;
  }
};
HostCopies MakeHostCopies(const JobSpec& spec, const IslandPlan& plan, const JobFacts& facts,
                          const NodeId& worker);
// Returns the copies of all of the plan's workers that keep any, in about the time of a single call
// of MakeHostCopies.
std::map<NodeId, HostCopies> MakeAllHostCopies(const JobSpec& spec, const IslandPlan& plan,
                                               const JobFacts& facts);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_OUTER_COPIES_H_
