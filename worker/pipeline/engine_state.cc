// The state that an engine's devices hold, between plans and steps.

#include <mutex>

#include "common/check.h"
#include "worker/model/host_reals.h"
#include "worker/pipeline/engine.h"
#include "worker/pipeline/local_run.h"

namespace atl::worker {

// ---- layers ----

// Moves what a device holds to those of the same worker that need it.
absl::Status Engine::ShareLayers() {
  for (const auto& to : runs_) {
    for (HeldState* target : to->device.planned()) {
      if (target->written) continue;
      for (const auto& from : runs_) {
        for (const auto& source : from->device.held()) {
          const Range has = source->state.owned(), wants = target->state.owned();
          if (target->written || !source->written || !source->whole || source->table_only ||
              !(source->shard == target->shard) || has.begin > wants.begin || wants.end > has.end) {
            continue;
          }
          ATOLL_RETURN_IF_ERROR(Copy(*from, *source, *to, *target));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::Copy(LocalRun& from, const HeldState& source, LocalRun& to,
                          HeldState& target) {
  Backend &reader = from.device.compute(), &writer = to.device.compute();
  const bool on_bus = writer.CanAccessPeer(reader);
  HostReals values;
  if (!on_bus) {
    ATOLL_ASSIGN_OR_RETURN(
        values, HostReals::Create(reader, target.state.params().dtype, target.state.layout().size));
  }
  for (const LayerPart part :
       {LayerPart::kParameters, LayerPart::kFirstMoment, LayerPart::kSecondMoment}) {
    if (target.part(part).size() == 0) continue;
    const Range wanted = target.Elements(part);
    const Tensor has = source.Readable(part, wanted).tensor, wants = target.part(part);
    if (!on_bus) reader.CopyToHost(from.device.stream(), values.data(), has);
    ATOLL_RETURN_IF_ERROR(reader.Synchronize(from.device.stream()));
    if (on_bus) {
      writer.CopyFromPeer(to.device.stream(), wants, reader, has);
    } else {
      writer.CopyToDevice(to.device.stream(), wants, values.data());
    }
    if (part == LayerPart::kParameters) target.state.ParamsWritten(to.device.stream());
    ATOLL_RETURN_IF_ERROR(writer.Synchronize(to.device.stream()));
  }
  target.written = target.whole = true;
  target.optimizer_step = source.optimizer_step;
  return absl::OkStatus();
}

absl::Status Engine::FinishSpread() const {
  absl::Status first;
  for (const auto& run : runs_) {
    if (run->executor != nullptr) first.Update(run->executor->FinishSpread());
  }
  return first;
}

std::vector<HeldLayer> Engine::Held() const {
  (void)FinishSpread();
  std::vector<HeldLayer> all;
  for (const auto& run : runs_) {
    for (const auto& held : run->device.held()) {
      all.push_back({held->shard, run->device.name(), held->elements, held->optimizer_step,
                     held->written, held->state.owned(), held->whole, held->surplus,
                     held->table_only});
      for (const HeldState::Before& before : held->before) {
        all.push_back({held->shard, run->device.name(), held->elements, before.optimizer_step, true,
                       before.moments.owned, before.whole, true, held->table_only});
      }
    }
  }
  return all;
}

absl::Status Engine::GetLayer(const LayerShard& shard, LayerPart part, Range range,
                              std::span<float> out) {
  ATOLL_CHECK(std::ssize(out) == range.size(), "layer ", shard.layer);
  (void)FinishSpread();  // what did not come is not readable here
  for (const bool surplus : {false, true}) {
    for (const auto& run : runs_) {
      for (const auto& held : run->device.held()) {
        if (held->table_only || held->surplus != surplus || !(held->shard == shard)) continue;
        ATOLL_CHECK(0 <= range.begin && range.end <= held->elements, "layer ", shard.layer);
        const HeldState::Values values = held->Readable(part, range);
        if (values.here) return run->device.Read(values, out);
      }
    }
  }
  return absl::NotFoundError(absl::StrCat(worker_, " does not hold elements ", range.begin, " to ",
                                          range.end, " of layer ", shard.layer, ", rank ",
                                          shard.rank));
}

absl::Status Engine::SetLayer(const LayerShard& shard, LayerPart part,
                              std::span<const float> values) {
  ATOLL_RETURN_IF_ERROR(FinishSpread());
  bool found = false;
  for (const auto& run : runs_) {
    for (HeldState* held : run->device.planned()) {
      if (!(held->shard == shard)) continue;
      ATOLL_CHECK(static_cast<int64_t>(values.size()) == held->elements, "layer ", shard.layer);
      const Tensor to = held->part(part);
      const auto begin = static_cast<size_t>(held->Elements(part).begin);
      found = true;
      if (to.size() == 0) continue;
      ATOLL_RETURN_IF_ERROR(
          run->device.Write(to, values.subspan(begin, static_cast<size_t>(to.size()))));
      if (part != LayerPart::kParameters) continue;
      held->state.ParamsWritten(run->device.stream());
      held->written = held->whole = true;
    }
  }
  if (found) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("the plan gives ", worker_, " no layer ", shard.layer, ", rank ", shard.rank));
}

absl::Status Engine::SetState(const LayerShard& shard, int64_t optimizer_step,
                              const std::map<LayerPart, std::span<const float>>& parts) {
  ATOLL_RETURN_IF_ERROR(FinishSpread());
  for (const auto& run : runs_) {
    for (HeldState* held : run->device.planned()) {
      if (!(held->shard == shard)) continue;
      held->written = held->whole = false;  // what it was is being written over
      std::erase_if(held->before, [&](const HeldState::Before& before) {
        return before.optimizer_step != optimizer_step;
      });
      held->optimizer_step = optimizer_step;
    }
  }
  // The parameters last: with them it is written.
  for (const LayerPart part :
       {LayerPart::kFirstMoment, LayerPart::kSecondMoment, LayerPart::kParameters}) {
    ATOLL_RETURN_IF_ERROR(SetLayer(shard, part, parts.at(part)));
  }
  return absl::OkStatus();
}

// Readers and writers of a copy hold the mutex for a shard's time.
void Engine::DropCopies() {
  const std::lock_guard lock(copies_mutex_);
  for (const auto& run : runs_) run->device.DropCopies();
}

void Engine::DropSurplus() {
  for (const auto& run : runs_) run->device.DropSurplus();
}

std::vector<LayerShard> Engine::ListLackingFrozen() const {
  std::vector<LayerShard> shards;
  for (const auto& run : runs_) {
    for (const HeldState* held : run->device.planned()) {
      const bool known = std::count(shards.begin(), shards.end(), held->shard) > 0;
      if (held->lacks_frozen() && !known) shards.push_back(held->shard);
    }
  }
  std::ranges::stable_sort(shards, {}, &LayerShard::layer);
  return shards;
}

// A table's copy takes what the layer begins with.
absl::Status Engine::SetFrozen(const LayerShard& shard, const FrozenWeights& weights) {
  for (const auto& run : runs_) {
    for (HeldState* held : run->device.planned()) {
      if (!(held->shard == shard) || !held->lacks_frozen()) continue;
      ATOLL_RETURN_IF_ERROR(held->state.WriteFrozen(run->device.stream(), weights));
      held->has_frozen = true;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Engine::TakeSnapshot() {
  ATOLL_RETURN_IF_ERROR(FinishSpread());
  return OnCopies([](Device& device) { return device.TakeSnapshot(); });
}

absl::StatusOr<bool> Engine::PrepareAddition() {
  return OnCopies([](Device& device) { return device.PrepareAddition(); });
}

absl::StatusOr<bool> Engine::OnCopies(const std::function<absl::StatusOr<bool>(Device&)>& take) {
  const std::lock_guard lock(copies_mutex_);
  absl::StatusOr<bool> taken = false;
  for (const auto& run : runs_) {
    if (run->device.idle()) continue;
    taken = take(run->device);
    if (!taken.ok() || !*taken) break;
  }
  if (taken.ok() && *taken) return true;
  for (const auto& run : runs_) run->device.ForgetCopies();
  return taken;
}

absl::StatusOr<int64_t> Engine::SnapshotElements(const LayerShard& shard) {
  const std::lock_guard lock(copies_mutex_);
  for (const auto& run : runs_) {
    const int64_t elements = run->device.SnapshotElements(shard);
    if (elements >= 0) return elements;
  }
  return NoSnapshot(shard);
}

absl::Status Engine::GetSnapshot(const LayerShard& shard, Range range, std::span<float> out) {
  const std::lock_guard lock(copies_mutex_);
  for (const auto& run : runs_) {
    const absl::Status read = run->device.ReadSnapshot(shard, range, out);
    if (!absl::IsNotFound(read)) return read;
  }
  return NoSnapshot(shard);
}

absl::Status Engine::NoSnapshot(const LayerShard& shard) const {
  return absl::NotFoundError(
      absl::StrCat(worker_, " has no snapshot of layer ", shard.layer, ", rank ", shard.rank));
}

absl::Status Engine::SetAddition(const LayerShard& shard, std::span<const float> values) {
  const std::lock_guard lock(copies_mutex_);
  bool found = false;
  for (const auto& run : runs_) {
    ATOLL_ASSIGN_OR_RETURN(const bool here, run->device.WriteAddition(shard, values));
    found |= here;
  }
  if (found) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(worker_, " adds nothing to layer ", shard.layer, ", rank ", shard.rank));
}

absl::Status Engine::Add() {
  ATOLL_RETURN_IF_ERROR(FinishSpread());
  const std::lock_guard lock(copies_mutex_);
  for (const auto& run : runs_) {
    if (run->device.idle() || run->device.HasAddition()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(run->device.name(), " has not all that is to be added"));
  }
  for (const auto& run : runs_) {
    if (!run->device.idle()) run->device.Add();
  }
  return absl::OkStatus();
}

absl::Status Engine::SetOptimizerSteps(int64_t steps) {
  for (const auto& run : runs_) {
    for (HeldState* held : run->device.planned()) {
      held->optimizer_step = steps;
      for (const Tensor& moment : {held->state.first_moment(), held->state.second_moment()}) {
        if (steps > 0 || moment.size() == 0) continue;
        run->device.compute().Zero(run->device.stream(), moment);
      }
    }
    if (run->device.idle()) continue;
    ATOLL_RETURN_IF_ERROR(run->device.compute().Synchronize(run->device.stream()));
  }
  return absl::OkStatus();
}

int64_t Engine::optimizer_steps() const {
  int64_t steps = -1;
  for (const auto& run : runs_) {
    for (const HeldState* held : run->device.planned()) {
      if (steps >= 0 && held->optimizer_step != steps) return -1;
      steps = held->optimizer_step;
    }
  }
  return steps;
}

std::vector<DeviceMemory> Engine::Memory() const {
  std::vector<DeviceMemory> memory;
  for (const auto& run : runs_) {
    if (!run->device.idle()) memory.push_back(run->device.Memory());
  }
  return memory;
}

// ---- a step that was interrupted at its commit point ----

// Kept across steps and plans: another worker may still need the sums.
void Engine::NoteTaken() {
  for (const auto& run : runs_) {
    if (run->executor == nullptr || run->executor->sums().empty()) continue;
    // A device that waits has an older one.
    const bool newer = run->executor->taken_number() > taken_.number;
    if (!newer && taken_.plan == plan_.number) continue;
    taken_ = {plan_.number, run->executor->taken_number(), run->executor->sums()};
  }
}

CommitState Engine::Committed() const {
  CommitState state{taken_, {}};
  for (const auto& run : runs_) {
    if (run->executor == nullptr || run->executor->waiting_number() == 0) continue;
    state.waits = {plan_.number, run->executor->waiting_number(), {}};
  }
  return state;
}

bool Engine::has_skipped() const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [](const auto& run) { return run->result.skipped; });
}

absl::Status Engine::TakeStep(const StepSums& step) {
  if (!IsSameStep(Committed().waits, step)) return absl::OkStatus();
  if (step.sums.size() != static_cast<size_t>(table_->slots())) {
    return absl::InvalidArgumentError(
        absl::StrCat(step.sums.size(), " sums of a step that has ", table_->slots()));
  }
  std::vector<LocalRun*> waiting;
  for (const auto& run : runs_) {
    if (run->executor == nullptr || run->executor->waiting_number() != step.number) continue;
    LocalRun* const own = waiting.emplace_back(run.get());
    own->thread.Add([own, &step] { own->status = own->executor->TakeStep(step.sums); });
  }
  absl::Status first;
  for (LocalRun* run : waiting) {
    run->thread.Await();
    if (first.ok()) first = Annotate(run->status, run->device.name());
  }
  NoteTaken();
  return first;
}

}  // namespace atl::worker
