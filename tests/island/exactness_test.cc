// Every layout gives the losses, gradients and weights of one device.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "tests/island/island_harness.h"
#include "tests/island/layouts.h"

namespace atl::worker {
namespace {

constexpr int kSteps = 20;
constexpr double kLearningRate = 3e-3;
constexpr int64_t kBatch = 12;

enum class Kind { kGpt2, kGpt2Untied, kLlama, kLlamaTied };

EngineJob JobOf(Kind kind) {
  const bool gpt2 = kind == Kind::kGpt2 || kind == Kind::kGpt2Untied;
  EngineJob job;
  job.model.family = gpt2 ? ModelFamily::kGpt2 : ModelFamily::kLlama;
  job.model.vocab = 31;
  job.model.d_model = 32;
  job.model.layers = 4;  // six with embedding and head
  job.model.heads = 8;
  job.model.kv_heads = gpt2 ? 8 : 4;
  job.model.ffn = gpt2 ? 52 : 44;
  job.model.max_positions = 8;
  job.model.tied_head = kind == Kind::kGpt2 || kind == Kind::kLlamaTied;
  job.sequence_length = 8;
  job.batch_sequences = kBatch;
  return job;
}

// One replica of equal micro-batches.
IslandLayout Pipeline(const std::string& schedule, std::vector<int32_t> stages, int micro_batches,
                      int chunks = 1, bool v_shape = false) {
  IslandLayout spec;
  spec.schedule = schedule;
  spec.replicas = {{std::move(stages), micro_batches, kBatch / micro_batches}};
  spec.chunks_per_device = chunks;
  spec.v_shape = v_shape;
  spec.name = absl::StrCat(schedule, " on ", spec.replicas[0].stage_layers.size(), " stages");
  return spec;
}

IslandLayout With(IslandLayout spec, const std::string& name, void (*change)(IslandLayout&)) {
  change(spec);
  spec.name += ", " + name;
  return spec;
}

std::vector<IslandLayout> Pipelines() {
  std::vector<IslandLayout> all = {Pipeline("1f1b", {6}, 4)};
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-2p", "compact-zb", "jeeves"}) {
    all.push_back(Pipeline(schedule, {2, 4}, 4));
    all.push_back(Pipeline(schedule, {3, 2, 1}, 6));
    all.push_back(Pipeline(schedule, {1, 2, 2, 1}, 6));
  }
  all.push_back(Pipeline("interleaved", {1, 2, 2, 1}, 4, 2));
  all.push_back(Pipeline("interleaved", {1, 1, 1, 1, 1, 1}, 6, 2));
  for (const char* schedule : {"zb-v", "v-half", "v-min"}) {
    all.push_back(Pipeline(schedule, {1, 2, 2, 1}, 6, 2, true));
  }
  all.push_back(With(Pipeline("1f1b", {1, 2, 2, 1}, 4), "W with B",
                     [](IslandLayout& s) { s.unsplit = true; }));
  all.push_back(With(Pipeline("zb-h1", {2, 2, 2}, 4), "recomputation, two workers",
                     [](IslandLayout& s) { s.recompute = true, s.workers = 2; }));
  all.push_back(With(Pipeline("zb-v", {2, 1, 1, 2}, 6, 2, true), "recomputation",
                     [](IslandLayout& s) { s.recompute = true; }));
  return all;
}

// Micro-batches of 3, 2 and 1 sequences; cut in 2, 1 and 3 stages.
std::vector<IslandLayout> Replicas() {
  IslandLayout two, three, uneven;
  two.name = "two replicas cut alike, two workers";
  two.schedule = "zb-h1";
  two.replicas = {{{3, 3}, 2, 3}, {{3, 3}, 3, 2}};
  two.workers = 2;
  uneven.name = "two replicas cut unlike";
  uneven.schedule = "compact-zb";
  uneven.replicas = {{{2, 3, 1}, 4, 2}, {{6}, 2, 2}};
  three.name = "three replicas, all different, recomputation";
  three.replicas = {{{4, 2}, 2, 3}, {{6}, 2, 2}, {{1, 2, 3}, 2, 1}};
  three.recompute = true;
  return {two, uneven, three};
}

std::vector<IslandLayout> TensorParallel() {
  IslandLayout two = Pipeline("1f1b", {6}, 3), three = two, pipeline = Pipeline("zb-h1", {2, 4}, 4);
  two.name = "TP 2";
  two.tensor_parallel = 2;
  three.name = "TP 3, uneven";
  three.tensor_parallel = 3;
  three.tensor_shares = {2, 1, 1};
  pipeline.name = "TP 2 uneven, two stages, recomputation";
  pipeline.tensor_parallel = 2;
  pipeline.tensor_shares = {3, 1};
  pipeline.recompute = true;
  IslandLayout all;
  all.name = "TP 2, replicas cut unlike, two workers";
  all.replicas = {{{2, 4}, 4, 2}, {{6}, 2, 2}};
  all.schedule = "compact-zb";
  all.tensor_parallel = 2;
  all.workers = 2;
  return {two, three, pipeline, all};
}

// Steps of one device, with everything to compare with.
struct Reference {
  Layers start;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<double> losses;
  std::vector<Layers> params, gradients;  // params before each step
  Layers final;
  double validation = 0;

