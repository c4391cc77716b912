#include "coordinator/corrections.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/protocol/island_plan.h"

namespace atl {
namespace {

constexpr double kChanged = 1.25;
constexpr double kSame = 1.10;  // as near as this to what was measured is that
constexpr int kWindows = 3;
constexpr double kFactorMax = 64;
constexpr double kLinkSecondsMin = 5e-4;
constexpr int64_t kLargeBytes = 32 << 10;
constexpr double kUnmeasuredLatency = 0.1;  // of a message's time
constexpr Duration kPatienceMax = std::chrono::minutes(40);
constexpr Duration kWaitMin = std::chrono::minutes(1);
constexpr Duration kWaitMax = std::chrono::minutes(32);
constexpr Duration kProbeEvery = std::chrono::minutes(1);
constexpr int kUnheardMax = 20;
constexpr size_t kMost = 65'536;

bool Off(double a, double b, double by) { return std::abs(std::log(a / b)) > std::log(by); }

std::string HowMuch(double factor) {
  return factor >= 1 ? absl::StrFormat("%.2g times slower", factor)
                     : absl::StrFormat("%.2g times faster", 1 / factor);
}

std::string Told(const std::string& what, double before, double now) {
  if (now == 1) return absl::StrCat(what, " is as measured again, not ", HowMuch(before));
  return absl::StrCat(what, " is ", HowMuch(now), " than measured");
}

// The cost of this kind with so many sequences; scaled from the next smaller size where it was not
// measured.
double CostSeconds(const DeviceProfile& profile, LayerKind kind, const DeviceWork& work,
                   bool forward) {
  const int32_t sequences = work.micro_batch_sequences;
  const LayerCost* best = nullptr;
  for (const LayerCost& cost : profile.layers) {
    if (cost.kind != kind || cost.tensor_parallel != work.tensor_parallel) continue;
    if (cost.micro_batch_sequences < 1 || cost.micro_batch_sequences > sequences) continue;
    if (best == nullptr || cost.micro_batch_sequences > best->micro_batch_sequences) best = &cost;
  }
  if (best == nullptr) return -1;
  const int64_t ns =
      forward ? best->forward_ns : best->input_gradient_ns + best->weight_gradient_ns;
  return static_cast<double>(ns) * 1e-9 * sequences / best->micro_batch_sequences;
}

}  // namespace

bool Drift::Add(double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) return false;
  factor = std::clamp(factor, 1 / kFactorMax, kFactorMax);
  seen_ = seen_ == 0 ? factor : 0.5 * (seen_ + factor);
  if (!Off(seen_, factor_, kChanged) || !Off(factor, factor_, kChanged)) {
    off_ = 0;
    return false;
  }
  if (++off_ < kWindows) return false;
  off_ = 0;
  const double before = factor_;
  factor_ = Off(seen_, 1, kSame) ? seen_ : 1;
  return factor_ != before;
}

double ExpectedSeconds(const DeviceProfile& profile, const DeviceWork& work) {
  const struct {
    LayerKind kind;
    int32_t count;
  } kinds[] = {{LayerKind::kEmbedding, work.embeddings},
               {LayerKind::kBlock, work.blocks},
               {LayerKind::kHead, work.heads}};
  double seconds = 0;
  for (const auto& [kind, count] : kinds) {
    if (count == 0) continue;
    const double forward = CostSeconds(profile, kind, work, true);
    const double backward = CostSeconds(profile, kind, work, false);
    if (forward < 0 || backward < 0) return 0;
    seconds += count * (forward + backward);
    if (kind == LayerKind::kBlock) seconds += work.recomputed_blocks * forward;
  }
  return seconds;
}

// --------------------------------------------------------------------------------- devices ----

void DeviceCorrections::OnWork(Instant now, const DeviceProfile& profile, const DeviceWork& work,
                               std::vector<KnowledgeChange>& changes) {
  const double expected = ExpectedSeconds(profile, work);
  const double measured = work.forward_seconds + work.backward_seconds;
  if (!(expected > 0) || !(measured > 0)) return;
  const std::pair key(work.device, work.model_digest);
  if (entries_.size() >= kMost && entries_.count(key) == 0) return;
  Entry& entry = entries_[key];
  entry.at = now;
  if (work.window <= entry.window) return;
  entry.window = work.window;
  const double before = entry.drift.factor();
  if (!entry.drift.Add(measured / expected)) return;
  changes.push_back(
      {{WorkerOfDevice(work.device)}, Told(work.device, before, entry.drift.factor())});
}

Instant DeviceCorrections::Advance(Instant now, std::vector<KnowledgeChange>& changes) {
  Instant next = kNever;
  for (auto& [key, entry] : entries_) {
    if (entry.drift.factor() == 1) continue;
    const Instant by = entry.at + entry.patience;
    if (now < by) {
      next = std::min(next, by);
      continue;
    }
    changes.push_back(
        {{WorkerOfDevice(key.first)},
         absl::StrFormat("%s was %s than measured %.0f min ago, and is tried again", key.first,
                         HowMuch(entry.drift.factor()), Seconds(now - entry.at) / 60)});
    entry.drift.Reset();
    entry.patience = std::min(2 * entry.patience, kPatienceMax);
  }
  return next;
}

