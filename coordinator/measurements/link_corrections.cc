// Links whose speed is not what was measured; see corrections.h.

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/number_text.h"
#include "common/protocol/island_plan.h"
#include "coordinator/measurements/corrections.h"
#include "coordinator/planner/cluster/cluster.h"

namespace atl {
namespace {

constexpr double kLinkSecondsMin = 5e-4;
constexpr int64_t kLargeBytes = 32 << 10;
constexpr double kUnmeasuredLatency = 0.1;  // of a message's time
constexpr double kBytesMin = 0.1;           // likewise, of bytes, where latency is as it was
constexpr double kBytesLeft = 0.02;         // likewise, where it was measured
constexpr double kAllReduceOff = 2;  // all-reduce time over that of its slowest link, at most
constexpr size_t kMost = 65'536;
constexpr size_t kDevicesMost = 4096;

std::string Name(const LinkProfile& link) {
  return absl::StrCat("link ", link.from, " > ", link.to);
}

double EstimateTransferSeconds(const LinkProfile& link, double bytes) {
  return plan::LinkFromProfile(link).Seconds(bytes);
}

bool AnyOfWorker(const std::vector<std::string>& devices, const NodeId& worker) {
  return std::any_of(devices.begin(), devices.end(),
                     [&](const std::string& device) { return WorkerFromDevice(device) == worker; });
}

bool IsTime(double seconds) { return seconds > 0 && std::isfinite(seconds); }

void Split(double bytes, double now_s, double latency_s, LinkProfile& link) {
  latency_s = std::min(latency_s, (1 - kBytesLeft) * now_s);
  const double effective = EffectiveBytes(link, bytes);
  SetLaw(std::llround(latency_s * 1e9), effective / (now_s - latency_s), link);
}

}  // namespace

double EffectiveBytes(const LinkProfile& link, double bytes) {
  return sim::EffectiveBytes(plan::LinkFromProfile(link).sizes, bytes);
}

void SetLaw(int64_t latency_ns, double bytes_per_s, LinkProfile& link) {
  const sim::SizeCurvePtr sizes = plan::LinkFromProfile(link).sizes;
  link.latency_ns = latency_ns;
  link.bandwidth_bytes_per_s = bytes_per_s;
  if (sizes == nullptr || !(bytes_per_s > 0)) return link.times.clear();
  link.times = sizes->Times(static_cast<double>(latency_ns) * 1e-9, bytes_per_s);
}

void Attribute(double bytes, double factor, double round_trip_s, LinkProfile& link) {
  const double latency_s = static_cast<double>(link.latency_ns) * 1e-9;
  const double effective = EffectiveBytes(link, bytes);
  const double bytes_s = effective / link.bandwidth_bytes_per_s;
  const double now_s = factor * (latency_s + bytes_s);
  if (IsTime(round_trip_s)) return Split(bytes, now_s, round_trip_s / 2, link);
  if (bytes_s >= latency_s || (factor > 1 && bytes >= kLargeBytes)) {
    const double seconds = std::max(now_s - latency_s, kBytesMin * now_s);
    SetLaw(link.latency_ns, effective / seconds, link);
  } else {
    SetLaw(std::llround(std::max(0.0, now_s - bytes_s) * 1e9), link.bandwidth_bytes_per_s, link);
  }
}

// Null: it says nothing new.
LinkCorrections::Entry* LinkCorrections::NewWindow(const StageLinkState& stage_link) {
  const std::pair key(stage_link.from, stage_link.to);
  if (stage_link.window == 0 || stage_link.quickest_bytes <= 0 ||
      !IsTime(stage_link.quickest_seconds) ||
      (entries_.size() >= kMost && entries_.count(key) == 0)) {
    return nullptr;
  }
  Entry& entry = entries_[key];
  if (stage_link.window <= entry.window) return nullptr;
  entry.window = stage_link.window;
  return &entry;
}

std::optional<LinkProfile> LinkCorrections::OnUnmeasured(const StageLinkState& stage_link,
                                                         double round_trip_s,
                                                         std::vector<ProfileChanged>& changes) {
  Entry* const entry = NewWindow(stage_link);
  if (entry == nullptr) return std::nullopt;
  const bool larger = stage_link.quickest_bytes > entry->largest_bytes;
  if (larger || (stage_link.quickest_bytes == entry->largest_bytes &&
                 stage_link.quickest_seconds < entry->quickest_s)) {
    entry->largest_bytes = stage_link.quickest_bytes;
    entry->quickest_s = stage_link.quickest_seconds;
  }
  if (++entry->unmeasured < kCorrectingWindows) return std::nullopt;
  LinkProfile link;
  link.from = WorkerFromDevice(stage_link.from);
  link.to = WorkerFromDevice(stage_link.to);
  const double latency_s =
      IsTime(round_trip_s) ? round_trip_s / 2 : kUnmeasuredLatency * entry->quickest_s;
  Split(static_cast<double>(entry->largest_bytes), entry->quickest_s, std::min(latency_s, 10.0),
        link);
  link.samples = kCorrectingWindows;
  entry->unmeasured = 0;
  entry->largest_bytes = 0;
  changes.push_back({{link.from, link.to},
                     absl::StrCat(Name(link), " was not measured before, and carries ",
                                  NumberText(link.bandwidth_bytes_per_s / 1e6, 3), " MB/s"),
                     false,
                     Name(link)});
  return link;
}

bool LinkCorrections::OnStageLink(const StageLinkState& stage_link, double round_trip_s,
                                  const LinkProfile& measured, LinkProfile& link,
                                  std::vector<ProfileChanged>& changes) {
  Entry* const found = NewWindow(stage_link);
  if (found == nullptr) return false;
  Entry& entry = *found;
  const double seen_s = stage_link.quickest_seconds;
  const auto bytes = static_cast<double>(stage_link.quickest_bytes);
  const double expected_s = EstimateTransferSeconds(link, bytes);
  const bool is_significant = std::abs(seen_s - expected_s) > kLinkSecondsMin;
  const bool changed = entry.drift.Add(is_significant ? seen_s / expected_s : 1);
  if (changed || entry.drift.off()) {
    entry.seconds[stage_link.quickest_bytes] = seen_s;
    const bool first = !IsTime(entry.round_trip_s);
    if (IsTime(round_trip_s) && (first || round_trip_s < entry.round_trip_s)) {
      entry.round_trip_s = round_trip_s;
    }
  } else {
    entry.seconds.clear();
    entry.round_trip_s = 0;
  }
  if (!changed) return !is_significant;
  // From here on this is what was measured.
  const double factor = entry.drift.factor();
  Correct(entry, stage_link.quickest_bytes, factor, link);
  entry.drift.Reset();
  entry.seconds.clear();
  entry.round_trip_s = 0;
  const double measured_s = EstimateTransferSeconds(measured, bytes);
  const std::string change_text = DescribeChange(Name(link), expected_s / measured_s,
                                                 EstimateTransferSeconds(link, bytes) / measured_s);
  changes.push_back({{link.from, link.to}, change_text, false, Name(link), HowFar(factor, 1)});
  return true;
}

void LinkCorrections::Correct(const Entry& entry, int64_t bytes, double factor, LinkProfile& link) {
  const auto& [small, small_s] = *entry.seconds.begin();
  const auto& [large, large_s] = *entry.seconds.rbegin();
  if (large >= 2 * small && large_s > small_s) {
    const double less = EffectiveBytes(link, static_cast<double>(small));
    const double more = EffectiveBytes(link, static_cast<double>(large));
    const double seconds_per_byte = (large_s - small_s) / (more - less);
    const double latency_s = small_s - seconds_per_byte * less;
    if (latency_s >= 0) {
      return SetLaw(std::llround(latency_s * 1e9), 1 / seconds_per_byte, link);
    }
  }
  Attribute(static_cast<double>(bytes), factor, entry.round_trip_s, link);
}

void LinkCorrections::Restart(const NodeId& from, const NodeId& to) {
  for (auto& [devices, entry] : entries_) {
    if (WorkerFromDevice(devices.first) == from && WorkerFromDevice(devices.second) == to) {
      entry.drift.Reset();
      entry.seconds.clear();
      entry.round_trip_s = 0;
    }
  }
}

void LinkCorrections::Forget(const NodeId& worker) {
  std::erase_if(entries_,
                [&](const auto& entry) { return WorkerFromDevice(entry.first.first) == worker; });
}

// -------------------------------------------------------------------------------- all-reduces ----

std::optional<AllReduceCorrections::SlowestLink> AllReduceCorrections::FindSlowestLink(
    const AllReduceTimes& all_reduce_times, const LinkLookup& link_lookup) {
  const size_t ranks = all_reduce_times.devices.size();
  std::optional<SlowestLink> slowest;
  for (size_t i = 0; i < ranks; ++i) {
    const NodeId from = WorkerFromDevice(all_reduce_times.devices[i]);
    const NodeId to = WorkerFromDevice(all_reduce_times.devices[(i + 1) % ranks]);
    if (from == to) continue;
    const LinkProfile* link = link_lookup(from, to);
    if (link == nullptr) link = link_lookup(to, from);  // taken to be alike, as plans do
    if (link == nullptr) return std::nullopt;
    const double bytes = static_cast<double>(all_reduce_times.bytes) / static_cast<double>(ranks);
    const double seconds = EstimateTransferSeconds(*link, bytes);
    if (!slowest || seconds > slowest->seconds) slowest = SlowestLink{from, to, bytes, seconds};
  }
  return slowest;
}

// How many groups' all-reduces use the shared link under this plan, as far as they have been seen.
int AllReduceCorrections::Sharing(int64_t plan, const std::string& shared_link) const {
  return static_cast<int>(std::count_if(groups_.begin(), groups_.end(), [&](const auto& group) {
    return group.second.plan == plan && group.second.shared_link == shared_link;
  }));
}

// All members' newest windows, each counted once, of tensors of one size; 0: some are missing.
double AllReduceCorrections::LeastOfAll(const AllReduceTimes& all_reduce_times, Group& group) {
  double least = 0;
  for (const std::string& device : all_reduce_times.devices) {
    const auto seen = group.seen.find(device);
    if (seen == group.seen.end() || !seen->second.fresh ||
        seen->second.bytes != all_reduce_times.bytes) {
      return 0;
    }
    if (least == 0 || seen->second.seconds < least) least = seen->second.seconds;
  }
  for (auto& [device, seen] : group.seen) seen.fresh = false;
  return least;
}

std::optional<AllReduceCorrections::Change> AllReduceCorrections::OnAllReduceTimes(
    const AllReduceTimes& all_reduce_times, const LinkLookup& link_lookup,
    const SharedLinkLookup& shared_link_lookup) {
  const auto& devices = all_reduce_times.devices;
  const bool member =
      std::find(devices.begin(), devices.end(), all_reduce_times.device) != devices.end();
  if (!member || devices.size() > kDevicesMost || all_reduce_times.window <= 0 ||
      all_reduce_times.bytes <= 0 || !IsTime(all_reduce_times.quickest_seconds) ||
      (groups_.size() >= kMost && !groups_.contains(devices))) {
    return std::nullopt;
  }
  Group& group = groups_[devices];
  if (group.plan != all_reduce_times.plan_number)
    group = Group{.plan = all_reduce_times.plan_number};
  Seen& seen = group.seen[all_reduce_times.device];
  if (all_reduce_times.window <= seen.window) return std::nullopt;
  seen = {all_reduce_times.window, all_reduce_times.bytes, all_reduce_times.quickest_seconds, true};
  const double least_s = LeastOfAll(all_reduce_times, group);
  const std::optional<SlowestLink> shared_link = FindSlowestLink(all_reduce_times, link_lookup);
  if (least_s == 0 || !shared_link) return std::nullopt;
  group.shared_link = shared_link_lookup(shared_link->from, shared_link->to);
  const double rounds = 2 * static_cast<double>(devices.size() - 1);
  const double expected_s = rounds * shared_link->seconds;
  const double ratio = least_s / expected_s;
  if (group.learned < kCorrectingWindows) {
    group.baseline_ratio = group.learned == 0 ? ratio : std::min(group.baseline_ratio, ratio);
    if (++group.learned == kCorrectingWindows) {
      group.baseline_ratio =
          std::min(group.baseline_ratio, kAllReduceOff * Sharing(group.plan, group.shared_link));
    }
    return std::nullopt;
  }
  const double baseline_s = group.baseline_ratio * expected_s;
  const bool is_significant = std::abs(least_s - baseline_s) > rounds * kLinkSecondsMin;
  if (!group.drift.Add(is_significant ? least_s / baseline_s : 1)) return std::nullopt;
  double factor = group.drift.factor();
  group.drift.Reset();
  double& slower = slower_.try_emplace(group.shared_link, 1).first->second;
  if (factor < 1 && slower <= 1) {
    group.baseline_ratio *= factor;
    return std::nullopt;
  }
  factor = std::max(factor, 1 / slower);
  const double before = slower;
  slower *= factor;
  return Change{shared_link->from, shared_link->to, shared_link->bytes, factor, before, slower};
}

void AllReduceCorrections::Restart(const NodeId& from, const NodeId& to,
                                   const std::string& shared_link) {
  slower_.erase(shared_link);
  for (auto& [devices, group] : groups_) {
    if (!AnyOfWorker(devices, from) || !AnyOfWorker(devices, to)) continue;
    group.learned = 0;
    group.drift.Reset();
  }
}

void AllReduceCorrections::Forget(const NodeId& worker) {
  std::erase_if(groups_, [&](const auto& group) { return AnyOfWorker(group.first, worker); });
}

}  // namespace atl
