// The planner's thread, with the real planner behind it.

#include "coordinator/island_planner.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <future>

#include "absl/strings/str_cat.h"
#include "common/machine/limits.h"

namespace atl {
namespace {

MakePlan MakePlanQuery(int64_t request, int devices) {
  MakePlan query;
  query.job = "lm-1";
  query.request = request;
  query.number = 1;
  query.spec.name = "lm";
  query.spec.model = {ModelFamily::kGpt2, "", "", 64, 32, 2, 4, 0, 128};
  query.spec.data.path = "text";
  query.spec.data.sequence_length = 16;
  query.spec.inner.batch_sequences = 4;
  query.spec.schedule.train_tokens = 1000;
  query.facts.model = query.spec.model;
  query.facts.layers = {{"embedding", 64 * 32 + 16 * 32},
                        {"block.0", 12704},
                        {"block.1", 12704},
                        {"head", 64 * 32 + 64}};
  query.facts.train_sequences = 100;
  query.members.push_back({{"w1", 5, "tcp://w1:1", ""}, "", {}});
  query.members[0].devices.resize(devices, {"cpu", int64_t{1} << 30, 1});
  return query;
}

// Collects what is posted.
struct Inbox {
  std::mutex mutex;
  std::condition_variable filled;
  std::vector<PlanMade> made;

  void Post(PlanMade plan) {
    const std::lock_guard lock(mutex);
    made.push_back(std::move(plan));
    filled.notify_one();
  }
  PlanMade Last(int64_t request) {
    std::unique_lock lock(mutex);
    const bool came = filled.wait_for(lock, std::chrono::seconds(60), [&] {
      return !made.empty() && made.back().request == request;
    });
    REQUIRE(came);
    return made.back();
  }
};

// One more worker like the first.
void AddLike(MakePlan& query, const std::string& name) {
  query.members.push_back(query.members[0]);
  query.members.back().member = {name, 6, absl::StrCat("tcp://", name, ":1"), ""};
}

TEST_CASE("A request comes back as a plan that runs") {
  Inbox inbox;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); });
  planner.Want(Instant{}, MakePlanQuery(1, 2));
  CHECK(planner.Advance(Instant{}).send.empty());  // one worker has no links
  const PlanMade made = inbox.Last(1);
  INFO(made.plan.status().ToString());
  REQUIRE(made.plan.ok());
  CHECK(made.job == "lm-1");
  CHECK(made.plan->members.size() == 1);
  CHECK(atl::Validate(*made.plan, 4, 4).ok());
}

TEST_CASE("A request that cannot be met comes back with the reason") {
  Inbox inbox;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); });
  MakePlan query = MakePlanQuery(1, 1);
  query.spec.layout.stages = 3;
  planner.Want(Instant{}, query);
  planner.Advance(Instant{});
  const PlanMade made = inbox.Last(1);
  CHECK_FALSE(made.plan.ok());
  CHECK(made.plan.status().message() != "");
}

TEST_CASE("Who shares an island comes back with what was compared") {
  std::promise<WorkersGrouped> answer;
  IslandPlanner planner([&](CoordinatorEvent event) {
    answer.set_value(std::get<WorkersGrouped>(std::move(event)));
  });
  const MakePlan plan = MakePlanQuery(1, 1);
  GroupWorkers query{plan, "lm-1", 7};
  query.spec.layout.island = IslandScope::kAuto;
  planner.Want(Instant{}, query);
  planner.Advance(Instant{});
  std::future<WorkersGrouped> future = answer.get_future();
  REQUIRE(future.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  const WorkersGrouped grouped = future.get();
  CHECK(grouped.request == 7);
  CHECK(grouped.island_scope == IslandScope::kAll);
  CHECK(grouped.reason.find("one of all: ") == 0);
}

TEST_CASE("A worker that cannot be reached is left out of the plan, which says so") {
  Inbox inbox;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); });
  MakePlan query = MakePlanQuery(1, 1);
  AddLike(query, "w2");
  WorkerHeartbeat beat;
  beat.unreachable = {{"w1", "no connection within 10 s: refused"}};
  planner.OnWorkerMessage(Instant{}, {"w2", 6, beat});
  query.busy = true;
  planner.Want(Instant{}, query);
  const IslandPlanner::Work work = planner.Advance(Instant{});
  REQUIRE(work.events.size() == 1);
  CHECK(std::get<ProfileChanged>(work.events[0]).unusable);
  const PlanMade made = inbox.Last(1);
  REQUIRE(made.plan.ok());
  CHECK(made.plan->members.size() == 1);
  REQUIRE(made.left_out.size() == 1);
  CHECK(made.left_out[0].first == "w2");
  CHECK(made.left_out[0].second ==
        "w2 > w1: no connection within 10 s: refused; probed until it answers");
  CHECK(made.plan->reason.find("without w2: w2 > w1") != std::string::npos);
}

