// Checks of `atoll doctor` beyond this machine: the coordinator's clock, and latency and bandwidth
// to each site. Each site is measured by one of its members.

#ifndef ATOLL_CLI_DOCTOR_DOCTOR_LINKS_H_
#define ATOLL_CLI_DOCTOR_DOCTOR_LINKS_H_

#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/doctor/doctor_checks.h"
#include "common/net/tensor/link_probe.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {

// Does what CheckRoute does, of a link's endpoint; says so where only a relay reaches it.
Finding CheckWays(const std::string& check, const std::string& endpoint);

// `ahead_ms`: the coordinator's clock minus this machine's, known to within `within_ms`.
Finding CheckClock(double ahead_ms, double within_ms);

// Describes the rates of a link to a site, with the time that a model of 1 GB takes over it where
// that is long.
Finding RatesFinding(const std::string& site, const absl::StatusOr<LinkRates>& rates);

// For each site a parameter server's tensor link is measured, else the link to a worker. Takes up
// to 2 s a site, and 8 s where a link does not answer. Says on standard error before it sends how
// much that is; without `bandwidth` it measures no rate.
std::vector<Finding> CheckSites(const Global& global, const v1::ClusterStatus& status,
                                bool bandwidth);

}  // namespace atl::cli

#endif  // ATOLL_CLI_DOCTOR_DOCTOR_LINKS_H_
