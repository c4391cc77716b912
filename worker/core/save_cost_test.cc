#include "worker/core/save_cost.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

// A save during so many steps.
void Saves(SaveCost& cost, int steps, double step_s, double stall_s = 0) {
  cost.Begin();
  cost.Stall(stall_s);
  for (int i = 0; i < steps - 1; ++i) cost.Step(step_s);
  cost.End(true);
  cost.Step(step_s);
  CHECK(!cost.under_way());
}

void Trains(SaveCost& cost, int steps, double step_s) {
  for (int i = 0; i < steps; ++i) cost.Step(step_s);
}

TEST_CASE("a_save_costs_its_stall_and_what_steps_take_longer") {
  SaveCost cost;
  Trains(cost, 5, 1.0);
  Saves(cost, 3, 1.5, 0.5);
  CHECK(cost.StepsBetween() == 100);  // 2 s of 1 s each, at 2%
}

TEST_CASE("saves_that_cost_nothing_leave_as_many_steps_free_as_they_take") {
  SaveCost cost;
  CHECK(cost.StepsBetween() == 2);
  Trains(cost, 3, 1.0);
  Saves(cost, 4, 1.0);
  CHECK(cost.StepsBetween() == 8);
}

TEST_CASE("slow_first_and_single_late_steps_do_not_change_median_step_time") {
  SaveCost cost;
  Saves(cost, 1, 0.9);
  Trains(cost, 1, 0.8);  // memory is touched for the first time
  Saves(cost, 2, 0.6);
  CHECK(cost.StepsBetween() == 4);
  Trains(cost, 4, 0.4);
  Trains(cost, 1, 3.0);
  // The two saves cost 0.5 s and 2 * 0.2 s.
  CHECK(cost.StepsBetween() == 57);
}

TEST_CASE("a_dropped_save_is_none") {
  SaveCost cost;
  Trains(cost, 3, 1.0);
  cost.Begin();
  cost.Step(9.0);
  cost.Drop();
  cost.End(false);
  CHECK(cost.StepsBetween() == 2);
}

TEST_CASE("a_save_that_ends_between_steps_is_kept_at_once") {
  SaveCost cost;
  Trains(cost, 3, 1.0);
  cost.Begin();
  cost.Step(1.2);
  cost.End(false);
  CHECK(!cost.under_way());
  CHECK(cost.StepsBetween() == 10);
}

TEST_CASE("intervals_are_bounded") {
  SaveCost cost;
  Trains(cost, 3, 1e-3);
  Saves(cost, 1, 1e6);
  CHECK(cost.StepsBetween() == SaveCost::kMostStepsBetween);
}

}  // namespace
}  // namespace atl::worker
