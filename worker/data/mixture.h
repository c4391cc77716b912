// Which source a position of the training data's axis belongs to, in a mixture by weights.
//
// Every kPeriod positions have so many of each source as its weight says, rounded to whole
// positions (largest remainders first, and at least one), evenly interleaved. So a position's
// sequence follows from the position alone: all workers agree on it without talking, and it is the
// same in every layout and after a restart.

#ifndef ATOLL_WORKER_DATA_MIXTURE_H_
#define ATOLL_WORKER_DATA_MIXTURE_H_

#include <cstdint>
#include <span>
#include <vector>

namespace atl {

class Mixture {
 public:
  static constexpr int64_t kPeriod = 1000;

  // One source.
  Mixture() : Mixture(std::vector<double>{1}) {}
  // REQUIRES: 1 to kPeriod weights, all above 0 and finite.
  explicit Mixture(std::span<const double> weights);

  struct Location {
    size_t source = 0;
    int64_t index = 0;  // among the positions of this source
  };
  // REQUIRES: position >= 0.
  Location At(int64_t position) const;

 private:
  std::vector<int64_t> shares_;  // positions of each source in a period
  std::vector<Location> period_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_MIXTURE_H_
