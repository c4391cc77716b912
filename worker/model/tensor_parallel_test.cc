// Models cut over the ranks of a tensor-parallel group, one thread each, against one device.

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <thread>

#include "common/model/tensor_layout.h"
#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/reference/reference.h"
#include "kernels/thread_communicator.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"

namespace atl {
namespace {

// ---- vocabulary of these tests ----

constexpr int64_t kSeqLen = 9, kVocab = 331;  // two slices of logits
constexpr Duration kTimeout = std::chrono::seconds(60);

ModelConfig Tiny(ModelFamily family, int64_t kv_heads, bool tied) {
  ModelConfig c;
  c.family = family;
  c.vocab = kVocab;
  c.d_model = 24;
  c.layers = 2;
  c.heads = 6;
  c.kv_heads = family == ModelFamily::kGpt2 ? 6 : kv_heads;
  c.ffn = 37;
  c.max_positions = 12;
  c.tied_head = tied;
  if (family == ModelFamily::kQwen2Moe) {
    c.experts = {.count = 7,
                 .per_token = 3,
                 .hidden = 13,
                 .shared_hidden = 11,
                 .shared_gate = true,
                 .auxiliary_loss = 0.3,
                 .adds_auxiliary_loss = true};
  }
  return c;
}

const ModelFamily kFamilies[] = {ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kPhi3,
                                 ModelFamily::kQwen2Moe};

using Layers = std::vector<std::vector<float>>;

Layers RandomLayers(const std::vector<LayerLayout>& layouts, uint64_t seed) {
  Rng rng(seed);
  Layers layers;
  for (const LayerLayout& layout : layouts) {
    layers.emplace_back(layout.size);
    for (float& x : layers.back()) x = static_cast<float>(0.3 * rng.Normal() + 0.05);
  }
  return layers;
}

std::vector<int32_t> Tokens(int64_t count) {
  Rng rng(11);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(kVocab));
  return tokens;
}

const int64_t kRows = 3;  // in micro-batches of 2 and 1
const std::vector<int32_t> kBatch = Tokens(kRows * (kSeqLen + 1));
const std::vector<int32_t> kPrompt = Tokens(kSeqLen);

// A device's results of one batch; its part of them for a part.
struct Outcome {
  absl::Status status;
  LossSum loss;
  Layers grads;
  std::vector<float> logits;  // [kSeqLen, vocabulary]
};

std::span<float> HostView(const Tensor& tensor) {
  return {tensor.f32(), static_cast<size_t>(tensor.size())};
}

Outcome RunDevice(const std::string& backend_name, const Model& model, const Layers& params,
                  Communicator* communicator) {
  const auto backend = backend_name == "cpu" ? NewCpuBackend(1) : NewReferenceBackend();
  auto runner = *ModelRunner::Create(
      *backend, model, {.micro_batch_rows = 2, .seq_len = kSeqLen, .communicator = communicator});
  for (size_t i = 0; i < params.size(); ++i) {
    std::copy(params[i].begin(), params[i].end(),
              HostView(runner->params(static_cast<int>(i))).begin());
  }
  Outcome outcome;
  const absl::StatusOr<LossSum> loss = runner->Train(kBatch, kRows);
  outcome.status = loss.status();
  if (!loss.ok()) return outcome;
  outcome.loss = *loss;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto grads = HostView(runner->grads(static_cast<int>(i)));
    outcome.grads.emplace_back(grads.begin(), grads.end());
  }
  outcome.logits.resize(kSeqLen * model.part().vocab.size());
  outcome.status = runner->Logits(kPrompt, outcome.logits);
  return outcome;
}

Layers CutLayers(const ModelConfig& config, const TensorPart& part, const Layers& whole) {
  const auto layouts = MakeLayouts(config), part_layouts = MakeLayouts(config, part);
  Layers cut;
  for (size_t i = 0; i < layouts.size(); ++i) {
    cut.emplace_back(part_layouts[i].size);
    CutLayer(layouts[i], part_layouts[i], whole[i], cut[i]);
  }
  return cut;
}

