#include "common/net/relay/places.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

constexpr size_t kRelaysMax = 2;

}  // namespace

bool TakeRelays(const std::vector<RelayPlace>& named, std::vector<RelayPlace>* relays) {
  std::vector<RelayPlace> taken;
  const auto has = [&](const RelayPlace& place) {
    return std::any_of(taken.begin(), taken.end(),
                       [&](const RelayPlace& other) { return other.address == place.address; });
  };
  // In the order before, so that the same ones are no change.
  for (const RelayPlace& place : *relays) {
    if (std::find(named.begin(), named.end(), place) != named.end()) taken.push_back(place);
  }
  for (const std::vector<RelayPlace>& more : {named, *relays}) {
    for (const RelayPlace& place : more) {
      if (!has(place) && taken.size() < kRelaysMax) taken.push_back(place);
    }
  }
  if (taken == *relays) return false;
  *relays = std::move(taken);
  return true;
}

std::string AddRelays(std::string endpoint, const std::vector<RelayPlace>& relays) {
  if (endpoint.empty()) return endpoint;
  for (const RelayPlace& place : relays) {
    absl::StrAppend(&endpoint, ",", MakeRelayEndpoint(place.address, place.dial));
  }
  return endpoint;
}

std::vector<LinkWay> ListStandbyWays(const std::vector<RelayPlace>& relays) {
  std::vector<LinkWay> ways;
  for (const RelayPlace& place : relays) {
    ways.push_back({absl::StrCat("tcp://", place.address), place.accept});
  }
  return ways;
}

}  // namespace atl
