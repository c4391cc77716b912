// Saved states of an island, and the way back to where it was.

#include <algorithm>
#include <chrono>

#include "worker/group/group_trainer.h"
#include "worker/group/save_wire.h"

namespace atl::worker {
namespace {

constexpr int32_t kMemoryTier = 1 << static_cast<int>(Tier::kMemory);

// Larger than any before of this island, on whatever disk.
int64_t NewSaveNumber(int64_t newest) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  return std::max(newest + 1, us);
}

}  // namespace

// ------------------------------------------------------------------------------------ saving ----

absl::StatusOr<bool> GroupTrainer::SaveState(const LocalCheckpoint& about, int32_t tiers) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  Saving saving;
  saving.plan = PlanSave(holdings_, member_->job()->spec.checkpoint.peer_copies);
  if (!saving.plan.copied) return false;
  saving.about = about;
  saving.about.save = last_save_ = NewSaveNumber(last_save_);
  saving.members = plan_.members;
  const std::map<NodeId, SaveOrder> orders = saving.plan.orders;
  int64_t keep;
  {
    const std::lock_guard lock(save_mutex_);
    keep = whole_save_;
    saving_ = std::move(saving);
  }
  Calls calls;
  absl::Status own;
  for (const auto& [worker, order] : orders) {
    if (worker == member_->name()) continue;
    v1::GroupFrame frame;
    v1::SaveCall* save = frame.mutable_save();
    ToWire(KeeperTask{last_save_, order, tiers}, save);
    save->set_optimizer_step(steps_);
    save->set_keep(keep);
    const absl::StatusOr<CallId> call = member_->Call(worker, std::move(frame));
    if (!call.ok()) {
      Fail();
      (void)AwaitAll(calls, kEndTimeout);
      return call.status();
    }
    calls.emplace_back(worker, *call);
  }
  if (const auto order = orders.find(member_->name()); order != orders.end()) {
    own = member_->Save({last_save_, order->second, tiers}, steps_, keep,
                        [this](int64_t save, int32_t whole, const std::string& trouble) {
                          v1::SaveDone done;
                          done.set_save(save);
                          done.set_tiers(whole);
                          done.set_trouble(trouble);
                          OnSaveDone(member_->name(), done);
                        });
  }
  const absl::Status others = AwaitAll(calls, member_->options().call_timeout);
  if (!own.ok() || !others.ok()) {
    Fail();
    return own.ok() ? others : own;
  }
  v1::GroupFrame go_on;
  go_on.mutable_go_on_saving()->set_save(last_save_);
  for (const auto& [worker, call] : calls) member_->Tell(worker, go_on);
  member_->GoOnSaving(last_save_);
  return true;
}

// On the link's thread, or on this worker's keeper's.
void GroupTrainer::OnSaveDone(const NodeId& from, const v1::SaveDone& done) {
  SaveOutcome outcome;
  std::vector<NodeId> others;
  {
    const std::lock_guard lock(save_mutex_);
    if (!saving_ || saving_->about.save != done.save() || !saving_->plan.orders.contains(from)) {
      return;
    }
    saving_->done[from] = done.tiers();
    if (!done.trouble().empty() && saving_->trouble.empty()) {
      saving_->trouble = absl::StrCat(from, ": ", done.trouble());
    }
    if (saving_->done.size() < saving_->plan.orders.size()) return;
    int32_t whole = kMemoryTier;
    for (const auto& [member, tiers] : saving_->done) whole &= tiers;
    outcome.save = done.save();
    outcome.trouble = saving_->trouble;
    if (whole != 0) {
      outcome.state =
          DescribeSave(saving_->plan, saving_->about, saving_->members, {Tier::kMemory});
      whole_save_ = done.save();
      for (const auto& [member, tiers] : saving_->done) others.push_back(member);
    }
    saving_.reset();
  }
  v1::GroupFrame forget;
  forget.mutable_forget_saves()->set_save(outcome.save);
  forget.mutable_forget_saves()->set_tiers(kMemoryTier);
  for (const NodeId& member : others) {
    if (member == member_->name()) {
      member_->ForgetSaves(outcome.save, kMemoryTier);
    } else {
      member_->Tell(member, forget);
    }
  }
  if (on_saved_ != nullptr) on_saved_(outcome);
}

