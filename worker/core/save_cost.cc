#include "worker/core/save_cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace atl::worker {

void SaveCost::Begin() {
  save_ = Save{};
  under_way_ = true;
  ends_with_step_ = false;
}

void SaveCost::Stall(double seconds) { save_.stall_s += seconds; }

void SaveCost::End(bool during_step) {
  if (!under_way_) return;
  ends_with_step_ = during_step;
  if (!during_step) Keep();
}

void SaveCost::Step(double seconds) {
  if (!under_way_) {
    plain_step_seconds_.push_back(seconds);
    if (plain_step_seconds_.size() > kStepsKept) plain_step_seconds_.pop_front();
    return;
  }
  save_.steps_s += seconds;
  ++save_.steps;
  if (ends_with_step_) Keep();
}

void SaveCost::Keep() {
  under_way_ = false;
  saves_.push_back(save_);
  if (saves_.size() > kSavesKept) saves_.pop_front();
}

double SaveCost::ComputeMedianStepSeconds() const {
  if (plain_step_seconds_.empty()) return 0;
  std::vector<double> sorted(plain_step_seconds_.begin(), plain_step_seconds_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

int64_t SaveCost::StepsBetween() const {
  const double median_s = ComputeMedianStepSeconds();
  double cost_s = 0;
  int64_t longest = 1;
  for (const Save& save : saves_) {
    const double slower_s = save.steps_s - static_cast<double>(save.steps) * median_s;
    cost_s += (save.stall_s + std::max(0.0, slower_s)) / static_cast<double>(saves_.size());
    longest = std::max(longest, save.steps);
  }
  // At least as many steps without a save as during one lie between two saves.
  const int64_t least = 2 * longest;
  if (median_s <= 0) return least;
  const double wanted = std::ceil(cost_s / (kShare * median_s));
  return std::clamp(static_cast<int64_t>(std::min(wanted, double{kMostStepsBetween})), least,
                    std::max(least, kMostStepsBetween));
}

}  // namespace atl::worker
