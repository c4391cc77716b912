#include "rehearsal/links.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace atl::rehearsal {
namespace {
constexpr double kWaitMax = 1e8;  // seconds, longer than any rehearsal; times do not overflow
constexpr double kDone = 1e-3;    // bytes: rounding of times to nanoseconds
const std::string& kBetweenSites = *new std::string();

Duration WaitFor(double bytes, double bytes_per_s) {
  return Duration(
      static_cast<int64_t>(std::min(kWaitMax * 1e9, std::ceil(bytes / bytes_per_s * 1e9))));
}
}  // namespace

Links::Link& Links::GetLink(const Ends& ends, const std::string& node, bool receives) {
  const bool within = ends.first == ends.second, card_receives = within && receives;
  const auto found = links_.find(std::tie(ends, within ? node : kBetweenSites, card_receives));
  if (found != links_.end()) return found->second;
  Link& link = links_[{ends, within ? node : kBetweenSites, card_receives}];
  link.bytes_per_s = scene_.links.at(ends).bytes_per_s;
  link.latency = Latency(ends);
  return link;
}

Duration Links::Latency(const Ends& ends) const {
  return std::max(FromSeconds(scene_.links.at(ends).latency_s),
                  Duration(std::chrono::microseconds(50)));
}

Duration Links::TimeAlone(const Ends& ends, double bytes) const {
  if (scene_.free_links) return Duration(0);
  return WaitFor(bytes, scene_.links.at(ends).bytes_per_s) + Latency(ends);
}

bool Links::IsUp(const Ends& ends) const {
  if (ends.first == ends.second) return true;
  const auto found =
      links_.find(std::tuple<const Ends&, const std::string&, bool>(ends, kBetweenSites, false));
  return found == links_.end() || found->second.down == 0;
}

double Links::BytesPerSecond(const Link& link) {
  if (link.down > 0 || link.transfers.empty()) return 0;
  return link.bytes_per_s * link.factor / static_cast<double>(link.transfers.size());
}

void Links::Advance(Link& link) {
  if (link.transfers.empty()) link.carried = 0;
  link.carried +=
      BytesPerSecond(link) * Seconds(timeline_.now() - std::exchange(link.since, timeline_.now()));
}

void Links::Schedule(Link& link) {
  const int64_t tick = ++link.tick;
  const double rate = BytesPerSecond(link);
  if (rate <= 0) return;
  const double least = std::max(0.0, link.transfers.begin()->first.first - link.carried);
  timeline_.After(WaitFor(least, rate), [this, &link, tick] {
    if (tick != link.tick) return;
    Advance(link);
    std::vector<Timeline::Action> arrived;
    const double done = link.carried + std::max(kDone, 1e-12 * link.carried);
    while (!link.transfers.empty() && link.transfers.begin()->first.first <= done) {
      arrived.push_back(Take(where_.find(link.transfers.begin()->first.second)));
    }
    Schedule(link);
    for (Timeline::Action& action : arrived) timeline_.After(link.latency, std::move(action));
  });
}

Timeline::Action Links::Take(std::map<int64_t, Place>::iterator place) {
  const auto [number, at] = *place;
  const auto found = at.link->transfers.find({at.done_at, number});
  Timeline::Action action = std::move(found->second);
  at.link->transfers.erase(found);
  where_.erase(place);
  return action;
}

int64_t Links::Send(const Path& path, double bytes, Timeline::Action arrived) {
  const int64_t number = next_++;
  if (scene_.free_links) {
    timeline_.After(Duration(0), std::move(arrived));
    return number;
  }
  Link& link = GetLink(path.ends, path.node, path.receives);
  Advance(link);
  const double done_at = link.carried + bytes;
  link.transfers[{done_at, number}] = std::move(arrived);
  where_[number] = {path, &link, done_at};
  Schedule(link);
  return number;
}

std::optional<bool> Links::IsMoving(int64_t transfer) const {
  const auto found = where_.find(transfer);
  if (found == where_.end()) return std::nullopt;
  return found->second.link->down == 0;
}

void Links::Say(const Ends& ends, Timeline::Action arrived) {
  Link& link = GetLink(ends, "", false);
  if (link.down == 0) return timeline_.After(link.latency, std::move(arrived));
  link.said.push_back(std::move(arrived));
}

void Links::Cancel(int64_t transfer) {
  const auto found = where_.find(transfer);
  if (found == where_.end()) return;
  Link& link = *found->second.link;
  Advance(link);
  Take(found);
  Schedule(link);
}

void Links::Break(const std::string& node) {
  std::vector<Timeline::Action> broken;
  for (auto place = where_.begin(); place != where_.end();) {
    const auto next = std::next(place);
    Link& link = *place->second.link;
    if (place->second.path.node == node || place->second.path.other == node) {
      Advance(link);
      broken.push_back(Take(place));
      Schedule(link);
    }
    place = next;
  }
  for (Timeline::Action& action : broken) timeline_.After(Duration(0), std::move(action));
}

void Links::Change(const Ends& ends, double factor) {
  Link& link = GetLink(ends, "", false);
  Advance(link);
  factor > 0 ? static_cast<void>(link.factor *= factor) : static_cast<void>(++link.down);
  Schedule(link);
}

void Links::Restore(const Ends& ends, double factor) {
  Link& link = GetLink(ends, "", false);
  Advance(link);
  factor > 0 ? static_cast<void>(link.factor /= factor) : static_cast<void>(--link.down);
  Schedule(link);
  if (link.down > 0) return;
  for (Timeline::Action& action : std::exchange(link.said, {})) {
    timeline_.After(link.latency, std::move(action));
  }
}

}  // namespace atl::rehearsal
