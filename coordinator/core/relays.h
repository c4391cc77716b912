// Which relays members are reached through where there is no other way: RelayPlace.

#ifndef ATOLL_COORDINATOR_CORE_RELAYS_H_
#define ATOLL_COORDINATOR_CORE_RELAYS_H_

#include <string>
#include <vector>

#include "coordinator/core/state.h"

namespace atl::coord {

inline constexpr size_t kRelaysByMember = 2;  // the second takes over from the first

// Notes after the member's hello whether it is a relay (`address` is not empty), and assigns
// relays.
void TakeRelay(State& s, Member& member, const std::string& address, const std::string& secret);

// Gives attached members the relays that they lack, and takes away those that are not there any
// more; members whose relays have changed are welcomed anew. A relay stays for as long as it is
// there: links go through it. A new one is of the member's site where there is one, and of these
// the one that serves the fewest members. Members that are relays have none: others reach them.
void AssignRelays(State& s);

// Names the relays that the member is to know.
Welcome MakeWelcome(const State& s, const Member& member);

// "ps-1 (at its site), ps-2 (serves 3 members)"; empty: none.
std::string DescribeRelays(const Member& member);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_RELAYS_H_
