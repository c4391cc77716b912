// Text of `atoll show` about a job's islands: a table of all, then for each shared one its plan,
// the plan's predictions beside the measurements, and the transports of its messages.
// docs/reference/commands.md explains the words to users.

#ifndef ATOLL_CLI_TEXT_ISLAND_TEXT_H_
#define ATOLL_CLI_TEXT_ISLAND_TEXT_H_

#include <string>

#include "proto/coordinator.pb.h"

namespace atl::cli {

// Describes what the island does, or why it does nothing.
std::string DescribeActivity(const v1::Island& island);

std::string IslandsText(const v1::Job& job);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_ISLAND_TEXT_H_
