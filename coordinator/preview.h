// Previews of plans before an island runs them: `atoll plan JOB`, `atoll plan --live`.
//
// A preview is made as the islands' planner thread makes plans (plan_answer.h), of what is known
// when it is requested: nothing is measured for it and nothing is stored. It has a thread of its
// own, so that no island waits for it and the coordinator's loop does not either.

#ifndef ATOLL_COORDINATOR_PREVIEW_H_
#define ATOLL_COORDINATOR_PREVIEW_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/measurements/profile_registry.h"
#include "coordinator/plan_answer.h"

namespace atl {

inline constexpr size_t kPreviewsMax = 8;  // that wait

// A preview of one island's plan.
struct PreviewedPlan {
  PlanMade made;
  int64_t current_number = 0;             // of the plan in force; 0: none
  std::vector<std::string> idle_devices;  // offered, and not in the plan
};

struct Preview {
  JobId job;             // empty: it is not submitted
  std::string grouping;  // why its islands are of these workers, where that had to be found
  std::vector<PreviewedPlan> plans;
};

class Previews {
 public:
  using OnDone = std::function<void(absl::StatusOr<Preview>)>;

  Previews() : thread_([this] { Run(); }) {}
  ~Previews();  // what waits ends with UNAVAILABLE

  // Plans of a job's islands. `on_done` is called once, on the thread of the previews or, where too
  // many wait, at once. What is best when the limit is over is the plan.
  void Query(Instant now, const ProfileRegistry& registry, const std::vector<MakePlan>& queries,
             Duration limit, OnDone on_done);
  // Plans of a job that these workers would get if it were submitted now: which workers share an
  // island is found first.
  void Query(Instant now, const ProfileRegistry& registry, const GroupWorkers& query,
             Duration limit, OnDone on_done);

 private:
  struct Island {
    IslandId id = 0;
    PlanRequest request;
    std::optional<IslandPlan> current;
  };
  struct Item {
    JobId job;
    std::vector<Island> islands;
    bool grouped = true;  // false: islands[0] has all workers
    Instant ends{};
    OnDone on_done;
  };

  void Enqueue(Item item);
  void Run();
  static absl::StatusOr<Preview> Answer(Item& item, const std::function<bool()>& stop);

  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Item> queue_;  // guarded by mutex_
  bool stop_ = false;       // guarded by mutex_
  std::thread thread_;      // last: it uses the others
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PREVIEW_H_
