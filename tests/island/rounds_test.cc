// Training in rounds is exactly plain training, where it should be.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/protocol/learning_rate.h"
#include "kernels/deltas.h"
#include "kernels/testing/reference/reference.h"
#include "tests/island/solo_island.h"

namespace atl::worker {
namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "island-XXXXXX").string();
    path = mkdtemp(name.data());
    std::ofstream text(path + "/text");
    for (int i = 0; i < 60; ++i) text << "the " << i * i << " waves of the sea, ";
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

JobSpec Spec(const Folder& folder) {
  JobSpec spec;
  spec.name = "sea";
  spec.model.hidden = 8;
  spec.model.layers = 1;
  spec.model.heads = 2;
  spec.model.feed_forward = 16;
  spec.data.path = folder.path + "/text";
  spec.data.validation_fraction = 0.2;
  spec.data.sequence_length = 8;
  spec.inner.learning_rate = 1e-2;
  spec.inner.batch_sequences = 2;
  spec.schedule.train_tokens = 640;
  spec.schedule.validation_sequences = 4;
  return spec;
}

SoloOptions Options(const JobSpec& spec, const LeaderOptions& leader = {}) {
  const auto make_device = [](int index) -> LocalDevice {
    return {index, NewReferenceBackend(), NewReferenceBackend()};
  };
  return {.spec = spec, .make_device = make_device, .leader = leader};
}

// One island and a parameter server of one delta: theta <- theta - delta.
class Bench : public SoloIsland {
 public:
  explicit Bench(const Folder& folder, const LeaderOptions& options = {},
                 Encoding encoding = Encoding::kFloat32)
      : SoloIsland(Options(Spec(folder), options)), folder_(folder) {
    spec.outer.push_encoding = encoding;
    Prepares();
    MakesWeights();
    server = delta().values;
    Takes(0, AdoptMode::kReplace);
  }

  double Steps(int count, int first) {
    double loss = 0;
    for (int i = first; i < first + count; ++i) {
      const double rate = LearningRate(Spec(folder_).inner, 640, (i + 1) * 16, 1);
      last_step = Does<StepDone>(TrainStep{{{i * 2, i * 2 + 2}}, rate});
      loss = last_step.loss;
    }
    return loss;
  }
  void Push(Version base) {
    const bool quantized = IsQuantized(spec.outer.push_encoding);
    Captures({{0, 1, 1, base},
              spec.outer.push_encoding,
              quantized ? Shards(2) : std::vector<ShardPlacement>()});
  }
  // Returns what a server decodes of the last push.
  LayerBuffers Pushed() {
    LayerBuffers pushed = delta().values;
    if (!IsQuantized(delta().encoding)) return pushed;
    ThreadPool pool(1);
    for (const ShardPlacement& shard : Shards(2)) {
      DecodeDelta({delta().encoded.at(shard.shard).data(), delta().encoding, shard.elements},
                  std::span(pushed[shard.layer]).subspan(shard.begin, shard.elements), pool);
    }
    return pushed;
  }
  // Outer step with rate 1 and no momentum.
  void ServerApplies() {
    const LayerBuffers pushed = Pushed();
    for (size_t l = 0; l < server.size(); ++l) {
      for (size_t i = 0; i < server[l].size(); ++i) server[l][i] -= pushed[l][i];
    }
  }
  void Takes(Version version, AdoptMode mode, bool reset_moments = false,
             bool keep_residual = false) {
    Adopts(server, {version, mode, reset_moments, keep_residual});
  }

  LayerBuffers server;
  StepDone last_step;

 private:
  const Folder& folder_;
};

// Largest difference between two models, relative to the largest parameter.
double Difference(const LayerBuffers& a, const LayerBuffers& b) {
  double worst = 0, largest = 0;
  REQUIRE(a.size() == b.size());
  for (size_t l = 0; l < a.size(); ++l) {
    for (size_t i = 0; i < a[l].size(); ++i) {
      worst = std::max(worst, std::abs(double{a[l][i]} - double{b[l][i]}));
      largest = std::max(largest, std::abs(double{a[l][i]}));
    }
  }
  return worst / largest;
}

TEST_CASE("One island, outer rate 1, no momentum: rounds change nothing but rounding") {
  Folder folder;
  Bench plain(folder), rounds(folder);
  const LayerBuffers start = plain.Theta();
  plain.Steps(12, 0);
  for (int round = 0; round < 3; ++round) {
    rounds.Steps(4, round * 4);
    rounds.Push(round);
    rounds.ServerApplies();
    rounds.Takes(round + 1, AdoptMode::kReplace);
  }
  CHECK(Difference(plain.Theta(), start) > 0.01);  // it did train
  CHECK(Difference(plain.Theta(), rounds.Theta()) < 1e-6);
}