TEST_CASE("The lines to whom has joined an island are measured before its plan, and no others") {
  Inbox inbox;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); });
  MakePlan query = MakePlanQuery(1, 1);
  AddLike(query, "w2");
  AddLike(query, "w3");
  query.busy = true;
  query.current = IslandPlan();
  query.current->members = {query.members[0].member, query.members[1].member};
  planner.Want(Instant{}, query);
  const IslandPlanner::Work work = planner.Advance(Instant{});
  REQUIRE(work.send.size() == 2);
  CHECK(work.send[0].message.during_steps);
  CHECK(work.send[0].message.to == std::vector<NodeId>{"w3"});
  query.current.reset();  // it is idle: there is no time
  query.request = 2;
  planner.Want(Instant{}, query);
  CHECK(planner.Advance(Instant{}).send.empty());
  CHECK(inbox.Last(2).plan.ok());
}

// Three workers that have a plan, and all plans for the loss of one or two of them.
void PrepareLosses(Inbox& inbox, IslandPlanner& planner, MakePlan& query) {
  AddLike(query, "w2");
  AddLike(query, "w3");
  query.spec.inner.batch_sequences = 12;
  query.busy = true;
  planner.Want(Instant{}, query);
  planner.Advance(Instant{});
  REQUIRE(inbox.Last(query.request).plan.ok());
  for (int i = 0; i < 6000 && !planner.Prepared().second; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(planner.Prepared().second);
}

// Counts the plans that are searched for.
IslandPlanner CountingPlanner(Inbox& inbox, std::atomic<size_t>& searched) {
  return IslandPlanner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); },
      [&](PlanRequest& request, const auto& current) {
        ++searched;
        return AnswerPlan(request, current);
      });
}

TEST_CASE("A plan for who is left was prepared, is there at once, and a full search is requested") {
  Inbox inbox;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); });
  MakePlan query = MakePlanQuery(1, 2);
  PrepareLosses(inbox, planner, query);
  CHECK(planner.Prepared().first == 6);  // of one worker, or of two
  for (const char* lost : {"w3", "w2"}) {
    std::erase_if(query.members, [&](const PlanMember& w) { return w.member.worker == lost; });
    ++query.request;
    ++query.number;
    planner.Want(Instant{}, query);
    const IslandPlanner::Work work = planner.Advance(Instant{});
    PlanMade made;
    {
      const std::lock_guard lock(inbox.mutex);
      made = inbox.made.back();
    }
    REQUIRE(made.request == query.request);  // without waiting for the planner's thread
    REQUIRE(made.plan.ok());
    CHECK(made.plan->number == query.number);
    for (const IslandMember& member : made.plan->members) CHECK(member.worker != lost);
    CHECK(made.plan->members[0].worker == "w1");
    CHECK(atl::Validate(*made.plan, 4, 12).ok());
    REQUIRE(work.events.size() == 1);
    const auto& search = std::get<ProfileChanged>(work.events[0]);
    CHECK_FALSE(search.unusable);
    CHECK(search.workers.size() == made.plan->members.size());
  }
}

