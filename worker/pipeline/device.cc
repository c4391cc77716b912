#include "worker/pipeline/device.h"

#include <algorithm>

#include "common/bytes_text.h"
#include "common/check.h"
#include "common/model/optimizer_state.h"
#include "common/model/targets.h"
#include "worker/model/exec.h"

namespace atl::worker {
namespace {

// The table alone of an embedding's layout.
LayerLayout TableLayout(const LayerLayout& embedding) {
  LayerLayout table;
  table.name = "table";
  if (!embedding.frozen.empty()) {
    table.frozen = {embedding.frozen[0]};
    table.frozen_size = embedding.frozen[0].size;
    return table;
  }
  table.params = {embedding.params[0]};
  table.size = table.decay_size = table.trained_size = embedding.params[0].size;
  return table;
}

StageOptions MakeStageOptions(const StageRole& role, const EngineJob& job, int64_t rows) {
  StageOptions options;
  options.first_layer = role.plan.first_layer;
  options.layers = role.plan.layers;
  options.shape = {rows, job.sequence_length};
  options.backward = role.fused ? StageOptions::Backward::kFused : StageOptions::Backward::kSplit;
  options.forward_slots = role.forward_slots;
  options.backward_slots = role.backward_slots;
  options.max_chunks = job.max_chunks;
  options.recomputed_layers.assign(role.plan.recomputed_layers.begin(),
                                   role.plan.recomputed_layers.end());
  return options;
}

// The part of a device's memory that copies leave to libraries, which take theirs when they need
// it.
constexpr int64_t kCopiesLeave = 16;  // one in so many bytes

constexpr char kFewerActivations[] =
    "lower inner.micro_batch_sequences or set layout.recompute = \"all\"";
constexpr char kFewerLayers[] = "use more devices (layout.stages, layout.tensor_parallel)";

std::string WhatStage(const StageRole& role) {
  return absl::StrCat("stage ", role.stage, " (layers ", role.plan.first_layer, " to ",
                      role.plan.first_layer + role.plan.layers - 1, ")");
}

// Describes what is taken for a stage, and which layer takes the most of it.
std::string WhatActivations(const StageRole& role, const Stage& stage) {
  int most = 0;
  for (int i = 1; i < stage.layers(); ++i) {
    if (stage.layer_bytes(i) > stage.layer_bytes(most)) most = i;
  }
  return absl::StrCat(WhatStage(role),
                      ", activations (micro-batches in flight: ", role.forward_slots,
                      "; the most for layer ", role.plan.first_layer + most, ", ",
                      BytesText(stage.layer_bytes(most)), ")");
}

}  // namespace

Device::Device(std::string name, LocalDevice parts)
    : name_(std::move(name)), parts_(std::move(parts)) {
  ATOLL_CHECK(parts_.compute != nullptr && parts_.communication != nullptr, name_,
              " needs two backends");
  if (parts_.staging == nullptr) return;
  staging_ = std::make_unique<Staging>(std::move(parts_.staging));
  copies_ = std::make_unique<LayerCopies>(parts_.compute.get(), staging_.get());
}

HeldState* Device::Find(const LayerShard& shard, bool table_only) {
  for (const auto& held : held_) {
    if (held->shard == shard && held->table_only == table_only) return held.get();
  }
  return nullptr;
}

HeldState* Device::FindPlanned(int32_t layer, bool table_only) {
  for (HeldState* held : planned_) {
    if (held->shard.layer == layer && held->table_only == table_only) return held;
  }
  return nullptr;
}

absl::Status Device::TakeLayer(const LayerShard& shard, bool table_only, const LayerLayout& layout,
                               const EngineJob& job) {
  LayerLayout here = table_only ? TableLayout(layout) : layout;
  std::vector<Range> undivided = UndividedRanges(job.optimizer.kind, layout);
  Range owned = role_->ownership.Owned(role_->replica, layout.size, undivided);
  if (!role_->ownership.sharded()) owned = {0, here.size};
  if (role_->ownership.sharded() && table_only) owned = {0, 0};  // embeddings own the table
  HeldState* held = Find(shard, table_only);
  if (held == nullptr) {
    absl::StatusOr<LayerState> state =
        LayerState::Create(compute(), *stream_, std::move(here), job.compute,
                           LayerState::Training{job.optimizer.kind, owned});
    if (!state.ok()) return OutOfMemory(state.status(), DescribeStages(), kFewerLayers);
    held_.push_back(std::make_unique<HeldState>(HeldState{.shard = shard,
                                                          .table_only = table_only,
                                                          .elements = layout.size,
                                                          .undivided = std::move(undivided),
                                                          .state = *std::move(state)}));
    held = held_.back().get();
  } else if (const absl::Status owns = held->Own(*stream_, owned); !owns.ok()) {
    return OutOfMemory(owns, DescribeStages(), kFewerLayers);
  }
  // A layer with nothing to train is nowhere to be had, and lacks nothing after any step.
  if (held->state.layout().size == 0) held->written = held->whole = true;
  held->surplus = false;
  planned_.push_back(held);
  return absl::OkStatus();
}

absl::Status Device::TakeLayers(const EngineJob& job,
                                const std::vector<int32_t>& tensor_split_ratios) {
  planned_.clear();
  for (const auto& held : held_) held->surplus = true;
  const auto layers = model_->layers();
  for (int32_t l = 0; l < static_cast<int32_t>(layers.size()); ++l) {
    if (!role_->HoldsLayer(l)) continue;
    ATOLL_RETURN_IF_ERROR(
        TakeLayer({l, role_->rank, tensor_split_ratios}, false, layers[l]->layout(), job));
  }
  if (role_->table_copy) {
    ATOLL_RETURN_IF_ERROR(
        TakeLayer({0, role_->rank, tensor_split_ratios}, true, layers[0]->layout(), job));
  }
  // State made for a plan that never ran has no use, nor have frozen weights alone.
  std::erase_if(held_, [](const auto& held) {
    const bool trains = held->state.layout().size > 0;
    return held->surplus && !(trains && (held->written || !held->before.empty()));
  });
  std::vector<LayerState*> states;
  for (HeldState* held : planned_) states.push_back(&held->state);
  ATOLL_ASSIGN_OR_RETURN(optimizer_,
                         Optimizer::Create(compute(), *stream_, std::move(states), job.optimizer));
  return compute().Synchronize(*stream_);
}

void Device::MakeStages(const EngineJob& job) {
  const bool tied = job.model.tied_head;
  for (const StageRole& role : role_->stages) {
    std::vector<LayerState*> states;
    for (int32_t l = role.plan.first_layer; l < role.plan.first_layer + role.plan.layers; ++l) {
      states.push_back(&FindPlanned(l, false)->state);
    }
    const auto last = static_cast<size_t>(role.plan.first_layer + role.plan.layers);
    LayerState* table = nullptr;
    if (tied && last == model_->layers().size()) {
      table = &FindPlanned(0, role_->table_copy)->state;
    }
    stages_[role.stage] = Stage::Create(compute(), *model_, std::move(states), table,
                                        MakeStageOptions(role, job, role_->micro_batch_sequences));
  }
}

int64_t Device::CarveRun(const EngineJob& job, void* memory) {
  Carver carver(memory);
  const int64_t n = role_->micro_batch_sequences * job.sequence_length;
  int64_t sends = 0, sends_back = 0;  // columns of the widest
  for (const StageRole& stage : role_->stages) {
    const int32_t first = stage.plan.first_layer, last = first + stage.plan.layers - 1;
    if (!stage.next.empty() && !stage.next_is_here) {
      sends = std::max(sends, model_->output_cols(last));
    }
    if (!stage.before.empty() && !stage.before_is_here) {
      sends_back = std::max(sends_back, model_->output_cols(first - 1));
    }
  }
  if (sends > 0) run_.output = carver.Take(job.compute, n, sends);
  if (sends_back > 0) run_.grad_input = carver.Take(job.compute, n, sends_back);
  run_.targets = carver.Take(DType::kInt32, 1, n);
  border_numbers_ =
      BorderNumbers(job.model, job.documents != Documents::kText, job.sequence_length);
  if (border_numbers_ > 0) {
    run_.borders = carver.Take(
        DType::kInt32, 1, role_->micro_batches * role_->micro_batch_sequences * border_numbers_);
  }
  run_.totals = carver.Take(StateType(job.compute), role_->micro_batches, kLossTotals);
  if (job.model.experts.count > 0) {
    run_.router_share = carver.Take(StateType(job.compute), 1, 1);
    run_.router_totals = carver.Take(StateType(job.compute), job.model.mixtures(),
                                     kRouterTotals + job.model.experts.count);
  }
  if (job.documents == Documents::kPairs) {
    run_.pair_totals =
        carver.Take(StateType(job.compute), 2 * role_->micro_batch_sequences, kLossTotals);
  }
  const Tensor constants = model_->Constants(job.sequence_length, nullptr);
  run_.constants = model_->Constants(
      job.sequence_length, carver.Bytes(constants.size() * GetElementSize(constants.dtype)));
  int64_t workspace = 0;
  for (const auto& [s, stage] : stages_) {
    workspace = std::max(workspace, stage->workspace_bytes());
  }
  run_.workspace = {carver.Bytes(workspace), workspace};
  return carver.bytes();
}

int64_t Device::StageBytes() const {
  int64_t bytes = 0;
  for (const auto& [s, stage] : stages_) bytes += stage->activation_bytes();
  return bytes;
}

absl::Status Device::CheckMemory(int64_t run_bytes) const {
  int64_t state = 0;
  for (const HeldState* held : planned_) {
    state += held->state.bytes();
  }
  const int64_t activations = StageBytes() + run_bytes;
  if (limit_bytes_ == 0 || state + activations <= limit_bytes_) {
    return absl::OkStatus();
  }
  return OutOfMemory(
      absl::ResourceExhaustedError(absl::StrCat(
          "out of memory: ", BytesText(state), " wanted for layers and ", BytesText(activations),
          " for activations, ", BytesText(limit_bytes_), " to be had",
          limit_bytes_ < parts_.memory_bytes
              ? absl::StrCat(" (", BytesText(parts_.memory_bytes - limit_bytes_),
                             " kept back by layout.memory_reserve_bytes)")
              : "")),
      DescribeStages(), kFewerActivations);
}

// Describes its stages for messages: "stage 1 (layers 3 to 5)".
std::string Device::DescribeStages() const {
  std::string text;
  for (const StageRole& role : role_->stages) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", WhatStage(role));
  }
  return text;
}

