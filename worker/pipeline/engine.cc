#include "worker/pipeline/engine.h"

#include <algorithm>

#include "common/check.h"
#include "common/model/targets.h"
#include "common/protocol/tensor_groups.h"
#include "worker/pipeline/local_run.h"
#include "worker/pipeline/role.h"
#include "worker/pipeline/windows.h"

namespace atl::worker {
namespace {

constexpr int32_t kMaxChunks = 64;

const char* GetDTypeName(DType type) {
  switch (type) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBfloat16:
      return "bf16";
    case DType::kInt32:
      return "int32";
    case DType::kFloat64:
      return "fp64";
  }
  return "an unknown type";
}

absl::Status CheckJob(const EngineJob& job) {
  ATOLL_RETURN_IF_ERROR(job.model.Validate());
  if (job.sequence_length < 1 || job.sequence_length > job.model.LongestSequence()) {
    return absl::InvalidArgumentError(absl::StrCat("sequences of ", job.sequence_length,
                                                   " tokens; the model has positions for 1 to ",
                                                   job.model.LongestSequence()));
  }
  if (job.max_chunks < 1 || job.max_chunks > kMaxChunks ||
      (job.max_chunks & (job.max_chunks - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_chunks = ", job.max_chunks, ": must be a power of two from 1 to ", kMaxChunks));
  }
  return absl::OkStatus();
}

}  // namespace

Engine::Engine(NodeId worker, std::vector<LocalDevice> devices, EngineOptions options)
    : worker_(std::move(worker)), options_(std::move(options)) {
  for (LocalDevice& device : devices) {
    const std::string name = absl::StrCat(worker_, "/", device.index);
    runs_.push_back(std::make_unique<LocalRun>(name, std::move(device)));
  }
}

Engine::~Engine() {
  interrupt_.Raise(absl::AbortedError("the engine ends"));
  for (const auto& run : runs_) run->thread.Await();
}

// ---- a plan ----

LocalRun* Engine::Find(const std::string& device) const {
  for (const auto& run : runs_) {
    if (run->device.name() == device) return run.get();
  }
  return nullptr;
}

absl::Status Engine::Check(const EngineJob& job, const IslandPlan& plan) const {
  ATOLL_RETURN_IF_ERROR(CheckJob(job));
  ATOLL_RETURN_IF_ERROR(
      ValidateFor(worker_, plan, static_cast<int32_t>(job.model.layers) + 2, job.batch_sequences));
  if (TensorParallel(plan) > 1 && !AllowsTensorParallelism(job.optimizer.kind)) {
    return absl::InvalidArgumentError(
        "plan: tensor parallelism cuts matrices that this inner.optimizer steps whole: set "
        "layout.tensor_parallel = 1");
  }
  ATOLL_RETURN_IF_ERROR(
      CutModel(job.model, TensorParallel(plan), plan.tensor_split_ratios).status());
  const auto head = static_cast<int32_t>(job.model.layers) + 1;
  if (job.model.tied_head && TensorDegree(plan, 0) != TensorDegree(plan, head)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan: ", TensorDegree(plan, 0), " devices share the embedding and ",
        TensorDegree(plan, head),
        " the head, which has the same table: both must be shared by as many devices"));
  }
  for (const std::string& device : ListDevices(plan)) {
    if (WorkerFromDevice(device) != worker_) continue;
    LocalRun* run = Find(device);
    if (run == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("plan: ", worker_, " has no device ", device));
    }
    if (!run->device.compute().Supports(job.compute)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "plan: ", device, " (", run->device.compute().Name(), ") does not compute in ",
          GetDTypeName(job.compute), ", as the island does: start its worker with --compute ",
          GetDTypeName(job.compute),
          " where its devices can, else all of the island's workers with --compute "
          "fp32"));
    }
  }
  return absl::OkStatus();
}

