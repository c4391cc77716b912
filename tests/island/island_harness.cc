#include "tests/island/island_harness.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "common/check.h"
#include "common/masked_tokens.h"
#include "common/model/tensor_layout.h"
#include "common/protocol/tensor_groups.h"
#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/fake_device.h"
#include "tests/catch/limits.h"
#include "worker/model/host_reals.h"

namespace atl::worker {
namespace {

constexpr Duration kTimeout = atl::testing::kHangLimit;

int64_t Rows(const EngineJob& job, const std::vector<int32_t>& tokens) {
  return std::ssize(tokens) / job.model.RowNumbers(job.sequence_length);
}

void CheckOk(const absl::Status& status) { ATOLL_CHECK(status.ok(), status.ToString()); }

}  // namespace

double RelativeDifference(const Layers& a, const Layers& b) {
  double difference = 0, norm = 0;
  for (size_t l = 0; l < a.size(); ++l) {
    ATOLL_CHECK(a[l].size() == b[l].size());
    for (size_t i = 0; i < a[l].size(); ++i) {
      const double d = static_cast<double>(a[l][i]) - b[l][i];
      difference += d * d;
      norm += static_cast<double>(b[l][i]) * b[l][i];
    }
  }
  return std::sqrt(difference / norm);
}

Layers RandomWeights(const ModelConfig& config, uint64_t seed) {
  Rng rng(seed);
  Layers layers;
  for (const LayerLayout& layout : MakeLayouts(config)) {
    std::vector<float>& values = layers.emplace_back(layout.size);
    for (float& value : values) value = static_cast<float>(0.2 * rng.Normal() + 0.03);
  }
  return layers;
}

Layers FrozenWeights(const ModelConfig& config) { return RandomWeights(config.Base(), 6); }

std::vector<int32_t> RandomTokens(const EngineJob& job, int64_t sequences, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(
      static_cast<size_t>(sequences * job.model.RowNumbers(job.sequence_length)));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(job.model.vocab)));
  }
  return tokens;
}

LocalDevice NewFakeDevice(int index) {
  const testing::FakeDevice device(absl::StrCat("fake ", index), [] { return NewCpuBackend(1); });
  LocalDevice made{index, device.NewBackend(), device.NewBackend()};  // messages go by a queue here
  made.staging = device.NewBackend();
  return made;
}

// ---- the island ----

void LocalNetwork::Begin(const IslandPlan&) {
  older_ = std::move(communicators_);
  communicators_ = std::make_unique<LocalCommunicators>(kTimeout);
}

TestIsland::TestIsland(const EngineJob& job, const IslandPlan& plan, EngineOptions options,
                       Transport* transport, MakeDevice make_device)
    : job_(job), local_(transport), network_(local_) {
  Begin(plan, std::move(options), make_device);
}

TestIsland::TestIsland(const EngineJob& job, const IslandPlan& plan, EngineOptions options,
                       IslandNetwork& network)
    : job_(job), network_(network) {
  Begin(plan, std::move(options), nullptr);
}

void TestIsland::Begin(const IslandPlan& plan, EngineOptions options, MakeDevice make_device) {
  if (make_device == nullptr && job_.compute == DType::kFloat64) {
    make_device = [](int index) {
      return LocalDevice{index, NewReferenceBackend(), NewReferenceBackend()};
    };
  }
  if (make_device == nullptr) {
    make_device = [](int index) { return LocalDevice{index, NewCpuBackend(1), NewCpuBackend(1)}; };
  }
  options.message_timeout = std::min<Duration>(options.message_timeout, kTimeout);
  for (const IslandMember& member : plan.members) {
    std::set<int> indices;
    for (const PlanProgram& program : plan.programs) {
      if (WorkerFromDevice(program.device) == member.worker) {
        indices.insert(IndexFromDevice(program.device));
      }
    }
    std::vector<LocalDevice> devices;
    for (const int index : indices) devices.push_back(make_device(index));
    names_.push_back(member.worker);
    engines_.push_back(std::make_unique<Engine>(member.worker, std::move(devices), options));
  }
  CheckOk(Configure(plan));
}

