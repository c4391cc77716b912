#include "coordinator/island_planner.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/crash_scope.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/machine/limits.h"
#include "coordinator/plan_answer.h"
#include "coordinator/planning/planning.h"

namespace atl {
namespace {

// The limit of a search, after which the best plan so far is taken: an island that cannot train
// waits for it.
constexpr Duration kPlanningLimit = std::chrono::seconds(20);
// For each second of preparing plans for losses: at most a tenth of a core.
constexpr int kRests = 9;
constexpr int64_t kAgeMaxMs = int64_t{365} * 24 * 3600 * 1000;

bool SameIsland(const ProfileRegistry::PlanKey& a, const ProfileRegistry::PlanKey& b) {
  return a.job == b.job && a.island == b.island;
}

}  // namespace

IslandPlanner::IslandPlanner(std::function<void(CoordinatorEvent)> post, Answer answer)
    : post_(std::move(post)),
      answer_(std::move(answer)),
      plans_at_once_(static_cast<size_t>(std::max(1, ReadMachineLimits().cpus / 2))) {}

IslandPlanner::~IslandPlanner() {
  std::deque<IdleWork> left;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    left = std::exchange(idle_, {});
    filled_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  for (const IdleWork& work : left) {
    work(absl::UnavailableError("the coordinator is ending"), [] { return true; });
  }
}

void IslandPlanner::Remember(const MemberView& worker) {
  const bool declared = worker.site_source == "declared";
  registry_.Remember(worker.name, worker.incarnation,
                     {declared ? worker.site : "", declared ? "" : worker.site});
}

void IslandPlanner::Remember(Instant now, int64_t unix_time_ms, const StoreRecord& record) {
  const auto remember = [&](const auto& r) {
    // A clock that was put back since makes nothing younger than now.
    const int64_t age_ms =
        std::max<int64_t>(0, unix_time_ms - std::max<int64_t>(0, r.unix_time_ms));
    registry_.Remember(now, now - std::chrono::milliseconds(std::min(age_ms, kAgeMaxMs)), r);
  };
  if (const auto* link = std::get_if<LinkRecord>(&record)) remember(*link);
  if (const auto* device = std::get_if<DeviceRecord>(&record)) remember(*device);
}

void IslandPlanner::Want(Instant, const MakePlan& query) {
  const std::pair key(query.job, query.island);
  current_plans_.erase(key);
  std::set<NodeId> joined;
  if (query.current) {
    current_plans_[key] = *query.current;
    for (const PlanMember& worker : query.members) joined.insert(worker.member.worker);
    for (const IslandMember& member : query.current->members) joined.erase(member.worker);
  }
  // Without a plan in force the island is idle until it has one.
  registry_.Want({query.job, query.island, query.request}, query, query.busy, joined);
}

void IslandPlanner::Want(Instant, const GroupWorkers& query) {
  registry_.Want({query.job, ProfileRegistry::kGrouping, query.request}, query, false);
}

bool IslandPlanner::AnswerAtOnce(const Item& item, std::vector<CoordinatorEvent>& events) {
  const ProfileRegistry::PlanKey& key = item.key;
  // With a plan in force there is time to search.
  if (key.island == ProfileRegistry::kGrouping || item.current) return false;
  PlanMade made{key.job, key.island, key.request};
  {
    const std::lock_guard lock(mutex_);
    std::optional<IslandPlan> plan = prepared_.Take({key.job, key.island}, item.request);
    if (!plan) return false;
    absl::StrAppend(&plan->reason, "; prepared before the loss");
    std::erase_if(queue_, [&](const Item& other) { return SameIsland(other.key, key); });
    Supersede(key);
    Keep(item, *plan, nullptr);
    made.plan = *std::move(plan);
  }
  ProfileChanged search{{}, "its plan was prepared before a loss", false, "prepared plan", 1};
  for (const IslandMember& member : made.plan->members) search.workers.push_back(member.worker);
  events.push_back(std::move(search));
  LogInfo("planner", key.job, " island ", key.island, ": ", made.plan->reason);
  post_(std::move(made));
  return true;
}

std::pair<size_t, bool> IslandPlanner::Prepared() {
  const std::lock_guard lock(mutex_);
  return {prepared_.size(),
          prepared_.idle() && queue_.empty() && running_.empty() && idle_.empty()};
}

size_t IslandPlanner::threads() {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

IslandPlanner::Work IslandPlanner::Advance(Instant now) {
  ProfileRegistry::Work work = registry_.Advance(now);
  std::vector<CoordinatorEvent> searches;
  for (auto& [key, request] : work.plan) {
    Item item{key, std::move(request), std::nullopt};
    auto current = current_plans_.find({key.job, key.island});
    if (current != current_plans_.end()) {
      item.current = std::move(current->second);
      current_plans_.erase(current);
    }
    if (!AnswerAtOnce(item, searches)) Enqueue(std::move(item));
  }
  Work result{std::move(work.send), std::move(searches), std::move(work.persist), work.deadline};
  if (!work.sites.empty() || !work.site_rates.empty()) {
    SitesFound found{{}, std::move(work.site_rates)};
    for (const auto& [worker, at] : work.sites) {
      found.workers.push_back({worker, at.site, at.source});
    }
    result.events.push_back(std::move(found));
  }
  for (ProfileChanged& change : work.changes) result.events.push_back(std::move(change));
  return result;
}

void IslandPlanner::Enqueue(Item item) {
  const std::lock_guard lock(mutex_);
  std::erase_if(queue_, [&](const Item& other) { return SameIsland(other.key, item.key); });
  Supersede(item.key);
  queue_.push_back(std::move(item));
  StartThreads();
  filled_.notify_one();
}

void IslandPlanner::Supersede(const ProfileRegistry::PlanKey& island) {
  for (Running& running : running_) {
    if (SameIsland(running.key, island)) running.superseded = true;
  }
}

// A thread for each plan that could begin and has none; those that run nothing take one each.
void IslandPlanner::StartThreads() {
  while (threads_.size() < kThreadsMax && CountReady() > threads_.size() - running_.size()) {
    threads_.emplace_back([this] { Run(); });
  }
}

// Requests of the queue that may begin now.
size_t IslandPlanner::CountReady() const {
  std::set<JobId> busy;
  for (const Running& running : running_) busy.insert(running.key.job);
  size_t ready = 0;
  for (const Item& item : queue_) {
    const bool begins =
        busy.insert(item.key.job).second || running_.size() + ready < plans_at_once_;
    ready += begins ? 1 : 0;
  }
  return ready + (MayRunIdle() ? 1 : 0);
}

// Takes the next item, first one of a job without a plan under way.
std::optional<IslandPlanner::Item> IslandPlanner::TakeNext() {
  auto next = std::find_if(queue_.begin(), queue_.end(), [&](const Item& item) {
    return std::none_of(running_.begin(), running_.end(),
                        [&](const Running& running) { return running.key.job == item.key.job; });
  });
  if (next == queue_.end() && running_.size() < plans_at_once_) next = queue_.begin();
  if (next == queue_.end()) return std::nullopt;
  Item item = std::move(*next);
  queue_.erase(next);
  return item;
}

bool IslandPlanner::MayPrepare() const {
  return !prepared_.idle() && queue_.empty() && running_.empty();
}

bool IslandPlanner::MayRunIdle() const { return !idle_.empty() && !idle_runs_; }

void IslandPlanner::RunWhenIdle(IdleWork work) {
  {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kIdleMax) {
      idle_.push_back(std::exchange(work, nullptr));
      StartThreads();
      filled_.notify_one();
    }
  }
  if (work == nullptr) return;
  work(absl::ResourceExhaustedError(
           absl::StrCat(kIdleMax, " previews of plans wait already: retry later")),
       [] { return true; });
}

void IslandPlanner::RunIdle(std::unique_lock<std::mutex>& lock) {
  const IdleWork work = std::move(idle_.front());
  idle_.pop_front();
  idle_runs_ = true;
  const auto running = running_.insert(running_.end(), Running{});
  lock.unlock();
  work(absl::OkStatus(), [this] {
    const std::lock_guard guard(mutex_);
    return stop_;
  });
  lock.lock();
  running_.erase(running);
  idle_runs_ = false;
}

IslandPlanner::Kept IslandPlanner::Keep(Item item, const IslandPlan& plan, Kept like) {
  item.request.stop = nullptr;
  const auto made =
      std::make_shared<const Made>(Made{item.key, std::move(item.request), plan, std::move(like)});
  made_.push_back(made);
  const auto of_island = [&](const auto& other) { return SameIsland(other->key, item.key); };
  const auto oldest = std::find_if(made_.begin(), made_.end(), of_island);
  if (std::count_if(oldest, made_.end(), of_island) > static_cast<int64_t>(kKeptOfIsland)) {
    made_.erase(oldest);
  }
  if (made_.size() > kKept) made_.pop_front();
  return made;
}

std::optional<PlanRequest> IslandPlanner::MadeFrom(const JobId& job, IslandId island,
                                                   const IslandPlan& plan) {
  const std::lock_guard lock(mutex_);
  for (auto it = made_.rbegin(); it != made_.rend(); ++it) {
    const Made& made = **it;
    // Its number and its members may have changed since.
    if (made.key.job == job && made.key.island == island && made.plan.step_ns == plan.step_ns &&
        made.plan.replicas == plan.replicas && made.plan.programs == plan.programs) {
      return made.request;
    }
  }
  return std::nullopt;
}

std::vector<IslandPlanner::Kept> IslandPlanner::OthersMade(const Item& item) const {
  std::vector<Kept> others;
  if (item.key.island == ProfileRegistry::kGrouping || item.current) return others;
  for (auto it = made_.rbegin(); it != made_.rend() && others.size() < kComparedWith; ++it) {
    const Kept& searched = (*it)->like != nullptr ? (*it)->like : *it;
    if (searched->key.job != item.key.job) continue;
    if (std::find(others.begin(), others.end(), searched) == others.end()) {
      others.push_back(searched);
    }
  }
  return others;
}

CoordinatorEvent IslandPlanner::AnswerFor(Item& item, std::vector<Kept>& others) const {
  const ProfileRegistry::PlanKey& key = item.key;
  const CrashScope scope(key.job);
  const Instant begun = SteadyNow();
  if (key.island == ProfileRegistry::kGrouping) {
    WorkersGrouped grouped = AnswerGrouping(item.request);
    grouped.job = key.job;
    grouped.request = key.request;
    LogInfo("planner", key.job, ": ", grouped.reason, " (", Seconds(SteadyNow() - begun), " s)");
    return grouped;
  }
  PlanMade made;
  made.plan = absl::NotFoundError("no like island has a plan");
  std::erase_if(others, [&](const Kept& o) { return !AreAlike(item.request, o->request); });
  if (!others.empty()) {
    others.resize(1);
    made.plan = PlanLike(item.request, others[0]->request, others[0]->plan);
  }
  if (!made.plan.ok()) {
    others.clear();
    made = answer_(item.request, item.current);
  }
  made.job = key.job;
  made.island = key.island;
  made.request = key.request;
  LogInfo("planner", key.job, " island ", key.island, ": ",
          made.plan.ok() ? made.plan->reason : std::string(made.plan.status().message()), " (",
          Seconds(SteadyNow() - begun), " s)");
  return made;
}

// One plan for a loss, unless another plan is requested. Most workers of an island are alike, and
// so are their losses: one is searched for, and the others have its layout.
void IslandPlanner::Prepare(std::unique_lock<std::mutex>& lock) {
  std::optional<PreparedPlans::Case> next = prepared_.Next();
  const Instant begun = SteadyNow();
  const ProfileRegistry::PlanKey key{next->island.first, next->island.second, 0};
  const CrashScope scope(key.job);
  const auto running = running_.insert(running_.end(), Running{key});
  const std::deque<Kept> losses = losses_;
  lock.unlock();
  next->request.threads = 1;
  next->request.stop = [this, begun] {
    if (SteadyNow() - begun > kPlanningLimit) return true;
    const std::lock_guard guard(mutex_);
    return stop_ || !queue_.empty() || !idle_.empty() || running_.size() > 1;
  };
  const auto like = std::find_if(losses.begin(), losses.end(), [&](const Kept& loss) {
    return loss->key.job == key.job && AreAlike(next->request, loss->request);
  });
  absl::StatusOr<IslandPlan> plan = absl::NotFoundError("no like loss has a plan");
  if (like != losses.end()) plan = PlanLike(next->request, (*like)->request, (*like)->plan);
  const bool searched = !plan.ok();
  if (searched) plan = answer_(next->request, std::nullopt).plan;
  lock.lock();
  rests_until_ = SteadyNow() + kRests * (SteadyNow() - begun);
  if (!queue_.empty() || !idle_.empty() || running_.size() > 1) {
    prepared_.PutBack(*next);
  } else if (plan.ok() && !running->superseded) {
    if (searched) {
      Made made{key, next->request, *plan, nullptr};
      made.request.stop = nullptr;
      losses_.push_back(std::make_shared<const Made>(std::move(made)));
      if (losses_.size() > kComparedWith) losses_.pop_front();
    }
    prepared_.Add(*next, *std::move(plan));
  }
  running_.erase(running);
}

void IslandPlanner::Plan(std::unique_lock<std::mutex>& lock, Item item) {
  const auto running = running_.insert(running_.end(), Running{item.key});
  std::vector<Kept> others = OthersMade(item);
  lock.unlock();
  item.request.threads = SearchThreads();
  item.request.stop = [this, running, begun = SteadyNow()] {
    if (SteadyNow() - begun > kPlanningLimit) return true;
    const std::lock_guard guard(mutex_);
    return stop_ || running->superseded;
  };
  CoordinatorEvent answer = AnswerFor(item, others);
  lock.lock();
  const bool wanted = !running->superseded && !stop_;
  running_.erase(running);
  if (!wanted) return;
  const auto* made = std::get_if<PlanMade>(&answer);
  if (made != nullptr && made->plan.ok()) {
    const Kept kept = Keep(std::move(item), *made->plan, others.empty() ? nullptr : others[0]);
    prepared_.Begin({kept->key.job, kept->key.island}, {kept, &kept->request},
                    made->plan->replicas);
  }
  post_(std::move(answer));  // before any answer to a newer request of the island
}

void IslandPlanner::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (std::optional<Item> item = TakeNext()) {
      Plan(lock, *std::move(item));
    } else if (MayRunIdle()) {
      RunIdle(lock);
    } else if (MayPrepare() && SteadyNow() >= rests_until_) {
      Prepare(lock);
    } else if (MayPrepare()) {
      filled_.wait_until(lock, ToSteady(rests_until_));
    } else {
      filled_.wait(lock);
    }
  }
}

}  // namespace atl
