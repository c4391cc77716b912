// A measured rate or time, of its last samples: its median, and how far that can be off. And when a
// decision from such estimates is worth changing. Pure.

#ifndef ATOLL_COMMON_ESTIMATE_H_
#define ATOLL_COMMON_ESTIMATE_H_

#include <cstddef>
#include <deque>

namespace atl {

class Estimate {
 public:
  // A change shows in the median after three samples, and a burst of two does not. Fewer say
  // nothing of their spread.
  static constexpr size_t kSamples = 5;

  // Above 0 and finite. One like the last is the same sample, said again.
  void Add(double value);

  bool empty() const { return samples_.empty(); }
  size_t samples() const { return samples_.size(); }
  double median() const;  // 0: empty
  // At least 1: what is measured surely lies between median() / spread() and median() * spread().
  // From the median deviation, as a ratio, three standard errors: decisions look at it a hundred
  // times an hour, and 95% of the hours are to be without a mistake. Before kSamples it is 10.
  double spread() const;

  template <class V>
  void VisitFields(V& v) {
    v(samples_);
  }

 private:
  std::deque<double> samples_;
};

// A change that is weighed, in any one unit. It surely brings `gain` in each round, takes `cost`
// once, and is sure to last for `rounds`.
struct Change {
  double gain = 0;
  double cost = 0;
  double rounds = 0;
};
bool IsWorthChanging(const Change& change);

}  // namespace atl

#endif  // ATOLL_COMMON_ESTIMATE_H_
