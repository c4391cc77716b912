// Which relays members are reached through where there is no other way: RelayPlace.

#ifndef ATOLL_COORDINATOR_CORE_RELAYS_H_
#define ATOLL_COORDINATOR_CORE_RELAYS_H_

#include <string>
#include <vector>

#include "coordinator/core/state.h"

namespace atl::coord {

inline constexpr size_t kRelaysByMember = 2;  // the second takes over from the first

// Notes after the member's hello where it relays (`address` is empty: it does not), and gives it
// the relays that it lacks; where it relays, so do others that lack some. Members whose relays have
// changed are welcomed anew. A relay stays for as long as it is there: links go through it. A new
// one is of the member's site where there is one, and of these the one that serves the fewest
// members. Members that are relays have none: others reach them. A member that does not relay costs
// no look at others.
void TakeRelay(State& s, Member& member, const std::string& address, const std::string& secret);

// Forgets a member that has detached: those that it served get another relay, where there is one.
void RemoveFromRelays(State& s, const Member& member);

// Names the relays that the member is to know.
Welcome MakeWelcome(const State& s, const Member& member);

// "ps-1 (at its site), ps-2 (serves 3 members)"; empty: none.
std::string DescribeRelays(const Member& member);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_RELAYS_H_
