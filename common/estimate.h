// A measured rate or time, of its last samples: its median, and how far that can be off. And when a
// decision from such estimates is worth changing. Pure.

#ifndef ATOLL_COMMON_ESTIMATE_H_
#define ATOLL_COMMON_ESTIMATE_H_

#include <cstddef>
#include <deque>

namespace atl {

class Estimate {
 public:
  // A change shows in the median after three samples, and a burst of two does not.
  static constexpr size_t kSamples = 5;

  // Above 0 and finite. One like the last is the same sample, said again.
  void Add(double value);

  bool empty() const { return samples_.empty(); }
  size_t samples() const { return samples_.size(); }
  double median() const;  // 0: empty
  // At least 1: with 95% confidence the median of what is measured lies between median() / spread()
  // and median() * spread(). From the median deviation, as a ratio; of fewer than three samples it
  // is not known: 1.
  double spread() const;

 private:
  std::deque<double> samples_;
};

// What a change promises, in any one unit. `gain` is what it surely brings (with 95% confidence) in
// each round, `cost` what it takes once, `rounds` for how many it is sure to last.
struct Change {
  double gain = 0;
  double cost = 0;
  double rounds = 0;
};
bool IsWorthChanging(const Change& change);

}  // namespace atl

#endif  // ATOLL_COMMON_ESTIMATE_H_
