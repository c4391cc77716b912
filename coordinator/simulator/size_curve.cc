#include "coordinator/simulator/size_curve.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/status.h"

namespace atl::sim {
namespace {

absl::Status Refuse(size_t row, absl::string_view field, int64_t value, absl::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat("times[", row, "].", field, " = ", value, ": ", rule));
}

absl::Status CheckRising(const std::vector<MessageTime>& times, double latency_s) {
  int64_t bytes = 0;
  auto time_ns = static_cast<int64_t>(std::floor(latency_s * 1e9));
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i].bytes <= bytes) {
      return Refuse(i, "bytes", times[i].bytes,
                    absl::StrCat("must be above ", bytes, ", as sizes rise"));
    }
    if (times[i].time_ns <= time_ns) {
      return Refuse(i, "time_ns", times[i].time_ns,
                    absl::StrCat("must be above ", time_ns, i == 0 ? ", the latency" : "",
                                 ", as larger messages take longer"));
    }
    bytes = times[i].bytes;
    time_ns = times[i].time_ns;
  }
  return absl::OkStatus();
}

}  // namespace

double SizeCurve::LastBandwidth(const std::vector<MessageTime>& times, double latency_s) {
  if (times.empty()) return 0;
  const bool one = times.size() == 1;
  const double bytes =
      static_cast<double>(times.back().bytes - (one ? 0 : times[times.size() - 2].bytes));
  const double seconds =
      static_cast<double>(times.back().time_ns) * 1e-9 -
      (one ? latency_s : static_cast<double>(times[times.size() - 2].time_ns) * 1e-9);
  return bytes > 0 && seconds > 0 ? bytes / seconds : 0;
}

absl::StatusOr<SizeCurvePtr> SizeCurve::Make(const std::vector<MessageTime>& times,
                                             double latency_s, double bytes_per_s) {
  if (times.empty() || times.size() > kMessageTimesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("times: ", times.size(), " rows; a link has 1 to ", kMessageTimesMax));
  }
  if (!(latency_s >= 0 && latency_s <= 1e6) || !(bytes_per_s > 0) || !std::isfinite(bytes_per_s)) {
    return absl::InvalidArgumentError(
        absl::StrCat("times: need a latency of at least 0 and a positive bandwidth, not ",
                     latency_s, " s and ", bytes_per_s, " bytes/s"));
  }
  ATOLL_RETURN_IF_ERROR(CheckRising(times, latency_s));
  SizeCurve curve;
  curve.points_.emplace_back();
  double slope = INFINITY;
  for (const MessageTime& time : times) {
    const Point before = curve.points_.back();
    const Point point{static_cast<double>(time.bytes),
                      (static_cast<double>(time.time_ns) * 1e-9 - latency_s) * bytes_per_s};
    // A latency between two nanoseconds may leave the first less than nothing.
    const double effective = std::max(point.effective, before.effective + 1e-6);
    curve.points_.push_back({point.bytes, effective});
    slope = std::min(slope, effective / point.bytes);
  }
  curve.least_ratio_ = std::min(1.0, slope);
  return std::make_shared<const SizeCurve>(std::move(curve));
}

double SizeCurve::EffectiveBytes(double bytes) const {
  ATOLL_CHECK(bytes >= 0);
  const Point& last = points_.back();
  if (bytes >= last.bytes) return last.effective + (bytes - last.bytes);
  const auto next = std::upper_bound(points_.begin(), points_.end(), bytes,
                                     [](double n, const Point& p) { return n < p.bytes; });
  const Point& a = *std::prev(next);
  return a.effective +
         (bytes - a.bytes) / (next->bytes - a.bytes) * (next->effective - a.effective);
}

double SizeCurve::BytesFromEffective(double effective) const {
  const Point& last = points_.back();
  if (effective >= last.effective) return last.bytes + (effective - last.effective);
  if (effective <= 0) return 0;
  const auto next = std::upper_bound(points_.begin(), points_.end(), effective,
                                     [](double n, const Point& p) { return n < p.effective; });
  const Point& a = *std::prev(next);
  return a.bytes +
         (effective - a.effective) / (next->effective - a.effective) * (next->bytes - a.bytes);
}

std::vector<double> SizeCurve::Knees() const {
  std::vector<double> knees;
  for (size_t i = 1; i < points_.size(); ++i) knees.push_back(points_[i].effective);
  return knees;
}

std::vector<MessageTime> SizeCurve::Times(double latency_s, double bytes_per_s) const {
  std::vector<MessageTime> times;
  for (size_t i = 1; i < points_.size(); ++i) {
    const double seconds = latency_s + points_[i].effective / bytes_per_s;
    times.push_back({static_cast<int64_t>(points_[i].bytes), std::llround(seconds * 1e9)});
  }
  return times;
}

void SizeCurve::AppendTo(std::string& key) const {
  for (const Point& point : points_) {
    key.append(reinterpret_cast<const char*>(&point), sizeof(point));
  }
}

}  // namespace atl::sim
