#include "worker/profiler/worker_profiler.h"

#include <catch2/catch.hpp>
#include <set>

#include "common/testing/files_simulated.h"
#include "kernels/cpu/cpu.h"

namespace atl::worker {
namespace {

// A worker of two devices, and how often its devices were measured.
struct Fixture {
  SimulatedFiles files{1};
  int made = 0;
  std::mutex mutex;
  std::vector<std::string> reported;  // guarded by mutex
  JobSpec spec;
  JobFacts facts;

  Fixture() {
    spec.data.sequence_length = 16;
    spec.inner.batch_sequences = 2;
    spec.layout.island = IslandScope::kAll;
    facts.model.vocabulary = 32;
    facts.model.hidden = 16;
    facts.model.layers = 2;
    facts.model.heads = facts.model.key_value_heads = 2;
    facts.model.feed_forward = 32;
  }
  WorkerProfiler Starts(const std::string& version = "1", int devices = 2) {
    WorkerProfilerOptions options;
    options.worker = "w1";
    options.devices.assign(devices, {"cpu", 1 << 30, 1});
    options.make_backend = [this](int) -> absl::StatusOr<std::unique_ptr<Backend>> {
      ++made;
      return NewCpuBackend(1);
    };
    options.software_version = version;
    options.folder = "/state/profiles";
    options.runs = 1;
    options.measuring = [this](const std::string& what) {
      const std::lock_guard lock(mutex);
      reported.push_back(what);
    };
    return WorkerProfiler(files, options);
  }
};

TEST_CASE("devices are measured once, also for later requests") {
  Fixture fixture;
  const auto first = fixture.Starts().ProfilesFor(fixture.spec, fixture.facts);
  REQUIRE(first.size() == 2);
  CHECK(fixture.made == 2);
  CHECK(fixture.reported.front().rfind("measures layers: 1 of at most ", 0) == 0);
  CHECK(fixture.reported.back() == "");  // it is done
  CHECK(first[1].device == "w1/1");
  CHECK(first[0].model_digest == ComputeModelDigest(fixture.facts.model, 16));
  CHECK(first[0].software_version == "1");
  const auto again = fixture.Starts().ProfilesFor(fixture.spec, fixture.facts);
  CHECK(again == first);
  CHECK(fixture.made == 2);
}

// (devices that share a layer, sequences), in order.
std::set<std::pair<int, int>> ListProfiledSizes(const DeviceProfile& profile) {
  std::set<std::pair<int, int>> sizes;
  for (const LayerCost& cost : profile.layers) {
    sizes.emplace(cost.tensor_parallel, cost.micro_batch_sequences);
  }
  return sizes;
}

TEST_CASE("a job that wants sizes that were not measured has those measured, and no others") {
  Fixture fixture;
  fixture.spec.inner.batch_sequences = 1;
  fixture.spec.layout.tensor_parallel = 1;
  const auto first = fixture.Starts().ProfilesFor(fixture.spec, fixture.facts);
  REQUIRE(ListProfiledSizes(first[1]) == std::set<std::pair<int, int>>{{1, 1}});
  fixture.spec.inner.batch_sequences = 2;
  fixture.spec.layout.tensor_parallel = 2;
  const auto second = fixture.Starts().ProfilesFor(fixture.spec, fixture.facts);
  CHECK(fixture.made == 4);
  CHECK(ListProfiledSizes(second[0]) ==
        std::set<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}, {2, 2}});
  CHECK(ListProfiledSizes(second[1]) == ListProfiledSizes(second[0]));
  // The earlier entries are as they were.
  for (size_t i = 0; i < first[0].layers.size(); ++i) {
    CHECK(second[0].layers[i] == first[0].layers[i]);
  }
  // The first job finds all that it wants, and so does the second.
  CHECK(fixture.Starts().ProfilesFor(fixture.spec, fixture.facts) == second);
  fixture.spec.inner.batch_sequences = 1;
  fixture.spec.layout.tensor_parallel = 1;
  CHECK(fixture.Starts().ProfilesFor(fixture.spec, fixture.facts) == second);
  CHECK(fixture.made == 4);
}

TEST_CASE("another model, another version, or on request: measured again") {
  Fixture fixture;
  fixture.Starts().ProfilesFor(fixture.spec, fixture.facts);
  fixture.Starts("2").ProfilesFor(fixture.spec, fixture.facts);
  CHECK(fixture.made == 4);
  fixture.facts.model.hidden = 32;
  fixture.Starts("2").ProfilesFor(fixture.spec, fixture.facts);
  CHECK(fixture.made == 6);
  WorkerProfiler profiler = fixture.Starts("2");
  profiler.Forget();
  profiler.ProfilesFor(fixture.spec, fixture.facts);
  CHECK(fixture.made == 8);
}

TEST_CASE("a worker of one device whose job's islands are single workers is not measured") {
  Fixture fixture;
  fixture.spec.layout.island = IslandScope::kWorker;
  CHECK(fixture.Starts("1", 1).ProfilesFor(fixture.spec, fixture.facts).empty());
  CHECK(fixture.made == 0);
  CHECK(fixture.Starts("1", 2).ProfilesFor(fixture.spec, fixture.facts).size() == 2);
  // Unless the job fits by a plan alone.
  CHECK(fixture.Starts("1", 1).ProfilesFor(fixture.spec, fixture.facts, true).size() == 1);
}

TEST_CASE("a model that cannot be measured is no reason to refuse the job") {
  Fixture fixture;
  fixture.facts.model.heads = 3;  // does not divide 16
  CHECK(fixture.Starts().ProfilesFor(fixture.spec, fixture.facts).empty());
  fixture.files.space_bytes = 0;  // nor is a full disk
  fixture.facts.model.heads = 2;
  CHECK(fixture.Starts().ProfilesFor(fixture.spec, fixture.facts).size() == 2);
}

}  // namespace
}  // namespace atl::worker
