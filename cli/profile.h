// `atoll profile`: what the workers measured of their devices and links.

#ifndef ATOLL_CLI_PROFILE_H_
#define ATOLL_CLI_PROFILE_H_

#include <string>

#include "cli/commands.h"
#include "proto/cluster.pb.h"

namespace atl::cli {

// `job`: whose model; empty: the newest job's whose model is known. Exit code as in commands.h.
int Profile(const Global& global, const std::string& job);

// Devices with their groups, layer times, links.
std::string ProfileText(const v1::ClusterProfile& profile);

}  // namespace atl::cli

#endif  // ATOLL_CLI_PROFILE_H_
