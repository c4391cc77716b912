#include "tests/sim/toy_layer.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace atl::sim {
namespace {

constexpr float kNowhere = std::numeric_limits<float>::quiet_NaN();

bool Covers(const Range& owned, const Range& range) {
  return owned.begin <= range.begin && range.end <= owned.end;
}

void Forget(std::vector<float>* values, const Range& but) {
  for (size_t i = 0; i < values->size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    if (at < but.begin || at >= but.end) (*values)[i] = kNowhere;
  }
}

}  // namespace

ToyLayer::ToyLayer(int64_t elements, Range owned)
    : theta(static_cast<size_t>(elements), kNowhere),
      moment(static_cast<size_t>(elements), kNowhere),
      owned(owned) {}

void ToyLayer::Own(Range range) {
  if (owned == range) return;
  Before older{std::vector<float>(theta.size(), kNowhere), range, 0, false};
  const auto found =
      std::find_if(before.begin(), before.end(), [&](const Before& b) { return b.owned == range; });
  const bool again = found != before.end();
  if (again) {
    older = std::move(*found);
    before.erase(found);
  }
  std::swap(older.moment, moment);
  std::swap(older.owned, owned);
  std::swap(older.optimizer_step, optimizer_step);
  std::swap(older.whole, whole);
  if (written) before.push_back(std::move(older));
  written = again;
}

const std::vector<float>* ToyLayer::Parameters(Range range) const {
  const bool older = std::any_of(before.begin(), before.end(), [&](const Before& b) {
    return b.whole || Covers(b.owned, range);
  });
  return (written && (whole || Covers(owned, range))) || older ? &theta : nullptr;
}

const std::vector<float>* ToyLayer::Moments(Range range) const {
  if (written && Covers(owned, range)) return &moment;
  for (const Before& b : before) {
    if (Covers(b.owned, range)) return &b.moment;
  }
  return nullptr;
}

void ToyLayer::Step(int32_t layer, const std::vector<PositionRange>& ranges, double learning_rate) {
  ToyTrainer::StepLayer(layer, theta, ranges, learning_rate, 1);
  ToyTrainer::StepLayer(layer, moment, ranges, learning_rate, 1);
  of_all_owners_ = theta;
  Forget(&theta, owned);
  ++optimizer_step;
  whole = owned.size() == static_cast<int64_t>(theta.size());
  before.clear();
}

void ToyLayer::AllGatherParameters() {
  theta = of_all_owners_;
  whole = true;
}

void ToyLayer::Replace(std::vector<float> parameters, std::vector<float> moments, int64_t step) {
  std::erase_if(before, [&](const Before& b) { return b.optimizer_step != step; });
  theta = std::move(parameters);
  moment = std::move(moments);
  Forget(&moment, owned);
  optimizer_step = step;
  written = whole = true;
}

std::vector<HeldLayer> ToyLayer::Held(int32_t layer, const std::string& device) const {
  HeldLayer held;
  held.shard = {layer, 0, {1}};
  held.device = device;
  held.elements = static_cast<int64_t>(theta.size());
  held.optimizer_step = optimizer_step;
  held.written = written;
  held.owned = owned;
  held.whole = whole;
  held.surplus = surplus;
  std::vector<HeldLayer> all = {held};
  for (const Before& b : before) {
    held.optimizer_step = b.optimizer_step;
    held.written = held.surplus = true;
    held.owned = b.owned;
    held.whole = b.whole;
    all.push_back(held);
  }
  return all;
}

}  // namespace atl::sim
