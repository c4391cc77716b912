#include "coordinator/measurements/live_profile.h"

#include <catch2/catch.hpp>

#include "coordinator/plan_io/profile_file.h"
#include "coordinator/planner/planner.h"

namespace atl {
namespace {

using std::chrono::seconds;

// Two workers of one device each, measured, and the job whose model they measured.
struct Fixture {
  Instant now = Instant() + seconds(50);
  ProfileRegistry registry;
  std::vector<MemberView> members;
  JobView job;

  Fixture() {
    job.summary.job = "lm-1";
    job.spec.data.sequence_length = 32;
    job.facts.emplace();
    job.facts->model.hidden = 16;
    job.facts->model.heads = 2;
    job.facts->model.layers = 2;
    job.facts->layers = {{"embedding", 4096}, {"block0", 3000}, {"block1", 3000}, {"head", 4096}};
    for (const char* name : {"a", "b"}) {
      MemberView& member = members.emplace_back();
      member.name = name;
      member.attached = true;
      member.devices = {{"cpu", 1 << 30, 2}};
      member.site = name[0] == 'a' ? "here" : "";
      DeviceProfile profile{
          std::string(name) + "/0", "cpu", "1", ComputeModelDigest(job.facts->model, 32), {}};
      for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead}) {
        profile.layers.push_back({kind, 1, 2, 1'000'000, 2'000'000, 3'000'000, 40'000, 0.05,
                                  480'000, 8'192, 0, 4'096, 100});
      }
      registry.OnMessage(now, {name, 1, JobPrepared{"lm-1", *job.facts, {profile}}});
    }
    registry.OnMessage(
        now, {"a", 1, LinksMeasured{"lm-1", 1, {{"a", "b", 20'000'000, 1e7, 0.02, 20}}, ""}});
    now += seconds(7);
  }
};

TEST_CASE("a live profile has devices, the job's times and links with their age") {
  const Fixture fixture;
  const auto profile = LiveProfile(fixture.now, fixture.members, &fixture.job, fixture.registry);
  REQUIRE(profile.ok());
  CHECK(profile->job() == "lm-1");
  CHECK(profile->model_digest().size() == 16);
  REQUIRE(profile->cluster().devices_size() == 2);
  CHECK(profile->cluster().devices(0).id() == "a/0");
  CHECK(profile->cluster().devices(0).site() == "here");
  REQUIRE(profile->times_size() == 4);  // one type, one size, four layers
  CHECK(profile->times(1).weight_gradient_ns() == 3'000'000);
  CHECK(profile->times(1).spread_ratio() == 0.05);
  REQUIRE(profile->cluster().links_size() == 2);  // the other direction is taken to be equal
  CHECK(profile->cluster().links(0).age_s() == Approx(7));
  CHECK(profile->cluster().links(0).residual_ratio() == 0.02);
  CHECK(profile->assumptions() == "");
}

plan::Model MakePlanModel(const Fixture& fixture) {
  plan::Model model;
  model.name = "lm";
  for (const LayerSize& layer : fixture.job.facts->layers) {
    model.layers.push_back({layer.name, layer.elements, 1e6, 1, 1, 0});
  }
  return model;
}

TEST_CASE("what a coordinator says, the planner understands: times, memory and links alike") {
  const Fixture fixture;
  const auto profile = LiveProfile(fixture.now, fixture.members, &fixture.job, fixture.registry);
  REQUIRE(profile.ok());
  plan::Model model = MakePlanModel(fixture);
  plan::CostOptions options;
  const auto profiled = ToProfiled(*profile, &model, &options);
  INFO(profiled.status());
  REQUIRE(profiled.ok());
  const plan::Costs costs(model, profiled->table, options);
  const plan::StageCosts exact = costs.For(profiled->cluster.types[0], 1, 2);
  CHECK(exact.source() == plan::Source::kMeasured);
  CHECK(exact.Of(1, 3).forward_s == Approx(2e-3));
  CHECK(costs.For(profiled->cluster.types[0], 1, 4).source() == plan::Source::kInterpolated);
  CHECK(model.layers[1].stash_bytes == (8'192 + 2 * 4'096) / 2);
  CHECK(profiled->cluster.LinkBetween(0, 1).bytes_per_s == 1e7);
  CHECK(profiled->cluster.LinkBetween(1, 0).latency_s == Approx(0.02));
  CHECK(plan::PlanJob(profiled->cluster, costs, {.global_batch = 4, .tensor_parallel = {1}}, {})
            .ok());
}

TEST_CASE("times_by_size_that_workers_measure_reach_the_live_profile_and_a_plan_from_its_file") {
  Fixture fixture;
  LinkProfile link{"a", "b", 20'000'000, 1e7, 0.2, 20};
  link.times = {{1'000, 25'000'000}, {1'000'000, 140'000'000}};
  fixture.registry.OnMessage(fixture.now, {"a", 1, LinksMeasured{"lm-1", 2, {link}, ""}});
  const auto profile = LiveProfile(fixture.now, fixture.members, &fixture.job, fixture.registry);
  REQUIRE(profile.ok());
  const v1::Edge& edge = profile->cluster().links(0).edges(0);
  REQUIRE(edge.times_size() == 2);
  CHECK(edge.times(0).bytes() == 1'000);
  CHECK(edge.times(0).time_ns() == 25'000'000);
  CHECK(edge.times(1).time_ns() == 140'000'000);
  plan::Model model = MakePlanModel(fixture);
  plan::CostOptions options;
  const auto profiled = ToProfiled(*profile, &model, &options);
  REQUIRE(profiled.ok());
  const plan::Link live = plan::LinkFromProfile(link);
  const plan::Link file = profiled->cluster.LinkBetween(0, 1);
  for (const double bytes : {1.0, 1e3, 5e5, 1e6, 1e8}) {
    CHECK(file.Seconds(bytes) == Approx(live.Seconds(bytes)).epsilon(1e-9));
  }
  CHECK(file.Seconds(1e3) == Approx(0.025));
}

TEST_CASE("without a job there are devices and links, and no times; without workers, nothing") {
  const Fixture fixture;
  const auto profile = LiveProfile(fixture.now, fixture.members, nullptr, fixture.registry);
  REQUIRE(profile.ok());
  CHECK(profile->times_size() == 0);
  CHECK(profile->model_digest() == "");
  CHECK(profile->cluster().links_size() == 2);
  CHECK_FALSE(LiveProfile(fixture.now, {}, nullptr, fixture.registry).ok());
}

TEST_CASE("A lost request is rebuilt from what the coordinator knows") {
  PlanRequest request;
  request.facts.layers.assign(8, {"layer", 100});
  for (const char* name : {"w1", "w2"}) {
    PlanMember& member = request.members.emplace_back();
    member.member.worker = name;
    member.devices.resize(1);
  }
  JobView job;
  job.spec = request.spec;
  job.facts = request.facts;
  std::vector<MemberView> members(3);
  members[0].name = "w1";
  members[0].devices = request.members[0].devices;
  members[0].site = "paris";
  members[1].load.emplace();
  members[1].name = "w2";
  members[2].name = "w2";  // attached, but it has not said hello
  IslandPlan plan;
  plan.members = {request.members[0].member, request.members[1].member};
  const PlanRequest again = RequestFor(job, plan, members, ProfileRegistry());
  REQUIRE(again.members.size() == 1);
  CHECK(again.members[0].site == "paris");
  CHECK(again.facts.layers.size() == 8);
}

}  // namespace
}  // namespace atl