// Says of an error of the memory what it was wanted for, what the plan had predicted and what to
// do; leaves other errors as they are.
absl::Status Device::OutOfMemory(const absl::Status& status, const std::string& what,
                                 const char* remedy) const {
  if (!absl::IsResourceExhausted(status)) return status;
  const int64_t predicted = role_->program.memory_peak_bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      name_, ", ", what, ": ", status.message(),
      predicted > 0 ? absl::StrCat("; the plan predicted a peak of ", BytesText(predicted)) : "",
      "; ", remedy));
}

absl::Status Device::Configure(const EngineJob& job, const DeviceRole& role, const TensorPart& part,
                               const std::vector<int32_t>& tensor_split_ratios) {
  if (stream_ == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(stream_, compute().NewStream());
    ATOLL_ASSIGN_OR_RETURN(communication_stream_, communication().NewStream());
    ATOLL_ASSIGN_OR_RETURN(reached_, compute().NewEvent());
  }
  Idle();
  role_ = role;
  limit_bytes_ = parts_.memory_bytes;
  if (limit_bytes_ > 0) {
    limit_bytes_ = std::max<int64_t>(1, limit_bytes_ - job.memory_reserve_bytes);
  }
  ATOLL_ASSIGN_OR_RETURN(model_, Model::Create(job.model, job.compute, part));
  ATOLL_RETURN_IF_ERROR(
      CheckChoices(job.model, {role_->micro_batch_sequences, job.sequence_length}));
  ATOLL_RETURN_IF_ERROR(TakeLayers(job, tensor_split_ratios));
  MakeStages(job);
  const int64_t run_bytes = CarveRun(job, nullptr);
  ATOLL_RETURN_IF_ERROR(CheckMemory(run_bytes));
  for (const StageRole& stage : role_->stages) {
    const absl::Status taken = stages_[stage.stage]->Allocate();
    if (!taken.ok()) {
      return OutOfMemory(taken, WhatActivations(stage, *stages_[stage.stage]), kFewerActivations);
    }
  }
  absl::StatusOr<Buffer> run_memory = compute().Allocate(run_bytes);
  if (!run_memory.ok()) {
    return OutOfMemory(run_memory.status(),
                       absl::StrCat(DescribeStages(), ", operations' workspace and messages"),
                       kFewerActivations);
  }
  run_memory_ = *std::move(run_memory);
  CarveRun(job, run_memory_.data());
  const int64_t rows = role.micro_batches * role.micro_batch_sequences;
  host_input_numbers_ = rows * job.model.InputNumbers(job.sequence_length);
  host_borders_ = host_input_numbers_ + rows * job.sequence_length;
  const int64_t numbers = host_borders_ + rows * border_numbers_;
  ATOLL_ASSIGN_OR_RETURN(host_tokens_,
                         compute().AllocateHost(numbers * GetElementSize(DType::kInt32)));
  std::ranges::fill(host_borders(0, rows),
                    HasPadding(job.model) ? static_cast<int32_t>(job.sequence_length) : 0);
  return model_->InitConstants(compute(), *stream_, run_.constants);
}

