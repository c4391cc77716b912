#include "coordinator/history/curve.h"

#include <algorithm>

#include "common/check.h"

namespace atl {
namespace {

double Mean(double a, double weight_a, double b, double weight_b) {
  const double weight = weight_a + weight_b;
  return weight > 0 ? (a * weight_a + b * weight_b) / weight : 0;
}

}  // namespace

CurvePoint Merge(const CurvePoint& earlier, const CurvePoint& later) {
  CurvePoint both = later;
  const bool has_loss = earlier.loss != 0, adds_loss = later.loss != 0;
  both.loss =
      Mean(earlier.loss, has_loss ? earlier.tokens : 0, later.loss, adds_loss ? later.tokens : 0);
  if (has_loss) {
    both.loss_min = adds_loss ? std::min(earlier.loss_min, later.loss_min) : earlier.loss_min;
    both.loss_max = adds_loss ? std::max(earlier.loss_max, later.loss_max) : earlier.loss_max;
  }
  both.staleness =
      Mean(earlier.staleness, earlier.contributions, later.staleness, later.contributions);
  const auto mean = [&](double CurvePoint::*of) {
    both.*of = Mean(earlier.*of, earlier.*of != 0 ? earlier.contributions : 0, later.*of,
                    later.*of != 0 ? later.contributions : 0);
  };
  mean(&CurvePoint::learning_rate);
  mean(&CurvePoint::gradient_norm);
  both.tokens += earlier.tokens;
  both.seconds += earlier.seconds;
  both.rounds += earlier.rounds;
  both.contributions += earlier.contributions;
  both.rejected += earlier.rejected;
  both.steps += earlier.steps;
  return both;
}

std::vector<CurvePoint> Downsample(const std::vector<CurvePoint>& points, size_t count) {
  ATOLL_CHECK(count > 0);
  if (points.size() <= count) return points;
  std::vector<CurvePoint> merged;
  merged.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = points.size() * i / count, end = points.size() * (i + 1) / count;
    CurvePoint point = points[begin];
    for (size_t p = begin + 1; p < end; ++p) point = Merge(point, points[p]);
    merged.push_back(point);
  }
  return merged;
}

Curve::Curve(size_t capacity) : capacity_(capacity) { ATOLL_CHECK(capacity >= 2); }

void Curve::Add(const CurvePoint& round) {
  if (!points_.empty() && points_.back().rounds + round.rounds <= stride_) {
    points_.back() = Merge(points_.back(), round);
    return;
  }
  if (points_.size() >= capacity_) {
    points_ = Downsample(points_, (points_.size() + 1) / 2);
    stride_ *= 2;
  }
  points_.push_back(round);
}

void Curve::Restore(const std::vector<CurvePoint>& points) {
  points_ = Downsample(points, capacity_);
  for (const CurvePoint& point : points_) stride_ = std::max(stride_, point.rounds);
}

}  // namespace atl
