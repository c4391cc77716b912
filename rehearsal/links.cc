#include "rehearsal/links.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace atl::rehearsal {
namespace {
constexpr double kWaitMax = 1e8;  // seconds, longer than any rehearsal; times do not overflow
constexpr double kDone = 1e-3;    // bytes: rounding of times to nanoseconds
}  // namespace

Duration Links::Latency(const Ends& ends) const {
  return std::max(FromSeconds(scene_.links.at(ends).latency_s),
                  Duration(std::chrono::microseconds(50)));
}

bool Links::IsUp(const Ends& ends) const {
  const auto found = links_.find(ends);
  return found == links_.end() || found->second.down == 0;
}

double Links::BytesPerSecond(const Ends& ends, const Link& link) const {
  if (link.down > 0 || link.transfers.empty()) return 0;
  return scene_.links.at(ends).bytes_per_s * link.factor /
         static_cast<double>(link.transfers.size());
}

void Links::Advance(const Ends& ends, Link& link) {
  const double carried = BytesPerSecond(ends, link) *
                         Seconds(timeline_.now() - std::exchange(link.since, timeline_.now()));
  for (auto& [number, transfer] : link.transfers) {
    transfer.left = std::max(0.0, transfer.left - carried);
  }
}

void Links::Schedule(const Ends& ends, Link& link) {
  const int64_t tick = ++link.tick;
  const double rate = BytesPerSecond(ends, link);
  if (rate <= 0) return;
  double least = link.transfers.begin()->second.left;
  for (const auto& [number, transfer] : link.transfers) least = std::min(least, transfer.left);
  const auto wait =
      Duration(static_cast<int64_t>(std::min(kWaitMax * 1e9, std::ceil(least / rate * 1e9))));
  timeline_.After(wait, [this, ends, &link, tick] {
    if (tick != link.tick) return;
    Advance(ends, link);
    std::vector<Timeline::Action> arrived;
    for (auto it = link.transfers.begin(); it != link.transfers.end();) {
      if (it->second.left > kDone) {
        ++it;
        continue;
      }
      arrived.push_back(std::move(it->second.arrived));
      where_.erase(it->first);
      it = link.transfers.erase(it);
    }
    Schedule(ends, link);
    for (Timeline::Action& action : arrived) timeline_.After(Latency(ends), std::move(action));
  });
}

int64_t Links::Send(const Ends& ends, double bytes, Timeline::Action arrived) {
  const int64_t number = next_++;
  if (scene_.free_links) {
    timeline_.After(Duration(0), std::move(arrived));
    return number;
  }
  Link& link = links_[ends];
  Advance(ends, link);
  link.transfers[number] = {bytes, std::move(arrived)};
  where_[number] = ends;
  Schedule(ends, link);
  return number;
}

const Links::Ends* Links::Find(int64_t transfer) const {
  const auto found = where_.find(transfer);
  return found == where_.end() ? nullptr : &found->second;
}

void Links::Say(const Ends& ends, Timeline::Action arrived) {
  if (IsUp(ends)) return timeline_.After(Latency(ends), std::move(arrived));
  links_[ends].said.push_back(std::move(arrived));
}

void Links::Cancel(int64_t transfer) {
  const auto found = where_.find(transfer);
  if (found == where_.end()) return;
  Link& link = links_[found->second];
  Advance(found->second, link);
  link.transfers.erase(transfer);
  Schedule(found->second, link);
  where_.erase(found);
}

void Links::Change(const Ends& ends, double factor) {
  Link& link = links_[ends];
  Advance(ends, link);
  factor > 0 ? static_cast<void>(link.factor *= factor) : static_cast<void>(++link.down);
  Schedule(ends, link);
}

void Links::Restore(const Ends& ends, double factor) {
  Link& link = links_[ends];
  Advance(ends, link);
  factor > 0 ? static_cast<void>(link.factor /= factor) : static_cast<void>(--link.down);
  Schedule(ends, link);
  if (link.down > 0) return;
  for (Timeline::Action& action : std::exchange(link.said, {})) {
    timeline_.After(Latency(ends), std::move(action));
  }
}

}  // namespace atl::rehearsal
