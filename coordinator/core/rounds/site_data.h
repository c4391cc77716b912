// Jobs whose sites hold different data (DataSpec::sites): which of it a worker has, and on which
// axis of the ledger its positions lie. docs/design/data.md.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_SITE_DATA_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_SITE_DATA_H_

#include <string>
#include <vector>

#include "coordinator/core/state.h"

namespace atl::coord {

// The index of the worker's site in data.sites; 0 where all workers have the same data; -1: the job
// has none for it. A site counts only as its operator has declared it.
int64_t FindDataAxis(const JobSpec& spec, const Worker& worker);
int64_t FindSiteAxis(const JobSpec& spec, const std::string& site);

// Returns why the job has no data for the worker; "" if it has.
std::string WhyNoData(const JobSpec& spec, const Worker& worker);

// Returns the specification that the worker is to open: of several sites' data, its own. Where the
// job has none for it, since it has come back as another site's, data.path is empty, which it
// refuses.
JobSpec SpecFor(const Job& job, const Worker& worker);

// Returns how what the worker has found differs from `facts` and, where sites hold different data,
// from what the first of its site in `sites` has found, which it becomes where there is none; "" if
// it does not.
std::string DifferenceAt(const JobSpec& spec, const JobFacts& facts, const Worker& worker,
                         std::vector<SiteFacts>& sites);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_SITE_DATA_H_
