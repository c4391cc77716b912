// A layer on a simulated device, kept as a real one keeps it (HeldState of
// worker/pipeline/device.h): all parameters, the moments of what it owns, and those that it owned
// under earlier plans. What is not there is not a number, so that a wrong use of it is detected.

#ifndef ATOLL_TESTS_SIM_TOY_LAYER_H_
#define ATOLL_TESTS_SIM_TOY_LAYER_H_

#include <string>
#include <vector>

#include "tests/sim/toy_trainer.h"
#include "worker/state/state_transfer.h"

namespace atl::sim {

struct ToyLayer {
  ToyLayer() = default;
  ToyLayer(int64_t elements, Range owned);

  // Owns this from now on, with what it owned before if it did once, else not written.
  void Own(Range range);
  // These elements of these parts (as bits) for reading; null: not here.
  const std::vector<float>* Parameters(Range range) const;
  const std::vector<float>* Moments(Range range) const;
  // Takes a step; where others own the rest, Spread brings what they have made of it.
  void Step(int32_t layer, const std::vector<PositionRange>& ranges, double learning_rate);
  void AllGatherParameters();
  // Replaces the layer; its former state is being written over.
  void Replace(std::vector<float> parameters, std::vector<float> moments, int64_t step);
  // Reports the layer to others, without stamps: what it has, then what it had.
  std::vector<HeldLayer> Held(int32_t layer, const std::string& device) const;

  std::vector<float> theta, moment;
  Range owned;
  int64_t optimizer_step = 0;
  bool written = false;
  bool whole = false;
  bool surplus = false;
  struct Before {
    std::vector<float> moment;
    Range owned;
    int64_t optimizer_step = 0;
    bool whole = false;
  };
  std::vector<Before> before;

 private:
  std::vector<float> of_all_owners_;  // of the newest step
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_TOY_LAYER_H_
