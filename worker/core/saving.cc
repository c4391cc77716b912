// Saved states of an island of several workers: when to save, and going on from one.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/core/impl.h"

namespace atl::worker {
namespace {

constexpr double kSavingShare = 0.02;  // of the time that steps take
constexpr int64_t kMostStepsBetween = 10'000;

}  // namespace

// As the job says; else so many that what saving holds up, and what it slows steps down by, is a
// fiftieth of their time.
int64_t WorkerCore::Impl::PeerEverySteps() const {
  const int64_t asked = spec().checkpoint.peer_every_steps;
  if (asked > 0) return asked;
  const double step = quiet_seconds_.Get();
  if (step <= 0) return 1;
  const double slower = std::max(0.0, step_seconds_saving_.Get() - step) * steps_a_save_.Get();
  const double steps = (save_seconds_.Get() + slower) / (kSavingShare * step);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(steps)), 1, kMostStepsBetween);
}

bool WorkerCore::Impl::StartSave() {
  if (order_->plan.number == 0 || order_->plan.members.size() < 2 || unsaved_ == configured_) {
    return false;
  }
  if (spec().checkpoint.peer_copies == 0 || !adopted_ || diverged_ || saving_state_) return false;
  if (!save_due_ && inner_step_ - save_step_ < PeerEverySteps()) return false;
  LocalCheckpoint about{order_->job, order_->island, base_version_, inner_step_, local_.consumed};
  about.loss_times_tokens = local_.loss_times_tokens;
  if (in_flight_) {
    about.loss_times_tokens += in_flight_->work.loss_times_tokens;
    for (const PositionRange& range : in_flight_->work.consumed) Join(about.consumed, range);
  }
  save_due_ = false;
  save_step_ = inner_step_;
  saving_state_ = true;
  save_began_ = now_;
  steps_saving_ = 0;
  Start(Command::kSave, SaveState{std::move(about), 1 << static_cast<int>(Tier::kMemory)});
  return true;
}

void WorkerCore::Impl::On(const StateCopied& event) {
  if (Finish() != Command::kSave) return;
  save_seconds_.Add(Seconds(now_ - save_began_));
  if (event.kept) return;
  saving_state_ = false;
  unsaved_ = configured_;
}

void WorkerCore::Impl::On(const StateSaved& event) {
  if (saving_state_) steps_a_save_.Add(static_cast<double>(steps_saving_));
  saving_state_ = false;
  if (!order_) return;
  if (!event.trouble.empty()) {
    LogOnce(absl::StrCat("copies of the island's state could not be kept: ", event.trouble));
  }
  if (event.state.units.empty() || event.state.about.island != order_->island) return;
  saved_states_ = {event.state};
  tell_saved_ = true;
  heartbeat_at_ = now_;
}

// ---------------------------------------------------------------------------------- resuming ----

int64_t WorkerCore::Impl::ResumeSave() const {
  const bool wanted = order_->resume && !adopted_ && !in_flight_ && !resume_tried_;
  return wanted ? order_->resume->save : 0;
}

// The island is set up, as it was when it was saved or not.
void WorkerCore::Impl::Resumed(bool resumed) {
  if (ResumeSave() == 0) return;
  resume_tried_ = true;
  if (resumed) {
    resumed_ = order_->resume;
    inner_step_ = resumed_->inner_step;
    return;
  }
  // Its data is leased to this island: it is trained on again.
  leases_.PutBack(order_->resume->consumed);
  Log(absl::StrCat("the saved state of inner step ", order_->resume->inner_step,
                   " is not whole any more"));
}

void WorkerCore::Impl::AdoptResumed(const Adopted& event) {
  const LocalCheckpoint about = *std::exchange(resumed_, std::nullopt);
  tokens_at_base_ = pulling_tokens_;
  local_ = Work();
  local_.consumed = about.consumed;
  const int64_t sequences = Sequences(local_.consumed);
  const int64_t batch = spec().inner.batch_sequences;
  local_.steps = (sequences + batch - 1) / batch;
  local_.tokens = sequences * spec().data.sequence_length;
  local_.masked_tokens = event.masked_tokens;
  local_.loss_times_tokens = about.loss_times_tokens;
  carried_steps_ = 0;
  pulled_ = false;
  UsedCheckpointOf(order_->job);
  Log(absl::StrCat("goes on from the state saved at inner step ", about.inner_step, ", of version ",
                   base_version_, " and ", local_.steps, " steps"));
}

}  // namespace atl::worker
