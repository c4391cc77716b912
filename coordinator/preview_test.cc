// A preview is, byte for byte, the plan that the islands' planner makes of the same request.

#include "coordinator/preview.h"

#include <catch2/catch.hpp>
#include <future>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/rng.h"
#include "coordinator/core/testing/shared_story.h"
#include "coordinator/core/testing/world.h"
#include "coordinator/island_planner.h"
#include "coordinator/wire.h"
#include "proto/plan.pb.h"

namespace atl {
namespace {

constexpr std::chrono::seconds kWait(60);
constexpr Duration kLimit = std::chrono::seconds(20);

std::string Bytes(const IslandPlan& plan) {
  v1::PlannedIsland message;
  EncodePlan(plan, &message);
  return message.SerializeAsString();
}

// A job and workers drawn by `rng`.
MakePlan Generated(Rng& rng) {
  MakePlan ask;
  ask.job = "lm-1";
  ask.request = 1;
  ask.number = 1;
  const auto blocks = static_cast<int>(1 + rng.Below(6));
  ask.spec.name = "lm";
  ask.spec.model = {ModelFamily::kGpt2, "", "", 64, 32, blocks, 4, 0, 128};
  ask.spec.data.path = "text";
  ask.spec.data.sequence_length = 16;
  ask.spec.inner.batch_sequences = static_cast<int64_t>(4 + 4 * rng.Below(4));
  ask.spec.schedule.train_tokens = 1000;
  ask.spec.layout.island = IslandExtent::kAll;
  if (rng.Chance(0.3)) ask.spec.layout.replicas = 1;
  if (rng.Chance(0.2)) ask.spec.layout.schedule = "1f1b";
  ask.facts.model = ask.spec.model;
  ask.facts.train_sequences = ask.facts.validation_sequences = 100;
  ask.facts.layers.push_back({"embedding", 64 * 32 + 16 * 32});
  for (int b = 0; b < blocks; ++b) ask.facts.layers.push_back({absl::StrCat("block.", b), 12704});
  ask.facts.layers.push_back({"head", 64 * 32 + 64});
  const size_t workers = 1 + rng.Below(4);
  for (size_t w = 1; w <= workers; ++w) {
    const std::string name = absl::StrCat("w", w);
    PlanWorker& worker = ask.workers.emplace_back();
    worker.member = {name, 5, absl::StrCat("tcp://", name, ":1"), ""};
    worker.site = rng.Chance(0.5) ? "near" : "far";
    worker.devices.resize(1 + rng.Below(2),
                          {"cpu", int64_t{1} << 30, static_cast<int32_t>(1 + rng.Below(2))});
  }
  return ask;
}

// Links and times that workers report.
void Measure(Rng& rng, const MakePlan& ask, IslandPlanner& planner) {
  const uint64_t digest = DigestOf(ask.facts.model, ask.spec.data.sequence_length);
  for (const PlanWorker& worker : ask.workers) {
    const NodeId& name = worker.member.worker;
    JobPrepared prepared;
    prepared.job = ask.job;
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
    for (const PlanWorker& other : ask.workers) {
      if (other.member.worker == name) continue;
      const double rate = other.site == worker.site ? 1e9 : 1e6 * (1.0 + rng.Below(20));
      links.links.push_back({name, other.member.worker, 1'000'000, rate, 0.01, 20});
    }
    planner.OnWorkerMessage(Instant{}, {name, 5, links});
  }
}

PreviewedPlan PreviewOf(const IslandPlanner& planner, const MakePlan& ask) {
  Previews previews;
  std::promise<absl::StatusOr<Preview>> answer;
  previews.Ask(SteadyNow(), planner.book(), std::vector{ask}, kLimit,
               [&](absl::StatusOr<Preview> preview) { answer.set_value(std::move(preview)); });
  auto future = answer.get_future();
  REQUIRE(future.wait_for(kWait) == std::future_status::ready);
  absl::StatusOr<Preview> preview = future.get();
  REQUIRE(preview.ok());
  REQUIRE(preview->plans.size() == 1);
  return preview->plans[0];
}

TEST_CASE("50 generated jobs and clusters: the preview is the plan that the island is given") {
  int plans = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    INFO(seed);
    Rng rng(seed);
    std::promise<PlanMade> answer;
    IslandPlanner planner(
        [&](CoordinatorEvent event) { answer.set_value(std::get<PlanMade>(std::move(event))); });
    MakePlan ask = Generated(rng);
    Measure(rng, ask, planner);
    const PreviewedPlan preview = PreviewOf(planner, ask);
    planner.Want(Instant{}, ask);
    CHECK(planner.Advance(Instant{}).send.empty());  // all has been measured
    auto future = answer.get_future();
    REQUIRE(future.wait_for(kWait) == std::future_status::ready);
    const PlanMade live = future.get();
    CHECK(preview.made.plan.status() == live.plan.status());
    REQUIRE(preview.made.plan.ok() == live.plan.ok());
    if (!live.plan.ok()) continue;
    ++plans;
    CHECK(Bytes(*preview.made.plan) == Bytes(*live.plan));
    if (seed % 10 != 0) continue;
    // With a plan in force both say what it takes now.
    ask.current = *live.plan;
    CHECK(PreviewOf(planner, ask).made.current_step_ns > 0);
  }
  CHECK(plans >= 40);
}

TEST_CASE("the core requests a preview with the planner's request") {
  testing::World world;
  testing::StartShared(world);
  const auto job = world.core().Jobs(world.now()).front().job;
  const std::vector<MakePlan> asks = world.core().PlanRequests(job);
  REQUIRE(asks.size() == 1);
  CHECK(asks[0].island == 0);
  CHECK(asks[0].number == 2);
  CHECK(asks[0].busy);
  REQUIRE(asks[0].current);
  CHECK(asks[0].current->number == 1);
  CHECK(asks[0].workers.size() == 3);
  PlanMade made{job, 0, 0};
  made.plan = *asks[0].current;
  CHECK(world.core().WhyPlanIsKept(made) == "the same layout is still the best");
  CHECK(world.core().IdleWorkers().empty());
}

TEST_CASE("a job that is not submitted gets islands of idle workers, as its layout says") {
  Rng rng(1);
  IslandPlanner planner([](const CoordinatorEvent&) {});
  MakePlan plan = Generated(rng);
  while (plan.workers.size() != 4) plan = Generated(rng);
  plan.workers[0].site = plan.workers[1].site = "near";
  plan.workers[2].site = plan.workers[3].site = "far";
  Measure(rng, plan, planner);
  GroupWorkers ask{"", 0, plan.spec, plan.facts, plan.workers};
  ask.spec.layout = {};
  ask.spec.outer.max_islands = 8;
  for (const auto& [extent, islands] :
       {std::pair(IslandExtent::kAll, 1), std::pair(IslandExtent::kSite, 2),
        std::pair(IslandExtent::kWorker, 4)}) {
    ask.spec.layout.island = extent;
    Previews previews;
    std::promise<absl::StatusOr<Preview>> answer;
    previews.Ask(SteadyNow(), planner.book(), ask, kLimit,
                 [&](absl::StatusOr<Preview> preview) { answer.set_value(std::move(preview)); });
    auto future = answer.get_future();
    REQUIRE(future.wait_for(kWait) == std::future_status::ready);
    const absl::StatusOr<Preview> preview = future.get();
    REQUIRE(preview.ok());
    CHECK(preview->plans.size() == static_cast<size_t>(islands));
    for (const PreviewedPlan& island : preview->plans) CHECK(island.made.plan.ok());
  }
}

}  // namespace
}  // namespace atl