void Device::Idle() {
  optimizer_.reset();
  stages_.clear();
  run_memory_ = Buffer();
  host_tokens_ = Buffer();
  run_ = RunMemory();
  planned_.clear();
  for (const auto& held : held_) held->surplus = true;
  role_.reset();
}

void Device::DropSurplus() {
  std::erase_if(held_, [](const auto& held) { return held->surplus; });
  for (const auto& held : held_) held->before.clear();
  compute().ForgetPeak();
  communication().ForgetPeak();
}

void Device::Drain() {
  if (stream_ == nullptr) return;
  (void)compute().Synchronize(*stream_);
  (void)communication().Synchronize(*communication_stream_);
}

void Device::DropAll() {
  Idle();
  held_.clear();
}

bool Device::HasRoomFor(int64_t bytes) const {
  if (limit_bytes_ == 0) return true;
  const int64_t used =
      parts_.compute->Memory().in_use_bytes + parts_.communication->Memory().in_use_bytes;
  return used + bytes <= limit_bytes_ - limit_bytes_ / kCopiesLeave;
}

std::vector<Tensor> Device::CopiedTensors() const {
  std::vector<Tensor> tensors;
  for (const Copied& copied : copied_) tensors.push_back(copied.held->state.params());
  return tensors;
}

absl::StatusOr<bool> Device::TakeSnapshot() {
  ForgetCopies();
  if (staging_ == nullptr) return false;
  for (HeldState* held : planned_) {
    if (held->table_only || held->elements == 0) continue;
    copied_.push_back({held, true});
  }
  const auto taken =
      copies_->Take(*stream_, CopiedTensors(), [this](int64_t bytes) { return HasRoomFor(bytes); });
  if (!taken.ok() || !*taken) ForgetCopies();
  return taken;
}