void Engine::Stop() {
  ready_ = false;
  (void)FinishSpread();                                 // the layers say what came
  for (const auto& run : runs_) run->executor.reset();  // none of them raises any more
  interrupt_.Clear();                                   // whose stops name communicators
  for (const auto& run : runs_) {
    run->communicators.clear();
    run->device.Drain();
  }
}

absl::Status Engine::MakeDevices() {
  const std::vector<std::string> in_plan = ListDevices(plan_);
  const auto layers = static_cast<int32_t>(job_->model.layers) + 2;
  for (const auto& run : runs_) {
    Device& device = run->device;
    if (std::find(in_plan.begin(), in_plan.end(), device.name()) == in_plan.end()) {
      device.Idle();
      continue;
    }
    const DeviceRole role = MakeDeviceRole(plan_, device.name(), layers, GetTiedTable(job_->model));
    const std::vector<int32_t> ratios =
        GetTensorSplitRatios(plan_, role.stages.front().plan.first_layer);
    ATOLL_ASSIGN_OR_RETURN(const std::vector<TensorPart> parts,
                           CutModel(job_->model, role.ranks, ratios));
    ATOLL_RETURN_IF_ERROR(
        device.Configure(*job_, role, parts[static_cast<size_t>(role.rank)], ratios));
  }
  return absl::OkStatus();
}

absl::Status Engine::Configure(const EngineJob& job, const IslandPlan& plan, Transport* transport,
                               CommunicatorFactory* communicators,
                               const std::atomic<bool>* cancelled) {
  ATOLL_RETURN_IF_ERROR(Check(job, plan));
  Stop();
  DropCopies();
  if (job_.has_value() && (job_->model != job.model || job_->compute != job.compute ||
                           job_->optimizer.kind != job.optimizer.kind)) {
    for (const auto& run : runs_) run->device.DropAll();
  }
  job_ = job;
  plan_ = plan;
  in_force_ = options_;
  in_force_.message_timeout = StepLimit(plan, options_.message_timeout);
  transport_ = transport;
  transport_->Reset();
  interrupt_.OnRaise([transport](const std::string& reason) { transport->Abort(reason); });
  interrupt_.OnRaise([communicators](const std::string& r) { communicators->Abort(r); });
  // A canceller sets it first and then raises: either Stop has not taken that back, or it shows
  // here.
  if (cancelled != nullptr && *cancelled) interrupt_.Raise(absl::AbortedError("interrupted"));
  std::vector<int> norm_counts;
  if (NewUpdateRule(job_->optimizer)->has_norms()) {
    for (const LayerLayout& layout : MakeLayouts(job_->model)) {
      norm_counts.push_back(static_cast<int>(2 * layout.params.size()));
    }
  }
  const bool pairs = job.documents == Documents::kPairs;
  table_ = std::make_unique<CommitTable>(
      plan_, static_cast<int32_t>(job_->model.layers) + 2, norm_counts,
      pairs ? static_cast<int>(job.batch_sequences) : 0,
      static_cast<int>(job_->model.mixtures() * (kRouterTotals + job_->model.experts.count)));
  ATOLL_RETURN_IF_ERROR(MakeDevices());
  ATOLL_RETURN_IF_ERROR(ShareLayers());
  ATOLL_RETURN_IF_ERROR(Join(*communicators));
  for (const auto& run : runs_) {
    if (run->device.idle()) continue;
    run->executor = std::make_unique<Executor>(run->device, *job_, in_force_, *table_, *transport_,
                                               run->communicators, interrupt_);
    run->meter = std::make_unique<WorkMeter>(
        run->device.role(), static_cast<int32_t>(job_->model.layers) + 2, NextWindow);
    run->sums = std::make_unique<AllReduceMeter>(run->device.role(), plan_, NextWindow);
  }
  ready_ = true;
  return absl::OkStatus();
}

template <typename Function>
absl::Status Engine::OnDevices(const Function& function) {
  for (const auto& run : runs_) {
    if (run->device.idle()) continue;
    LocalRun* const own = run.get();
    own->thread.Add([this, own, &function] {
      own->status = function(*own);
      if (!own->status.ok()) interrupt_.Raise(Annotate(own->status, own->device.name()));
    });
  }
  for (const auto& run : runs_) run->thread.Await();
  return interrupt_.status();
}

