// The all-reduce of tables by which the devices of an island commit a step: up a tree within each
// block of devices, one exchange between the heads of all blocks, and back down. A block is a site;
// an island at one site has several, so that few devices exchange at once. With more sites than
// exchange at once, their heads make a tree, too.
//
// A device sends at most 2 ceil(log2 n) + 2 messages. Between S sites go S - 1 each way, or
// 2 (S - 1) in all with a tree. All devices end with the same bits: the order of the sums is that
// of the tree, which the plan fixes.
//
// A device passes nothing on before it has added its own part, so a sum is complete only where the
// parts of all devices are in it: each of them has then given its own, and waits for the sums.
//
// Pure. The workers follow it, and the planner predicts what it takes.

#ifndef ATOLL_COMMON_PROTOCOL_COMMIT_EXCHANGE_H_
#define ATOLL_COMMON_PROTOCOL_COMMIT_EXCHANGE_H_

#include <functional>
#include <string>
#include <vector>

#include "common/protocol/island_plan.h"

namespace atl {

// The part of one device, in this order. Devices are numbers, by their order in the plan.
struct CommitPosition {
  std::vector<int> below;  // whose sums it adds to its own
  int above = -1;          // then gets its sum, and returns that of all; -1: this is a head
  // The heads, itself included, in the order in which each of them adds up all their sums, after
  // each has sent its own to all others; empty where there is one head, and for other devices.
  std::vector<int> heads;
  // Then `below` get the sum of all, the last one first: it has most below itself.

  bool operator==(const CommitPosition&) const = default;
};

// Plans the exchange by device, given each one's site. Devices of no known site are of one.
std::vector<CommitPosition> PlanCommitExchange(const std::vector<std::string>& sites);

// Sites of these devices ("w1/0"), as the plan's members say.
std::vector<std::string> ListDeviceSites(const IslandPlan& plan,
                                         const std::vector<std::string>& devices);

// Returns when each device has the sum of all, given when its own part is complete and what a
// message takes.
std::vector<double> CommitSeconds(const std::vector<CommitPosition>& positions,
                                  const std::vector<double>& ready_s,
                                  const std::function<double(int from, int to)>& message_s);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_COMMIT_EXCHANGE_H_