absl::StatusOr<bool> Device::PrepareAddition() {
  ForgetCopies();
  if (staging_ == nullptr) return false;
  for (HeldState* held : planned_) {
    if (held->elements > 0) copied_.push_back({held, false});
  }
  const auto prepared = copies_->Prepare(*stream_, CopiedTensors(),
                                         [this](int64_t bytes) { return HasRoomFor(bytes); });
  adds_ = prepared.ok() && *prepared;
  if (!adds_) ForgetCopies();
  return prepared;
}

void Device::ForgetCopies() {
  copied_.clear();
  adds_ = false;
}

void Device::DropCopies() {
  ForgetCopies();
  if (copies_ != nullptr) copies_->Drop();
}

const Device::Copied* Device::FindSnapshot(const LayerShard& shard) const {
  const auto found = std::find_if(copied_.begin(), copied_.end(), [&](const Copied& copied) {
    return !adds_ && copied.held->shard == shard;
  });
  return found == copied_.end() ? nullptr : &*found;
}

int64_t Device::SnapshotElements(const LayerShard& shard) const {
  const Copied* const found = FindSnapshot(shard);
  return found == nullptr ? -1 : found->held->elements;
}

absl::Status Device::ReadSnapshot(const LayerShard& shard, Range range, std::span<float> to) {
  const Copied* const found = FindSnapshot(shard);
  if (found == nullptr || range.begin < 0 || range.end > found->held->elements) {
    return absl::NotFoundError("it is not in the snapshot");
  }
  return copies_->Read(static_cast<size_t>(found - copied_.data()), range.begin, to);
}

