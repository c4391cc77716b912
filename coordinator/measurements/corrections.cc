#include "coordinator/measurements/corrections.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/number_text.h"
#include "common/protocol/island_plan.h"

namespace atl {
namespace {

constexpr double kChanged = 1.25;
constexpr double kSame = 1.10;  // as near as this to what was measured is that
constexpr double kFactorMax = 64;
constexpr Duration kPatienceMax = std::chrono::minutes(40);
constexpr Duration kWaitMin = std::chrono::minutes(1);
constexpr Duration kWaitMax = std::chrono::minutes(32);
constexpr Duration kProbeEvery = std::chrono::minutes(1);
constexpr int kUnreceivedMax = 20;
constexpr size_t kMost = 65'536;

bool Off(double a, double b, double by) { return std::abs(std::log(a / b)) > std::log(by); }

std::string HowMuch(double factor) {
  return factor >= 1 ? absl::StrCat(NumberText(factor, 2), " times slower")
                     : absl::StrCat(NumberText(1 / factor, 2), " times faster");
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

double HowFar(double a, double b) { return std::max(a / b, b / a); }

std::string DescribeChange(const std::string& what, double before, double now) {
  const bool again = !Off(now, 1, kSame) && Off(before, 1, kSame);
  if (again) return absl::StrCat(what, " is as measured again, not ", HowMuch(before));
  return absl::StrCat(what, " is ", HowMuch(now), " than measured");
}

bool Drift::Add(double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) return false;
  factor = std::clamp(factor, 1 / kFactorMax, kFactorMax);
  seen_ = seen_ == 0 ? factor : 0.5 * (seen_ + factor);
  if (!Off(seen_, factor_, kChanged) || !Off(factor, factor_, kChanged)) {
    off_ = 0;
    return false;
  }
  if (++off_ < kCorrectingWindows) return false;
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
                               std::vector<ProfileChanged>& changes) {
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
  const double factor = entry.drift.factor();
  changes.push_back({{WorkerFromDevice(work.device)},
                     DescribeChange(work.device, before, factor),
                     false,
                     work.device,
                     HowFar(factor, before)});
}

Instant DeviceCorrections::Advance(Instant now, std::vector<ProfileChanged>& changes) {
  Instant next = kNever;
  for (auto& [key, entry] : entries_) {
    if (entry.drift.factor() == 1) continue;
    const Instant by = entry.at + entry.patience;
    if (now < by) {
      next = std::min(next, by);
      continue;
    }
    changes.push_back(
        {{WorkerFromDevice(key.first)},
         absl::StrFormat("%s was %s than measured %.0f min ago, and is tried again", key.first,
                         HowMuch(entry.drift.factor()), Seconds(now - entry.at) / 60),
         false,
         key.first,
         HowFar(entry.drift.factor(), 1)});
    entry.drift.Reset();
    entry.patience = std::min(2 * entry.patience, kPatienceMax);
  }
  return next;
}

void DeviceCorrections::Forget(const NodeId& worker) {
  std::erase_if(entries_,
                [&](const auto& entry) { return WorkerFromDevice(entry.first.first) == worker; });
}

void DeviceCorrections::Restore(Instant now, const std::string& device, uint64_t model_digest,
                                double factor) {
  if (entries_.size() >= kMost) return;
  Entry& entry = entries_[{device, model_digest}];
  entry.at = now;
  entry.drift.Restore(std::clamp(factor, 1 / kFactorMax, kFactorMax));
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
    if (entry.drift.factor() != 1)
      texts.push_back(DescribeChange(key.first, 1, entry.drift.factor()));
  }
  return texts;
}

// -------------------------------------------------------------------------------- no links ----

void UnreachablePairs::Failed(Instant now, const NodeId& from, const LinkFailure& failure,
                              bool live, std::vector<ProfileChanged>& changes) {
  const std::pair key(from, failure.to);
  if (pairs_.size() >= kMost && pairs_.count(key) == 0) return;
  Entry& entry = pairs_[key];
  if (entry.blocked) return;
  entry = {.reason = failure.reason, .blocked = true, .since = now, .wait = entry.wait};
  entry.wait = entry.wait == Duration(0) ? kWaitMin : std::min(2 * entry.wait, kWaitMax);
  entry.probe_at = now + entry.wait;
  changes.push_back({{from, failure.to},
                     absl::StrCat(from, " > ", failure.to, ": ", failure.reason),
                     live,
                     absl::StrCat(from, " > ", failure.to)});
}

void UnreachablePairs::Probed(Instant now, const NodeId& from, const NodeId& to,
                              const std::string& trouble, std::vector<ProfileChanged>& changes) {
  const auto found = pairs_.find({from, to});
  if (found == pairs_.end() || !found->second.blocked) return;
  Entry& entry = found->second;
  entry.unreceived = 0;
  entry.probed_at = now;
  entry.trouble = trouble;
  if (!trouble.empty()) return;
  entry.blocked = false;
  changes.push_back({{from, to},
                     absl::StrFormat("%s > %s: a probe is answered, after %.0f s without: %s", from,
                                     to, Seconds(now - entry.since), entry.reason),
                     false,
                     absl::StrCat(from, " > ", to)});
}

void UnreachablePairs::Forget(const NodeId& worker) {
  std::erase_if(pairs_, [&](const auto& entry) {
    return entry.first.first == worker || entry.first.second == worker;
  });
}

Instant UnreachablePairs::Advance(Instant now, std::map<NodeId, std::vector<NodeId>>& probes) {
  Instant next = kNever;
  std::erase_if(pairs_, [](const auto& pair) { return pair.second.unreceived >= kUnreceivedMax; });
  for (auto& [pair, entry] : pairs_) {
    if (!entry.blocked) continue;
    if (now >= entry.probe_at) {
      probes[pair.first].push_back(pair.second);
      entry.probe_at = now + kProbeEvery;
      ++entry.unreceived;
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