TEST_CASE("of_losses_that_are_alike_one_is_searched_for_and_the_others_have_its_layout") {
  Inbox inbox;
  std::atomic<size_t> searched = 0;
  IslandPlanner planner = CountingPlanner(inbox, searched);
  MakePlan query = MakePlanQuery(1, 2);
  PrepareLosses(inbox, planner, query);
  CHECK(planner.Prepared().first == 6);
  // The plan uses w1 alone, so the loss of w2 is that of w3, and to be left as w2 or as w3 is one.
  REQUIRE(inbox.Last(1).plan->members.size() == 1);
  CHECK(searched == 1 + 4);
  std::erase_if(query.members, [](const PlanMember& w) { return w.member.worker == "w2"; });
  query.request = query.number = 2;
  planner.Want(Instant{}, query);
  planner.Advance(Instant{});
  const PlanMade made = inbox.Last(2);
  REQUIRE(made.plan.ok());
  CHECK(made.plan->reason.find("prepared before the loss") != std::string::npos);
  CHECK(made.plan->members[0].worker == "w1");
  CHECK(atl::Validate(*made.plan, 4, 12).ok());
}

TEST_CASE("A prepared plan is handed out once, and not to another incarnation of a worker") {
  Inbox inbox;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); });
  MakePlan query = MakePlanQuery(1, 1);
  PrepareLosses(inbox, planner, query);
  query.members.pop_back();
  MakePlan restarted = query;
  restarted.request = 2;
  ++restarted.members[1].member.incarnation;
  planner.Want(Instant{}, restarted);
  CHECK(planner.Advance(Instant{}).events.empty());
  REQUIRE(inbox.Last(2).plan.ok());
  CHECK(inbox.Last(2).plan->reason.find("prepared") == std::string::npos);
}

TEST_CASE("Of many requests for one island the newest is answered, each at most once") {
  Inbox inbox;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); });
  for (int64_t request = 1; request <= 50; ++request) {
    planner.Want(Instant{}, MakePlanQuery(request, 2));
    planner.Advance(Instant{});
  }
  inbox.Last(50);
  const std::lock_guard lock(inbox.mutex);
  for (size_t i = 1; i < inbox.made.size(); ++i) {
    CHECK(inbox.made[i - 1].request < inbox.made[i].request);
  }
}

// Plans of the job "slow" last until the test lets them go on.
struct SlowPlans {
  std::mutex mutex;
  std::condition_variable changed;
  bool go_on = false;
  int begun = 0;

  PlanMade Answer(PlanRequest& request, const std::optional<IslandPlan>& current) {
    if (request.spec.name == "slow") {
      std::unique_lock lock(mutex);
      ++begun;
      changed.notify_all();
      changed.wait(lock, [&] { return go_on; });
    }
    return AnswerPlan(request, current);
  }
  void AwaitBegun(int count) {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return begun >= count; }));
  }
  void GoOn() {
    const std::lock_guard lock(mutex);
    go_on = true;
    changed.notify_all();
  }
};
// Before the planner ends, whose threads wait for it.
struct GoesOn {
  SlowPlans& slow;
  ~GoesOn() { slow.GoOn(); }
};