TEST_CASE("Steps made while the round was made are carried over exactly once") {
  Folder folder;
  Bench plain(folder), carried(folder);
  plain.Steps(12, 0);
  carried.Steps(4, 0);
  carried.Push(0);
  carried.Steps(3, 4);
  carried.ServerApplies();
  carried.Takes(1, AdoptMode::kCarry);
  carried.Steps(5, 7);
  CHECK(Difference(plain.Theta(), carried.Theta()) < 1e-6);
  carried.Push(1);  // what is pushed next is what was carried and what followed
  carried.ServerApplies();
  CHECK(Difference(plain.Theta(), carried.server) < 1e-6);
}

TEST_CASE("A rejected push takes its steps with it, and carried ones stay") {
  Folder folder;
  Bench bench(folder);
  bench.Steps(4, 0);
  const LayerBuffers pushed = bench.Theta();
  bench.Push(0);
  bench.Takes(0, AdoptMode::kCarry);  // the server has applied nothing
  CHECK(Difference(bench.server, bench.Theta()) < 1e-7);
  bench.Steps(2, 4);
  const LayerBuffers local = bench.Theta();
  bench.Takes(0, AdoptMode::kCarry);  // nothing was captured since: relative to the base
  CHECK(Difference(local, bench.Theta()) < 1e-6);
  CHECK(Difference(pushed, bench.Theta()) > 1e-3);
}

TEST_CASE("The rounding error of a push comes with the next push, unless it is to be forgotten") {
  Folder folder;
  Bench bench(folder, {}, Encoding::kInt4);
  bench.Steps(3, 0);
  bench.Push(0);
  const LayerBuffers first = bench.delta().values, sent = bench.Pushed();
  REQUIRE(first != sent);
  bench.ServerApplies();
  const bool keep = GENERATE(true, false);
  bench.Takes(1, AdoptMode::kReplace, false, keep);
  bench.Push(1);  // of no step: all that it holds is what was left
  const LayerBuffers rest = bench.Pushed();
  double left = 0, corrected = 0, later = 0;
  for (size_t l = 0; l < first.size(); ++l) {
    for (size_t i = 0; i < first[l].size(); ++i) {
      left = std::max(left, std::abs(double{first[l][i]} - sent[l][i]));
      corrected = std::max(corrected, std::abs(double{first[l][i]} - sent[l][i] - rest[l][i]));
      later = std::max(later, std::abs(double{rest[l][i]}));
    }
  }
  if (keep) {
    CHECK(corrected < 0.2 * left);
  } else {
    CHECK(later == 0);
  }
}

TEST_CASE("a_capture_that_fails_leaves_the_residual_as_it_was") {
  Folder folder;
  const auto to_version_1 = [](Bench& bench) {
    bench.Steps(3, 0);
    bench.Push(0);
    bench.ServerApplies();
    bench.Takes(1, AdoptMode::kReplace, false, true);
    bench.Steps(2, 3);
  };
  Bench plain(folder, {}, Encoding::kInt8), failed(folder, {}, Encoding::kInt8);
  to_version_1(plain);
  to_version_1(failed);
  CaptureDelta beyond{{0, 1, 1, 1}, Encoding::kInt8, failed.Shards(2)};
  beyond.shards.back().elements += 1;
  CHECK_THAT(std::string(failed.trainer().CaptureDelta(beyond).message()),
             Catch::Contains("does not lie within the model"));
  plain.Push(1);
  failed.Push(1);
  CHECK(failed.delta().encoded == plain.delta().encoded);
}

TEST_CASE("Validation looks at the base and leaves training alone") {
  Folder folder;
  Bench bench(folder), other(folder);
  const ValidationDone before = bench.Does<ValidationDone>(Validate{0});
  CHECK(before.tokens == 4 * 8);
  bench.Steps(6, 0);
  const LayerBuffers theta = bench.Theta();
  CHECK(bench.Does<ValidationDone>(Validate{0}).loss == before.loss);
  CHECK(bench.Theta() == theta);
  other.Steps(3, 0);
  CHECK(bench.Steps(1, 6) != other.Steps(1, 3));
}

// Why a job is refused; empty: it is not.
std::string Refusal(const JobSpec& spec, const LeaderOptions& options) {
  SoloIsland island(Options(spec, options));
  return std::string(
      island.trainer().Do<Prepared>(Prepare{"sea-1", island.spec}).status().message());
}

