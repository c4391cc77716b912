#include "worker/profiler/worker_profiler.h"

#include <catch2/catch.hpp>
#include <set>

#include "common/files_simulated.h"
#include "kernels/cpu/cpu.h"

namespace atl::worker {
namespace {

// A worker of two devices, and how often its devices were measured.
struct Story {
  SimulatedFiles files{1};
  int made = 0;
  std::mutex mutex;
  std::vector<std::string> told;  // guarded by mutex
  JobSpec spec;
  JobFacts facts;

  Story() {
    spec.data.sequence_length = 16;
    spec.inner.batch_sequences = 2;
    spec.layout.island = IslandExtent::kAll;
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
      told.push_back(what);
    };
    return WorkerProfiler(files, options);
  }
};

TEST_CASE("devices are measured once, also for later requests") {
  Story story;
  const auto first = story.Starts().ProfilesFor(story.spec, story.facts);
  REQUIRE(first.size() == 2);
  CHECK(story.made == 2);
  CHECK(story.told.front().rfind("measures layers: 1 of at most ", 0) == 0);
  CHECK(story.told.back() == "");  // it is done
  CHECK(first[1].device == "w1/1");
  CHECK(first[0].model_digest == DigestOf(story.facts.model, 16));
  CHECK(first[0].software_version == "1");
  const auto again = story.Starts().ProfilesFor(story.spec, story.facts);
  CHECK(again == first);
  CHECK(story.made == 2);
}

// (devices that share a layer, sequences), in order.
std::set<std::pair<int, int>> SizesOf(const DeviceProfile& profile) {
  std::set<std::pair<int, int>> sizes;
  for (const LayerCost& cost : profile.layers) {
    sizes.emplace(cost.tensor_parallel, cost.micro_batch_sequences);
  }
  return sizes;
}

TEST_CASE("a job that wants sizes that were not measured has those measured, and no others") {
  Story story;
  story.spec.inner.batch_sequences = 1;
  story.spec.layout.tensor_parallel = 1;
  const auto first = story.Starts().ProfilesFor(story.spec, story.facts);
  REQUIRE(SizesOf(first[1]) == std::set<std::pair<int, int>>{{1, 1}});
  story.spec.inner.batch_sequences = 2;
  story.spec.layout.tensor_parallel = 2;
  const auto second = story.Starts().ProfilesFor(story.spec, story.facts);
  CHECK(story.made == 4);
  CHECK(SizesOf(second[0]) == std::set<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}, {2, 2}});
  CHECK(SizesOf(second[1]) == SizesOf(second[0]));
  // What was there is as it was.
  for (size_t i = 0; i < first[0].layers.size(); ++i) {
    CHECK(second[0].layers[i] == first[0].layers[i]);
  }
  // The first job finds all that it wants, and so does the second.
  CHECK(story.Starts().ProfilesFor(story.spec, story.facts) == second);
  story.spec.inner.batch_sequences = 1;
  story.spec.layout.tensor_parallel = 1;
  CHECK(story.Starts().ProfilesFor(story.spec, story.facts) == second);
  CHECK(story.made == 4);
}

TEST_CASE("another model, another version, or on request: measured again") {
  Story story;
  story.Starts().ProfilesFor(story.spec, story.facts);
  story.Starts("2").ProfilesFor(story.spec, story.facts);
  CHECK(story.made == 4);
  story.facts.model.hidden = 32;
  story.Starts("2").ProfilesFor(story.spec, story.facts);
  CHECK(story.made == 6);
  WorkerProfiler profiler = story.Starts("2");
  profiler.Forget();
  profiler.ProfilesFor(story.spec, story.facts);
  CHECK(story.made == 8);
}

TEST_CASE("a worker of one device whose job's islands are single workers is not measured") {
  Story story;
  story.spec.layout.island = IslandExtent::kWorker;
  CHECK(story.Starts("1", 1).ProfilesFor(story.spec, story.facts).empty());
  CHECK(story.made == 0);
  CHECK(story.Starts("1", 2).ProfilesFor(story.spec, story.facts).size() == 2);
  // Unless the job fits by a plan alone.
  CHECK(story.Starts("1", 1).ProfilesFor(story.spec, story.facts, true).size() == 1);
}

TEST_CASE("a model that cannot be measured is no reason to refuse the job") {
  Story story;
  story.facts.model.heads = 3;  // does not divide 16
  CHECK(story.Starts().ProfilesFor(story.spec, story.facts).empty());
  story.files.space_bytes = 0;  // nor is a full disk
  story.facts.model.heads = 2;
  CHECK(story.Starts().ProfilesFor(story.spec, story.facts).size() == 2);
}

}  // namespace
}  // namespace atl::worker