// Starts from numbers that no test would take for right.
Layers JoinLayers(const ModelConfig& config, const std::vector<TensorPart>& parts,
                  const std::vector<Layers>& cut) {
  const auto layouts = MakeLayouts(config);
  Layers whole;
  for (const LayerLayout& layout : layouts) whole.emplace_back(layout.size, 1e30f);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const auto part_layouts = MakeLayouts(config, parts[rank]);
    for (size_t i = 0; i < layouts.size(); ++i) {
      JoinLayer(layouts[i], part_layouts[i], cut[rank][i], whole[i]);
    }
  }
  return whole;
}

std::vector<Outcome> RunGroup(const std::string& backend, const ModelConfig& config,
                              const std::vector<TensorPart>& parts, const Layers& params,
                              const std::vector<Communicator*>& members) {
  std::vector<Outcome> outcomes(parts.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const Model model = *Model::Create(config, DType::kFloat32, parts[rank]);
      outcomes[rank] =
          RunDevice(backend, model, CutLayers(config, parts[rank], params), members[rank]);
    });
  }
  threads.clear();
  return outcomes;
}

std::vector<Communicator*> Pointers(const std::vector<std::unique_ptr<Communicator>>& members) {
  std::vector<Communicator*> pointers;
  for (const auto& member : members) pointers.push_back(member.get());
  return pointers;
}

std::vector<Outcome> RunGroup(const std::string& backend, const ModelConfig& config,
                              const std::vector<TensorPart>& parts, const Layers& params) {
  const auto members = NewThreadCommunicators(static_cast<int>(parts.size()), kTimeout);
  auto outcomes = RunGroup(backend, config, parts, params, Pointers(members));
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.status);
    REQUIRE(outcome.status.ok());
  }
  return outcomes;
}

// |a - b| / |b|
double Distance(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

std::vector<float> JoinLogits(const std::vector<TensorPart>& parts,
                              const std::vector<Outcome>& outcomes) {
  std::vector<float> logits(kSeqLen * kVocab, 1e30f);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Range vocab = parts[rank].vocab;
    for (int64_t row = 0; row < kSeqLen; ++row) {
      std::copy_n(outcomes[rank].logits.begin() + row * vocab.size(), vocab.size(),
                  logits.begin() + row * kVocab + vocab.begin);
    }
  }
  return logits;
}

// ---- exactness ----

void RequireSameAsOneDevice(const std::string& backend, const ModelConfig& config, int ranks,
                            const std::vector<int32_t>& ratios) {
  const auto layouts = MakeLayouts(config);
  const Layers params = RandomLayers(layouts, 5);
  const Outcome one = RunDevice(backend, *Model::Create(config), params, nullptr);
  const auto parts = *CutModel(config, ranks, ratios);
  const auto group = RunGroup(backend, config, parts, params);

  REQUIRE(Distance(JoinLogits(parts, group), one.logits) < 1e-5);
  std::vector<Layers> grads;
  for (const Outcome& outcome : group) {
    REQUIRE(outcome.loss.tokens == one.loss.tokens);
    REQUIRE(outcome.loss.nats == Approx(one.loss.nats).epsilon(1e-6));
    REQUIRE(outcome.loss.nats == group[0].loss.nats);  // the same bits
    grads.push_back(outcome.grads);
  }
  const Layers joined = JoinLayers(config, parts, grads);
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (const ParamSpec& param : layouts[i].params) {
      CAPTURE(param.name);
      REQUIRE(Distance(std::span(joined[i]).subspan(param.offset, param.size),
                       std::span(one.grads[i]).subspan(param.offset, param.size)) < 1e-5);
    }
  }
}

TEST_CASE("a group's logits, loss and gradients are one device's") {
  struct Group {
    int ranks;
    std::vector<int32_t> ratios;
  };
  const std::vector<Group> groups = {{1, {}}, {2, {}}, {2, {3, 1}}, {3, {}}, {3, {1, 3, 2}}};
  for (const std::string backend : {"reference", "cpu"}) {
    for (const ModelFamily family : kFamilies) {
      for (const int64_t kv_heads : {6, 3}) {
        if (family == ModelFamily::kGpt2 && kv_heads == 3) continue;
        for (const bool tied : {false, true}) {
          for (const Group& group : groups) {
            CAPTURE(backend, static_cast<int>(family), kv_heads, tied, group.ranks, group.ratios);
            RequireSameAsOneDevice(backend, Tiny(family, kv_heads, tied), group.ranks,
                                   group.ratios);
          }
        }
      }
    }
  }
}

