// The shell's side of MakePlan and GroupWorkers: measurements are gathered (profile_registry.h),
// then threads of a pool run the planner, and the answer comes back as an event of the core.
//
// One plan of each job is made at once, whatever is planned for others, so that no job waits for
// another's; further plans of a job, for several islands, take half of the machine's cores. The
// pool grows as needed, to kThreadsMax.
//
// The newest request of an island replaces earlier ones, also one that is being planned. So at most
// one request of each island waits, and memory is bounded.
//
// When there is nothing to plan a thread prepares plans for the loss of workers
// (prepared_plans.h), and rests between them, so that islands by the hundred do not keep a core
// busy with plans for losses. When one is lost, the plan is there at once, and a full search is
// requested after it.
//
// An island without a plan that is like another one of its job, which has one, gets that plan if it
// is as good by its own measurements (PlanLike): of a hundred like islands one is searched for.
//
// Previews of plans (preview.h) are made by the same threads, one at a time, when no island waits
// for a plan; losses are prepared for when no preview waits.
//
// All calls come from one thread, the coordinator's loop. `post` is called on that one and on those
// of the pool, and must not call this.

#ifndef ATOLL_COORDINATOR_ISLAND_PLANNER_H_
#define ATOLL_COORDINATOR_ISLAND_PLANNER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/measurements/profile_registry.h"
#include "coordinator/plan_answer.h"
#include "coordinator/prepared_plans.h"

namespace atl {

class IslandPlanner {
 public:
  using Answer = std::function<PlanMade(PlanRequest&, const std::optional<IslandPlan>& current)>;
  static constexpr size_t kThreadsMax = 32;

  // `post` gets PlanMade and WorkersGrouped. `answer` makes plans, on threads of the pool.
  explicit IslandPlanner(std::function<void(CoordinatorEvent)> post, Answer answer = AnswerPlan);
  ~IslandPlanner();  // the plan being made is abandoned

  void OnWorkerMessage(Instant now, const FromWorker& from) { registry_.OnMessage(now, from); }
  // A worker that the core knew before.
  void Remember(const MemberView& worker);
  // Takes in what the store has of links and devices, after the workers; other records are skipped.
  // `unix_time_ms`: now.
  void Remember(Instant now, int64_t unix_time_ms, const StoreRecord& record);
  void Want(Instant now, const MakePlan& query);
  void Want(Instant now, const GroupWorkers& query);

  // Messages for workers, and events that the core needs first. Call it after those above, and at
  // the deadline.
  struct Work {
    std::vector<ProfileRegistry::Message> send;
    std::vector<CoordinatorEvent> events;  // SitesFound, ProfileChanged
    std::vector<StoreWrite> persist;       // as ProfileRegistry::Work has it
    Instant deadline = kNever;
  };
  Work Advance(Instant now);

  const ProfileRegistry& registry() const { return registry_; }

  // Runs work of low priority with a function that says when to end early, or, with a reason not to
  // run it, at once: too much waits, or the planner is destroyed.
  using IdleWork =
      std::function<void(const absl::Status& refused, const std::function<bool()>& stop)>;
  void RunWhenIdle(IdleWork work);

  // Returns the request that a plan in force was made from, found by its layout; none: it was made
  // too long ago, or by an earlier process.
  std::optional<PlanRequest> MadeFrom(const JobId& job, IslandId island, const IslandPlan& plan);

  // Plans that are ready for a loss, and whether all are that are to be.
  std::pair<size_t, bool> Prepared();
  size_t threads();

 private:
  struct Item {
    ProfileRegistry::PlanKey key;
    PlanRequest request;
    std::optional<IslandPlan> current;
  };
  struct Made {
    ProfileRegistry::PlanKey key;
    PlanRequest request;
    IslandPlan plan;
    std::shared_ptr<const Made> like;  // whose layout it has; null: it was searched for
  };
  using Kept = std::shared_ptr<const Made>;
  // A plan that a thread makes.
  struct Running {
    ProfileRegistry::PlanKey key;
    bool superseded = false;  // it is not needed any more
  };
  // The core may keep an earlier plan, and clients may request it long after.
  static constexpr size_t kKeptOfIsland = 4;
  static constexpr size_t kKept = 256;
  static constexpr size_t kComparedWith = 16;  // plans of other islands, or of other losses
  static constexpr size_t kIdleMax = 8;        // that wait

  void Enqueue(Item item);
  // Posts the plan that was prepared for what the item is about, if there is one.
  bool AnswerAtOnce(const Item& item, std::vector<CoordinatorEvent>& events);
  Kept Keep(Item item, const IslandPlan& plan, Kept like);  // with mutex_ held
  void Run();
  // Called with mutex_ held, as the next ones; long work is done without it.
  void Plan(std::unique_lock<std::mutex>& lock, Item item);
  void RunIdle(std::unique_lock<std::mutex>& lock);
  bool MayRunIdle() const;
  void Prepare(std::unique_lock<std::mutex>& lock);
  std::optional<Item> TakeNext();
  size_t CountReady() const;
  bool MayPrepare() const;
  void StartThreads();
  void Supersede(const ProfileRegistry::PlanKey& island);
  // Searched plans of the item's job, the newest first; none where there is time to search.
  std::vector<Kept> OthersMade(const Item& item) const;
  // `others` keeps the one that the plan is like, or nothing.
  CoordinatorEvent AnswerFor(Item& item, std::vector<Kept>& others) const;

  ProfileRegistry registry_;
  std::map<std::pair<JobId, IslandId>, IslandPlan> current_plans_;  // of requests in the registry
  const std::function<void(CoordinatorEvent)> post_;
  const Answer answer_;
  const size_t plans_at_once_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Item> queue_;            // guarded by mutex_
  std::list<Running> running_;        // guarded by mutex_
  std::deque<IdleWork> idle_;         // guarded by mutex_; previews that wait
  bool idle_runs_ = false;            // guarded by mutex_; one of them
  bool stop_ = false;                 // guarded by mutex_
  std::deque<Kept> made_;             // guarded by mutex_; oldest first
  PreparedPlans prepared_;            // guarded by mutex_
  std::deque<Kept> losses_;           // guarded by mutex_; prepared by a search, oldest first
  Instant rests_until_{};             // guarded by mutex_
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ISLAND_PLANNER_H_
