// A preview is, byte for byte, the plan that the islands' planner makes of the same request.

#include "coordinator/preview.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/rng.h"
#include "coordinator/core/testing/shared_fixture.h"
#include "coordinator/core/testing/world.h"
#include "coordinator/island_planner.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/planning/island_scope.h"
#include "coordinator/wire.h"
#include "proto/plan.pb.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

constexpr Duration kWait = testing::kHangLimit;
constexpr Duration kLimit = testing::kHangLimit;

std::string Bytes(const IslandPlan& plan) {
  v1::PlannedIsland message;
  EncodePlan(plan, &message);
  return message.SerializeAsString();
}

// A job and workers drawn by `rng`.
MakePlan Generated(Rng& rng) {
  MakePlan query;
  query.job = "lm-1";
  query.request = 1;
  query.number = 1;
  const auto blocks = static_cast<int>(1 + rng.Below(6));
  query.spec.name = "lm";
  query.spec.model = {ModelFamily::kGpt2, "", "", 64, 32, blocks, 4, 0, 128};
  query.spec.data.path = "text";
  query.spec.data.sequence_length = 16;
  query.spec.inner.batch_sequences = static_cast<int64_t>(4 + 4 * rng.Below(4));
  query.spec.schedule.train_tokens = 1000;
  query.spec.layout.island = IslandScope::kAll;
  if (rng.Chance(0.3)) query.spec.layout.replicas = 1;
  if (rng.Chance(0.2)) query.spec.layout.schedule = "1f1b";
  LayoutSpec& layout = query.spec.layout;
  if (rng.Chance(0.3)) layout.search = PlanSearch::kLocal;
  if (rng.Chance(0.3)) layout.objective = PlanObjective::kCost;
  if (rng.Chance(0.2)) layout.deadline_hours = 1;
  if (rng.Chance(0.3)) layout.recompute = Recompute::kNone;
  if (rng.Chance(0.3)) layout.exclude = {"w1/1", "w3", "not-here"};
  if (rng.Chance(0.3)) layout.memory_reserve_bytes = int64_t{1} << 29;
  if (rng.Chance(0.3)) {
    layout.link_limits = {{"near", "far", rng.Chance(0.5) ? 1e9 : 1e15}, {"far", "near", 1e15}};
    query.servers = {{rng.Chance(0.5) ? "near" : "far", 1}};
  }
  OuterSpec& outer = query.spec.outer;
  outer.steps_per_round = 64;
  if (rng.Chance(0.5)) outer.push_encoding = Encoding::kInt4;
  if (rng.Chance(0.5)) outer.pull_encoding = Encoding::kInt8;
  if (rng.Chance(0.5)) outer.overlap = Overlap::kNone;
  query.facts.model = query.spec.model;
  query.facts.train_sequences = query.facts.validation_sequences = 100;
  query.facts.layers.push_back({"embedding", 64 * 32 + 16 * 32});
  for (int b = 0; b < blocks; ++b) query.facts.layers.push_back({absl::StrCat("block.", b), 12704});
  query.facts.layers.push_back({"head", 64 * 32 + 64});
  const size_t workers = 1 + rng.Below(4);
  for (size_t w = 1; w <= workers; ++w) {
    const std::string name = absl::StrCat("w", w);
    PlanMember& worker = query.members.emplace_back();
    worker.member = {name, 5, absl::StrCat("tcp://", name, ":1"), ""};
    worker.site = rng.Chance(0.5) ? "near" : "far";
    worker.devices.resize(1 + rng.Below(2),
                          {"cpu", int64_t{1} << 30, static_cast<int32_t>(1 + rng.Below(2))});
    for (DeviceInfo& device : worker.devices) {
      device.price_per_hour = static_cast<double>(1 + rng.Below(5));
    }
  }
  return query;
}