void DeviceCorrections::Forget(const NodeId& worker) {
  std::erase_if(entries_,
                [&](const auto& entry) { return WorkerOfDevice(entry.first.first) == worker; });
}

double DeviceCorrections::Factor(const std::string& device, uint64_t model_digest) const {
  const auto entry = entries_.find({device, model_digest});
  return entry == entries_.end() ? 1 : entry->second.drift.factor();
}

DeviceProfile DeviceCorrections::Corrected(const DeviceProfile& profile) const {
  const double factor = Factor(profile.device, profile.model_digest);
  DeviceProfile corrected = profile;
  if (factor == 1) return corrected;
  const auto scale = [&](int64_t& ns) {
    ns = static_cast<int64_t>(std::llround(static_cast<double>(ns) * factor));
  };
  for (LayerCost& cost : corrected.layers) {
    scale(cost.forward_ns);
    scale(cost.input_gradient_ns);
    scale(cost.weight_gradient_ns);
    scale(cost.optimizer_ns);
  }
  return corrected;
}

std::vector<std::string> DeviceCorrections::Texts() const {
  std::vector<std::string> texts;
  for (const auto& [key, entry] : entries_) {
    if (entry.drift.factor() != 1) texts.push_back(Told(key.first, 1, entry.drift.factor()));
  }
  return texts;
}

// ----------------------------------------------------------------------------------- links ----

// Null: it says nothing new.
LinkCorrections::Entry* LinkCorrections::NewWindow(const BoundaryState& boundary) {
  const std::pair key(boundary.from, boundary.to);
  const double seen_s = boundary.quickest_seconds;
  if (boundary.window == 0 || boundary.quickest_bytes <= 0 || !(seen_s > 0) ||
      !std::isfinite(seen_s) || (entries_.size() >= kMost && entries_.count(key) == 0)) {
    return nullptr;
  }
  Entry& entry = entries_[key];
  if (boundary.window <= entry.window) return nullptr;
  entry.window = boundary.window;
  return &entry;
}

std::optional<LinkProfile> LinkCorrections::OnUnmeasured(const BoundaryState& boundary,
                                                         std::vector<KnowledgeChange>& changes) {
  Entry* const entry = NewWindow(boundary);
  if (entry == nullptr) return std::nullopt;
  const bool larger = boundary.quickest_bytes > entry->largest_bytes;
  if (larger || (boundary.quickest_bytes == entry->largest_bytes &&
                 boundary.quickest_seconds < entry->quickest_s)) {
    entry->largest_bytes = boundary.quickest_bytes;
    entry->quickest_s = boundary.quickest_seconds;
  }
  if (++entry->unmeasured < kWindows) return std::nullopt;
  LinkProfile link;
  link.from = WorkerOfDevice(boundary.from);
  link.to = WorkerOfDevice(boundary.to);
  link.latency_ns = std::llround(std::min(kUnmeasuredLatency * entry->quickest_s, 10.0) * 1e9);
  link.bandwidth_bytes_per_s =
      static_cast<double>(entry->largest_bytes) / ((1 - kUnmeasuredLatency) * entry->quickest_s);
  link.samples = kWindows;
  entry->unmeasured = 0;
  entry->largest_bytes = 0;
  changes.push_back({{link.from, link.to},
                     absl::StrFormat("link %s > %s was not measured before, and carries %.3g MB/s",
                                     link.from, link.to, link.bandwidth_bytes_per_s / 1e6)});
  return link;
}

bool LinkCorrections::OnBoundary(const BoundaryState& boundary, LinkProfile& link,
                                 std::vector<KnowledgeChange>& changes) {
  Entry* const found = NewWindow(boundary);
  if (found == nullptr) return false;
  Entry& entry = *found;
  const double seen_s = boundary.quickest_seconds;
  const double latency_s = static_cast<double>(link.latency_ns) * 1e-9;
  const double bytes_s = static_cast<double>(boundary.quickest_bytes) / link.bandwidth_bytes_per_s;
  const double expected_s = latency_s + bytes_s;
  const bool tells = std::abs(seen_s - expected_s) > kLinkSecondsMin;
  const bool changed = entry.drift.Add(tells ? seen_s / expected_s : 1);
  if (changed || entry.drift.off()) {
    entry.seconds[boundary.quickest_bytes] = seen_s;
  } else {
    entry.seconds.clear();
  }
  if (!changed) return !tells;
  // From here on this is what was measured.
  const double factor = entry.drift.factor();
  Correct(entry, boundary.quickest_bytes, factor, link);
  entry.drift.Reset();
  entry.seconds.clear();
  changes.push_back(
      {{link.from, link.to}, Told(absl::StrCat("link ", link.from, " > ", link.to), 1, factor)});
  return true;
}

