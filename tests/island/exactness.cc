#include "tests/island/exactness.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "common/masked_tokens.h"
#include "common/model/targets.h"
#include "common/rng.h"

namespace atl::worker {
namespace {

constexpr int32_t kPad = 7;

double Difference(double a, double b) { return std::abs(a - b) / std::abs(b); }

// Rows of several blocks of codes, where the base is stored so.
void SetAdapter(const AdapterConfig& adapter, ModelConfig* model) {
  model->adapter = adapter;
  if (!adapter.base) return;
  model->d_model = model->family == ModelFamily::kGpt2 ? 256 : 64;
  model->head_channels = 32;
  model->ffn = 256;
}

const Reference& GetReference(Kind kind, const Variation& variation) {
  static std::map<std::tuple<Kind, int64_t, int, DType, bool, InnerOptimizer, Documents, double,
                             std::vector<std::string>, std::optional<WeightCode>>,
                  Reference>
      all;
  const std::tuple key(kind, variation.blocks, variation.steps, variation.compute, variation.masked,
                       variation.optimizer, variation.documents, variation.dpo.label_smoothing,
                       variation.adapter.targets, variation.adapter.base);
  const auto found = all.find(key);
  if (found != all.end()) return found->second;
  EngineJob job = MakeJob(kind, variation.blocks);
  job.compute = variation.compute;
  job.optimizer.kind = variation.optimizer;
  job.documents = variation.documents;
  job.dpo = variation.dpo;
  SetAdapter(variation.adapter, &job.model);
  return all.emplace(key, Reference(job, variation.steps, variation.masked)).first->second;
}

void MaskSome(const EngineJob& job, uint64_t seed, std::vector<int32_t>* tokens) {
  Rng rng(seed);
  const auto row = static_cast<size_t>(job.sequence_length + 1);
  for (size_t i = 0; i < tokens->size(); ++i) {
    const bool none = i / row == 1 || i / row == 2;
    if ((*tokens)[i] < 0) continue;
    if (none || rng.Below(3) != 0) (*tokens)[i] = MaskToken((*tokens)[i]);
  }
}

// Every third sequence is one document alone.
void MarkDocuments(const EngineJob& job, uint64_t seed, std::vector<int32_t>* tokens) {
  Rng rng(seed);
  const auto row = static_cast<size_t>(job.sequence_length + 1);
  for (size_t i = 0; i < tokens->size(); ++i) {
    if (i / row % 3 == 0 || rng.Below(3) != 0) continue;
    (*tokens)[i] = MarkDocument((*tokens)[i]);
  }
}

// Two answers behind prompts of any length; every sixth sequence is full.
void MakePairs(const EngineJob& job, uint64_t seed, std::vector<int32_t>* tokens) {
  Rng rng(seed);
  const auto length = static_cast<size_t>(job.sequence_length + 1);
  for (size_t begin = 0; begin < tokens->size(); begin += length) {
    const std::span<int32_t> row = std::span(*tokens).subspan(begin, length);
    const size_t second = 2 + rng.Below(length - 3), most = length - second;
    const size_t end = begin / length % 6 == 0 ? length : second + 2 + rng.Below(most - 1);
    for (const auto& [from, to] : {std::pair(size_t{0}, second), std::pair(second, end)}) {
      const size_t prompt = from + 1 + rng.Below(to - from - 1);
      for (size_t i = from; i < prompt; ++i) row[i] = MaskToken(row[i]);
      row[from] = MarkDocument(row[from]);
    }
    std::ranges::fill(row.subspan(end), MaskToken(0));
    if (end < length) row[end] = MarkDocument(0);
  }
}

// Every third sequence is whole; of the others, micro-batches of one layout or another have whole
// ones alone.
void PadSome(const EngineJob& job, uint64_t seed, std::vector<int32_t>* tokens) {
  Rng rng(seed);
  const int64_t row = job.sequence_length + 1;
  for (int64_t r = 0; r < std::ssize(*tokens) / row; ++r) {
    const auto begin = tokens->begin() + r * row, end = begin + row;
    std::replace(begin, end, kPad, kPad + 1);
    if (r % 3 == 0) continue;
    const auto length = 1 + rng.Below(static_cast<uint64_t>(job.sequence_length));
    std::fill(begin + static_cast<std::ptrdiff_t>(length), end, kPad);
  }
}

std::unique_ptr<IslandNetwork> MakeNetwork(const Trial& trial) {
  return trial.network ? trial.network(trial.plan) : std::make_unique<LocalNetwork>();
}

}  // namespace

namespace {

ModelFamily ToModelFamily(Kind kind) {
  switch (kind) {
    case Kind::kGpt2:
    case Kind::kGpt2Untied:
      return ModelFamily::kGpt2;
    case Kind::kLlama:
    case Kind::kLlamaTied:
      return ModelFamily::kLlama;
    case Kind::kMistral:
      return ModelFamily::kMistral;
    case Kind::kQwen2:
      return ModelFamily::kQwen2;
    case Kind::kQwen3:
      return ModelFamily::kQwen3;
    case Kind::kOlmo2:
      return ModelFamily::kOlmo2;
    case Kind::kGemma2:
      return ModelFamily::kGemma2;
    case Kind::kBert:
    case Kind::kBertPadded:
      return ModelFamily::kBert;
    case Kind::kMixtral:
      return ModelFamily::kMixtral;
    case Kind::kOlmoe:
      return ModelFamily::kOlmoe;
    case Kind::kQwen2Moe:
      return ModelFamily::kQwen2Moe;
    case Kind::kQwen3Moe:
      return ModelFamily::kQwen3Moe;
    case Kind::kDots1:
      return ModelFamily::kDots1;
  }
  __builtin_unreachable();
}

// With losses large enough to be seen in the gradients.
Experts MakeExperts(Kind kind) {
  Experts e{.count = 7,
            .per_token = kind == Kind::kOlmoe ? 3 : 2,
            .hidden = 12,
            .normalise = kind == Kind::kMixtral || kind == Kind::kQwen3Moe,
            .auxiliary_loss = 0.5,
            .adds_auxiliary_loss = true,
            .z_loss = 0.1};
  if (kind == Kind::kQwen2Moe) {
    e.shared_hidden = 20;
    e.shared_gate = true;
    e.dense_blocks = {1};
  }
  if (kind == Kind::kDots1) {
    e.score = Experts::Score::kSigmoid;
    e.correction = true;
  }
  return e;
}

}  // namespace

EngineJob MakeJob(Kind kind, int64_t blocks) {
  const ModelFamily family = ToModelFamily(kind);
  const bool bert = family == ModelFamily::kBert, gpt2 = family == ModelFamily::kGpt2 || bert;
  EngineJob job;
  job.model.family = family;
  job.model.vocab = 31;
  job.model.d_model = 32;
  job.model.layers = blocks;
  job.model.heads = 8;
  job.model.kv_heads = gpt2 ? 8 : 4;
  job.model.ffn = gpt2 ? 52 : 44;
  job.model.max_positions = 8;
  job.model.tied_head =
      kind == Kind::kGpt2 || kind == Kind::kLlamaTied || kind == Kind::kGemma2 || bert;
  if (bert) {
    job.model.token_types = 2;
    job.model.mask_token = 3;
  }
  if (kind == Kind::kBertPadded) job.model.special_tokens.pad = {kPad};
  if (kind == Kind::kMistral) job.model.window = {.tokens = 3};
  if (kind == Kind::kGemma2) {
    job.model.window = {.tokens = 5, .period = 2};
    job.model.attention_softcap = 2;
    job.model.logit_softcap = 1.5;
  }
  if (kind >= Kind::kMixtral) job.model.experts = MakeExperts(kind);
  if (kind == Kind::kDots1) job.optimizer.expert_bias_rate = 0.05f;
  job.sequence_length = 8;
  job.batch_sequences = kBatch;
  return job;
}

IslandLayout Pipeline(const std::string& schedule, std::vector<int32_t> stages, int micro_batches,
                      int chunks, bool v_shape) {
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
  three.recompute = 1;
  return {two, uneven, three};
}

std::vector<IslandLayout> TensorParallel() {
  IslandLayout two = Pipeline("1f1b", {6}, 3), three = two, pipeline = Pipeline("zb-h1", {2, 4}, 4);
  two.name = "TP 2";
  two.tensor_parallel = 2;
  three.name = "TP 3, uneven";
  three.tensor_parallel = 3;
  three.tensor_split_ratios = {2, 1, 1};
  pipeline.name = "TP 2 uneven, two stages, recomputation";
  pipeline.tensor_parallel = 2;
  pipeline.tensor_split_ratios = {3, 1};
  pipeline.recompute = 1;
  IslandLayout all;
  all.name = "TP 2, replicas cut unlike, two workers";
  all.replicas = {{{2, 4}, 4, 2}, {{6}, 2, 2}};
  all.schedule = "compact-zb";
  all.tensor_parallel = 2;
  all.workers = 2;
  return {two, three, pipeline, all};
}

std::vector<IslandLayout> TensorParallelByStage() {
  IslandLayout wide = Pipeline("zb-h1", {2, 2, 2}, 4), narrow = Pipeline("1f1b", {2, 2, 2}, 4);
  wide.name = "TP 1, 4 and 1, three workers, recomputation";
  wide.replicas[0].stage_ranks = {1, 4, 1};
  wide.recompute = 2;
  wide.workers = 3;
  narrow.name = "TP 4, 2 and 4";
  narrow.replicas[0].stage_ranks = {4, 2, 4};
  IslandLayout all;
  all.name = "TP 2, 3 and 2, replicas cut unlike, one copy, four workers";
  all.schedule = "compact-zb";
  all.replicas = {{{2, 1, 3}, 2, 3, {2, 3, 2}}, {{1, 1, 1, 2, 1}, 3, 2, {2, 2, 3, 2, 2}}};
  all.optimizer_copies = 1;
  all.workers = 4;
  return {wide, narrow, all};
}

std::vector<IslandLayout> Owners() {
  IslandLayout three, four, five, tensor;
  three.name = "three replicas, one copy, two workers";
  three.replicas = {{{4, 2}, 2, 3}, {{6}, 2, 2}, {{1, 2, 3}, 2, 1}};
  three.optimizer_copies = 1;
  three.workers = 2;
  four.name = "four replicas, two copies, four workers";
  four.schedule = "zb-h1";
  four.replicas = {{{3, 3}, 3, 1}, {{2, 4}, 3, 1}, {{6}, 1, 3}, {{1, 5}, 3, 1}};
  four.optimizer_copies = 2;
  four.workers = 4;
  five.name = "five replicas, two copies, recomputation";
  five.replicas = {{{6}, 2, 2}, {{6}, 1, 3}, {{6}, 1, 3}, {{6}, 1, 1}, {{6}, 1, 1}};
  five.optimizer_copies = 2;
  five.recompute = 1;
  tensor.name = "three replicas, one copy, TP 2 uneven";
  tensor.replicas = {{{2, 4}, 2, 2}, {{6}, 2, 2}, {{3, 3}, 2, 2}};
  tensor.tensor_parallel = 2;
  tensor.tensor_split_ratios = {3, 1};
  tensor.optimizer_copies = 1;
  return {three, four, five, tensor};
}

Reference::Reference(const EngineJob& job, int steps, bool masked)
    : start(RandomWeights(job.model, 5)) {
  // Weights come out as floats: gradients are compared from these, whatever the job computes in.
  TestDevice device(job), rounded(job);
  device.Set(start);
  for (int s = 0; s < steps; ++s) {
    // Every fifth step is short, so that the last micro-batches are short or empty.
    const int64_t rows = s % 5 == 4 ? job.batch_sequences / 2 + 1 : job.batch_sequences;
    tokens.push_back(RandomTokens(job, rows, 100 + static_cast<uint64_t>(s)));
    if (HasPadding(job.model)) PadSome(job, static_cast<uint64_t>(s), &tokens.back());
    if (job.documents == Documents::kPairs) {
      MakePairs(job, static_cast<uint64_t>(s), &tokens.back());
    } else if (job.documents != Documents::kText) {
      MarkDocuments(job, static_cast<uint64_t>(s), &tokens.back());
    }
    if (masked) MaskSome(job, static_cast<uint64_t>(s), &tokens.back());
    params.push_back(device.Get(LayerPart::kParameters));
    routers.push_back(device.Step(tokens.back(), kLearningRate));
    losses.push_back(routers.back().mean());
    rounded.Set(params.back());
    rounded.Step(tokens.back(), kLearningRate);
    gradients.push_back(rounded.gradients());
  }
  final = device.Get(LayerPart::kParameters);
  validation = device.Evaluate(tokens[0]).mean();
}

std::vector<double> CheckCurve(const Trial& trial, const Reference& reference) {
  const std::unique_ptr<IslandNetwork> network = MakeNetwork(trial);
  TestIsland island(trial.job, trial.plan, trial.options, *network);
  island.Set(LayerPart::kParameters, reference.start);
  std::vector<double> losses;
  for (size_t s = 0; s < reference.tokens.size(); ++s) {
    const auto outcome = island.Step(reference.tokens[s], kLearningRate);
    REQUIRE(outcome.status().message() == "");
    losses.push_back(outcome->loss.mean());
    CAPTURE(s, losses.back(), reference.losses[s]);
    REQUIRE(Difference(losses.back(), reference.losses[s]) < trial.limits.loss);
    if (trial.job.model.experts.count == 0) continue;
    REQUIRE(Difference(outcome->loss.balance(), reference.routers[s].balance()) <
            trial.limits.loss);
    REQUIRE(Difference(outcome->loss.router_z(), reference.routers[s].router_z()) <
            trial.limits.loss);
    REQUIRE(outcome->loss.routers.size() == static_cast<size_t>(trial.job.model.mixtures()));
  }
  REQUIRE(RelativeDifference(island.Get(LayerPart::kParameters), reference.final) <
          trial.limits.weights);
  const auto validation = island.Evaluate(reference.tokens[0]);
  REQUIRE(validation.status().message() == "");
  REQUIRE(Difference(validation->mean(), reference.validation) < trial.limits.loss);
  return losses;
}

void CheckGradients(const Trial& trial, const Reference& reference) {
  EngineOptions options = trial.options;
  options.keep_gradients = true;
  const std::unique_ptr<IslandNetwork> network = MakeNetwork(trial);
  TestIsland island(trial.job, trial.plan, std::move(options), *network);
  for (size_t s = 0; s < reference.tokens.size(); ++s) {
    island.Set(LayerPart::kParameters, reference.params[s]);
    REQUIRE(island.Step(reference.tokens[s], kLearningRate).status().message() == "");
    CAPTURE(s);
    REQUIRE(RelativeDifference(island.Get(LayerPart::kGradient), reference.gradients[s]) <
            trial.limits.gradient);
  }
}

void CheckExact(Kind kind, const IslandLayout& spec, const Variation& variation) {
  CAPTURE(spec.name, static_cast<int>(kind));
  Trial trial;
  trial.job = MakeJob(kind, variation.blocks);
  trial.job.compute = variation.compute;
  trial.job.optimizer.kind = variation.optimizer;
  trial.job.documents = variation.documents;
  trial.job.dpo = variation.dpo;
  SetAdapter(variation.adapter, &trial.job.model);
  trial.job.max_chunks = trial.options.fixed_chunks = variation.chunks;
  trial.plan = MakePlan(spec);
  trial.network = variation.network;
  trial.limits = variation.limits;
  const auto layers = static_cast<int32_t>(trial.job.model.layers) + 2;
  REQUIRE(Validate(trial.plan, layers, kBatch).message() == "");
  const Reference& reference = GetReference(kind, variation);
  const std::vector<double> losses = CheckCurve(trial, reference);
  REQUIRE(CheckCurve(trial, reference) == losses);
  CheckGradients(trial, reference);
}

}  // namespace atl::worker