void GroupTrainer::ForgetSaving() {
  const std::lock_guard lock(save_mutex_);
  saving_.reset();
}

// -------------------------------------------------------------------------------- going back ----

// The state where the island was; if some of it is nowhere, by way of a save.
LayerMoves GroupTrainer::PlanMovesOrRestore(const Holdings& holdings) {
  if (resume_save_ != 0) {
    LayerMoves moves = PlanRestore(holdings, saves_, resume_save_);
    if (moves.kept) {
      replay_ = Replay{resume_save_, moves.optimizer_step, {}};
      return moves;
    }
  }
  std::vector<int64_t> steps;
  if (known_steps_) {
    if (step_tried_) steps.push_back(*known_steps_ + 1);
    steps.push_back(*known_steps_);
  }
  LayerMoves moves = PlanMoves(holdings, steps);
  if (!broken_.empty() && moves.kept) {
    moves = LayerMoves();
    moves.reason = broken_;
  }
  // Nor is a state half way back one.
  if (moves.kept && (!replay_ || moves.optimizer_step == replay_->target)) {
    replay_.reset();
    return moves;
  }
  return PlanGoingBack(holdings, std::move(moves));
}

LayerMoves GroupTrainer::PlanGoingBack(const Holdings& holdings, LayerMoves otherwise) {
  for (const int64_t save : SavesOf(saves_)) {
    LayerMoves moves = PlanRestore(holdings, saves_, save);
    if (!moves.kept || !PlanReplay(save, moves.optimizer_step)) continue;
    moves.reason = absl::StrCat(otherwise.reason, ": ", moves.reason);
    return moves;
  }
  replay_.reset();
  return otherwise;
}

// Whether the changes since lead to where the island was.
bool GroupTrainer::PlanReplay(int64_t save, int64_t optimizer_step) {
  if (replay_ && replay_->save == save) return true;  // the way before was not gone to its end
  Replay replay{save, optimizer_step, {}};
  const std::optional<ReplayLog::Changes> changes = member_->ChangesSince(save);
  // Who leads since another one died pulls parameters, and needs moments alone.
  const bool known = changes && (changes->all || (change_failed_ && changes->all_but_last));
  if (known_steps_ && !known) return false;
  for (const LoggedChange& change : changes ? changes->list : std::vector<LoggedChange>()) {
    if (const auto* step = std::get_if<LoggedStep>(&change)) {
      if (known_steps_ && step->optimizer_step > *known_steps_) break;
      replay.target = step->optimizer_step;
    } else if (outer_expected_.base == kNoVersion) {
      if (known_steps_) return false;
      break;
    }
    replay.changes.push_back(change);
  }
  if (known_steps_ && replay.target != *known_steps_) return false;
  replay_ = std::move(replay);
  return true;
}

absl::Status GroupTrainer::ReplayChanges() {
  for (const LoggedChange& change : replay_->changes) {
    if (const LoggedStep* step = std::get_if<LoggedStep>(&change)) {
      ATOLL_RETURN_IF_ERROR(StepAgain(*step));
      continue;
    }
    ATOLL_RETURN_IF_ERROR(ApplyAll(OuterKind::kBase, OuterTarget::kParameters));
    member_->Log([](ReplayLog& log) { log.Explained(); });
  }
  return Settle();
}

// What the next save replaces.
void GroupTrainer::NoteWholeSave(const Holdings& holdings) {
  int64_t whole = 0;
  const bool alone = std::all_of(holdings.begin(), holdings.end(), [&](const auto& member) {
    const std::vector<HeldLayer>& held = member.second;
    return member.first == member_->name() ||
           std::all_of(held.begin(), held.end(), [](const HeldLayer& h) { return h.surplus; });
  });
  if (alone) {  // nobody could keep newer ones
    member_->DropSaves();
    saves_.clear();
  }
  for (const int64_t save : SavesOf(saves_)) {
    last_save_ = std::max(last_save_, save);
    if (whole == 0 && PlanRestore(holdings, saves_, save).kept) whole = save;
  }
  const std::lock_guard lock(save_mutex_);
  whole_save_ = whole;
}

}  // namespace atl::worker
