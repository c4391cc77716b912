#include "coordinator/island_planner.h"

#include <algorithm>

#include "common/event_loop.h"
#include "common/logging.h"
#include "coordinator/planning.h"

namespace atl {
namespace {

// What is best by then is taken: an island that cannot train waits for it.
constexpr Duration kPlanningLimit = std::chrono::seconds(20);

bool SameIsland(const ProfileBook::PlanKey& a, const ProfileBook::PlanKey& b) {
  return a.job == b.job && a.island == b.island;
}

}  // namespace

IslandPlanner::IslandPlanner(std::function<void(PlanMade)> post)
    : post_(std::move(post)), thread_([this] { Run(); }) {}

IslandPlanner::~IslandPlanner() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    filled_.notify_one();
  }
  thread_.join();
}

void IslandPlanner::Want(Instant now, const MakePlan& ask) {
  PlanRequest request;
  request.spec = ask.spec;
  request.facts = ask.facts;
  request.number = ask.number;
  for (const PlanWorker& worker : ask.workers) {
    request.members.push_back({worker.member, worker.site, worker.devices, {}});
  }
  book_.Want(now, {ask.job, ask.island, ask.request}, std::move(request), ask.busy);
}

IslandPlanner::Work IslandPlanner::Advance(Instant now) {
  ProfileBook::Work work = book_.Advance(now);
  for (Item& item : work.plan) Enqueue(std::move(item));
  return {std::move(work.send), work.deadline};
}

void IslandPlanner::Enqueue(Item item) {
  const std::lock_guard lock(mutex_);
  std::erase_if(queue_, [&](const Item& other) { return SameIsland(other.first, item.first); });
  if (SameIsland(current_, item.first)) superseded_ = true;
  queue_.push_back(std::move(item));
  filled_.notify_one();
}

void IslandPlanner::Keep(const Item& item, const IslandPlan& plan) {
  Made made{item.first, item.second, plan};
  made.request.stop = nullptr;
  made_.push_back(std::move(made));
  const auto of_island = [&](const Made& other) { return SameIsland(other.key, item.first); };
  const auto oldest = std::find_if(made_.begin(), made_.end(), of_island);
  if (std::count_if(oldest, made_.end(), of_island) > static_cast<int64_t>(kKeptOfIsland)) {
    made_.erase(oldest);
  }
  if (made_.size() > kKept) made_.pop_front();
}

std::optional<PlanRequest> IslandPlanner::MadeFrom(const JobId& job, IslandId island,
                                                   const IslandPlan& plan) {
  const std::lock_guard lock(mutex_);
  for (auto made = made_.rbegin(); made != made_.rend(); ++made) {
    // Its number and its members may have changed since.
    if (made->key.job == job && made->key.island == island && made->plan.step_ns == plan.step_ns &&
        made->plan.replicas == plan.replicas && made->plan.programs == plan.programs) {
      return made->request;
    }
  }
  return std::nullopt;
}

void IslandPlanner::Run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    current_ = item.first;
    superseded_ = false;
    lock.unlock();
    const Instant begun = SteadyNow();
    item.second.stop = [this, begun] {
      if (SteadyNow() - begun > kPlanningLimit) return true;
      const std::lock_guard guard(mutex_);
      return stop_ || superseded_;
    };
    absl::StatusOr<IslandPlan> plan = PlanIsland(item.second);
    LogInfo("planner", item.first.job, " island ", item.first.island, ": ",
            plan.ok() ? plan->reason : std::string(plan.status().message()), " (",
            Seconds(SteadyNow() - begun), " s)");
    lock.lock();
    const bool wanted = !superseded_ && !stop_;
    if (wanted && plan.ok()) Keep(item, *plan);
    current_ = {};
    lock.unlock();
    if (wanted) post_({item.first.job, item.first.island, item.first.request, std::move(plan)});
  }
}

}  // namespace atl
