// Saved states of an island, and the restore to where it was.

#include <algorithm>

#include "common/logging.h"
#include "worker/core/leases.h"
#include "worker/island/control/leader.h"

namespace atl::worker {
namespace {

bool IsStep(const LoggedChange& change) { return std::holds_alternative<LoggedStep>(change); }

}  // namespace

// ------------------------------------------------------------------------------------ saving ----

// The same state on disks and in the remote tier has one number: what one lacks may be in the
// other.
int64_t IslandLeader::AssignSaveNumber(const LocalCheckpoint& about, Tier tier) {
  const bool same = tier != Tier::kMemory && numbered_ && numbered_->about == about &&
                    numbered_->steps == steps_ && numbered_->tier != tier;
  // Larger than any before of this island, on whatever disk.
  const int64_t number = same ? last_save_ : std::max(last_save_ + 1, port_->NowUs());
  numbered_.reset();
  if (tier != Tier::kMemory) numbered_ = Numbered{about, steps_, tier};
  return number;
}

absl::StatusOr<Event> IslandLeader::Do(const SaveState& command) {
  const Tier tier = command.tier;
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Drain());
  Saving saving;
  const bool in_memory = tier == Tier::kMemory;
  Sites sites;
  for (const IslandMember& member : plan_.members) sites[member.worker] = member.site;
  const int64_t copies = in_memory ? port_->island_job()->spec.checkpoint.peer_copies : 0;
  saving.plan = PlanSave(holdings_, copies, sites);
  const bool by_owners = in_memory && saving.plan.by_owners && copies > 0;
  if (in_memory && !saving.plan.copied && !by_owners) return StateCopied{Kept::kNot};
  saving.about = command.about;
  saving.about.save = last_save_ = AssignSaveNumber(command.about, tier);
  saving.members = plan_.members;
  SaveCall task{last_save_, {}, tier, steps_};
  std::map<NodeId, SaveOrder> orders = saving.plan.orders;
  if (by_owners) {
    for (auto& [worker, order] : orders) order = SaveOrder();  // to log what follows
  }
  {
    const std::lock_guard lock(save_mutex_);
    task.keep = whole_saves_[tier];
    saving_[tier] = std::move(saving);
  }
  std::vector<NodeId> savers;
  for (const auto& [worker, order] : orders) {
    if (worker != name()) savers.push_back(worker);
  }
  const auto frame = [&](const NodeId& worker) {
    SaveCall own = task;
    own.order = orders[worker];
    return GroupFrame{.body = std::move(own)};
  };
  Broadcasting how{savers, port_->limits().call};
  how.own_part = orders.contains(name());
  ATOLL_RETURN_IF_ERROR(Broadcast(frame, how).status());
  const GroupFrame go_on{.body = GoOnSaving{last_save_}};
  for (const NodeId& worker : savers) port_->Notify(worker, go_on);
  port_->Notify(name(), go_on);
  return StateCopied{by_owners ? Kept::kByOwners : Kept::kCopied};
}

// On the link's thread, or on those of this worker's state savers.
void IslandLeader::OnSaveDone(const NodeId& from, const SaveDone& done) {
  StateSaved outcome;
  std::vector<NodeId> members;
  {
    const std::lock_guard lock(save_mutex_);
    const auto found = std::find_if(saving_.begin(), saving_.end(), [&](const auto& entry) {
      return entry.second.about.save == done.save && entry.first == done.tier;
    });
    if (found == saving_.end() || !found->second.plan.orders.contains(from)) return;
    auto& [tier, saving] = *found;
    saving.done.insert(from);
    if (!done.whole && saving.trouble.empty()) {
      saving.trouble = absl::StrCat(from, ": ", done.trouble);
    }
    if (saving.done.size() < saving.plan.orders.size()) return;
    outcome.tier = tier;
    outcome.trouble = saving.trouble;
    if (saving.trouble.empty()) {
      outcome.state = DescribeSave(saving.plan, saving.about, saving.members, {tier});
      whole_saves_[tier] = done.save;
      members.assign(saving.done.begin(), saving.done.end());
    }
    saving_.erase(found);
  }
  const GroupFrame forget{.body = ForgetSaves{done.save, outcome.tier}};
  for (const NodeId& member : members) port_->Notify(member, forget);
  hooks_.post(std::move(outcome));
}

void IslandLeader::ForgetSaving() {
  const std::lock_guard lock(save_mutex_);
  saving_.clear();
}

// -------------------------------------------------------------------------------- going back ----