  explicit Reference(const EngineJob& job) : start(RandomWeights(job.model, 5)) {
    TestDevice device(job);
    device.Set(start);
    for (int s = 0; s < kSteps; ++s) {
      // Every fifth step is short, so that the last micro-batches are short or empty.
      tokens.push_back(RandomTokens(job, s % 5 == 4 ? 7 : kBatch, 100 + s));
      params.push_back(device.Get(LayerPart::kParameters));
      losses.push_back(device.Step(tokens.back(), kLearningRate).mean());
      gradients.push_back(device.gradients());
    }
    final = device.Get(LayerPart::kParameters);
    validation = device.Evaluate(tokens[0]).mean();
  }
};

const Reference& ReferenceOf(Kind kind, DType compute) {
  static std::map<std::pair<Kind, DType>, Reference> all;
  const auto found = all.find({kind, compute});
  if (found != all.end()) return found->second;
  EngineJob job = JobOf(kind);
  job.compute = compute;
  return all.emplace(std::pair(kind, compute), Reference(job)).first->second;
}

// How far a layout may be from one device, relatively.
struct Limits {
  double loss = 1e-5;
  double gradient = 1e-5;
  double weights = 1e-4;
};

double Difference(double a, double b) { return std::abs(a - b) / std::abs(b); }

// Free running: losses and final weights. Returns all losses.
std::vector<double> CheckCurve(const EngineJob& job, const IslandPlan& plan,
                               const Reference& reference, const EngineOptions& options,
                               const Limits& limits) {
  TestIsland island(job, plan, std::move(options));
  island.Set(LayerPart::kParameters, reference.start);
  std::vector<double> losses;
  for (int s = 0; s < kSteps; ++s) {
    const auto outcome = island.Step(reference.tokens[s], kLearningRate);
    REQUIRE(outcome.status().message() == "");
    losses.push_back(outcome->loss.mean());
    CAPTURE(s, losses.back(), reference.losses[s]);
    REQUIRE(Difference(losses.back(), reference.losses[s]) < limits.loss);
  }
  REQUIRE(RelativeDifference(island.Get(LayerPart::kParameters), reference.final) < limits.weights);
  const auto validation = island.Evaluate(reference.tokens[0]);
  REQUIRE(validation.status().message() == "");
  REQUIRE(Difference(validation->mean(), reference.validation) < limits.loss);
  return losses;
}

// From equal weights: the gradient of every step.
void CheckGradients(const EngineJob& job, const IslandPlan& plan, const Reference& reference,
                    EngineOptions options, const Limits& limits) {
  options.keep_gradients = true;
  TestIsland island(job, plan, std::move(options));
  for (int s = 0; s < kSteps; ++s) {
    island.Set(LayerPart::kParameters, reference.params[s]);
    REQUIRE(island.Step(reference.tokens[s], kLearningRate).status().message() == "");
    CAPTURE(s);
    REQUIRE(RelativeDifference(island.Get(LayerPart::kGradient), reference.gradients[s]) <
            limits.gradient);
  }
}

struct Variation {
  DType compute = DType::kFloat32;
  int pieces = 1;
  Limits limits;
};

void CheckExact(Kind kind, const IslandLayout& spec, const Variation& variation = {}) {
  EngineJob job = JobOf(kind);
  job.compute = variation.compute;
  job.max_pieces = variation.pieces;
  EngineOptions options;
  options.fixed_pieces = variation.pieces;
  const Limits& limits = variation.limits;
  CAPTURE(spec.name, static_cast<int>(kind));
  const IslandPlan plan = MakePlan(spec);
  REQUIRE(Validate(plan, static_cast<int32_t>(job.model.layers) + 2, kBatch).message() == "");
  const Reference& reference = ReferenceOf(kind, job.compute);
  const std::vector<double> losses = CheckCurve(job, plan, reference, options, limits);
  REQUIRE(CheckCurve(job, plan, reference, options, limits) == losses);
  CheckGradients(job, plan, reference, options, limits);
}

TEST_CASE("pipelines of every schedule train as one device does") {
  for (const IslandLayout& spec : Pipelines()) {
    for (const Kind kind : {Kind::kGpt2, Kind::kLlama}) CheckExact(kind, spec);
  }
}

TEST_CASE("replicas with unequal shares and cuts train as one device does") {
  for (const IslandLayout& spec : Replicas()) {
    for (const Kind kind : {Kind::kGpt2, Kind::kLlama, Kind::kLlamaTied, Kind::kGpt2Untied}) {
      CheckExact(kind, spec);
    }
  }
}

TEST_CASE("tensor-parallel layouts train as one device does") {
  for (const IslandLayout& spec : TensorParallel()) {
    for (const Kind kind : {Kind::kGpt2, Kind::kLlama}) CheckExact(kind, spec);
  }
}

// Layouts with messages of 4, 3, 2 and 1 sequences, which go in up to four pieces.
TEST_CASE("messages in pieces train as one device does") {
  std::vector<IslandLayout> layouts = Replicas();
  layouts.push_back(Pipeline("zb-h1", {2, 2, 2}, 3));
  layouts.push_back(Pipeline("gpipe", {1, 4, 1}, 4));
  layouts.push_back(With(Pipeline("v-half", {1, 2, 2, 1}, 3, 2, true), "recomputation, two workers",
                         [](IslandLayout& s) { s.recompute = true, s.workers = 2; }));
  layouts.push_back(TensorParallel().back());
  for (const IslandLayout& layout : layouts) {
    for (const Kind kind : {Kind::kGpt2, Kind::kLlama}) {
      CheckExact(kind, layout, {.pieces = 4});
    }
  }
}

// In double precision what is left is a hundred thousand times smaller: it was rounding. Weights
// and gradients come out as floats.
TEST_CASE("nothing but rounding sets layouts apart") {
  const Variation f64{.compute = DType::kFloat64, .limits = {1e-11, 1e-6, 1e-7}};
  Variation f64_in_pieces = f64;
  f64_in_pieces.pieces = 4;
  for (const Kind kind : {Kind::kGpt2, Kind::kLlamaTied}) {
    CheckExact(kind, Pipeline("zb-h1", {1, 2, 2, 1}, 6), f64);
    CheckExact(kind, Replicas().back(), f64);
    CheckExact(kind, TensorParallel().back(), f64_in_pieces);
  }
}

}  // namespace
}  // namespace atl::worker
