// Learns links and devices from running islands, and stores that.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/measurements/profile_registry.h"
#include "coordinator/planner/cluster/cluster.h"

namespace atl {
namespace {

// Two pairs over one link: a probe on a busy machine shows as little as half of the bandwidth.
constexpr double kAlikeBandwidth = 2;
constexpr double kAlikeLatency = 1.25;
constexpr int64_t kAlikeNs = 1'000'000;
constexpr Duration kStoredLimit = std::chrono::hours(24);
constexpr Duration kRoundTripFresh = std::chrono::seconds(10);

// Returns whether both were measured over the same link, judged by their numbers.
bool Alike(const LinkProfile& a, const LinkProfile& b) {
  const auto [slower, faster] = std::minmax(a.bandwidth_bytes_per_s, b.bandwidth_bytes_per_s);
  const auto [nearer, farther] = std::minmax(a.latency_ns, b.latency_ns);
  return faster <= kAlikeBandwidth * slower &&
         static_cast<double>(farther) <=
             kAlikeLatency * static_cast<double>(nearer) + static_cast<double>(kAlikeNs);
}

}  // namespace

bool ProfileRegistry::Usable(const LinkProfile& link) {
  return link.bandwidth_bytes_per_s > 0 && std::isfinite(link.bandwidth_bytes_per_s) &&
         link.latency_ns >= 0 &&
         (link.times.empty() || plan::LinkFromProfile(link).sizes != nullptr);
}

void ProfileRegistry::OnRoundTrip(Instant now, const Pair& pair, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  if (round_trips_.size() >= kMaxLinks && round_trips_.count(pair) == 0) return;
  round_trips_[pair] = {seconds, now};
}

double ProfileRegistry::GetRoundTripSeconds(Instant now, const Pair& pair) const {
  for (const Pair& either : {pair, Pair(pair.second, pair.first)}) {
    const auto known = round_trips_.find(either);
    if (known != round_trips_.end() && now - known->second.at <= kRoundTripFresh) {
      return known->second.seconds;
    }
  }
  return 0;
}

// A leader reports all stage links of its island.
void ProfileRegistry::OnStageLink(Instant now, const StageLinkState& stage_link) {
  const Pair pair(WorkerFromDevice(stage_link.from), WorkerFromDevice(stage_link.to));
  if (pair.first.empty() || pair.second.empty() || pair.first == pair.second) return;
  LinkReport* const known = FindLink(pair);
  if (known == nullptr) {
    const auto found =
        link_corrections_.OnUnmeasured(stage_link, GetRoundTripSeconds(now, pair), changes_);
    if (!found || !Usable(*found) || links_.size() >= kMaxLinks) return;
    links_[pair] = {*found, now, true};
    UpdateSharedLink(pair);
    links_changed_ = true;
    StoreLink(now, pair);
    return;
  }
  LinkReport& report = *known;
  const size_t before = changes_.size();
  const LinkProfile was = report.link;
  const double round_trip_s = GetRoundTripSeconds(now, pair);
  if (!link_corrections_.OnStageLink(stage_link, round_trip_s, report.measured, report.link,
                                     changes_)) {
    return;
  }
  report.at = now;
  if (changes_.size() == before) return;
  report.live = true;
  links_changed_ = true;
  StoreLink(now, pair);
  all_reduce_corrections_.Restart(pair.first, pair.second,
                                  MakeUndirectedLinkKey(pair.first, pair.second));
  CorrectSharedLink(now, was, report.link);
}

// An all-reduce uses both directions at once, and does not show which of them has changed.
void ProfileRegistry::OnAllReduceTimes(Instant now, const AllReduceTimes& all_reduce_times) {
  const auto change = all_reduce_corrections_.OnAllReduceTimes(
      all_reduce_times,
      [&](const NodeId& from, const NodeId& to) {
        LinkReport* const known = FindLink({from, to});
        return known == nullptr ? nullptr : &known->link;
      },
      [&](const NodeId& from, const NodeId& to) { return MakeUndirectedLinkKey(from, to); });
  if (!change) return;
  for (const Pair& pair : {Pair(change->from, change->to), Pair(change->to, change->from)}) {
    const auto known = links_.find(pair);
    if (known == links_.end()) continue;
    LinkReport& report = known->second;
    const LinkProfile was = report.link;
    Attribute(change->bytes, change->factor, GetRoundTripSeconds(now, pair), report.link);
    report.at = now;
    report.live = links_changed_ = true;
    StoreLink(now, pair);
    link_corrections_.Restart(pair.first, pair.second);
    CorrectSharedLink(now, was, report.link);
  }
  const std::string what = absl::StrCat("line ", change->from, " - ", change->to);
  changes_.push_back({{change->from, change->to},
                      absl::StrCat(DescribeChange(what, change->before, change->now),
                                   ", as gradient all-reduces show"),
                      false,
                      what,
                      HowFar(change->factor, 1)});
}

// In both directions, and of all workers at both sites.
std::string ProfileRegistry::MakeUndirectedLinkKey(const NodeId& a, const NodeId& b) const {
  std::string one = FindWorkerSite(a), other = FindWorkerSite(b);
  if (one.empty() || other.empty() || one == other) {
    one = absl::StrCat("worker ", a);
    other = absl::StrCat("worker ", b);
  }
  return absl::StrCat(std::min(one, other), " - ", std::max(one, other));
}

// A plan would otherwise avoid only the pair that was seen, and use the same link. What the others'
// own messages say from now on is compared with this.
void ProfileRegistry::CorrectSharedLink(Instant now, const LinkProfile& was,
                                        const LinkProfile& is) {
  const std::string from = FindWorkerSite(is.from), to = FindWorkerSite(is.to);
  if (from.empty() || to.empty() || from == to) return;
  const bool slower = is.bandwidth_bytes_per_s < was.bandwidth_bytes_per_s;
  for (auto& [pair, other] : links_) {
    if (pair == Pair(is.from, is.to) || !Alike(other.link, was)) continue;
    if (slower && other.link.bandwidth_bytes_per_s <= is.bandwidth_bytes_per_s) continue;
    if (FindWorkerSite(pair.first) != from || FindWorkerSite(pair.second) != to) continue;
    SetLaw(is.latency_ns, is.bandwidth_bytes_per_s, other.link);
    other.at = now;
    other.live = true;
    StoreLink(now, pair);
    link_corrections_.Restart(pair.first, pair.second);
  }
}

// ----------------------------------------------------------------------------------- store ----

void ProfileRegistry::Store(Instant now, StoreRecord record) {
  stored_[MakeRecordKey(record)] = {now, record};
  persist_.push_back({std::move(record)});
  if (stored_.size() <= max_stored_) return;
  const auto oldest =
      std::min_element(stored_.begin(), stored_.end(),
                       [](const auto& a, const auto& b) { return a.second.at < b.second.at; });
  Unstore(StoreRecord(oldest->second.record));
}

void ProfileRegistry::Unstore(const StoreRecord& record) {
  if (stored_.erase(MakeRecordKey(record)) > 0) persist_.push_back({record, true});
}

void ProfileRegistry::StoreDevice(Instant now, const std::string& device, uint64_t model_digest) {
  const double factor = device_corrections_.Factor(device, model_digest);
  const DeviceRecord record{device, model_digest, factor};
  factor == 1 ? Unstore(record) : Store(now, record);
}

// Removes from the store the devices that are as they were measured.
void ProfileRegistry::UnstoreDevices() {
  std::vector<StoreRecord> over;
  for (const auto& [key, stored] : stored_) {
    const auto* device = std::get_if<DeviceRecord>(&stored.record);
    if (device == nullptr) continue;
    if (device_corrections_.Factor(device->device, device->model_digest) == 1) {
      over.push_back(stored.record);
    }
  }
  for (const StoreRecord& record : over) Unstore(record);
}

void ProfileRegistry::Remember(const NodeId& worker, Incarnation incarnation,
                               const Standing& standing) {
  standing_[worker] = standing;
  all_declared_ = all_declared_ && !standing.declared.empty();
  said_hello_[worker].worker = worker;
  said_hello_[worker].incarnation = incarnation;
}

void ProfileRegistry::Remember(Instant now, Instant at, const LinkRecord& record) {
  const Pair pair(record.link.from, record.link.to);
  stored_[MakeRecordKey(record)] = {at, record};
  const bool usable = Usable(record.link) && pair.first != pair.second && links_.size() < kMaxLinks;
  if (!usable || now - at > kStoredLimit) return Unstore(record);
  links_[pair] = {record.link, at, true};
  UpdateSharedLink(pair);
}

void ProfileRegistry::Remember(Instant now, Instant at, const DeviceRecord& record) {
  stored_[MakeRecordKey(record)] = {at, record};
  // It has its time to show what it is, however old the record.
  if (!(record.factor > 0) || !std::isfinite(record.factor) || now - at > kStoredLimit) {
    return Unstore(record);
  }
  device_corrections_.Restore(now, record.device, record.model_digest, record.factor);
}

}  // namespace atl