// A table's copy takes what a layer begins with.
absl::StatusOr<bool> Device::WriteAddition(const LayerShard& shard, std::span<const float> values) {
  bool found = false;
  for (size_t i = 0; adds_ && i < copied_.size(); ++i) {
    if (!(copied_[i].held->shard == shard)) continue;
    const auto size = static_cast<size_t>(copies_->copy(i).size());
    ATOLL_CHECK(size <= values.size(), "layer ", shard.layer);
    ATOLL_RETURN_IF_ERROR(copies_->Write(i, values.first(size)));
    copied_[i].written = found = true;
  }
  return found;
}

bool Device::HasAddition() const {
  return adds_ && std::all_of(copied_.begin(), copied_.end(),
                              [](const Copied& copied) { return copied.written; });
}

void Device::Add() {
  ATOLL_CHECK(HasAddition(), name_, " has nothing to add");
  for (size_t i = 0; i < copied_.size(); ++i) {
    LayerState& state = copied_[i].held->state;
    compute().Run(*stream_, AddScaled{state.params(), copies_->copy(i), state.params(), 1.0f});
    state.ParamsWritten(*stream_);
  }
  ForgetCopies();
}

absl::Status Device::Read(const HeldState::Values& from, std::span<float> to) {
  const auto zeros = to.size() - static_cast<size_t>(from.tensor.size());
  std::fill(to.begin(), to.begin() + zeros, 0.0f);
  return zeros == to.size() ? absl::OkStatus() : Read(from.tensor, to.subspan(zeros));
}

absl::Status Device::Read(const Tensor& from, std::span<float> to) {
  ATOLL_CHECK(from.size() == static_cast<int64_t>(to.size()));
  if (staging_ != nullptr) {
    compute().Record(*stream_, *reached_);
    return staging_->Read(from, *reached_, to);
  }
  if (from.dtype == DType::kFloat32) {
    compute().CopyToHost(*stream_, to.data(), from);
    return compute().Synchronize(*stream_);
  }
  std::vector<double> wide(to.size());
  compute().CopyToHost(*stream_, wide.data(), from);
  ATOLL_RETURN_IF_ERROR(compute().Synchronize(*stream_));
  std::transform(wide.begin(), wide.end(), to.begin(),
                 [](double x) { return static_cast<float>(x); });
  return absl::OkStatus();
}

absl::Status Device::Write(const Tensor& to, std::span<const float> from) {
  ATOLL_CHECK(to.size() == static_cast<int64_t>(from.size()));
  if (staging_ != nullptr) {
    compute().Record(*stream_, *reached_);
    return staging_->Write(to, *reached_, from);
  }
  std::vector<double> wide;
  if (to.dtype == DType::kFloat64) wide.assign(from.begin(), from.end());
  compute().CopyToDevice(*stream_, to,
                         wide.empty() ? static_cast<const void*>(from.data()) : wide.data());
  return compute().Synchronize(*stream_);
}

DeviceMemory Device::Memory() const {
  DeviceMemory memory;
  memory.device = name_;
  for (const HeldState* held : planned_) {
    memory.state_bytes += held->state.bytes();
  }
  memory.activation_bytes = StageBytes();
  memory.scratch_bytes = run_memory_.bytes();
  if (role_.has_value()) memory.predicted_bytes = role_->program.memory_peak_bytes;
  // A worker alone has made its plan itself, which says nothing.
  if (memory.predicted_bytes == 0) {
    memory.predicted_bytes = memory.state_bytes + memory.activation_bytes + memory.scratch_bytes;
  }
  if (copies_ != nullptr) memory.snapshot_bytes = copies_->bytes();
  memory.predicted_bytes += memory.snapshot_bytes;
  const MemoryUse use = parts_.compute->Memory();
  memory.peak_bytes = use.peak_bytes + parts_.communication->Memory().peak_bytes;
  memory.limit_bytes = use.limit_bytes;
  if (limit_bytes_ > 0 && memory.limit_bytes > 0) {
    memory.limit_bytes = std::min(memory.limit_bytes, limit_bytes_);
  }
  return memory;
}

}  // namespace atl::worker
