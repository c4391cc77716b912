#include "common/net/relay/standby.h"

#include <algorithm>

#include "common/logging.h"
#include "common/net/relay/link_route.h"

namespace atl {
namespace {

constexpr Duration kRetry = std::chrono::seconds(10);
constexpr Duration kRenew = std::chrono::minutes(5);  // those of which none is used

}  // namespace

void Standby::Set(const std::vector<LinkWay>& relays) {
  std::vector<Place> places;
  for (const LinkWay& way : relays) {
    const auto known = std::find_if(places_.begin(), places_.end(),
                                    [&](const Place& place) { return place.way == way; });
    places.push_back(known == places_.end() ? Place{way} : *known);
  }
  for (Place& place : places_) {
    if (std::find(relays.begin(), relays.end(), place.way) == relays.end()) End(place);
  }
  places_ = std::move(places);
}

void Standby::End(Place& place) {
  if (!place.dialled.empty()) zmq_disconnect(socket_->use(), place.dialled.c_str());
  place.made = 0;
}

bool Standby::Dial(Place& place) {
  const absl::StatusOr<std::string> route = context_->tunnels().Route(place.way.endpoint);
  const absl::StatusOr<std::string> dialled =
      route.ok() ? DialWay(*context_, *socket_, place.way) : route.status();
  if (!dialled.ok()) {
    LogWarning("net", "cannot wait for connections at the relay ", dialled.status().message());
    return false;
  }
  place.route = *route;
  place.dialled = *dialled;
  ++place.made;
  return true;
}

void Standby::Turn(const std::map<std::string, int>& used, Instant now) {
  for (Place& place : places_) {
    const auto found = used.find(place.route);
    const int in_use = found == used.end() ? 0 : found->second;
    // As many as were in use at a time have been kept; one that broke ZMTP is not replaced.
    const Duration kept = place.made > 2 * kSpareMin ? kRetry : kRenew;
    if (place.made == 0) place.renewed_at = now;
    if (in_use == 0 && now - place.renewed_at >= kept) {
      End(place);
      place.renewed_at = now;
    }
    const int wanted = in_use + std::min(kSpareMax, kSpareMin + in_use);
    while (place.made < wanted && now >= place.next_try) {
      if (!Dial(place)) place.next_try = now + kRetry;
    }
  }
}

}  // namespace atl
