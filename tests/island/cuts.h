// Islands whose members fail where a step is committed.

#ifndef ATOLL_TESTS_ISLAND_CUTS_H_
#define ATOLL_TESTS_ISLAND_CUTS_H_

#include <chrono>
#include <set>
#include <thread>

#include "common/event_loop.h"
#include "tests/island/group_fixture.h"

namespace atl::worker {

// At most; a failing test releases its devices in the end.
inline constexpr auto kCutStall = std::chrono::seconds(60);

// Makes devices fail at the commit point: before they take the commit vote of another device.
class Cuts {
 public:
  EngineOptions Options() {
    EngineOptions options;
    options.before_vote = [this](const std::string& device, const std::string& from) {
      std::unique_lock lock(mutex_);
      votes_.insert({device, from});
      changed_.notify_all();
      const auto cut = cuts_.find({device, from});
      if (cut == cuts_.end()) return absl::OkStatus();
      changed_.wait_for(lock, kCutStall, [this] { return !waits_; });
      cuts_.erase(cut);
      return absl::AbortedError("the test cuts it");
    };
    return options;
  }
  // At once, or later, by Now.
  void Cut(const std::string& device, const std::string& from, bool later = false) {
    const std::lock_guard lock(mutex_);
    cuts_.insert({device, from});
    waits_ = later;
  }
  void Now() {
    const std::lock_guard lock(mutex_);
    waits_ = false;
    changed_.notify_all();
  }
  void Forget() {
    const std::lock_guard lock(mutex_);
    cuts_.clear();
    votes_.clear();
  }
  // Until `device` takes the commit vote of `from`.
  void AwaitVote(const std::string& device, const std::string& from) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kCutStall, [&] { return votes_.contains({device, from}); }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<std::string, std::string>> cuts_;   // guarded by mutex_
  std::set<std::pair<std::string, std::string>> votes_;  // guarded by mutex_
  bool waits_ = false;                                   // guarded by mutex_
};

// A step whose owners have taken it counts, though its parameters did not come back: a device that
// does not get an owner's result for its part fetches it afterwards.
inline void CheckOwnersStepCounts(const World& world) {
  Cuts cuts;
  TestGroup group(world, 3, 1, cuts.Options());
  IslandLayout layout = Replicas("owners", {4, 2, 2}, 3);
  layout.optimizer_copies = 1;
  group.Take(layout, {"w1", "w2", "w3"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  int64_t step = 0, steps_taken = 0;
  // A member may detect the late one's failure before it has taken the last vote: then none takes
  // the step, and it is tried again.
  for (int attempt = 0; attempt < 20 && steps_taken < 2; ++attempt) {
    const char* const late = attempt % 2 == 0 ? "w2/0" : "w3/0";
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    leader.Drain();
    ++step;
    cuts.Forget();
    // The others take the step, and wait for its part.
    GroupMember& member = *group["w1"].member;
    const int64_t before = member.Committed().taken.number;
    cuts.Cut(late, "w1/0", /*later=*/true);
    absl::Status made;
    std::thread trains(
        [&] { made = leader.trainer->Step(Batch(step), GetLearningRate(step)).status(); });
    // The late one has sent its own vote, and the others take the last of the votes that they need.
    for (const char* device : {"w1/0", "w2/0", "w3/0"}) {
      if (std::string(device) == late) continue;
      for (const char* from : {"w1/0", "w2/0", "w3/0"}) {
        if (std::string(device) != from) cuts.AwaitVote(device, from);
      }
    }
    cuts.Now();
    trains.join();
    REQUIRE(!made.ok());
    const Reconfigured taken = group.Take(layout, {"w1", "w2", "w3"});
    cuts.Forget();
    INFO(taken.reason);
    REQUIRE(taken.kept);
    REQUIRE(taken.step_taken == (member.Committed().taken.number > before));
    if (taken.step_taken) alone.Step(step++);
    steps_taken += taken.step_taken;
  }
  CHECK(steps_taken == 2);
  REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
}

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_CUTS_H_