// The state where the island was; if some of it is nowhere, by way of a save.
StateTransferPlan IslandLeader::PlanTransferOrRestore(const Holdings& holdings) {
  beyond_.reset();
  if (resume_save_ != 0) {
    if (std::optional<StateTransferPlan> transfers = PlanFromDevices(holdings))
      return *std::move(transfers);
  }
  if (resume_save_ != 0 && !bad_saves_.contains(resume_save_)) {
    StateTransferPlan transfers = PlanRestore(holdings, saves_, resume_save_);
    if (!transfers.kept) {
      AddRemoteSaves(holdings);
      transfers = PlanRestore(holdings, saves_, resume_save_);
    }
    if (transfers.kept) {
      replay_ = Replay{resume_save_, transfers.optimizer_step, {}};
      return transfers;
    }
    if (std::optional<StateTransferPlan> later = PlanFromLaterSave(holdings)) return *later;
  }
  StateTransferPlan transfers = PlanStateTransfer(holdings, StatesWanted(holdings));
  if (transfers.kept) {
    replay_.reset();
    return transfers;
  }
  return PlanGoingBack(holdings, std::move(transfers));
}

// None: something else has happened since, or they are on data that is not the island's.
std::optional<std::vector<LoggedStep>> IslandLeader::StepsSinceResumed() const {
  const std::optional<ReplayLog::Changes> changes = port_->ChangesSince(resume_save_);
  if (!changes || !changes->all) return std::nullopt;
  std::vector<LoggedStep> steps;
  for (const LoggedChange& change : changes->list) {
    const LoggedStep* step = std::get_if<LoggedStep>(&change);
    if (step == nullptr || !Contains(resume_leased_, step->ranges)) return std::nullopt;
    steps.push_back(*step);
  }
  return steps;
}

// Without going back: what the members' devices hold is the save and nothing but steps since.
std::optional<StateTransferPlan> IslandLeader::PlanFromDevices(const Holdings& holdings) {
  std::optional<std::vector<LoggedStep>> beyond = StepsSinceResumed();
  if (!beyond) return std::nullopt;
  StateTransferPlan transfers = PlanStateTransfer(holdings, StatesIn(holdings));
  if (!transfers.kept || transfers.state.any_parameters) return std::nullopt;
  if (transfers.optimizer_step != port_->ChangesSince(resume_save_)->optimizer_step) {
    return std::nullopt;
  }
  replay_.reset();
  beyond_ = std::move(beyond);
  return transfers;
}

// Members drop a save once a later one is whole, which the leader may not have lived to report.
std::optional<StateTransferPlan> IslandLeader::PlanFromLaterSave(const Holdings& holdings) {
  std::optional<std::vector<LoggedStep>> beyond = StepsSinceResumed();
  if (!beyond) return std::nullopt;
  for (const int64_t save : ListSaves(saves_)) {
    if (save <= resume_save_ || bad_saves_.contains(save)) continue;
    StateTransferPlan transfers = PlanRestore(holdings, saves_, save);
    const auto last = std::find_if(beyond->begin(), beyond->end(), [&](const LoggedStep& step) {
      return step.optimizer_step == transfers.optimizer_step;
    });
    if (!transfers.kept || last == beyond->end()) continue;
    beyond->erase(last + 1, beyond->end());
    replay_ = Replay{save, transfers.optimizer_step, {}};
    beyond_ = std::move(beyond);
    return transfers;
  }
  return std::nullopt;
}

// Where the island was; for a new leader, the newest that there is.
std::vector<StateName> IslandLeader::StatesWanted(const Holdings& holdings) const {
  if (!KnowsSteps()) return StatesIn(holdings);
  std::vector<StateName> states;
  for (const bool any_parameters : {false, true}) {
    if (any_parameters && !replacing_) continue;
    if (known_.step_tried) {
      states.push_back(
          {known_.parameters_since, known_.moments_since, known_.known_steps + 1, any_parameters});
    }
    states.push_back(
        {known_.parameters_since, known_.moments_since, known_.known_steps, any_parameters});
  }
  return states;
}

StateTransferPlan IslandLeader::PlanGoingBack(const Holdings& holdings,
                                              StateTransferPlan otherwise) {
  for (const bool far : {false, true}) {
    if (far) AddRemoteSaves(holdings);
    for (const int64_t save : ListSaves(saves_)) {
      if (bad_saves_.contains(save)) continue;
      StateTransferPlan transfers = PlanRestore(holdings, saves_, save);
      // A save in the remote tier may be of another island of the job.
      if (far && !KnowsSteps() && !port_->ChangesSince(save)) continue;
      if (!transfers.kept || !PlanReplay(save, transfers.optimizer_step)) continue;
      transfers.reason = absl::StrCat(otherwise.reason, ": ", transfers.reason);
      return transfers;
    }
  }
  replay_.reset();
  return otherwise;
}