// Bytes of one copy of the model, and of its largest layer.
std::pair<int64_t, int64_t> CopyBytes(SoloIsland& island) {
  int64_t copy = 0, largest = 0;
  for (const LayerSize& layer : island.facts.layers) {
    copy += layer.elements * 4;
    largest = std::max(largest, layer.elements * 4);
  }
  return {copy, largest};
}

TEST_CASE("A job that does not fit or cannot be opened is refused with its reason") {
  Folder folder;
  JobSpec spec = Spec(folder);
  CHECK_THAT(Refusal(spec, {.host_bytes = 1000}), Catch::Contains("--memory-bytes"));
  spec.data.path = folder.path + "/nothing";
  CHECK_THAT(Refusal(spec, {.host_bytes = 1000}), Catch::Contains("nothing"));
}

TEST_CASE("A host whose devices have memory of their own needs room for its own copies alone") {
  Folder folder;
  Bench ample(folder);
  const int64_t copy = CopyBytes(ample).first;
  const auto reason = [&](int64_t host_bytes, bool devices_on_host, Encoding encoding) {
    JobSpec spec = Spec(folder);
    spec.outer.push_encoding = encoding;
    return Refusal(spec, {.host_bytes = host_bytes, .devices_on_host = devices_on_host});
  };
  CHECK(reason(10 * copy, true, Encoding::kFloat32) == "");
  CHECK(reason(10 * copy - 1, true, Encoding::kFloat32) != "");
  CHECK(reason(6 * copy, false, Encoding::kFloat32) == "");
  CHECK_THAT(reason(6 * copy - 1, false, Encoding::kFloat32),
             Catch::Contains("of this worker's host"));
  CHECK(reason(10 * copy, false, Encoding::kInt8) == "");
  CHECK(reason(10 * copy - 1, false, Encoding::kInt8) != "");
}

TEST_CASE("a_host_needs_room_for_what_it_owns_and_keeps_copies_of_and_for_saves_of_its_own") {
  Folder folder;
  JobSpec spec = Spec(folder);
  spec.schedule.validation_sequences = 0;
  Bench ample(folder);
  const auto [copy, largest] = CopyBytes(ample);
  const auto reason = [&](int64_t host_bytes, size_t members) {
    SoloIsland island(Options(spec, {.host_bytes = host_bytes}));
    island.spec.layout.island = IslandScope::kAll;
    island.Prepares();
    Reconfigure command;
    command.job = "sea-1";
    // A layer each, but for the last, that has the others.
    command.plan.replicas.resize(1);
    for (size_t m = 0; m < members; ++m) {
      const NodeId worker = absl::StrCat("w", m);
      command.plan.members.push_back({worker, 1, "", ""});
      const auto layer = static_cast<int32_t>(m);
      const auto all = static_cast<int32_t>(island.facts.layers.size());
      command.plan.replicas[0].stages.push_back(
          {layer, m + 1 == members ? all - layer : 1, {worker + "/0"}, {}});
    }
    return std::string(island.trainer().Do<Reconfigured>(command).status().message());
  };
  const int64_t own = ample.facts.layers[0].elements * 4;  // and twice that, while it is moved
  CHECK_THAT(reason(3 * copy + 5 * own - 1, 2), Catch::Contains("parameters need"));
  CHECK_THAT(reason(3 * copy + 5 * own, 2), !Catch::Contains("parameters need"));
  spec.checkpoint.peer_copies = 0;
  CHECK_THAT(reason(8 * own - 1, 2), Catch::Contains("parameters need"));
  CHECK_THAT(reason(8 * own, 2), !Catch::Contains("parameters need"));
  spec.schedule.checkpoint_every_steps = 0;
  CHECK_THAT(reason(5 * own, 2), !Catch::Contains("parameters need"));
  CHECK_THAT(reason(5 * own - 1, 2), Catch::Contains("parameters need"));
  spec = Spec(folder);
  spec.schedule.validation_sequences = 0;
  CHECK_THAT(reason(10 * copy + 2 * largest - 1, 1), Catch::Contains("parameters need"));
  CHECK_THAT(reason(10 * copy + 2 * largest, 1), !Catch::Contains("parameters need"));
}

TEST_CASE("Emulated timing changes how long a step lasts and nothing else") {
  Folder folder;
  Bench plain(folder), slow(folder, {.emulate_step = std::chrono::milliseconds(10)});
  for (Bench* bench : {&plain, &slow}) {
    bench->Steps(2, 0);
  }
  CHECK(slow.last_step.seconds >= 0.010);
  CHECK(slow.last_step.loss == plain.last_step.loss);
  CHECK(slow.Theta() == plain.Theta());
}

}  // namespace
}  // namespace atl::worker