template <typename Function>
absl::Status TestIsland::OnAll(const Function& function) {
  std::vector<absl::Status> statuses(engines_.size());
  std::vector<std::thread> threads;
  for (size_t w = 0; w < engines_.size(); ++w) {
    threads.emplace_back([&, w] { statuses[w] = function(w); });
  }
  for (std::thread& thread : threads) thread.join();
  // A device that only received the failure of others has no reason of its own.
  for (const absl::Status& status : statuses) {
    if (!absl::IsAborted(status)) ATOLL_RETURN_IF_ERROR(status);
  }
  for (const absl::Status& status : statuses) ATOLL_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status TestIsland::Configure(const IslandPlan& plan) {
  plan_ = plan;
  network_.Begin(plan);
  ATOLL_RETURN_IF_ERROR(OnAll([&](size_t w) {
    const NodeId& worker = names_[w];
    return engines_[w]->Configure(job_, plan, &network_.transport(worker),
                                  &network_.communicators(worker));
  }));
  const std::vector<LayerLayout> base = MakeLayouts(job_.model.Base());
  const Layers frozen = FrozenWeights(job_.model);
  for (const auto& engine : engines_) {
    for (const LayerShard& shard : engine->ListLackingFrozen()) {
      const LayerLayout part = FrozenLayout(MakePartLayout(shard.layer, shard.rank));
      const auto l = static_cast<size_t>(shard.layer);
      std::vector<float> values(static_cast<size_t>(part.size));
      CutLayer(base[l], part, frozen[l], values);
      ATOLL_RETURN_IF_ERROR(engine->SetFrozen(shard, values));
    }
  }
  return absl::OkStatus();
}

LayerLayout TestIsland::MakePartLayout(int32_t layer, int32_t rank) const {
  const std::vector<int32_t> ratios = GetTensorSplitRatios(plan_, layer);
  const auto parts = CutModel(job_.model, static_cast<int>(ratios.size()), ratios);
  return MakeLayouts(job_.model, (*parts)[static_cast<size_t>(rank)])[static_cast<size_t>(layer)];
}

Layers TestIsland::Get(LayerPart part) {
  const std::vector<LayerLayout> whole = MakeLayouts(job_.model);
  Layers layers;
  for (const LayerLayout& layout : whole) layers.emplace_back(layout.size);
  std::map<std::pair<int32_t, int32_t>, std::vector<float>> shards;  // by layer and rank
  for (const auto& engine : engines_) {
    for (const HeldLayer& held : engine->Held()) {
      if (held.table_only || held.surplus) continue;
      std::vector<float>& values = shards[{held.shard.layer, held.shard.rank}];
      values.resize(static_cast<size_t>(held.elements));
      const Range here = part == LayerPart::kParameters ? Range{0, held.elements} : held.owned;
      CheckOk(engine->GetLayer(held.shard, part, here,
                               std::span(values).subspan(static_cast<size_t>(here.begin),
                                                         static_cast<size_t>(here.size()))));
    }
  }
  for (const auto& [name, values] : shards) {
    const auto l = static_cast<size_t>(name.first);
    JoinLayer(whole[l], MakePartLayout(name.first, name.second), values, layers[l]);
  }
  return layers;
}

void TestIsland::Set(LayerPart part, const Layers& layers) {
  const std::vector<LayerLayout> whole = MakeLayouts(job_.model);
  for (const auto& engine : engines_) {
    for (const HeldLayer& held : engine->Held()) {
      if (held.surplus) continue;
      std::vector<float> values(static_cast<size_t>(held.elements));
      const auto l = static_cast<size_t>(held.shard.layer);
      CutLayer(whole[l], MakePartLayout(held.shard.layer, held.shard.rank), layers[l], values);
      CheckOk(engine->SetLayer(held.shard, part, values));
    }
  }
}

void TestIsland::SetOptimizerSteps(int64_t steps) {
  for (const auto& engine : engines_) CheckOk(engine->SetOptimizerSteps(steps));
}

StepRequest TestIsland::Request(const std::vector<int32_t>& tokens, double learning_rate) {
  return {.number = ++number_,
          .sequences = Rows(job_, tokens),
          .learning_rate = learning_rate,
          .masked_tokens = CountMasked(tokens, job_.model.RowNumbers(job_.sequence_length))};
}

SequenceReader TestIsland::Reader(const std::vector<int32_t>& tokens) const {
  return [&tokens, row = job_.model.RowNumbers(job_.sequence_length)](int64_t first,
                                                                      std::span<int32_t> out) {
    std::copy_n(tokens.begin() + first * row, out.size(), out.begin());
    return absl::OkStatus();
  };
}

absl::StatusOr<StepOutcome> TestIsland::Step(const std::vector<int32_t>& tokens,
                                             double learning_rate, double norm_limit) {
  StepRequest request = Request(tokens, learning_rate);
  request.norm_limit = norm_limit;
  StepOutcome first;
  ATOLL_RETURN_IF_ERROR(OnAll([&](size_t w) {
    auto outcome = engines_[w]->Step(request, Reader(tokens));
    if (!outcome.ok()) return outcome.status();
    if (w == 0) first = *std::move(outcome);
    return absl::OkStatus();
  }));
  return first;
}

absl::StatusOr<LossSum> TestIsland::Evaluate(const std::vector<int32_t>& tokens) {
  const StepRequest request = Request(tokens, 0);
  LossSum first;
  ATOLL_RETURN_IF_ERROR(OnAll([&](size_t w) {
    const auto loss = engines_[w]->Evaluate(request, Reader(tokens));
    if (!loss.ok()) return loss.status();
    if (w == 0) first = *loss;
    return absl::OkStatus();
  }));
  return first;
}

// ---- one device ----

TestDevice::TestDevice(const EngineJob& job, int64_t micro_batch_rows)
    : job_(job),
      backend_(job.compute == DType::kFloat64 ? NewReferenceBackend() : NewCpuBackend(1)) {
  model_ = std::make_unique<Model>(*Model::Create(job.model, job.compute));
  runner_ = *ModelRunner::Create(
      *backend_, *model_,
      {.micro_batch_rows = micro_batch_rows > 0 ? micro_batch_rows : job.batch_sequences,
       .seq_len = job.sequence_length,
       .optimizer = job.optimizer.kind,
       .documents = job.documents});
  optimizer_ = *Optimizer::Create(*backend_, runner_->stream(), runner_->layers(), job.optimizer);
  if (!job.model.adapter.present()) return;
  const Layers frozen = FrozenWeights(job.model);
  for (size_t l = 0; l < frozen.size(); ++l) {
    CheckOk(runner_->layer(static_cast<int>(l)).WriteFrozen(runner_->stream(), frozen[l]));
  }
}

void TestDevice::Set(const Layers& params) {
  for (size_t l = 0; l < params.size(); ++l) {
    LayerState& layer = runner_->layer(static_cast<int>(l));
    if (params[l].empty()) continue;
    HostReals values = *HostReals::Create(*backend_, layer.params().dtype, layer.params().size());
    for (size_t i = 0; i < params[l].size(); ++i) values.Set(static_cast<int64_t>(i), params[l][i]);
    backend_->CopyToDevice(runner_->stream(), layer.params(), values.data());
    layer.ParamsWritten(runner_->stream());
  }
}

Layers TestDevice::Read(Tensor (*part)(LayerState&)) {
  Layers layers;
  for (LayerState* layer : runner_->layers()) {
    if (layer->layout().size == 0) {
      layers.emplace_back();
      continue;
    }
    HostReals values = *HostReals::Create(*backend_, part(*layer).dtype, layer->layout().size);
    backend_->CopyToHost(runner_->stream(), values.data(), part(*layer));
    CheckOk(backend_->Synchronize(runner_->stream()));
    const std::vector<double> all = values.All();
    layers.emplace_back(all.begin(), all.end());
  }
  return layers;
}

Layers TestDevice::Get(LayerPart part) {
  switch (part) {
    case LayerPart::kParameters:
      return Read([](LayerState& s) { return s.params(); });
    case LayerPart::kFirstMoment:
      return Read([](LayerState& s) { return s.first_moment(); });
    case LayerPart::kSecondMoment:
      return Read([](LayerState& s) { return s.second_moment(); });
    case LayerPart::kGradient:
      return Read([](LayerState& s) { return s.grads(); });
  }
  return {};
}

LossSum TestDevice::Step(const std::vector<int32_t>& tokens, double learning_rate) {
  const auto loss = runner_->Train(tokens, Rows(job_, tokens), steps_ + 1);
  CheckOk(loss.status());
  gradients_ = Get(LayerPart::kGradient);
  CheckOk(
      optimizer_->Step(++steps_, static_cast<float>(learning_rate), Rows(job_, tokens)).status());
  return *loss;
}

LossSum TestDevice::Evaluate(const std::vector<int32_t>& tokens) {
  const auto loss = runner_->Evaluate(tokens, Rows(job_, tokens));
  CheckOk(loss.status());
  return *loss;
}

}  // namespace atl::worker