// Links and times that workers report.
void Measure(Rng& rng, const MakePlan& query, IslandPlanner& planner) {
  const uint64_t digest = ComputeModelDigest(query.facts.model, query.spec.data.sequence_length);
  for (const PlanMember& worker : query.members) {
    const NodeId& name = worker.member.worker;
    JobPrepared prepared;
    prepared.job = query.job;
    for (size_t d = 0; d < worker.devices.size(); ++d) {
      DeviceProfile profile{absl::StrCat(name, "/", d), "cpu", "1", digest, {}};
      const auto block_ns = static_cast<int64_t>(1'000'000 + rng.Below(4'000'000));
      for (int rows = 1; rows <= 4; rows *= 2) {
        for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead}) {
          LayerCost cost;
          cost.kind = kind;
          cost.micro_batch_sequences = rows;
          cost.forward_ns = cost.weight_gradient_ns = block_ns * rows;
          cost.input_gradient_ns = kind == LayerKind::kEmbedding ? 0 : cost.forward_ns;
          cost.optimizer_ns = 10'000;
          cost.stash_bytes = int64_t{40'000} * rows;
          cost.output_bytes = int64_t{2048} * rows;
          profile.layers.push_back(cost);
        }
      }
      prepared.profiles.push_back(std::move(profile));
    }
    planner.OnWorkerMessage(Instant{}, {name, 5, prepared});
    LinksMeasured links;
    links.request = 1;
    for (const PlanMember& other : query.members) {
      if (other.member.worker == name) continue;
      const double rate = other.site == worker.site ? 1e9 : 1e6 * (1.0 + rng.Below(20));
      links.links.push_back({name, other.member.worker, 1'000'000, rate, 0.01, 20});
    }
    planner.OnWorkerMessage(Instant{}, {name, 5, links});
  }
}

template <class Query>
Preview PreviewPlans(IslandPlanner& planner, const Query& query) {
  std::promise<absl::StatusOr<Preview>> answer;
  QueryPreview(SteadyNow(), planner, query, kLimit,
               [&](absl::StatusOr<Preview> preview) { answer.set_value(std::move(preview)); });
  auto future = answer.get_future();
  REQUIRE(future.wait_for(kWait) == std::future_status::ready);
  absl::StatusOr<Preview> preview = future.get();
  REQUIRE(preview.ok());
  return *std::move(preview);
}

PreviewedPlan PreviewPlan(IslandPlanner& planner, const MakePlan& query) {
  Preview preview = PreviewPlans(planner, std::vector{query});
  REQUIRE(preview.plans.size() == 1);
  return std::move(preview.plans[0]);
}

// An island's planner that knows what Measure draws by `seed`.
class Live {
 public:
  Live(uint64_t seed, const MakePlan& measured)
      : planner_([this](CoordinatorEvent event) { answer_->set_value(std::move(event)); }) {
    Rng rng(seed);
    Measure(rng, measured, planner_);
  }

  IslandPlanner& planner() { return planner_; }
  PlanMade Plan(const MakePlan& query) { return std::get<PlanMade>(Answer(query)); }
  WorkersGrouped Group(const GroupWorkers& query) {
    return std::get<WorkersGrouped>(Answer(query));
  }

 private:
  template <class Query>
  CoordinatorEvent Answer(const Query& query) {
    answer_ = std::make_unique<std::promise<CoordinatorEvent>>();
    auto future = answer_->get_future();
    planner_.Want(Instant{}, query);
    CHECK(planner_.Advance(Instant{}).send.empty());  // all has been measured
    REQUIRE(future.wait_for(kWait) == std::future_status::ready);
    return future.get();
  }

  std::unique_ptr<std::promise<CoordinatorEvent>> answer_;
  IslandPlanner planner_;
};

// Returns whether there is a plan.
bool CheckSame(const PlanMade& preview, const PlanMade& live) {
  CHECK(preview.plan.status() == live.plan.status());
  REQUIRE(preview.plan.ok() == live.plan.ok());
  if (live.plan.ok()) CHECK(Bytes(*preview.plan) == Bytes(*live.plan));
  return live.plan.ok();
}

