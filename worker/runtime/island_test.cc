// Training in rounds is exactly plain training, where it should be.

#include "worker/runtime/island.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/protocol/learning_rate.h"
#include "kernels/deltas.h"
#include "kernels/reference/reference.h"
#include "worker/runtime/testing/island_events.h"
#include "worker/runtime/testing/model_trainer.h"

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

// One island and a parameter server of one delta: theta <- theta - delta.
class Bench {
 public:
  explicit Bench(const Folder& folder, IslandOptions options = {},
                 Encoding encoding = Encoding::kFloat32)
      : folder_(folder),
        encoding_(encoding),
        trainer_(NewModelTrainer(NewReferenceBackend())),
        island_(trainer_.get(), options, {[this](Event e) { events_.Post(std::move(e)); }}) {
    JobSpec spec = Spec(folder);
    spec.outer.push_encoding = encoding;
    island_.Run(Prepare{"sea-1", spec});
    facts = Last<Prepared>().facts;
  }

  void MakesWeights() {
    island_.Run(MakeInitialWeights{});
    Last<InitialWeightsMade>();
    Push(kNoVersion);
    server = island_.delta()->values;
  }
  double Steps(int count, int first) {
    double loss = 0;
    for (int i = first; i < first + count; ++i) {
      const double rate = LearningRate(Spec(folder_).inner, 640, (i + 1) * 16, 1);
      island_.Run(TrainStep{{{i * 2, i * 2 + 2}}, rate});
      loss = Last<StepDone>().loss;
    }
    return loss;
  }
  void Push(Version base) {
    CaptureDelta capture{{0, 1, 1, base}, Encoding::kFloat32, {}};
    if (base != kNoVersion && IsQuantized(encoding_)) {
      capture.encoding = encoding_;
      capture.shards = Shards();
    }
    island_.Run(capture);
    Last<DeltaCaptured>();
    CHECK(events_.AwaitReady().reason.empty());
  }
  // Layers cut in two.
  std::vector<ShardPlacement> Shards() const {
    std::vector<ShardPlacement> shards;
    for (const LayerSize& layer : facts.layers) {
      const auto id = static_cast<ShardId>(shards.size());
      const int64_t half = layer.elements / 2;
      shards.push_back({id, id / 2, 0, half});
      shards.push_back({id + 1, id / 2, half, layer.elements - half});
    }
    return shards;
  }
  // What a server decodes of the last push.
  LayerBuffers Pushed() {
    const std::shared_ptr<const Delta> delta = island_.delta();
    LayerBuffers pushed = delta->values;
    if (!IsQuantized(delta->encoding)) return pushed;
    ThreadPool pool(1);
    for (const ShardPlacement& shard : Shards()) {
      DecodeDelta({delta->encoded.at(shard.shard).data(), delta->encoding, shard.elements},
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
  void Adopts(Version version, AdoptMode mode, bool reset_moments = false,
              bool keep_residual = false) {
    *island_.pulled() = server;
    island_.Run(AdoptPulled{version, mode, reset_moments, keep_residual});
    Last<Adopted>();
  }
  LayerBuffers Theta() {
    LayerBuffers theta;
    for (const LayerSize& layer : facts.layers) {
      theta.emplace_back(layer.elements);
      REQUIRE(trainer_->GetParameters(static_cast<int>(theta.size()) - 1, theta.back()).ok());
    }
    return theta;
  }
  template <typename T>
  T Last() {
    const Event last = events_.last();
    const CommandFailed* failed = std::get_if<CommandFailed>(&last);
    INFO((failed != nullptr ? failed->reason : ""));
    REQUIRE(std::holds_alternative<T>(last));
    return std::get<T>(last);
  }

  JobFacts facts;
  LayerBuffers server;

  Island& island() { return island_; }
  Trainer& trainer() { return *trainer_; }

 private:
  const Folder& folder_;
  const Encoding encoding_;
  std::unique_ptr<ModelTrainer> trainer_;
  IslandEvents events_;
  Island island_;
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
  plain.MakesWeights();
  rounds.MakesWeights();
  plain.Adopts(0, AdoptMode::kReplace);
  rounds.Adopts(0, AdoptMode::kReplace);
  const LayerBuffers start = plain.Theta();
  plain.Steps(12, 0);
  for (int round = 0; round < 3; ++round) {
    rounds.Steps(4, round * 4);
    rounds.Push(round);
    rounds.ServerApplies();
    rounds.Adopts(round + 1, AdoptMode::kReplace);
  }
  CHECK(Difference(plain.Theta(), start) > 0.01);  // it did train
  CHECK(Difference(plain.Theta(), rounds.Theta()) < 1e-6);
}

TEST_CASE("Steps made while the round was made are carried over exactly once") {
  Folder folder;
  Bench plain(folder), carried(folder);
  plain.MakesWeights();
  carried.MakesWeights();
  plain.Adopts(0, AdoptMode::kReplace);
  carried.Adopts(0, AdoptMode::kReplace);
  plain.Steps(12, 0);
  carried.Steps(4, 0);
  carried.Push(0);
  carried.Steps(3, 4);
  carried.ServerApplies();
  carried.Adopts(1, AdoptMode::kCarry);
  carried.Steps(5, 7);
  CHECK(Difference(plain.Theta(), carried.Theta()) < 1e-6);
  carried.Push(1);  // what is pushed next is what was carried and what followed
  carried.ServerApplies();
  CHECK(Difference(plain.Theta(), carried.server) < 1e-6);
}

TEST_CASE("A rejected push takes its steps with it, and carried ones stay") {
  Folder folder;
  Bench bench(folder);
  bench.MakesWeights();
  bench.Adopts(0, AdoptMode::kReplace);
  bench.Steps(4, 0);
  const LayerBuffers pushed = bench.Theta();
  bench.Push(0);
  bench.Adopts(0, AdoptMode::kCarry);  // the server has applied nothing
  CHECK(Difference(bench.server, bench.Theta()) < 1e-7);
  bench.Steps(2, 4);
  const LayerBuffers local = bench.Theta();
  bench.Adopts(0, AdoptMode::kCarry);  // nothing was captured since: relative to the base
  CHECK(Difference(local, bench.Theta()) < 1e-6);
  CHECK(Difference(pushed, bench.Theta()) > 1e-3);
}

TEST_CASE("The rounding error of a push comes with the next push, unless it is to be forgotten") {
  Folder folder;
  Bench bench(folder, {}, Encoding::kInt4);
  bench.MakesWeights();
  bench.Adopts(0, AdoptMode::kReplace);
  bench.Steps(3, 0);
  bench.Push(0);
  const LayerBuffers first = bench.island().delta()->values, sent = bench.Pushed();
  REQUIRE(first != sent);
  bench.ServerApplies();
  const bool keep = GENERATE(true, false);
  bench.Adopts(1, AdoptMode::kReplace, false, keep);
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
    bench.MakesWeights();
    bench.Adopts(0, AdoptMode::kReplace);
    bench.Steps(3, 0);
    bench.Push(0);
    bench.ServerApplies();
    bench.Adopts(1, AdoptMode::kReplace, false, true);
    bench.Steps(2, 3);
  };
  Bench plain(folder, {}, Encoding::kInt8), failed(folder, {}, Encoding::kInt8);
  to_version_1(plain);
  to_version_1(failed);
  CaptureDelta beyond{{0, 1, 1, 1}, Encoding::kInt8, failed.Shards()};
  beyond.shards.back().elements += 1;
  failed.island().Run(beyond);
  CHECK(failed.Last<CommandFailed>().reason.find("does not lie within the model") !=
        std::string::npos);
  plain.Push(1);
  failed.Push(1);
  CHECK(failed.island().delta()->encoded == plain.island().delta()->encoded);
}

TEST_CASE("Validation looks at the base and leaves training alone") {
  Folder folder;
  Bench bench(folder), other(folder);
  for (Bench* b : {&bench, &other}) {
    b->MakesWeights();
    b->Adopts(0, AdoptMode::kReplace);
  }
  bench.island().Run(Validate{0});
  const double before = bench.Last<ValidationDone>().loss;
  CHECK(bench.Last<ValidationDone>().tokens == 4 * 8);
  bench.Steps(6, 0);
  const LayerBuffers theta = bench.Theta();
  bench.island().Run(Validate{0});
  CHECK(bench.Last<ValidationDone>().loss == before);
  CHECK(bench.Theta() == theta);
  other.Steps(3, 0);
  CHECK(bench.Steps(1, 6) != other.Steps(1, 3));
}

TEST_CASE("A job that does not fit or cannot be opened is refused with its reason") {
  Folder folder;
  const auto trainer = NewModelTrainer(NewReferenceBackend());
  Event last;
  Island island(trainer.get(), {.host_bytes = 1000}, {[&](Event e) { last = std::move(e); }});
  JobSpec spec = Spec(folder);
  island.Run(Prepare{"sea-1", spec});
  CHECK(std::get<PrepareFailed>(last).reason.find("--memory-bytes") != std::string::npos);
  spec.data.path = folder.path + "/nothing";
  island.Run(Prepare{"sea-1", spec});
  CHECK(std::get<PrepareFailed>(last).reason.find("nothing") != std::string::npos);
}

TEST_CASE("A host whose devices have memory of their own needs room for its own copies alone") {
  Folder folder;
  const auto trainer = NewModelTrainer(NewReferenceBackend());
  const auto reason = [&](int64_t host_bytes, bool trainer_on_host, Encoding encoding) {
    Event last;
    Island island(trainer.get(), {.host_bytes = host_bytes, .trainer_on_host = trainer_on_host},
                  {[&](Event e) { last = std::move(e); }});
    JobSpec spec = Spec(folder);
    spec.outer.push_encoding = encoding;
    island.Run(Prepare{"sea-1", spec});
    const PrepareFailed* failed = std::get_if<PrepareFailed>(&last);
    return failed == nullptr ? "" : failed->reason;
  };
  int64_t copy = 0;
  const auto facts = trainer->Prepare(Spec(folder));
  for (const LayerSize& layer : facts->layers) copy += layer.elements * 4;
  CHECK(reason(10 * copy, true, Encoding::kFloat32) == "");
  CHECK(reason(10 * copy - 1, true, Encoding::kFloat32) != "");
  CHECK(reason(6 * copy, false, Encoding::kFloat32) == "");
  CHECK(reason(6 * copy - 1, false, Encoding::kFloat32).find("of this worker's host") !=
        std::string::npos);
  CHECK(reason(10 * copy, false, Encoding::kInt8) == "");
  CHECK(reason(10 * copy - 1, false, Encoding::kInt8) != "");
}

TEST_CASE("a_host_needs_room_for_what_it_owns_and_keeps_copies_of_and_for_saves_of_its_own") {
  Folder folder;
  const auto trainer = NewModelTrainer(NewReferenceBackend());
  JobSpec spec = Spec(folder);
  spec.layout.island = IslandScope::kAll;
  spec.schedule.validation_sequences = 0;
  int64_t copy = 0, largest = 0;
  const auto facts = trainer->Prepare(spec);
  for (const LayerSize& layer : facts->layers) {
    copy += layer.elements * 4;
    largest = std::max(largest, layer.elements * 4);
  }
  const auto reason = [&](int64_t host_bytes, size_t members) {
    Event last;
    Island island(trainer.get(), {.host_bytes = host_bytes},
                  {[&](Event e) { last = std::move(e); }});
    island.Run(Prepare{"sea-1", spec});
    Reconfigure command;
    command.job = "sea-1";
    // A layer each, but for the last, that has the others.
    command.plan.replicas.resize(1);
    for (size_t m = 0; m < members; ++m) {
      const NodeId worker = absl::StrCat("w", m);
      command.plan.members.push_back({worker, 1, "", ""});
      const auto layer = static_cast<int32_t>(m);
      const auto all = static_cast<int32_t>(facts->layers.size());
      command.plan.replicas[0].stages.push_back(
          {layer, m + 1 == members ? all - layer : 1, {worker + "/0"}, {}});
    }
    island.Run(command);
    const CommandFailed* failed = std::get_if<CommandFailed>(&last);
    return failed == nullptr ? "" : failed->reason;
  };
  const int64_t own = facts->layers[0].elements * 4;  // and twice that, while it is moved
  CHECK_THAT(reason(3 * copy + 5 * own - 1, 2), Catch::Contains("parameters need"));
  CHECK_THAT(reason(3 * copy + 5 * own, 2), !Catch::Contains("parameters need"));
  spec.checkpoint.peer_copies = 0;
  CHECK_THAT(reason(8 * own - 1, 2), Catch::Contains("parameters need"));
  CHECK_THAT(reason(8 * own, 2), !Catch::Contains("parameters need"));
  spec.schedule.checkpoint_every_steps = 0;
  CHECK_THAT(reason(5 * own, 2), !Catch::Contains("parameters need"));
  CHECK_THAT(reason(5 * own - 1, 2), Catch::Contains("parameters need"));
  spec = Spec(folder);
  spec.layout.island = IslandScope::kAll;
  spec.schedule.validation_sequences = 0;
  CHECK_THAT(reason(10 * copy + 2 * largest - 1, 1), Catch::Contains("parameters need"));
  CHECK_THAT(reason(10 * copy + 2 * largest, 1), !Catch::Contains("parameters need"));
}

TEST_CASE("Emulated timing changes how long a step lasts and nothing else") {
  Folder folder;
  Bench plain(folder), slow(folder, {2.0, std::chrono::milliseconds(5), 0});
  for (Bench* bench : {&plain, &slow}) {
    bench->MakesWeights();
    bench->Adopts(0, AdoptMode::kReplace);
    bench->Steps(2, 0);
  }
  CHECK(slow.Last<StepDone>().seconds >= 0.010);
  CHECK(slow.Last<StepDone>().loss == plain.Last<StepDone>().loss);
  CHECK(slow.Theta() == plain.Theta());
}

}  // namespace
}  // namespace atl::worker
