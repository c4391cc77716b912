#include "common/estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace atl {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

void Estimate::Add(double value) {
  if (!samples_.empty() && samples_.back() == value) return;
  samples_.push_back(value);
  if (samples_.size() > kSamples) samples_.pop_front();
}

double Estimate::median() const {
  return samples_.empty() ? 0 : Median({samples_.begin(), samples_.end()});
}

double Estimate::spread() const {
  constexpr double kUnknown = 10;
  if (samples_.size() < kSamples) return kUnknown;
  const double middle = std::log(median());
  std::vector<double> off;
  for (const double sample : samples_) off.push_back(std::abs(std::log(sample) - middle));
  constexpr double kDeviation = 1.4826;  // of a median deviation
  constexpr double kOfMedian = 1.2533;   // of a mean's standard error
  constexpr double kErrors = 3;
  const double count = static_cast<double>(samples_.size());
  return std::exp(kErrors * kOfMedian * kDeviation * Median(off) / std::sqrt(count));
}

bool IsWorthChanging(const Change& change) { return change.gain * change.rounds > change.cost; }

}  // namespace atl