// Prints the plan as `atoll plan --json` does.
std::string Pinned(const IslandPlan& plan) {
  v1::Plan message;
  EncodePlan(plan, message.add_islands());
  std::string json;
  REQUIRE(google::protobuf::util::MessageToJsonString(message, &json).ok());
  const auto pinned = PinnedJson(json, "plan.json");
  INFO(pinned.status().ToString());
  REQUIRE(pinned.ok());
  return *pinned;
}

TEST_CASE("50 generated jobs and clusters: the preview is the plan that the island is given") {
  int plans = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    INFO(seed);
    Rng rng(seed);
    MakePlan query = Generated(rng);
    Live live(seed, query);
    PlanMade made = live.Plan(query);
    if (!CheckSame(PreviewPlan(live.planner(), query).made, made)) continue;
    ++plans;
    if (seed % 10 == 0) {
      // With a plan in force both say what it takes now.
      query.current = *made.plan;
      CHECK(PreviewPlan(live.planner(), query).made.current_step_ns > 0);
    }
    if (seed % 3 != 0) continue;
    query.spec.layout.plan = Pinned(*made.plan);
    query.spec.layout.replicas = 0;
    CHECK(CheckSame(PreviewPlan(live.planner(), query).made, live.Plan(query)));
  }
  CHECK(plans >= 40);
}

TEST_CASE("each_constraint_holds_in_the_preview_and_in_the_plan_that_the_island_is_given") {
  Rng rng(1);
  MakePlan query = Generated(rng);
  while (query.members.size() != 4 || query.members[1].devices.size() != 2) query = Generated(rng);
  query.spec.layout = {.island = IslandScope::kAll};
  query.spec.outer.overlap = Overlap::kCarry;
  query.members[0].site = query.members[1].site = "near";
  query.members[2].site = query.members[3].site = "far";
  const auto made = [&](auto change, const std::map<std::string, double>& servers = {}) {
    MakePlan own = query;
    change(own.spec.layout);
    own.servers = servers;
    Live live(1, own);
    const PlanMade plan = live.Plan(own);
    CheckSame(PreviewPlan(live.planner(), own).made, plan);
    return plan;
  };
  const auto devices_of = [](const PlanMade& plan) {
    REQUIRE(plan.plan.ok());
    std::set<std::string> devices;
    for (const PlanProgram& program : plan.plan->programs) devices.insert(program.device);
    return devices;
  };
  const auto excluded = devices_of(made([](LayoutSpec& l) { l.exclude = {"w2/1", "w3", "w9"}; }));
  CHECK(excluded.count("w2/1") + excluded.count("w3/0") + excluded.count("w3/1") == 0);
  for (const std::string& device : devices_of(made([](LayoutSpec& l) { l.sites = {"near"}; }))) {
    CHECK((device.rfind("w1/", 0) == 0 || device.rfind("w2/", 0) == 0));
  }
  CHECK(absl::IsFailedPrecondition(
      made([](LayoutSpec& l) { l.memory_reserve_bytes = int64_t{1} << 30; }).plan.status()));
  const auto limit = [](double bytes) {
    return [bytes](LayoutSpec& l) {
      l.link_limits = {{"near", "far", bytes}, {"far", "near", bytes}};
    };
  };
  std::set<std::string> sites;
  for (const std::string& device : devices_of(made(limit(1)))) {
    sites.insert(device < "w3" ? "near" : "far");
  }
  CHECK(sites == std::set<std::string>{"near"});  // where the leader is
  CHECK(made(limit(1), {{"near", 1}}).plan.ok());
  CHECK(absl::IsFailedPrecondition(made(limit(1), {{"far", 1}}).plan.status()));
  CHECK(made(limit(1e18), {{"far", 1}}).plan.ok());
}

