#include "worker/island/group_trainer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/model/targets.h"
#include "worker/core/leases.h"

namespace atl::worker {

GroupTrainer::GroupTrainer(GroupMember* member, OnStageLinks on_stage_links, OnMemory on_memory,
                           StepTracer::OnTraced on_traced, AwaitFree await_free,
                           OnDrained on_drained)
    : member_(member),
      on_stage_links_(std::move(on_stage_links)),
      on_memory_(std::move(on_memory)),
      tracer_(std::move(on_traced)),
      await_free_(std::move(await_free)),
      control_(member, {.on_reply = [this](const NodeId& from,
                                           const GroupReply& reply) { OnReply(from, reply); },
                        .drained = std::move(on_drained),
                        .saved =
                            [this](const SaveOutcome& outcome) {
                              if (on_saved_ != nullptr) on_saved_(outcome);
                            }}) {}

GroupTrainer::~GroupTrainer() {
  member_->SetHooks({});
  member_->saves().StopSaving();
}

std::string GroupTrainer::Name() const { return member_->options().device_name; }

void GroupTrainer::Lead() {
  member_->SetHooks(
      {.call_failed = [this](const NodeId&,
                             const std::string& error) { member_->InterruptWork(error); },
       .save_done = [this](const NodeId& from,
                           const SaveDone& done) { control_.OnSaveDone(from, done); }});
}

absl::StatusOr<JobFacts> GroupTrainer::Prepare(const JobSpec& spec) {
  if (await_free_ != nullptr) ATOLL_RETURN_IF_ERROR(await_free_());
  Release();
  const auto open = [&] {
    return member_->Open(spec, [this] { return control_.interrupted().load(); });
  };
  ATOLL_ASSIGN_OR_RETURN(const JobFacts facts, open());
  if (spec.layout.island != IslandScope::kWorker) return facts;
  const absl::Status alone = control_.ConfigureAlone();
  if (alone.ok()) return facts;
  const bool may_fit = absl::IsResourceExhausted(alone) && PlanMayNeedLess(spec);
  Release();
  if (!may_fit) return alone;
  // Without the layers that it has taken: the measuring of devices needs the room.
  ATOLL_RETURN_IF_ERROR(open().status());
  lacks_ = std::string(alone.message());
  return facts;
}

bool GroupTrainer::PlanMayNeedLess(const JobSpec& spec) const {
  const InnerSpec& inner = spec.inner;
  return spec.layout.recompute != Recompute::kNone || member_->devices() > 1 ||
         (inner.micro_batch_sequences == 0 && inner.batch_sequences > 1);
}

void GroupTrainer::Release() {
  if (await_free_ != nullptr) (void)await_free_();  // Close interrupts what is still there
  member_->Close();
  tracer_.Answer(absl::AbortedError("the worker has let the job go"));
  stage_links_.clear();
  memory_.clear();
  lacks_.clear();
  control_.Release();
}

absl::StatusOr<PlanTaken> GroupTrainer::Configure(const JobId& job, Generation generation,
                                                  const IslandPlan& plan,
                                                  const std::vector<ShardPlacement>& shards,
                                                  const NodeId& before, Leadership* known) {
  if (await_free_ != nullptr) ATOLL_RETURN_IF_ERROR(await_free_());
  Lead();
  stage_links_.clear();
  memory_.clear();
  return control_.Configure(job, generation, plan, shards, before, known);
}

void GroupTrainer::Keep(Leadership known) {
  control_.Keep(std::move(known));
  tracer_.Answer(absl::AbortedError("another worker leads the island now"));
}

void GroupTrainer::Interrupt(const std::string& reason) {
  control_.Interrupt();
  member_->Interrupt(reason);
}

// ------------------------------------------------------------------------------------- seen ----

// Only steps' replies say something about stage links, of members that send any.
void GroupTrainer::OnReply(const NodeId& from, const GroupReply& reply) {
  if (!reply.memory.empty()) {
    std::vector<DeviceMemoryState>& memory = memory_[from];
    memory.clear();
    for (const DeviceMemoryState& device : reply.memory) {
      if (WorkerFromDevice(device.device) == from) memory.push_back(device);
    }
  }
  if (reply.stage_links.empty()) return;
  stage_links_[from] = {.stage_links = reply.stage_links, .plan_wanted = reply.plan_wanted};
}

void GroupTrainer::ReportStageLinks() {
  if (on_stage_links_ == nullptr || control_.alone()) return;
  StageLinksSeen all;
  all.plan_number = control_.plan().number;
  for (const auto& [member, seen] : stage_links_) {
    all.stage_links.insert(all.stage_links.end(), seen.stage_links.begin(), seen.stage_links.end());
    if (all.plan_wanted.empty()) all.plan_wanted = seen.plan_wanted;
  }
  // The job's log has this once a minute at most; the worker's log has all of it.
  for (const StageLinkState& now : all.stage_links) {
    const bool already_logged =
        now.reason.empty() ||
        std::any_of(
            said_.stage_links.begin(), said_.stage_links.end(), [&](const StageLinkState& before) {
              return before.from == now.from && before.to == now.to && before.reason == now.reason;
            });
    if (!already_logged) LogDebug("adapter", now.from, " > ", now.to, ": ", now.reason);
  }
  on_stage_links_(all);
  said_ = std::move(all);
}

void GroupTrainer::ReportMemory() {
  MemorySeen all;
  for (const auto& [member, devices] : memory_) {
    all.devices.insert(all.devices.end(), devices.begin(), devices.end());
  }
  if (on_memory_ == nullptr || all.devices == memory_said_.devices) return;
  memory_said_ = all;
  on_memory_(all);
}

// ------------------------------------------------------------------------------------ work ----

absl::StatusOr<MeanLoss> GroupTrainer::Step(const std::vector<PositionRange>& ranges,
                                            double learning_rate) {
  const bool trace = tracer_.wanted();
  const Instant begun = SteadyNow();
  if (const absl::Status made = control_.Step(ranges, learning_rate, trace); !made.ok()) {
    tracer_.Answer(Annotate(made, "the island abandoned a step"));
    return made;
  }
  if (trace) tracer_.Answer(CollectTrace(begun, Sequences(ranges)));
  ReportStageLinks();
  ReportMemory();
  const LossSum& loss = member_->newest_loss();
  return MeanLoss{loss.mean(), loss.tokens};
}

absl::StatusOr<int64_t> GroupTrainer::CountMasked(const std::vector<PositionRange>& ranges) {
  const GroupJob& job = *member_->job();
  ATOLL_ASSIGN_OR_RETURN(const int64_t masked, job.data.CountMasked(ranges));
  const int64_t rows = Sequences(ranges), length = job.data.sequence_length();
  return rows * length - CountTargets(job.engine.model, rows, length, masked);
}

absl::StatusOr<MeanLoss> GroupTrainer::Validate(int64_t sequences, int set) {
  const GroupJob& job = *member_->job();
  const PositionRange positions = job.data.SelectValidationPositions(set, sequences);
  const int64_t batch = job.spec.inner.batch_sequences;
  LossSum sum;
  for (int64_t first = positions.begin; first < positions.end; first += batch) {
    ATOLL_RETURN_IF_ERROR(control_.Evaluate(first, std::min(batch, positions.end - first)));
    const LossSum& loss = member_->newest_loss();
    sum.nats += loss.nats;
    sum.tokens += loss.tokens;
    sum.hits += loss.hits;
  }
  return MeanLoss{sum.mean(), sum.tokens, sum.accuracy()};
}

absl::StatusOr<std::vector<MeanLoss>> GroupTrainer::ValidateBase(int64_t sequences, int sets) {
  ATOLL_RETURN_IF_ERROR(control_.PutBaseIn());
  absl::StatusOr<std::vector<MeanLoss>> losses = ValidateSets(sequences, sets);
  if (control_.failed()) return losses;  // Configure puts the parameters back
  ATOLL_RETURN_IF_ERROR(control_.TakeBaseOut());
  return losses;
}

}  // namespace atl::worker