absl::Status Engine::Join(CommunicatorFactory& communicators) {
  return OnDevices([&](LocalRun& run) { return JoinGroups(run, communicators); });
}

absl::Status Engine::JoinGroups(LocalRun& run, CommunicatorFactory& communicators) {
  for (const DeviceGroup& group : run.device.role().groups) {
    auto made = communicators.Create(group.name, group.devices, run.device.name());
    if (!made.ok()) return Annotate(made.status(), absl::StrCat("group ", group.name));
    Communicator* const communicator = made->get();
    run.communicators[group.name] = *std::move(made);
    interrupt_.OnRaise([communicator](const std::string& r) { communicator->Abort(r); });
  }
  // Its messages' own, after all groups: one order everywhere.
  for (const PairGroup& pair : transport_->ListPairGroups(run.device.name())) {
    auto made = communicators.Create(pair.name, {pair.from, pair.to}, run.device.name());
    if (!made.ok()) return Annotate(made.status(), pair.name);
    transport_->UsePair(run.device.name(), pair, *std::move(made));
  }
  return absl::OkStatus();
}

// ---- steps ----

absl::Status Engine::CheckReady(const StepRequest& request) const {
  if (const absl::Status stopped = interrupt_.status(); !stopped.ok()) {
    return Annotate(stopped, "no plan is in force since");
  }
  if (!ready_) return absl::FailedPreconditionError("no plan is in force");
  if (request.sequences < 1 || request.sequences > job_->batch_sequences) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step of ", request.sequences, " sequences; the job has ", job_->batch_sequences));
  }
  if (request.masked_tokens < 0 ||
      request.masked_tokens > request.sequences * job_->sequence_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step with ", request.masked_tokens, " masked tokens"));
  }
  const auto references = std::ssize(request.references);
  const bool pairs = job_->documents == Documents::kPairs;
  if (references != 0 && (!pairs || references != request.sequences)) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", request.sequences,
                                                   " sequences with ", references, " references"));
  }
  if (request.number <= last_number_) {
    return absl::InvalidArgumentError(
        absl::StrCat("step number ", request.number, " after number ", last_number_));
  }
  for (const auto& run : runs_) {
    for (const HeldState* held : run->device.planned()) {
      if (held->lacks_frozen()) {
        return absl::FailedPreconditionError(absl::StrCat(run->device.name(),
                                                          ": the frozen weights of layer ",
                                                          held->shard.layer, " were never set"));
      }
      if (held->written && (held->whole || run->executor->spreads())) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(run->device.name(), ": the parameters of layer ", held->shard.layer,
                       held->written ? " are not those of all owners" : " were never set"));
    }
  }
  return absl::OkStatus();
}

void Engine::FillTokens(LocalRun& run, std::span<const int32_t> tokens, int64_t rows, bool train) {
  const auto row = static_cast<size_t>(job_->model.RowNumbers(job_->sequence_length));
  const auto targets = static_cast<size_t>(job_->sequence_length);
  const int64_t step = train ? run.device.planned()[0]->optimizer_step + 1 : 0;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    FillRow(job_->model, tokens.subspan(r * row, row), step,
            {run.device.host_inputs() + r * (row - 1), row - 1},
            {run.device.host_targets() + r * targets, targets});
    if (run.device.border_numbers() == 0) continue;
    FillBorders(job_->model, tokens.subspan(r * row, row),
                run.device.host_borders(static_cast<int64_t>(r), 1));
  }
}

