// Messages of the coordinator as one line of text, for transcripts.

#ifndef ATOLL_COORDINATOR_CORE_TESTING_DESCRIBE_H_
#define ATOLL_COORDINATOR_CORE_TESTING_DESCRIBE_H_

#include <string>

#include "common/protocol/control.h"

namespace atl::testing {

std::string Describe(const ToWorkerMessage& message);
std::string Describe(const ToServerMessage& message);
std::string Describe(const ContributionId& id);
std::string Describe(const IslandPlan& plan);  // "island 0 (generation 1, incarnation 1, base 0)"
std::string Describe(const std::vector<PositionRange>& ranges);

}  // namespace atl::testing

#endif  // ATOLL_COORDINATOR_CORE_TESTING_DESCRIBE_H_