// All members read it themselves.
void IslandLeader::AddRemoteSaves(const Holdings& holdings) {
  const absl::StatusOr<std::vector<HeldSave>> remote = port_->SavesIn(Tier::kRemote);
  if (!remote.ok()) {
    LogWarning("checkpoint", "the remote tier cannot be read: ", remote.status().message());
    return;
  }
  for (const HeldSave& save : *remote) {
    for (const auto& [worker, held] : holdings) {
      std::vector<HeldSave>& known = saves_[worker];
      auto same = std::find_if(known.begin(), known.end(),
                               [&](const HeldSave& k) { return k.save == save.save; });
      if (same == known.end()) {
        same = known.insert(known.end(), {save.save, save.optimizer_step, {}});
      }
      same->units.insert(same->units.end(), save.units.begin(), save.units.end());
    }
  }
}

// Plans the replay; returns whether the changes since lead to where the island was.
bool IslandLeader::PlanReplay(int64_t save, int64_t optimizer_step) {
  if (replay_ && replay_->save == save) return true;  // an unfinished replay goes on
  Replay replay{save, optimizer_step, {}};
  const std::optional<ReplayLog::Changes> changes = port_->ChangesSince(save);
  const bool known = changes && (changes->all || (change_failed_ && changes->all_but_last));
  if (KnowsSteps() && !known) return false;
  // Who leads since another one died pulls the committed version, and needs the moments with which
  // the island adopts it. Steps that it has made since it did will be trained again.
  const std::shared_ptr<OuterState> outer = port_->outer();
  const bool adopted = outer != nullptr && outer->tag().base == committed_;
  const bool steps_alone = known && std::all_of(changes->list.begin(), changes->list.end(), IsStep);
  if (!KnowsSteps() && adopted && committed_ != kNoVersion && steps_alone) {
    replay_ = std::move(replay);
    return true;
  }
  for (const LoggedChange& change : changes ? changes->list : std::vector<LoggedChange>()) {
    if (const auto* step = std::get_if<LoggedStep>(&change)) {
      if (KnowsSteps() && step->optimizer_step > known_.known_steps) break;
      replay.target = step->optimizer_step;
    } else if (known_.outer.base == kNoVersion) {
      if (KnowsSteps()) return false;
      break;
    }
    replay.changes.push_back(change);
  }
  if (KnowsSteps() && replay.target != known_.known_steps) return false;
  replay_ = std::move(replay);
  return true;
}

// Without theta_base only as far as the parameters do not become it.
absl::StatusOr<IslandLeader::Replayed> IslandLeader::ReplayChanges(int64_t from) {
  Replayed replayed{from, true};
  for (const LoggedChange& change : replay_->changes) {
    if (const LoggedStep* step = std::get_if<LoggedStep>(&change)) {
      ATOLL_ASSIGN_OR_RETURN(const std::vector<double> references,
                             FindReferences({.ranges = step->ranges}, {}));
      ATOLL_RETURN_IF_ERROR(
          Together({.body = StepCall{++number_, step->ranges, step->learning_rate,
                                     /*trace=*/false, step->norm_limit, references}})
              .status());
      replayed.optimizer_step = step->optimizer_step;
      continue;
    }
    if (port_->outer()->tag().base == kNoVersion) {
      replayed.all = false;
      break;
    }
    ATOLL_RETURN_IF_ERROR(ApplyAll(OuterKind::kBase, OuterTarget::kParameters));
    port_->Log([](ReplayLog& log) { log.Explained(); });
  }
  ATOLL_RETURN_IF_ERROR(Drain());
  return replayed;
}

// Notes the saves that the next ones replace.
void IslandLeader::NoteWholeSaves(const Holdings& holdings) {
  const bool alone = std::all_of(holdings.begin(), holdings.end(), [&](const auto& member) {
    const std::vector<HeldLayer>& held = member.second;
    return member.first == name() ||
           std::all_of(held.begin(), held.end(), [](const HeldLayer& h) { return h.surplus; });
  });
  if (alone) port_->DropCopies();  // no member could keep newer ones
  for (const int64_t save : ListSaves(saves_)) last_save_ = std::max(last_save_, save);
  for (const Tier tier : {Tier::kMemory, Tier::kDisk, Tier::kRemote}) {
    HeldSaves in_tier;
    for (const auto& [worker, saves] : saves_) {
      for (HeldSave save : saves) {
        std::erase_if(save.units, [&](const HeldUnit& unit) { return unit.tier != tier; });
        if (alone && tier == Tier::kMemory) continue;
        if (!save.units.empty()) in_tier[worker].push_back(std::move(save));
      }
    }
    int64_t whole = 0;
    for (const int64_t save : ListSaves(in_tier)) {
      if (whole == 0 && PlanRestore(holdings, in_tier, save).kept) whole = save;
    }
    const std::lock_guard lock(save_mutex_);
    whole_saves_[tier] = whole;
  }
}

}  // namespace atl::worker
