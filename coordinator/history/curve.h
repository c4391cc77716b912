// A job's past in bounded memory: rounds in order, neighbours merged where there are too many.
// Pure.

#ifndef ATOLL_COORDINATOR_HISTORY_CURVE_H_
#define ATOLL_COORDINATOR_HISTORY_CURVE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace atl {

// One or more consecutive rounds.
struct CurvePoint {
  double unix_s = 0;   // of the last round
  double version = 0;  // after it
  double tokens = 0;
  double loss = 0;  // mean over tokens; 0: none
  double loss_min = 0;
  double loss_max = 0;
  double seconds = 0;
  double rounds = 1;
  double contributions = 0;
  double rejected = 0;
  double staleness = 0;  // mean over contributions
  double steps = 0;
  double learning_rate = 0;  // mean over contributions, as the next; 0: not known
  double gradient_norm = 0;

  bool operator==(const CurvePoint&) const = default;
};

// Both, `later` after `earlier`.
CurvePoint Merge(const CurvePoint& earlier, const CurvePoint& later);

// At most `count` points with all the rounds of `points`. REQUIRES: count > 0.
std::vector<CurvePoint> Downsample(const std::vector<CurvePoint>& points, size_t count);

// A curve. When it is full, neighbours are merged: every point then stands for twice as many
// rounds.
class Curve {
 public:
  explicit Curve(size_t capacity);  // REQUIRES: at least 2
  void Add(const CurvePoint& round);
  // Goes on from stored points; more than the capacity are merged.
  void Restore(const std::vector<CurvePoint>& points);
  const std::vector<CurvePoint>& points() const { return points_; }

 private:
  size_t capacity_;
  double stride_ = 1;  // rounds in a point
  std::vector<CurvePoint> points_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_HISTORY_CURVE_H_