void LinkCorrections::Correct(const Entry& entry, int64_t bytes, double factor, LinkProfile& link) {
  const auto& [small, small_s] = *entry.seconds.begin();
  const auto& [large, large_s] = *entry.seconds.rbegin();
  if (large >= 2 * small && large_s > small_s) {
    const double seconds_per_byte = (large_s - small_s) / static_cast<double>(large - small);
    const double latency_s = small_s - seconds_per_byte * static_cast<double>(small);
    if (latency_s >= 0) {
      link.bandwidth_bytes_per_s = 1 / seconds_per_byte;
      link.latency_ns = std::llround(latency_s * 1e9);
      return;
    }
  }
  const double latency_s = static_cast<double>(link.latency_ns) * 1e-9;
  const double bytes_s = static_cast<double>(bytes) / link.bandwidth_bytes_per_s;
  const double now_s = factor * (latency_s + bytes_s);
  if (bytes_s >= latency_s || (factor > 1 && bytes >= kLargeBytes)) {
    link.bandwidth_bytes_per_s =
        static_cast<double>(bytes) / std::max(now_s - latency_s, 0.1 * now_s);
  } else {
    link.latency_ns = std::llround(std::max(0.0, now_s - bytes_s) * 1e9);
  }
}

void LinkCorrections::Restart(const NodeId& from, const NodeId& to) {
  for (auto& [devices, entry] : entries_) {
    if (WorkerOfDevice(devices.first) == from && WorkerOfDevice(devices.second) == to) {
      entry.drift.Reset();
      entry.seconds.clear();
    }
  }
}

void LinkCorrections::Forget(const NodeId& worker) {
  std::erase_if(entries_,
                [&](const auto& entry) { return WorkerOfDevice(entry.first.first) == worker; });
}

// -------------------------------------------------------------------------------- no links ----

void UnreachablePairs::Failed(Instant now, const NodeId& from, const LinkFailure& failure,
                              bool live, std::vector<KnowledgeChange>& changes) {
  const std::pair key(from, failure.to);
  if (pairs_.size() >= kMost && pairs_.count(key) == 0) return;
  Entry& entry = pairs_[key];
  if (entry.blocked) return;
  entry = {.reason = failure.reason, .blocked = true, .since = now, .wait = entry.wait};
  entry.wait = entry.wait == Duration(0) ? kWaitMin : std::min(2 * entry.wait, kWaitMax);
  entry.probe_at = now + entry.wait;
  changes.push_back(
      {{from, failure.to}, absl::StrCat(from, " > ", failure.to, ": ", failure.reason), live});
}

void UnreachablePairs::Probed(Instant now, const NodeId& from, const NodeId& to,
                              const std::string& trouble, std::vector<KnowledgeChange>& changes) {
  const auto found = pairs_.find({from, to});
  if (found == pairs_.end() || !found->second.blocked) return;
  Entry& entry = found->second;
  entry.unheard = 0;
  entry.probed_at = now;
  entry.trouble = trouble;
  if (!trouble.empty()) return;
  entry.blocked = false;
  changes.push_back({{from, to},
                     absl::StrFormat("%s > %s: a probe is answered, after %.0f s without: %s", from,
                                     to, Seconds(now - entry.since), entry.reason)});
}

void UnreachablePairs::Forget(const NodeId& worker) {
  std::erase_if(pairs_, [&](const auto& entry) {
    return entry.first.first == worker || entry.first.second == worker;
  });
}

Instant UnreachablePairs::Advance(Instant now, std::map<NodeId, std::vector<NodeId>>& probes) {
  Instant next = kNever;
  std::erase_if(pairs_, [](const auto& pair) { return pair.second.unheard >= kUnheardMax; });
  for (auto& [pair, entry] : pairs_) {
    if (!entry.blocked) continue;
    if (now >= entry.probe_at) {
      probes[pair.first].push_back(pair.second);
      entry.probe_at = now + kProbeEvery;
      ++entry.unheard;
    }
    next = std::min(next, entry.probe_at);
  }
  return next;
}

bool UnreachablePairs::Blocked(const NodeId& from, const NodeId& to) const {
  const auto entry = pairs_.find({from, to});
  return entry != pairs_.end() && entry->second.blocked;
}

std::map<std::pair<NodeId, NodeId>, std::string> UnreachablePairs::Reasons() const {
  std::map<std::pair<NodeId, NodeId>, std::string> reasons;
  for (const auto& [pair, entry] : pairs_) {
    if (entry.blocked) reasons[pair] = absl::StrCat(entry.reason, "; probed until it answers");
  }
  return reasons;
}

std::vector<std::string> UnreachablePairs::Texts(Instant now) const {
  std::vector<std::string> texts;
  for (const auto& [pair, entry] : pairs_) {
    if (!entry.blocked) continue;
    std::string text = absl::StrFormat("%s > %s: %s; left out of plans for %.0f s", pair.first,
                                       pair.second, entry.reason, Seconds(now - entry.since));
    if (entry.probed_at) {
      absl::StrAppendFormat(&text, "; a probe %.0f s ago found: %s",
                            Seconds(now - *entry.probed_at), entry.trouble);
    }
    absl::StrAppendFormat(&text, "; probed in %.0f s", Seconds(entry.probe_at - now));
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace atl
