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
#include "kernels/testing/fake_device.h"
#include "kernels/testing/reference/reference.h"
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

Layers MakeFrozenLayers(const ModelConfig& config) { return RandomWeights(config.Base(), 6); }

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
  const std::vector<LayerLayout> layouts = MakeLayouts(job_.model);
  const Layers frozen = MakeFrozenLayers(job_.model);
  for (const auto& engine : engines_) {
    for (const LayerShard& shard : engine->ListLackingFrozen()) {
      const auto l = static_cast<size_t>(shard.layer);
      ATOLL_RETURN_IF_ERROR(engine->SetFrozen(shard, FrozenWeights(layouts[l], frozen[l])));
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

absl::StatusOr<StepRequest> TestIsland::Request(const std::vector<int32_t>& tokens,
                                                double learning_rate) {
  StepRequest request{
      .number = ++number_,
      .sequences = Rows(job_, tokens),
      .learning_rate = learning_rate,
      .masked_tokens = CountMasked(tokens, job_.model.RowNumbers(job_.sequence_length))};
  if (job_.documents != Documents::kPairs) return request;
  // The first parameters are the reference where there is no base.
  const bool whole = !job_.model.adapter.present();
  Layers now;
  if (whole) {
    now = Get(LayerPart::kParameters);
    if (first_.empty()) first_ = now;
    Set(LayerPart::kParameters, first_);
  }
  request.masked_tokens = request.sequences * (job_.sequence_length - 1);
  std::vector<std::vector<double>> found(engines_.size());
  ATOLL_RETURN_IF_ERROR(OnAll([&](size_t w) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(found[w], engines_[w]->FindReferences(request, Reader(tokens)));
    return absl::OkStatus();
  }));
  for (const std::vector<double>& worker : found) ATOLL_CHECK(worker == found[0]);
  if (whole) Set(LayerPart::kParameters, now);
  request.number = ++number_;
  request.references = found[0];
  return request;
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
  ATOLL_ASSIGN_OR_RETURN(StepRequest request, Request(tokens, learning_rate));
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
  ATOLL_ASSIGN_OR_RETURN(const StepRequest request, Request(tokens, 0));
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

namespace {

Documents DocumentsOnDevice(const EngineJob& job) {
  return job.documents == Documents::kPairs ? Documents::kText : job.documents;
}

}  // namespace

TestDevice::TestDevice(const EngineJob& job, int64_t micro_batch_rows)
    : job_(job),
      backend_(job.compute == DType::kFloat64 ? NewReferenceBackend() : NewCpuBackend(1)) {
  model_ = std::make_unique<Model>(*Model::Create(job.model, job.compute));
  runner_ = *ModelRunner::Create(
      *backend_, *model_,
      {.micro_batch_rows = micro_batch_rows > 0 ? micro_batch_rows : job.batch_sequences,
       .seq_len = job.sequence_length,
       .optimizer = job.optimizer.kind,
       .documents = DocumentsOnDevice(job)});
  optimizer_ = *Optimizer::Create(*backend_, runner_->stream(), runner_->layers(), job.optimizer);
  if (job.model.adapter.present()) {
    const Layers frozen = MakeFrozenLayers(job.model);
    for (size_t l = 0; l < frozen.size(); ++l) {
      LayerState& layer = runner_->layer(static_cast<int>(l));
      CheckOk(layer.WriteFrozen(runner_->stream(), FrozenWeights(layer.layout(), frozen[l])));
    }
  }
  if (job.documents != Documents::kPairs) return;
  EngineJob plain = job;
  plain.documents = Documents::kText;
  base_ = std::make_unique<TestDevice>(plain);
  if (!job.model.adapter.present()) return;  // Set
  Layers nothing = RandomWeights(job.model, 1);
  for (std::vector<float>& layer : nothing) std::ranges::fill(layer, 0.0f);
  base_->Set(nothing);
}

void TestDevice::Set(const Layers& params) {
  if (base_ != nullptr && !job_.model.adapter.present() && !std::exchange(base_set_, true)) {
    base_->Set(params);
  }
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

LossSum TestDevice::RunPairs(const std::vector<int32_t>& tokens, bool train) {
  Layers gradient;
  LossSum sum;
  sum.tokens = Rows(job_, tokens);
  const auto length = static_cast<size_t>(job_.sequence_length + 1);
  for (size_t begin = 0; begin < tokens.size(); begin += length) {
    const std::span<const int32_t> row = std::span(tokens).subspan(begin, length);
    std::vector<size_t> starts;
    for (size_t i = 0; i < length; ++i) {
      if (BeginsDocument(row[i])) starts.push_back(i);
    }
    starts.push_back(length);
    double margin = 0;
    std::vector<int32_t> answers[2];
    for (const size_t a : {0, 1}) {
      const auto answer = row.subspan(starts[a], starts[a + 1] - starts[a]);
      answers[a].assign(answer.begin(), answer.end());
      margin += (a == 0 ? -1 : 1) * (runner_->Evaluate(answers[a], 1)->nats -
                                     base_->runner_->Evaluate(answers[a], 1)->nats);
    }
    const double p = 1 / (1 + std::exp(-job_.dpo.beta * margin)), e = job_.dpo.label_smoothing;
    sum.nats -= (1 - e) * std::log(p) + e * std::log(1 - p);
    sum.hits += margin > 0 ? 1 : 0;
    for (const size_t a : {0, 1}) {
      if (!train) continue;
      for (LayerState* layer : runner_->layers()) {
        if (layer->layout().size > 0) backend_->Zero(runner_->stream(), layer->grads());
      }
      const auto targets = static_cast<double>(runner_->Train(answers[a], 1)->tokens);
      const double slope =
          job_.dpo.beta * (e - (1 - p)) * targets / static_cast<double>(sum.tokens);
      const Layers own = Get(LayerPart::kGradient);
      gradient.resize(own.size());
      for (size_t l = 0; l < own.size(); ++l) {
        gradient[l].resize(own[l].size());
        for (size_t i = 0; i < own[l].size(); ++i) {
          gradient[l][i] += static_cast<float>((a == 0 ? -slope : slope) * own[l][i]);
        }
      }
    }
  }
  for (size_t l = 0; l < gradient.size(); ++l) {
    const Tensor grads = runner_->grads(static_cast<int>(l));
    if (gradient[l].empty()) continue;
    HostReals values = *HostReals::Create(*backend_, grads.dtype, grads.size());
    for (size_t i = 0; i < gradient[l].size(); ++i) {
      values.Set(static_cast<int64_t>(i), gradient[l][i]);
    }
    backend_->CopyToDevice(runner_->stream(), grads, values.data());
    CheckOk(backend_->Synchronize(runner_->stream()));
  }
  return sum;
}

LossSum TestDevice::Step(const std::vector<int32_t>& tokens, double learning_rate) {
  const absl::StatusOr<LossSum> loss = base_ != nullptr
                                           ? RunPairs(tokens, /*train=*/true)
                                           : runner_->Train(tokens, Rows(job_, tokens), steps_ + 1);
  CheckOk(loss.status());
  gradients_ = Get(LayerPart::kGradient);
  CheckOk(
      optimizer_->Step(++steps_, static_cast<float>(learning_rate), Rows(job_, tokens)).status());
  return *loss;
}

LossSum TestDevice::Evaluate(const std::vector<int32_t>& tokens) {
  if (base_ != nullptr) return RunPairs(tokens, /*train=*/false);
  const auto loss = runner_->Evaluate(tokens, Rows(job_, tokens));
  CheckOk(loss.status());
  return *loss;
}

}  // namespace atl::worker
