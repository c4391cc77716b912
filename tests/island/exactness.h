// Harness of the exactness tests: a layout trains as one device does, or the test fails.

#ifndef ATOLL_TESTS_ISLAND_EXACTNESS_H_
#define ATOLL_TESTS_ISLAND_EXACTNESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/island/island_harness.h"
#include "tests/island/layouts.h"

namespace atl::worker {

inline constexpr int kSteps = 6;  // every fifth is a short one
inline constexpr double kLearningRate = 3e-3;
inline constexpr int64_t kBatch = 12;

enum class Kind {
  kGpt2,
  kGpt2Untied,
  kLlama,
  kLlamaTied,
  kMistral,
  kQwen2,
  kQwen3,
  kOlmo2,
  kGemma2,
  kBert,
  kBertPadded,  // on sequences of unlike length
  kMixtral,
  kOlmoe,
  kQwen2Moe,  // with a block without experts
  kQwen3Moe,
  kDots1,  // whose correcting bias moves
};
// Families with which every layout is tried.
inline constexpr Kind kFamilies[] = {Kind::kGpt2, Kind::kLlama};
// Families whose blocks are made of other parts, with layouts that have everything.
inline constexpr Kind kOtherFamilies[] = {
    Kind::kMistral, Kind::kQwen2,      Kind::kQwen3,   Kind::kOlmo2, Kind::kGemma2,
    Kind::kBert,    Kind::kBertPadded, Kind::kMixtral, Kind::kOlmoe, Kind::kQwen3Moe};

// A tiny model of so many blocks, embedding and head, and steps of kBatch sequences.
EngineJob MakeJob(Kind kind, int64_t blocks = 4);

// One replica of equal micro-batches that make up kBatch.
IslandLayout Pipeline(const std::string& schedule, std::vector<int32_t> stages, int micro_batches,
                      int chunks = 1, bool v_shape = false);
IslandLayout With(IslandLayout spec, const std::string& name, void (*change)(IslandLayout&));

// Layouts of a model of 4 blocks. Micro-batches of 3, 2 and 1 sequences; cut in 2, 1 and 3 stages.
std::vector<IslandLayout> Replicas();
std::vector<IslandLayout> TensorParallel();
// Stages with groups of unlike size; those of a tied head and its embedding are alike.
std::vector<IslandLayout> TensorParallelByStage();
// Three to five replicas, cut unlike, that own the optimizer's state once or twice.
std::vector<IslandLayout> Owners();

// Steps of one device, with everything to compare with.
struct Reference {
  // `masked`: most targets are not counted, and of two rows a step none. Where the job's documents
  // are packed, two in three sequences have several.
  explicit Reference(const EngineJob& job, int steps = kSteps, bool masked = false);

  Layers start;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<double> losses;
  std::vector<LossSum> routers;           // losses of routers, by step
  std::vector<Layers> params, gradients;  // params before each step; gradients from just these
  Layers final;
  double validation = 0;
};

// How far a layout may be from one device, relatively.
struct Limits {
  double loss = 1e-5;
  double gradient = 1e-5;
  double weights = 1e-4;
};

// Makes the network of an island. Null: a LocalNetwork.
using NewNetwork = std::function<std::unique_ptr<IslandNetwork>(const IslandPlan&)>;

struct Trial {
  EngineJob job;
  IslandPlan plan;
  EngineOptions options;
  NewNetwork network;
  Limits limits;
};

// Free running, from the reference's start: losses, final weights and validation. Returns all
// losses.
std::vector<double> CheckCurve(const Trial& trial, const Reference& reference);
// From equal weights: the gradient of every step.
void CheckGradients(const Trial& trial, const Reference& reference);

struct Variation {
  DType compute = DType::kFloat32;
  int chunks = 1;
  int64_t blocks = 4;
  int steps = kSteps;
  Limits limits;
  NewNetwork network;
  bool masked = false;  // see Reference
  Documents documents = Documents::kText;
  DpoOptions dpo = {};
  InnerOptimizer optimizer = InnerOptimizer::kAdamW;
  AdapterConfig adapter = {};
};

// Both of them, and a second run that has the same bits.
void CheckExact(Kind kind, const IslandLayout& spec, const Variation& variation = {});

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_EXACTNESS_H_
