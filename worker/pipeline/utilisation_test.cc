#include "worker/pipeline/utilisation.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

using std::chrono::milliseconds;

struct UtilisationSteps {
  // Both devices compute for these times; the step ends `lasts` after the one before.
  void Step(Duration lasts, Duration first, Duration second, bool timed = true) {
    now += lasts;
    std::vector<DeviceStep> devices(2);
    // Besides, they wait for messages and all-reduces.
    for (const PlanOpKind kind : {PlanOpKind::kReceive, PlanOpKind::kSync}) {
      devices[0].spans.push_back({{kind, 0, 0}, now, now + lasts});
    }
    devices[0].spans.push_back({{PlanOpKind::kForward, 0, 0}, now, now + first});
    devices[1].spans.push_back({{PlanOpKind::kWeightGradient, 0, 0}, now, now + second});
    for (DeviceStep& device : devices) {
      device.timed = timed;
      device.ended = now;
      device.begun = now - lasts;
      device.worked = device.begun + lasts / 2;
    }
    utilisation.Add(devices);
  }
  Instant now{std::chrono::hours(1)};
  Utilisation utilisation;
};

bool IsAbout(double value, double wanted) { return std::abs(value - wanted) < 1e-6; }

TEST_CASE("utilisation_is_the_mean_of_the_devices_over_the_time_of_steps_and_waits") {
  UtilisationSteps steps;
  CHECK(steps.utilisation.Get(steps.now) == 0);
  steps.Step(milliseconds(100), milliseconds(90), milliseconds(30));
  CHECK(steps.utilisation.Get(steps.now) == 0);  // since when it worked is not known
  for (int i = 0; i < 50; ++i) steps.Step(milliseconds(100), milliseconds(90), milliseconds(30));
  CHECK(IsAbout(steps.utilisation.Get(steps.now), 0.6));
  CHECK(IsAbout(steps.utilisation.Get(steps.now + milliseconds(100)), 0.6));  // the next one runs
}

TEST_CASE("utilisation_falls_while_no_step_is_made") {
  UtilisationSteps steps;
  for (int i = 0; i < 11; ++i) steps.Step(milliseconds(100), milliseconds(80), milliseconds(80));
  const double later = steps.utilisation.Get(steps.now + std::chrono::seconds(60));
  CHECK(later > 0);
  CHECK(later < 0.05);
}

TEST_CASE("utilisation_of_steps_that_are_not_timed_counts_up_to_the_all_reduces") {
  UtilisationSteps steps;
  for (int i = 0; i < 3; ++i) steps.Step(milliseconds(100), Duration(0), Duration(0), false);
  CHECK(IsAbout(steps.utilisation.Get(steps.now), 0.5));
}

}  // namespace
}  // namespace atl::worker
