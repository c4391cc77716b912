// Which end of a link connects, and which relays members are reached through where neither can:
// RelayPlace.

#ifndef ATOLL_COORDINATOR_CORE_RELAYS_H_
#define ATOLL_COORDINATOR_CORE_RELAYS_H_

#include <string>
#include <vector>

#include "coordinator/core/state.h"

namespace atl::coord {

inline constexpr size_t kRelaysByMember = 2;  // the second takes over from the first
inline constexpr size_t kDialsMost = 32;      // members that one connects to itself

// Notes after the member's hello, whose link has `endpoint`, where it relays, and gives it
// the relays that it lacks; where it relays, so do others that lack some. Members whose relays have
// changed are welcomed anew. A relay stays for as long as it is there: links go through it. A new
// one is of the member's site where there is one, and of these the one that serves the fewest
// members. Members that are relays have none: others reach them. A member that does not relay costs
// no look at others.
void TakeRelay(State& s, Member& member, const std::string& endpoint, const std::string& address,
               const std::string& secret, bool own);
template <class Hello>
void TakeRelay(State& s, Member& member, const std::string& endpoint, const Hello& hello) {
  TakeRelay(s, member, endpoint, hello.relay_address, hello.relay_secret, hello.relay_own);
}

// Notes, by its heartbeat, all addresses at which the member does not reach others: those that are
// there connect to it themselves from now on, if it has a relay and they do not report the same of
// it. They do so until they do, or one of both has detached: links go that way.
void NoteUnreached(State& s, Member& member, const std::vector<std::string>& addresses);

// Forgets a member that has detached: those that it served get another relay, where there is one.
void RemoveFromRelays(State& s, Member& member);

// Names the relays that the member is to know.
Welcome MakeWelcome(const State& s, const Member& member);

// "ps-1 (at its site), ps-2 (serves 3 members), itself to w1 (which cannot reach tcp://b:7200)";
// empty: none.
std::string DescribeRelays(const Member& member);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_RELAYS_H_
