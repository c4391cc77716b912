#include "worker/profiler/hockney.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace atl::worker {
namespace {

std::map<int64_t, double> QuickestBySize(const std::vector<TransferTime>& times) {
  std::map<int64_t, double> quickest;
  for (const TransferTime& time : times) {
    if (!(time.seconds > 0) || time.bytes < 0) continue;
    const auto [entry, added] = quickest.try_emplace(time.bytes, time.seconds);
    if (!added) entry->second = std::min(entry->second, time.seconds);
  }
  return quickest;
}

}  // namespace

absl::StatusOr<HockneyFit> FitHockney(const std::vector<TransferTime>& times) {
  const std::map<int64_t, double> quickest = QuickestBySize(times);
  if (quickest.size() < 2) {
    return absl::InvalidArgumentError("a link needs measurements of at least two sizes");
  }
  // Minimise sum of ((l + n g - t) / t)^2: weighted least squares with weights 1 / t^2.
  double w = 0, wn = 0, wt = 0, wnn = 0, wnt = 0;
  for (const auto& [bytes, seconds] : quickest) {
    const double weight = 1 / (seconds * seconds);
    const double n = static_cast<double>(bytes);
    w += weight;
    wn += weight * n;
    wt += weight * seconds;
    wnn += weight * n * n;
    wnt += weight * n * seconds;
  }
  double seconds_per_byte = (w * wnt - wn * wt) / (w * wnn - wn * wn);
  double latency = (wt - seconds_per_byte * wn) / w;
  if (latency < 0) {
    latency = 0;
    seconds_per_byte = wnt / wnn;
  }
  if (!(seconds_per_byte > 0)) {
    const auto& [bytes, seconds] = *quickest.rbegin();
    if (bytes == 0) return absl::InvalidArgumentError("no message had any bytes");
    latency = 0;
    seconds_per_byte = seconds / static_cast<double>(bytes);
  }
  double squares = 0;
  for (const auto& [bytes, seconds] : quickest) {
    const double fit = latency + static_cast<double>(bytes) * seconds_per_byte;
    squares += (fit / seconds - 1) * (fit / seconds - 1);
  }
  return HockneyFit{latency, 1 / seconds_per_byte,
                    std::sqrt(squares / static_cast<double>(quickest.size()))};
}

std::vector<MessageTime> TimesBySize(const std::vector<TransferTime>& times, double latency_s,
                                     double back_s) {
  const std::map<int64_t, double> quickest = QuickestBySize(times);
  const auto latency_ns = static_cast<int64_t>(std::ceil(latency_s * 1e9));
  std::vector<MessageTime> rising;  // the largest first
  for (auto size = quickest.rbegin(); size != quickest.rend(); ++size) {
    const int64_t time_ns = std::llround((size->second - back_s) * 1e9);
    const bool in_order = rising.empty() || time_ns < rising.back().time_ns;
    if (size->first <= 0 || time_ns <= latency_ns || !in_order) continue;
    rising.push_back({size->first, time_ns});
    if (rising.size() == kMessageTimesMax) break;
  }
  std::reverse(rising.begin(), rising.end());
  return rising;
}

}  // namespace atl::worker
