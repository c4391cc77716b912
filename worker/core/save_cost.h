// Computes what copying an island's state to other workers' memory costs its training, and how many
// steps lie between two saves for that to be a given share of the time. A save costs its stall and
// what the steps during it take longer than the usual step of now. Usual is the median of the
// latest steps without a save: an island's first steps and single late ones do not count. Saves
// never follow each other without such steps in between, since otherwise a first, slow one would
// stay the measure of all. Pure.

#ifndef ATOLL_WORKER_CORE_SAVE_COST_H_
#define ATOLL_WORKER_CORE_SAVE_COST_H_

#include <cstdint>
#include <deque>

namespace atl::worker {

class SaveCost {
 public:
  static constexpr double kShare = 0.02;  // of the time of usual steps
  static constexpr int64_t kMostStepsBetween = 10'000;

  // Begins a save: steps from now on are during it.
  void Begin();
  // Training has waited for it so long.
  void Stall(double seconds);
  // It is not made, or breaks off, or reports nothing any more.
  void Drop() { under_way_ = false; }
  // It is whole. `during_step`: the step under way still counts as one during it.
  void End(bool during_step);
  void Step(double seconds);

  // Returns whether a step that ends now was during a save.
  bool under_way() const { return under_way_; }
  // Returns the steps from one save's begin to the next one's.
  int64_t StepsBetween() const;

 private:
  struct Save {
    double stall_s = 0;
    double steps_s = 0;  // of the steps during it, together
    int64_t steps = 0;
  };
  static constexpr size_t kStepsKept = 9, kSavesKept = 4;

  void Keep();
  double ComputeMedianStepSeconds() const;  // 0: not known

  Save save_;
  bool under_way_ = false, ends_with_step_ = false;
  std::deque<Save> saves_;                 // the latest
  std::deque<double> plain_step_seconds_;  // the latest, seconds
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_SAVE_COST_H_