TEST_CASE("fused_matrix_of_gate_and_up_is_cut_in_two_ranges_and_joined_again") {
  const ModelConfig config = Tiny(ModelFamily::kPhi3, 3, false);
  const std::vector<int32_t> ratios = {1, 3, 2};
  const auto parts = *CutModel(config, 3, ratios);
  const Layers whole = RandomLayers(MakeLayouts(config), 4);
  const ParamSpec fused = *MakeLayouts(config)[1].Find(Param::kGate);
  REQUIRE(fused.shape == std::vector<int64_t>{2 * config.ffn, config.d_model});
  std::vector<Layers> cut;
  for (const TensorPart& part : parts) {
    cut.push_back(CutLayers(config, part, whole));
    const ParamSpec own = *MakeLayouts(config, part)[1].Find(Param::kGate);
    REQUIRE(own.kept ==
            std::vector<Range>{part.ffn, {config.ffn + part.ffn.begin, config.ffn + part.ffn.end}});
    // The first row of up lies behind the part's rows of gate.
    REQUIRE(cut.back()[1][own.offset + part.ffn.size() * config.d_model] ==
            whole[1][fused.offset + (config.ffn + part.ffn.begin) * config.d_model]);
  }
  REQUIRE(JoinLayers(config, parts, cut) == whole);
}

TEST_CASE("a group's results repeat bit for bit, and what all ranks hold has one gradient") {
  for (const ModelFamily family : kFamilies) {
    const ModelConfig config = Tiny(family, 3, true);
    const auto parts = *CutModel(config, 3, {});
    const Layers params = RandomLayers(MakeLayouts(config), 6);
    const auto first = RunGroup("cpu", config, parts, params);
    const auto again = RunGroup("cpu", config, parts, params);
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      REQUIRE(first[rank].grads == again[rank].grads);
      const auto layouts = MakeLayouts(config, parts[rank]), lead = MakeLayouts(config, parts[0]);
      for (size_t i = 0; i < layouts.size(); ++i) {
        for (size_t p = 0; p < layouts[i].params.size(); ++p) {
          const ParamSpec &here = layouts[i].params[p], &there = lead[i].params[p];
          if (here.cut != Cut::kNone) continue;
          CAPTURE(here.name);
          REQUIRE(std::equal(first[rank].grads[i].begin() + here.offset,
                             first[rank].grads[i].begin() + here.end(),
                             first[0].grads[i].begin() + there.offset));
        }
      }
    }
  }
}

// Losses and gradient norms of some steps in f64.
std::vector<double> TrainInF64(const ModelConfig& config, const TensorPart& part,
                               Communicator* communicator) {
  const auto backend = NewReferenceBackend();
  const Model model = *Model::Create(config, DType::kFloat64, part);
  auto runner = *ModelRunner::Create(
      *backend, model, {.micro_batch_rows = 2, .seq_len = kSeqLen, .communicator = communicator});
  const Layers params = CutLayers(config, part, RandomLayers(MakeLayouts(config), 8));
  for (size_t i = 0; i < params.size(); ++i) {
    std::copy(params[i].begin(), params[i].end(), runner->layers()[i]->params().as<double>());
  }
  auto optimizer = *Optimizer::Create(*backend, runner->stream(), runner->layers(), {});
  std::vector<double> seen;
  for (int step = 1; step <= 8; ++step) {
    const absl::StatusOr<LossSum> loss = runner->Train(kBatch, kRows);
    if (!loss.ok()) return {};
    optimizer->EnqueueSumsOfSquares(part.rank);
    const std::vector<double> squares = optimizer->sums_of_squares();
    double sum = std::accumulate(squares.begin(), squares.end(), 0.0);
    if (communicator != nullptr &&
        !communicator->AllReduceSum(*backend, runner->stream(), {&sum, DType::kFloat64, 1, 1})
             .ok()) {
      return {};
    }
    optimizer->Apply(step, 1e-2f, sum);
    seen.push_back(loss->mean());
    seen.push_back(std::sqrt(sum));
  }
  return seen;
}

