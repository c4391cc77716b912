#include "common/net/relay/places.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

constexpr size_t kRelaysMax = 2;

// Selects those that pass connections on for all, or members' own ones.
std::vector<RelayPlace> Select(const std::vector<RelayPlace>& relays, bool own) {
  std::vector<RelayPlace> selected;
  std::copy_if(relays.begin(), relays.end(), std::back_inserter(selected),
               [&](const RelayPlace& place) { return place.own == own; });
  return selected;
}

// In the order before, so that the same ones are no change.
std::vector<RelayPlace> Merge(const std::vector<RelayPlace>& named,
                              const std::vector<RelayPlace>& before) {
  std::vector<RelayPlace> taken;
  const auto has = [&](const RelayPlace& place) {
    return std::any_of(taken.begin(), taken.end(),
                       [&](const RelayPlace& other) { return other.address == place.address; });
  };
  for (const RelayPlace& place : before) {
    if (std::find(named.begin(), named.end(), place) != named.end()) taken.push_back(place);
  }
  for (const std::vector<RelayPlace>& more : {named, before}) {
    for (const RelayPlace& place : more) {
      if (!has(place) && taken.size() < kRelaysMax) taken.push_back(place);
    }
  }
  return taken;
}

}  // namespace

bool TakeRelays(const std::vector<RelayPlace>& named, bool first, std::vector<RelayPlace>* relays) {
  std::vector<RelayPlace> taken = Merge(Select(named, false), Select(*relays, false));
  const std::vector<RelayPlace> own = Select(named, true);
  const bool kept = first && own.empty();
  for (const RelayPlace& place : kept ? Select(*relays, true) : own) taken.push_back(place);
  if (taken == *relays) return false;
  *relays = std::move(taken);
  return true;
}

std::string AddRelays(std::string endpoint, const std::vector<RelayPlace>& relays) {
  if (endpoint.empty()) return endpoint;
  // The same text at all members' own relays, and tried before others.
  const std::vector<RelayPlace> own = Select(relays, true);
  if (!own.empty()) {
    const std::string here(absl::StripPrefix(kOwnRelay, "tcp://"));
    absl::StrAppend(&endpoint, ",", MakeRelayEndpoint(here, own[0].dial));
  }
  for (const RelayPlace& place : Select(relays, false)) {
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
