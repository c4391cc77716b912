// Keeps the relays that the coordinator names to a member. Pure.

#ifndef ATOLL_COMMON_NET_RELAY_PLACES_H_
#define ATOLL_COMMON_NET_RELAY_PLACES_H_

#include <string>
#include <vector>

#include "common/net/relay/words.h"
#include "common/protocol/control.h"

namespace atl {

// Takes over the relays of a Welcome. One that it does not name any more stays until another takes
// its place: links may go through it, and a coordinator that has just started does not know it yet.
// Other members' own relays stay likewise where the `first` Welcome of a connection names none.
// Returns whether something has changed.
bool TakeRelays(const std::vector<RelayPlace>& named, bool first, std::vector<RelayPlace>* relays);

// Returns the endpoint of a link that is also reached through these.
std::string AddRelays(std::string endpoint, const std::vector<RelayPlace>& relays);

// Lists where that link waits for connections.
std::vector<LinkWay> ListStandbyWays(const std::vector<RelayPlace>& relays);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_RELAY_PLACES_H_
