// The host waits for a device once a step, whatever the island's layout: at the commit point. Here
// NCCL's stand-in enqueues collectives, as NCCL does.

#include "tests/island/group_fixture.h"

namespace atl::worker {
namespace {

struct Waits {
  // Sums over the streams that compute and reduce, of all devices.
  int64_t Count() const {
    int64_t count = 0;
    for (const Backend* backend : backends) {
      count += testing::GetFakeCounts(*backend).synchronisations;
    }
    return count;
  }
  std::vector<const Backend*> backends;
};

IslandLayout Replicas(int copies) {
  IslandLayout layout;
  layout.name = "replicas";
  layout.schedule = "zb-h1";
  layout.replicas = {{{3, 3}, 4, 1}, {{3, 3}, 4, 1}};
  layout.workers = 2;
  layout.sites = 1;  // one, with NCCL
  layout.optimizer_copies = copies;
  return layout;
}

TEST_CASE("the host waits for a device once a step, also in those that are timed") {
  World world;
  Waits waits;
  world.on_device = [&](const LocalDevice& device) {
    waits.backends.push_back(device.compute.get());
    waits.backends.push_back(device.communication.get());
  };
  SingleDeviceTrainer alone(world);
  TestGroup group(world, 2, 2);
  IslandLayout layout;
  SECTION("all-reduce") { layout = Replicas(0); }
  SECTION("reduce-scatter and all-gather") { layout = Replicas(1); }
  SECTION("tensor parallelism") {
    layout = Replicas(1);
    layout.replicas = {{{6}, 4, 1}, {{6}, 4, 1}};
    layout.tensor_parallel = 2;
  }
  group.Take(layout, {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  int64_t step = 0;
  const auto train = [&](int64_t until) {
    for (; step < until; ++step) {
      REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    }
    leader.Drain();
  };
  train(1);
  const int64_t before = waits.Count();
  train(19);  // two of them are timed
  CHECK(waits.Count() - before == 18 * 4);
}

}  // namespace
}  // namespace atl::worker