TEST_CASE("in f64 a group trains as one device does: only rounding sets them apart") {
  for (const ModelFamily family : kFamilies) {
    const bool tied = GENERATE(false, true);
    const ModelConfig config = Tiny(family, 3, tied);
    const std::vector<double> one = TrainInF64(config, WholePart(config), nullptr);
    REQUIRE(one.size() == 16);
    const std::vector<int32_t> ratios = {1, 3, 2};
    const auto parts = *CutModel(config, 3, ratios);
    const auto members = NewThreadCommunicators(3, kTimeout);
    std::vector<std::vector<double>> group(3);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < 3; ++rank) {
        threads.emplace_back(
            [&, rank] { group[rank] = TrainInF64(config, parts[rank], members[rank].get()); });
      }
    }
    for (const std::vector<double>& seen : group) {
      REQUIRE(seen == group[0]);
      REQUIRE(seen.size() == one.size());
      for (size_t i = 0; i < one.size(); ++i) {
        REQUIRE(std::abs(seen[i] - one[i]) <= 1e-12 * std::abs(one[i]));
      }
    }
  }
}

// ---- collectives ----

// Counts what passes through it.
class Counting final : public Communicator {
 public:
  explicit Counting(Communicator& to) : to_(to) {}
  int rank() const override { return to_.rank(); }
  int size() const override { return to_.size(); }
  absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) override {
    ++all_reduces;
    elements += x.size();
    return to_.AllReduceSum(backend, stream, x);
  }
  absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) override {
    ++maxima;
    elements += x.size();
    return to_.AllReduceMax(backend, stream, x);
  }
  void Abort(const std::string& reason) override { to_.Abort(reason); }

  int64_t all_reduces = 0, maxima = 0, elements = 0;

 private:
  Communicator& to_;
};

TEST_CASE(
    "collectives are four all-reduces a block, one for each end, and two small ones for the loss") {
  const ModelConfig config = Tiny(ModelFamily::kLlama, 3, false);
  const auto parts = *CutModel(config, 2, {});
  const auto members = NewThreadCommunicators(2, kTimeout);
  Counting first(*members[0]), second(*members[1]);
  const auto outcomes =
      RunGroup("cpu", config, parts, RandomLayers(MakeLayouts(config), 1), {&first, &second});
  REQUIRE(outcomes[0].status.ok());
  // Two micro-batches of a step, of which one has a slice of logits more, and the forward pass for
  // logits.
  const int64_t forward = 1 + 2 * config.layers, backward = 2 * config.layers + 1;
  REQUIRE(first.all_reduces == 2 * (forward + 1 + backward) + 2 + forward);
  REQUIRE(first.maxima == 3);
  const int64_t tokens = kRows * kSeqLen;
  REQUIRE(first.elements == tokens * ((forward + backward) * config.d_model + 4) +
                                kSeqLen * forward * config.d_model);
  REQUIRE(second.elements == first.elements);
}

TEST_CASE("a group that is aborted says so and stops") {
  const ModelConfig config = Tiny(ModelFamily::kGpt2, 6, true);
  const auto members = NewThreadCommunicators(2, kTimeout);
  members[1]->Abort("a new plan");
  const auto parts = *CutModel(config, 2, {});
  const Layers params = RandomLayers(MakeLayouts(config), 1);
  for (const Outcome& outcome : RunGroup("cpu", config, parts, params, Pointers(members))) {
    REQUIRE(outcome.status == absl::AbortedError("a new plan"));
  }
}

// ---- cuts ----

std::vector<int64_t> Sizes(const std::vector<TensorPart>& parts, Range TensorPart::*member) {
  std::vector<int64_t> sizes;
  int64_t end = 0;
  for (const TensorPart& part : parts) {
    REQUIRE((part.*member).begin == end);
    end = (part.*member).end;
    sizes.push_back((part.*member).size());
  }
  return sizes;
}

