// What `atoll show` says of a job's islands: a table of all, then of each shared one its plan, what
// the plan promises beside what is measured, and how its messages travel.
// docs/reference/commands.md explains the words to users.

#ifndef ATOLL_CLI_ISLAND_TEXT_H_
#define ATOLL_CLI_ISLAND_TEXT_H_

#include <string>

#include "proto/coordinator.pb.h"

namespace atl::cli {

// What the island does, or why it does nothing.
std::string DoingOf(const v1::Island& island);

std::string IslandsText(const v1::Job& job);

}  // namespace atl::cli

#endif  // ATOLL_CLI_ISLAND_TEXT_H_