TEST_CASE("one_jobs_plan_does_not_wait_for_the_plans_of_another_job") {
  Inbox inbox;
  SlowPlans slow;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); },
      [&](PlanRequest& request, const auto& current) { return slow.Answer(request, current); });
  const GoesOn goes_on{slow};
  for (int64_t island = 0; island < 100; ++island) {
    MakePlan query = MakePlanQuery(1 + island, 1);
    query.job = query.spec.name = "slow";
    query.island = static_cast<IslandId>(island);
    planner.Want(Instant{}, query);
  }
  planner.Advance(Instant{});
  slow.AwaitBegun(1);
  for (int64_t job = 0; job < 3; ++job) {
    MakePlan quick = MakePlanQuery(1000 + job, 1);
    quick.job = absl::StrCat("quick-", job);
    planner.Want(Instant{}, quick);
    planner.Advance(Instant{});
    CHECK(inbox.Last(1000 + job).plan.ok());
  }
  const auto cores = static_cast<size_t>(ReadMachineLimits().cpus);
  CHECK(planner.threads() <= std::max<size_t>(1, cores / 2) + 3);
  {
    const std::lock_guard lock(inbox.mutex);
    CHECK(inbox.made.size() == 3);
  }
  slow.GoOn();
  std::unique_lock lock(inbox.mutex);
  CHECK(inbox.filled.wait_for(lock, std::chrono::seconds(60),
                              [&] { return inbox.made.size() == 103; }));
}

TEST_CASE("of_like_islands_of_a_job_one_is_searched_for_and_the_others_have_its_layout") {
  Inbox inbox;
  std::atomic<size_t> searched = 0;
  IslandPlanner planner = CountingPlanner(inbox, searched);
  constexpr size_t kIslands = 20;
  for (size_t island = 0; island < kIslands; ++island) {
    MakePlan query = MakePlanQuery(static_cast<int64_t>(1 + island), 2);
    query.island = static_cast<IslandId>(island);
    query.members[0].member.worker = absl::StrCat("w", island);
    planner.Want(Instant{}, query);
  }
  planner.Advance(Instant{});
  std::unique_lock lock(inbox.mutex);
  REQUIRE(inbox.filled.wait_for(lock, std::chrono::seconds(60),
                                [&] { return inbox.made.size() == kIslands; }));
  // The searches are as many as begin at a time before the first one is known.
  CHECK(searched <= static_cast<size_t>(std::max(1, ReadMachineLimits().cpus / 2)));
  for (const PlanMade& made : inbox.made) {
    REQUIRE(made.plan.ok());
    CHECK(made.plan->members[0].worker == absl::StrCat("w", made.island));
    // Times that are added in another order differ in the last digit.
    CHECK(std::abs(made.plan->step_ns - inbox.made[0].plan->step_ns) <= 10);
  }
}

TEST_CASE("an_island_that_is_unlike_the_others_of_its_job_is_searched_for") {
  Inbox inbox;
  std::atomic<size_t> searched = 0;
  IslandPlanner planner = CountingPlanner(inbox, searched);
  for (int devices = 1; devices <= 3; ++devices) {
    MakePlan query = MakePlanQuery(devices, devices);
    query.island = devices;
    planner.Want(Instant{}, query);
    planner.Advance(Instant{});
    CHECK(inbox.Last(devices).plan.ok());
  }
  CHECK(searched == 3);
}

TEST_CASE("plans_of_many_jobs_are_made_by_a_bounded_number_of_threads") {
  Inbox inbox;
  SlowPlans slow;
  IslandPlanner planner(
      [&](CoordinatorEvent event) { inbox.Post(std::get<PlanMade>(std::move(event))); },
      [&](PlanRequest& request, const auto& current) { return slow.Answer(request, current); });
  const GoesOn goes_on{slow};
  constexpr size_t kJobs = 2 * IslandPlanner::kThreadsMax;
  for (size_t job = 0; job < kJobs; ++job) {
    MakePlan query = MakePlanQuery(1, 1);
    query.job = absl::StrCat("slow-", job);
    query.spec.name = "slow";
    planner.Want(Instant{}, query);
    planner.Advance(Instant{});
  }
  slow.AwaitBegun(static_cast<int>(IslandPlanner::kThreadsMax));
  CHECK(planner.threads() == IslandPlanner::kThreadsMax);
  slow.GoOn();
  std::unique_lock lock(inbox.mutex);
  CHECK(inbox.filled.wait_for(lock, std::chrono::seconds(60),
                              [&] { return inbox.made.size() == kJobs; }));
}

}  // namespace
}  // namespace atl