TEST_CASE("shares are divided by largest remainder, one at least to each") {
  ModelConfig config = Tiny(ModelFamily::kLlama, 3, false);
  config.heads = 12, config.kv_heads = 6, config.ffn = 100, config.vocab = 1000;
  const std::vector<int32_t> uneven = {5, 3, 2};
  const auto parts = *CutModel(config, 3, uneven);
  REQUIRE(Sizes(parts, &TensorPart::kv_heads) == std::vector<int64_t>{3, 2, 1});  // 3, 1.8, 1.2
  REQUIRE(Sizes(parts, &TensorPart::heads) == std::vector<int64_t>{6, 4, 2});
  REQUIRE(Sizes(parts, &TensorPart::ffn) == std::vector<int64_t>{50, 30, 20});
  REQUIRE(Sizes(parts, &TensorPart::vocab) == std::vector<int64_t>{500, 300, 200});

  const auto even = *CutModel(config, 4, {});  // 1.5 heads each: the first ones get more
  REQUIRE(Sizes(even, &TensorPart::kv_heads) == std::vector<int64_t>{2, 2, 1, 1});

  const std::vector<int32_t> steep = {1000, 1, 1, 1};
  REQUIRE(Sizes(*CutModel(config, 4, steep), &TensorPart::kv_heads) ==
          std::vector<int64_t>{3, 1, 1, 1});
  REQUIRE(CutModel(config, 1, {})->front() == WholePart(config));
}

TEST_CASE("what cannot be cut is refused with what can") {
  const ModelConfig config = Tiny(ModelFamily::kLlama, 3, false);
  REQUIRE(CutModel(config, 4, {}).status().message() ==
          "tensor parallelism over 4 devices: the model has 3 key-value heads and each device "
          "needs one; 1 to 3 devices can share this model");
  const std::vector<int32_t> two = {1, 2}, zero = {1, 0};
  REQUIRE(CutModel(config, 3, two).status().message() ==
          "tensor_split_ratios has 2 numbers for 3 devices; expected one each, or none");
  REQUIRE(CutModel(config, 2, zero).status().message() ==
          "tensor_split_ratios has a 0; every share is 1 or more");
  REQUIRE_FALSE(CutModel(config, 0, {}).ok());
}

TEST_CASE("a layer survives being cut, joined, and cut otherwise") {
  for (const ModelFamily family : kFamilies) {
    const ModelConfig config = Tiny(family, 3, false);
    const std::vector<int32_t> ratios = {1, 3, 2};
    const Layers whole = RandomLayers(MakeLayouts(config), 9);
    const auto cut = [&](const std::vector<TensorPart>& parts, const Layers& layers) {
      std::vector<Layers> all;
      for (const TensorPart& part : parts) all.push_back(CutLayers(config, part, layers));
      return all;
    };
    const auto two = *CutModel(config, 2, {}), three = *CutModel(config, 3, ratios);
    const auto in_two = cut(two, whole);
    REQUIRE(JoinLayers(config, two, in_two) == whole);
    const auto in_three = cut(three, JoinLayers(config, two, in_two));
    REQUIRE(in_three == cut(three, whole));
    REQUIRE(JoinLayers(config, three, in_three) == whole);
  }
}

TEST_CASE("parts keep the order of parameters, those with decay first, and share the whole") {
  for (const ModelFamily family : kFamilies) {
    const ModelConfig config = Tiny(family, 3, false);
    const auto layouts = MakeLayouts(config);
    const auto parts = *CutModel(config, 3, {});
    std::vector<int64_t> counted(layouts.size());
    for (const TensorPart& part : parts) {
      const auto part_layouts = MakeLayouts(config, part);
      for (size_t i = 0; i < layouts.size(); ++i) {
        const LayerLayout& layout = part_layouts[i];
        int64_t end = 0;
        for (const ParamSpec& param : layout.params) {
          REQUIRE(param.offset == end);
          REQUIRE(param.decay == (param.offset < layout.decay_size));
          end = param.end();
        }
        REQUIRE(end == layout.size);
        for (const Range& range : CountedRanges(layout, part.rank)) counted[i] += range.size();
      }
    }
    for (size_t i = 0; i < layouts.size(); ++i) REQUIRE(counted[i] == layouts[i].size);
  }
}

}  // namespace
}  // namespace atl
