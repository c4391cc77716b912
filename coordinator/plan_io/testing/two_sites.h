// For tests: a cluster file of two sites that are joined by a trunk.

#ifndef ATOLL_COORDINATOR_PLAN_IO_TESTING_TWO_SITES_H_
#define ATOLL_COORDINATOR_PLAN_IO_TESTING_TWO_SITES_H_

namespace atl {

inline constexpr char kTwoSites[] = R"(
[[devices]]
id = "a0"
type = "a100-80"
node = "n0"
site = "paris"

[[devices]]
id = "a1"
type = "a100-80"
node = "n0"
site = "paris"

[[devices]]
id = "b0"
type = "h20"
node = "n1"
site = "oslo"
memory_bytes = 50_000_000_000

[[trunks]]
name = "sea"
bandwidth_bytes_per_s = 1e9

[[links]]
from = "paris"
to = "oslo"
edges = [{ latency_ns = 20_000_000, bandwidth_bytes_per_s = 5e9, trunk = "sea" }]

[[links]]
from = "oslo"
to = "paris"
edges = [{ latency_ns = 20_000_000, bandwidth_bytes_per_s = 2e9 },
         { latency_ns = 20_000_000, bandwidth_bytes_per_s = 1e9 }]
)";

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_TESTING_TWO_SITES_H_