// Devices with an embedding or a head need their replica's sequences, which lie side by side; so do
// all others where sequences have borders.
absl::Status Engine::ReadTokens(const StepRequest& request, const SequenceReader& read,
                                bool train) {
  const auto assigned = AssignSequences(plan_, request.sequences);
  const auto head = static_cast<int32_t>(job_->model.layers) + 1;
  for (size_t r = 0; r < assigned.size(); ++r) {
    int64_t rows = 0;
    for (const MicroBatchRows& micro_batch : assigned[r]) rows += micro_batch.rows;
    bool have = false;
    for (const auto& run : runs_) {
      if (run->device.idle() || run->device.role().replica != static_cast<int32_t>(r)) continue;
      run->input.micro_batches = assigned[r];
      const DeviceRole& role = run->device.role();
      const bool borders = run->device.border_numbers() > 0;
      if (rows == 0 || (!role.HoldsLayer(0) && !role.HoldsLayer(head) && !borders)) continue;
      tokens_.resize(static_cast<size_t>(rows * job_->model.RowNumbers(job_->sequence_length)));
      if (!have) ATOLL_RETURN_IF_ERROR(read(assigned[r][0].first_row, tokens_));
      have = true;
      FillTokens(*run, tokens_, rows, train);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StepOutcome> Engine::Run(const StepRequest& request, const SequenceReader& read,
                                        bool train, bool references) {
  ATOLL_RETURN_IF_ERROR(CheckReady(request));
  if (train && job_->documents == Documents::kPairs && request.references.empty()) {
    return absl::InvalidArgumentError("a step of pairs without references");
  }
  ATOLL_RETURN_IF_ERROR(ReadTokens(request, read, train));
  last_number_ = request.number;
  for (const auto& run : runs_) {
    run->input.step = request;
    run->input.train = train;
    run->input.references = references;
    run->input.counted_tokens =
        CountTargets(job_->model, request.sequences, job_->sequence_length, request.masked_tokens);
    run->result = StepResult();
  }
  const absl::Status status =
      OnDevices([](LocalRun& run) { return run.executor->Run(run.input, &run.result); });
  NoteTaken();
  if (!status.ok()) {
    ready_ = false;
    return status;
  }
  StepOutcome outcome;
  for (const auto& run : runs_) {
    if (run->device.idle()) continue;
    outcome.loss = run->result.loss;
    outcome.gradient_norm = run->result.gradient_norm;
    outcome.skipped = run->result.skipped;
    outcome.references = run->result.references;
    outcome.devices.push_back(std::move(run->result.device));
    for (StageLinkState& stage_link : run->executor->StageLinks()) {
      outcome.stage_links.push_back(std::move(stage_link));
    }
    if (outcome.plan_wanted.empty()) outcome.plan_wanted = run->executor->PlanWanted();
  }
  // A shorter step has fewer micro-batches than the plan; a profile does not cover uneven shares.
  const bool whole =
      request.sequences == job_->batch_sequences && plan_.tensor_split_ratios.empty();
  size_t device = 0;
  for (const auto& run : runs_) {
    if (run->device.idle()) continue;
    if (train) run->sums->Add(outcome.devices[device++]);
    for (AllReduceTimes& sums : run->sums->sums()) outcome.sums.push_back(std::move(sums));
    if (train && whole) run->meter->Add(outcome.devices);
    if (run->meter->work().window > 0) outcome.work.push_back(run->meter->work());
  }
  outcome.memory = Memory();
  return outcome;
}

absl::StatusOr<StepOutcome> Engine::Step(const StepRequest& request, const SequenceReader& read) {
  return Run(request, read, /*train=*/true);
}

absl::StatusOr<LossSum> Engine::Evaluate(const StepRequest& request, const SequenceReader& read) {
  ATOLL_ASSIGN_OR_RETURN(const StepOutcome outcome, Run(request, read, /*train=*/false));
  return outcome.loss;
}

absl::StatusOr<std::vector<double>> Engine::FindReferences(const StepRequest& request,
                                                           const SequenceReader& read) {
  if (!job_.has_value() || job_->documents != Documents::kPairs) {
    return absl::FailedPreconditionError("the job is not of pairs");
  }
  ATOLL_ASSIGN_OR_RETURN(StepOutcome outcome,
                         Run(request, read, /*train=*/false, /*references=*/true));
  return std::move(outcome.references);
}

}  // namespace atl::worker
