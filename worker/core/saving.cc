// Saved states of an island: when to save, and resuming from one after a leader fails (failover).

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/core/impl.h"

namespace atl::worker {
namespace {

const char* NotSaved(Tier tier) {
  switch (tier) {
    case Tier::kMemory:
      return "copies of the island's state could not be kept: ";
    case Tier::kDisk:
      return "the island's state was not saved on disk: ";
    case Tier::kRemote:
      return "the remote tier could not be written: ";
  }
  return "";
}

// Returns how many sequences have changed the parameters.
int64_t CountTrained(const LocalCheckpoint& about) {
  return Sequences(about.consumed) - Sequences(about.skipped);
}

// Steps whose loss is not known count as those around them.
void AddSteps(const std::vector<LoggedStep>& steps, LocalCheckpoint* about) {
  int64_t known = CountTrained(*about);
  const int64_t counted = known;  // of experts
  for (const LoggedStep& step : steps) {
    for (const PositionRange& range : step.ranges) {
      Join(about->consumed, range);
      if (step.norm_limit > 0) Join(about->skipped, range);
    }
    if (!step.loss_times_tokens) continue;
    about->loss_times_tokens += *step.loss_times_tokens;
    known += Sequences(step.ranges);
  }
  about->inner_step += static_cast<int64_t>(steps.size());
  const double all = static_cast<double>(CountTrained(*about));
  if (known > 0) about->loss_times_tokens *= all / static_cast<double>(known);
  ScaleTokens(counted, CountTrained(*about), &about->expert_tokens);
  // Before the first step that is known, all experts count alike.
  if (counted == 0) about->expert_tokens.clear();
}

}  // namespace

int64_t WorkerCore::Impl::PeerEverySteps() const {
  const int64_t fixed_interval = spec().checkpoint.peer_every_steps;
  return fixed_interval > 0 ? fixed_interval : saving_.cost.StepsBetween();
}

// On disks and in the remote tier only when nothing is in flight.
bool WorkerCore::Impl::SaveDue(Tier tier) {
  const CheckpointSpec& wanted = spec().checkpoint;
  const int64_t since = counters_.inner_step - saving_.newest_at[tier];
  if (tier == Tier::kMemory) {
    return wanted.peer_copies > 0 && order_->plan.members.size() > 1 &&
           saving_.no_copies != configured_ &&
           (saving_.due || (saving_.kept_by_owners != configured_ && since >= PeerEverySteps()));
  }
  const int64_t every = spec().schedule.checkpoint_every_steps;
  if (tier == Tier::kRemote && wanted.remote.empty()) return false;
  return every > 0 && !in_flight_ && since >= every;
}

bool WorkerCore::Impl::StartSave() {
  if (!adopted_ || diverged_) return false;
  for (const Tier tier : {Tier::kMemory, Tier::kDisk, Tier::kRemote}) {
    if (saving_.under_way.contains(tier) || !SaveDue(tier)) continue;
    if (tier == Tier::kMemory) {
      saving_.due = false;
      saving_.cost.Begin();
    }
    Save(tier);
    return true;
  }
  return false;
}

void WorkerCore::Impl::Save(Tier tier) {
  LocalCheckpoint about{order_->job, order_->island, base_version_, counters_.inner_step,
                        local_.consumed};
  about.loss_times_tokens = local_.loss_times_tokens;
  about.skipped = local_.skipped;
  about.expert_tokens = local_.expert_tokens;
  if (in_flight_) {
    AddTokens(in_flight_->work.expert_tokens, &about.expert_tokens);
    about.loss_times_tokens += in_flight_->work.loss_times_tokens;
    for (const PositionRange& range : in_flight_->work.consumed) Join(about.consumed, range);
    for (const PositionRange& range : in_flight_->work.skipped) Join(about.skipped, range);
  }
  if (tier == Tier::kDisk) held_.insert(order_->job);
  saving_.newest_at[tier] = counters_.inner_step;
  saving_.under_way.insert(tier);
  saving_.tier = tier;
  saving_.began = now_;
  Start(Command::kSave, SaveState{std::move(about), tier});
}

void WorkerCore::Impl::On(const StateCopied& event) {
  if (Finish() != Command::kSave) return;
  if (saving_.tier == Tier::kMemory) saving_.cost.Stall(Seconds(now_ - saving_.began));
  if (event.kept == Kept::kByOwners) saving_.kept_by_owners = configured_;
  if (event.kept != Kept::kNot) return;
  saving_.under_way.erase(saving_.tier);
  if (saving_.tier != Tier::kMemory) return;
  saving_.cost.Drop();
  saving_.no_copies = configured_;
}

void WorkerCore::Impl::On(const StateSaved& event) {
  const bool waited = saving_.under_way.erase(event.tier) > 0;
  if (waited && event.tier == Tier::kMemory) saving_.cost.End(command_ == Command::kStep);
  if (!order_) return;
  if (!event.trouble.empty()) {
    LogOnce(absl::StrCat(NotSaved(event.tier), event.trouble));
  }
  if (event.state.units.empty() || event.state.about.island != order_->island) return;
  std::erase_if(saving_.states, [&](const auto& state) {
    return state->holders.empty() || state->holders[0].tier == event.tier;
  });
  saving_.states.push_back(std::make_shared<const SavedState>(event.state));
  std::sort(saving_.states.begin(), saving_.states.end(),
            [](const auto& a, const auto& b) { return a->about.inner_step > b->about.inner_step; });
  saving_.report_due = true;
  session_.heartbeat_at = now_;
}

// ---------------------------------------------------------------------------------- resuming ----

int64_t WorkerCore::Impl::ResumeSave() const {
  // Retried where the devices have it and its base is not there yet: a device may have failed
  // since. A successor continues the former leader's state, which already includes the save.
  const bool tried = saving_.resume_tried && !(saving_.resumed && saving_.resumed->save != 0);
  const bool wanted = order_->resume && !adopted_ && !in_flight_ && !tried && !TakingOver();
  return wanted ? order_->resume->save : 0;
}

// The island is set up, as it was when it was saved, some steps further, or not.
void WorkerCore::Impl::Resumed(const Reconfigured& event) {
  if (ResumeSave() == 0) return;
  const bool again = std::exchange(saving_.resume_tried, true);
  // A newer plan may find the devices with the resumed state, and need no copy of it.
  if (again && event.kept && !event.resumed) return;
  if (again) {
    leased_.ranges.PutBack(saving_.resumed->consumed);
  } else {
    leased_.ranges.PutBack(order_->resume->leased);
    leased_.ranges.PutBack(order_->resume->consumed);
  }
  saving_.resumed.reset();
  if (!event.resumed) {
    // Its data is leased to this island: it is trained on again.
    Log(absl::StrCat("the saved state of inner step ", order_->resume->inner_step,
                     " is not whole any more"));
    return;
  }
  saving_.resumed = order_->resume;
  AddSteps(event.beyond, &*saving_.resumed);
  leased_.ranges.Remove(saving_.resumed->consumed);
  counters_.inner_step = saving_.resumed->inner_step;
  counters_.tokens =
      counters_.inner_step * spec().inner.batch_sequences * spec().data.sequence_length;
  for (const Tier tier : {Tier::kDisk, Tier::kRemote}) {
    saving_.newest_at[tier] = counters_.inner_step;
  }
}

void WorkerCore::Impl::AdoptResumed(const Adopted& event) {
  const LocalCheckpoint about = *std::exchange(saving_.resumed, std::nullopt);
  tokens_at_base_ = pull_.tokens;
  local_ = Work();
  local_.consumed = about.consumed;
  const int64_t sequences = Sequences(local_.consumed);
  local_.steps = (sequences + batch() - 1) / batch();
  local_.tokens = sequences * spec().data.sequence_length;
  local_.skipped = about.skipped;
  local_.masked_tokens =
      event.masked_tokens + Sequences(about.skipped) * spec().data.sequence_length;
  local_.loss_times_tokens = about.loss_times_tokens;
  local_.expert_tokens = about.expert_tokens;
  carried_steps_ = 0;
  pull_.state = Pull::State::kNone;
  Log(absl::StrCat("goes on from the state saved at inner step ", about.inner_step, ", of version ",
                   base_version_, " and ", local_.steps, " steps"));
}

}  // namespace atl::worker
