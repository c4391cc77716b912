// An island's leader whose commands a test gives, one after the other, as the core does; and what
// it posts, by kind.

#ifndef ATOLL_TESTS_ISLAND_TEST_LEADER_H_
#define ATOLL_TESTS_ISLAND_TEST_LEADER_H_

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/check.h"
#include "common/status.h"
#include "tests/catch/limits.h"
#include "tests/island/single_device.h"
#include "worker/island/control/leader.h"

namespace atl::worker {

// Collects a leader's events; those beside the ends of commands are kept apart.
class LeaderEvents {
 public:
  void Post(Event event) {
    const std::lock_guard lock(mutex_);
    std::visit([this]<class T>(T& e) { Take(e); }, event);
    changed_.notify_all();
  }
  // These wait for it, and take it.
  Event AwaitEnd() { return Await(&end_); }  // of the command
  DeltaReady AwaitReady() { return Await(&ready_); }
  PullDone AwaitPulled() { return Await(&pulled_); }
  StateSaved AwaitSaved() { return Await(&saved_); }
  void AwaitStagingEnds() { Await(&tick_); }  // that was cancelled

  bool pulled() const {
    const std::lock_guard lock(mutex_);
    return pulled_.has_value();
  }
  // The last message of the leader while it led.
  StageLinksSeen stage_links() const {
    const std::lock_guard lock(mutex_);
    return stage_links_;
  }
  MemorySeen memory() const {
    const std::lock_guard lock(mutex_);
    return memory_;
  }

 private:
  void Take(DeltaReady& event) { ready_ = std::move(event); }
  void Take(PullDone& event) { pulled_ = event; }
  void Take(StateSaved& event) { saved_ = std::move(event); }
  void Take(Tick&) { tick_ = Tick{}; }
  void Take(StageLinksSeen& event) { stage_links_ = std::move(event); }
  void Take(MemorySeen& event) { memory_ = std::move(event); }
  void Take(Drained&) {}
  template <class T>
  void Take(T& event) {
    end_ = std::move(event);
  }
  template <typename T>
  T Await(std::optional<T>* event) {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, atl::testing::kHangLimit, [event] { return event->has_value(); });
    ATOLL_CHECK(came, "what a test waits for has not come");
    return *std::exchange(*event, std::nullopt);
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Event> end_;  // all guarded by mutex_
  std::optional<DeltaReady> ready_;
  std::optional<PullDone> pulled_;
  std::optional<StateSaved> saved_;
  std::optional<Tick> tick_;
  StageLinksSeen stage_links_;
  MemorySeen memory_;
};

// Errors have the reason of the event. A command ends before the next one is given.
class TestLeader {
 public:
  explicit TestLeader(IslandPort* port, LeaderOptions options = {}, IslandLeader::Hooks hooks = {})
      : port_(port), leader_(port, options, With(std::move(hooks))) {}

  template <typename Done>
  absl::StatusOr<Done> Do(Action command) {
    leader_.Enqueue(std::move(command));
    Event end = events.AwaitEnd();
    if (const auto* failed = std::get_if<CommandFailed>(&end)) {
      return absl::UnknownError(failed->reason);
    }
    if (const auto* failed = std::get_if<PrepareFailed>(&end)) {
      return absl::UnknownError(failed->reason);
    }
    return std::get<Done>(std::move(end));
  }
  absl::StatusOr<JobFacts> Prepare(const JobId& job, const JobSpec& spec) {
    ATOLL_ASSIGN_OR_RETURN(Prepared done, Do<Prepared>(worker::Prepare{job, spec}));
    return done.facts;
  }
  absl::Status InitialWeights() { return Do<InitialWeightsMade>(MakeInitialWeights{}).status(); }
  absl::StatusOr<MeanLoss> Step(const std::vector<PositionRange>& ranges, double learning_rate) {
    ATOLL_ASSIGN_OR_RETURN(const StepDone done, Do<StepDone>(TrainStep{ranges, learning_rate}));
    return MeanLoss{done.loss, done.tokens - done.masked_tokens};
  }
  absl::Status AdoptPulled(const worker::AdoptPulled& command) {
    return Do<Adopted>(command).status();
  }
  // Until it is captured; DeltaReady comes later.
  absl::Status CaptureDelta(const atl::CaptureDelta& command) {
    return Do<DeltaCaptured>(command).status();
  }
  absl::Status Validate() { return Do<ValidationDone>(worker::Validate{}).status(); }
  absl::StatusOr<Kept> SaveState(const LocalCheckpoint& about, Tier tier) {
    ATOLL_ASSIGN_OR_RETURN(const StateCopied done, Do<StateCopied>(worker::SaveState{about, tier}));
    return done.kept;
  }
  // Sets the save from which the next Configure resumes.
  void ResumeFrom(int64_t save, std::vector<PositionRange> leased) {
    resume_ = save;
    leased_ = std::move(leased);
  }
  absl::StatusOr<Reconfigured> Configure(const JobId& job, Generation generation,
                                         const IslandPlan& plan, const NodeId& before = "") {
    Reconfigure command{job, 0, generation, plan, before};
    command.resume = std::exchange(resume_, 0);
    command.leased = std::exchange(leased_, {});
    command.committed = committed;
    return Do<Reconfigured>(command);
  }
  void Keep(Leadership known) { (void)Do<HandedOver>(Handover{"", std::move(known)}); }
  // Evaluates the parameters as they are.
  absl::StatusOr<MeanLoss> Evaluate(int64_t sequences, int set) {
    ATOLL_ASSIGN_OR_RETURN(const LossSum loss, leader_.Evaluate(set, sequences));
    return MeanLoss{loss.mean(), loss.tokens};
  }

  absl::StatusOr<std::vector<TaskScore>> ScoreTasks(std::vector<int32_t> tasks) {
    std::vector<TaskScore> scores;
    for (const int32_t task : tasks) {
      ATOLL_ASSIGN_OR_RETURN(const ValidationDone done, leader_.EvaluateAll({0, task}));
      scores.push_back(done.score.value());
    }
    return scores;
  }

  void Interrupt(const std::string& reason) { leader_.Interrupt(reason); }
  absl::Status Drain() { return leader_.Drain(); }
  const Holdings& holdings() const { return leader_.holdings(); }
  int64_t optimizer_steps() const { return leader_.steps(); }
  std::shared_ptr<OuterState> outer() const { return port_->outer(); }
  IslandLeader& leader() { return leader_; }

  LeaderEvents events;
  Version committed = kNoVersion;      // that is pulled after Configure
  std::function<void()> when_drained;  // nothing of the plan before goes on any more

 private:
  IslandLeader::Hooks With(IslandLeader::Hooks hooks) {
    hooks.post = [this](Event event) {
      if (std::holds_alternative<Drained>(event) && when_drained) when_drained();
      events.Post(std::move(event));
    };
    return hooks;
  }

  IslandPort* const port_;
  int64_t resume_ = 0;
  std::vector<PositionRange> leased_;
  IslandLeader leader_;  // last: it posts
};

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_TEST_LEADER_H_