TEST_CASE("jobs_that_are_not_submitted_get_the_islands_and_plans_that_running_ones_get") {
  int plans = 0, islands = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    INFO(seed);
    Rng rng(seed);
    const MakePlan all = Generated(rng);
    Live live(seed, all);
    GroupWorkers query{all, "lm-1", 1};
    query.servers.clear();  // it has none yet
    constexpr IslandScope kIslandScopes[] = {IslandScope::kAuto, IslandScope::kSite,
                                             IslandScope::kWorker, IslandScope::kAll};
    IslandScope island_scope = query.spec.layout.island = kIslandScopes[seed % 4];
    const Preview preview = PreviewPlans(live.planner(), query);
    if (island_scope == IslandScope::kAuto) {
      const WorkersGrouped grouped = live.Group(query);
      CHECK(preview.grouping == grouped.reason);
      island_scope = grouped.island_scope;
    }
    std::vector<ScopeWorker> workers;
    for (const PlanMember& worker : all.members) workers.push_back({worker.site});
    const auto island_workers = AssignIslands(workers, query.spec, island_scope);
    REQUIRE(island_workers.size() == preview.plans.size());
    for (size_t i = 0; i < island_workers.size(); ++i) {
      MakePlan island = all;
      island.spec = query.spec;
      island.islands = static_cast<int>(island_workers.size());
      island.servers.clear();
      island.islands_at_site = static_cast<int>(
          std::count_if(island_workers.begin(), island_workers.end(), [&](const auto& other) {
            return workers[other[0]].site == workers[island_workers[i][0]].site;
          }));
      island.members.clear();
      for (const size_t w : island_workers[i]) island.members.push_back(all.members[w]);
      // The preview has its own planner: no plan is taken over from a like island.
      Live own(seed, all);
      ++islands;
      plans += CheckSame(preview.plans[i].made, own.Plan(island)) ? 1 : 0;
    }
  }
  CHECK(islands > 25);
  CHECK(plans > 15);
}

TEST_CASE("the core requests a preview with the planner's request") {
  testing::SharedWorld world;
  const auto job = world.core().Jobs().jobs.front().job;
  const std::vector<MakePlan> queries = world.core().PlanRequests(job);
  REQUIRE(queries.size() == 1);
  CHECK(queries[0].island == 0);
  CHECK(queries[0].number == 2);
  CHECK(queries[0].busy);
  REQUIRE(queries[0].current);
  CHECK(queries[0].current->number == 1);
  CHECK(queries[0].members.size() == 3);
  PlanMade made{job, 0, 0};
  made.plan = *queries[0].current;
  CHECK(world.core().WhyPlanIsKept(made) == "the same layout is still the best");
  CHECK(world.core().IdleWorkers({}).empty());
}

TEST_CASE("a job that is not submitted gets islands of idle workers, as its layout says") {
  Rng rng(1);
  IslandPlanner planner([](const CoordinatorEvent&) {});
  MakePlan plan = Generated(rng);
  while (plan.members.size() != 4) plan = Generated(rng);
  plan.members[0].site = plan.members[1].site = "near";
  plan.members[2].site = plan.members[3].site = "far";
  Measure(rng, plan, planner);
  GroupWorkers query{plan};
  query.spec.layout = {};
  query.spec.outer.max_islands = 8;
  for (const auto& [island_scope, islands] :
       {std::pair(IslandScope::kAll, 1), std::pair(IslandScope::kSite, 2),
        std::pair(IslandScope::kWorker, 4)}) {
    query.spec.layout.island = island_scope;
    const Preview preview = PreviewPlans(planner, query);
    CHECK(preview.plans.size() == static_cast<size_t>(islands));
    for (const PreviewedPlan& island : preview.plans) CHECK(island.made.plan.ok());
  }
}

}  // namespace
}  // namespace atl
