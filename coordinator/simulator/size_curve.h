// Times of messages of measured sizes on an edge, where latency + n / bandwidth does not say it: a
// protocol that changes with the size, a shaper's burst, a window that small messages never fill.
//
// A message of n bytes takes latency + EffectiveBytes(n) / bandwidth: effective bytes are those
// that would take as long without a curve. So a curve holds also where the bandwidth is shared,
// changes over time or is corrected: every size then takes so many times as long.

#ifndef ATOLL_COORDINATOR_SIMULATOR_SIZE_CURVE_H_
#define ATOLL_COORDINATOR_SIMULATOR_SIZE_CURVE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/device_profile.h"

namespace atl::sim {

class SizeCurve {
 public:
  // Linear between sizes, down to the latency for no bytes, and at `bytes_per_s` beyond the largest
  // size. Refuses no times, more than kMessageTimesMax, sizes or times that do not rise from 0
  // bytes and the latency on, and a latency or bandwidth that is no number, naming the row and the
  // value.
  static absl::StatusOr<std::shared_ptr<const SizeCurve>> Make(
      const std::vector<MessageTime>& times, double latency_s, double bytes_per_s);
  // The bandwidth from the last size but one to the last (from the latency on where there is one
  // size); 0 where these two do not rise.
  static double LastBandwidth(const std::vector<MessageTime>& times, double latency_s);

  // REQUIRES: bytes >= 0.
  double EffectiveBytes(double bytes) const;
  // The inverse: how many bytes a message has that takes so many.
  double BytesFromEffective(double effective) const;
  // The least EffectiveBytes(n) / n of any n: no message is carried at more than bandwidth over
  // this.
  double least_ratio() const { return least_ratio_; }
  // The effective bytes of the measured sizes, rising: between them the curve is linear.
  std::vector<double> Knees() const;
  // Returns the times that a link of this latency and bandwidth was measured to take.
  std::vector<MessageTime> Times(double latency_s, double bytes_per_s) const;
  // Compares what distinguishes the curve from others.
  bool operator==(const SizeCurve& other) const { return points_ == other.points_; }
  void AppendTo(std::string& key) const;

 private:
  struct Point {
    double bytes = 0;
    double effective = 0;
    bool operator==(const Point&) const = default;
  };
  std::vector<Point> points_;  // the first is (0, 0)
  double least_ratio_ = 1;
};

using SizeCurvePtr = std::shared_ptr<const SizeCurve>;  // null: a message takes its own bytes

inline double EffectiveBytes(const SizeCurvePtr& sizes, double bytes) {
  return sizes == nullptr ? bytes : sizes->EffectiveBytes(bytes);
}
// The most that an edge of this bandwidth carries of any message's bytes in a unit of time.
inline double FastestRate(const SizeCurvePtr& sizes, double rate) {
  return sizes == nullptr ? rate : rate / sizes->least_ratio();
}
inline bool SameCurve(const SizeCurvePtr& a, const SizeCurvePtr& b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_SIZE_CURVE_H_
