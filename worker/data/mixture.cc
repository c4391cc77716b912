#include "worker/data/mixture.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"

namespace atl {

Mixture::Mixture(std::span<const double> weights) : shares_(weights.size()) {
  ATOLL_CHECK(!weights.empty() && std::ssize(weights) <= kPeriod);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> remainders;
  for (size_t s = 0; s < weights.size(); ++s) {
    ATOLL_CHECK(weights[s] > 0);
    const double exact = weights[s] / sum * static_cast<double>(kPeriod);
    shares_[s] = std::max<int64_t>(1, static_cast<int64_t>(exact));
    remainders.push_back(exact - static_cast<double>(shares_[s]));
  }
  int64_t missing = kPeriod - std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  for (; missing > 0; --missing) {
    const auto most = std::max_element(remainders.begin(), remainders.end());
    ++shares_[static_cast<size_t>(most - remainders.begin())];
    *most -= 1;
  }
  // Sources of less than one position were given one: the largest make up for it.
  for (; missing < 0; ++missing) --*std::max_element(shares_.begin(), shares_.end());
  for (size_t s = 0; s < shares_.size(); ++s) {
    for (int64_t k = 0; k < shares_[s]; ++k) period_.push_back({s, k});
  }
  // The k-th of n comes at (k + 1/2) / n of the way.
  std::stable_sort(period_.begin(), period_.end(), [&](const Location& a, const Location& b) {
    return (2 * a.index + 1) * shares_[b.source] < (2 * b.index + 1) * shares_[a.source];
  });
}

Mixture::Location Mixture::At(int64_t position) const {
  ATOLL_CHECK(position >= 0);
  const Location& location = period_[static_cast<size_t>(position % kPeriod)];
  return {location.source, position / kPeriod * shares_[location.source] + location.index};
}

}  // namespace atl
