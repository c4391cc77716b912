#include "rehearsal/run.h"

#include <catch2/catch.hpp>
#include <set>

#include "rehearsal/testing/small_scene.h"

namespace atl::rehearsal {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

RunResult PlayOne(const Scene& scene, const std::vector<Failure>& failures, uint64_t seed = 1,
                  Duration until = hours(24 * 30)) {
  Searches searches(&scene);
  absl::StatusOr<RunResult> result = Play(scene, searches, failures, until, seed);
  INFO(result.status().message());
  REQUIRE(result.ok());
  return *std::move(result);
}

double Of(const RunResult& result, Use use) { return result.uses[static_cast<size_t>(use)]; }

// The time of a step of the island of these machines.
double StepSeconds(const Scene& scene) {
  Searches searches(&scene);
  PlanRequest request;
  request.spec = scene.spec;
  for (const SceneWorker& worker : scene.workers) {
    request.members.push_back({{worker.name, 1}, worker.site, {}, {}});
  }
  const absl::StatusOr<IslandPlan> plan = searches.Find(request);
  REQUIRE(plan.ok());
  return 1e-9 * static_cast<double>(plan->step_ns);
}

std::vector<Failure> DrawAll(const Scene& scene, uint64_t seed) {
  const auto failures = ParseFailures(
      "[[failures]]\nof = \"a100-80\"\nmtbf_hours = 4\nrepair = \"lognormal(10 min, 1)\"\n"
      "[[failures]]\nkind = \"node\"\nmtbf_hours = 8\nrepair = \"exponential(20 min)\"\n"
      "[[failures]]\nkind = \"worker\"\nmtbf_hours = 4\n"
      "[[failures]]\nkind = \"preemption\"\nmtbf_hours = 6\nnotice = \"2 min\"\nrepair = \"1 h\"\n"
      "[[failures]]\nkind = \"server\"\nmtbf_hours = 5\nrepair = \"1 min\"\n"
      "[[failures]]\nkind = \"coordinator\"\nmtbf_hours = 9\nrepair = \"1 min\"\n"
      "[[failures]]\nkind = \"link\"\nmtbf_hours = 6\nrepair = \"5 min\"\n",
      "f.toml");
  REQUIRE(failures.ok());
  return *FailureSource::Make(&*failures, &scene)->Draw(hours(48), seed);
}

void CheckSums(const Scene& scene, const RunResult& result) {
  CHECK(result.device_seconds() ==
        Approx(Seconds(result.took) * static_cast<double>(scene.devices())).epsilon(1e-9));
  for (const double use : result.uses) CHECK(use >= -1e-6);
}

TEST_CASE("without failures one island's steps are nearly all there is") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(4'000), 1, 2);
  const RunResult result = PlayOne(scene, {});
  REQUIRE(result.finished);
  CHECK(result.tokens == 4'000 * 64 * 1024);
  CHECK(Of(result, Use::kComputing) == Approx(2 * 4'000 * StepSeconds(scene)).epsilon(1e-3));
  CHECK(Of(result, Use::kReplayed) < 2 * 16 * StepSeconds(scene));
  CHECK(result.costs.empty());
  CheckSums(scene, result);
}

// By hand: the two machines hold all layers each (replicas), so the other one goes on with what it
// has. Until the failure is detected nothing is computed, then the step under way is made anew with
// half of the devices; when the machine is back, both go on.
TEST_CASE("a machine's failure costs its detection, two set-ups and the slower steps between") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(8'000), 1, 2);
  const RunResult calm = PlayOne(scene, {});
  Failure failure{hours(1), FailureKind::kNode, "n0-1", hours(1)};
  failure.workers = {"n0-1"};
  REQUIRE(calm.took > hours(2));
  const RunResult result = PlayOne(scene, {failure});
  REQUIRE(result.finished);
  CheckSums(scene, result);
  REQUIRE(result.costs.size() == 1);
  const UseSums& uses = result.costs[0].uses;
  const Times& times = scene.times;
  // The one that is left waits for the detection and the prepared plan, and for the second set-up
  // when the other one is back.
  const double stands = Seconds(times.detect + times.set_up);
  CHECK(uses[static_cast<size_t>(Use::kReplanning)] > stands);
  CHECK(uses[static_cast<size_t>(Use::kReplanning)] < 2 * (stands + Seconds(times.plan)) + 20);
  // The machine is down for an hour; then its process starts, opens the job and waits for a plan.
  CHECK(uses[static_cast<size_t>(Use::kWaiting)] >= 3600);
  CHECK(uses[static_cast<size_t>(Use::kWaiting)] < 3600 + 60);
  const double longer = Seconds(result.took - calm.took);
  CHECK(longer > stands);
  CHECK(longer < 3600);
}

TEST_CASE("the same seed gives the same bits") {
  JobSpec spec = testing::MakeSpec(60'000);
  spec.checkpoint.peer_copies = 1;
  spec.schedule.checkpoint_every_steps = 32;
  const Scene scene = testing::MakeSmallScene(spec, 2, 3);
  const std::vector<Failure> failures = DrawAll(scene, 5);
  const RunResult one = PlayOne(scene, failures, 5, hours(12));
  const RunResult again = PlayOne(scene, failures, 5, hours(12));
  CHECK(one.decisions == again.decisions);
  CHECK(one.took == again.took);
  CHECK(one.tokens == again.tokens);
  CHECK(one.uses == again.uses);
  CHECK(one.events == again.events);
  CHECK(one.price == again.price);
}

TEST_CASE("leaps change neither decisions nor times") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    INFO("seed " << seed);
    JobSpec spec = testing::MakeSpec(30'000);
    spec.schedule.checkpoint_every_steps = seed == 2 ? 32 : 0;
    spec.checkpoint.peer_copies = seed == 3 ? 1 : 0;
    Scene scene = testing::MakeSmallScene(spec, 2, 3);
    const std::vector<Failure> failures = DrawAll(scene, seed);
    const RunResult leaping = PlayOne(scene, failures, seed, hours(6));
    scene.leaps = false;
    const RunResult stepping = PlayOne(scene, failures, seed, hours(6));
    CHECK(leaping.decisions == stepping.decisions);
    CHECK(leaping.rounds == stepping.rounds);
    CHECK(leaping.tokens == stepping.tokens);
    CHECK(Seconds(leaping.took) == Approx(Seconds(stepping.took)).epsilon(1e-3));
    for (size_t u = 0; u < leaping.uses.size(); ++u) {
      CHECK(leaping.uses[u] == Approx(stepping.uses[u]).epsilon(1e-3).margin(1));
    }
    CHECK(leaping.price == Approx(stepping.price).epsilon(1e-3));
    REQUIRE(leaping.costs.size() == stepping.costs.size());
    for (size_t i = 0; i < leaping.costs.size(); ++i) {
      CHECK(leaping.costs[i].total() == Approx(stepping.costs[i].total()).epsilon(1e-3).margin(1));
    }
    CHECK(leaping.leaps > 0);
    CHECK(stepping.leaps == 0);
    CHECK(leaping.events < stepping.events);
  }
}

TEST_CASE("where device-time went adds up under all kinds of failures, and the job goes on") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    INFO("seed " << seed);
    const Scene scene = testing::MakeSmallScene(testing::MakeSpec(200'000), 2, 3);
    const RunResult result = PlayOne(scene, DrawAll(scene, seed), seed, hours(24));
    CheckSums(scene, result);
    CHECK(result.rounds > 100);
    CHECK(result.goodput() > 0.1);
    CHECK(result.goodput() < 1);
    CHECK(result.failures > 10);
    CHECK(!result.costs.empty());
  }
}

Failure At(double hour, FailureKind kind, const std::string& subject, Duration lasts,
           std::vector<std::string> workers = {}) {
  Failure failure{FromSeconds(3600 * hour), kind, subject, lasts};
  failure.workers = std::move(workers);
  return failure;
}

TEST_CASE("an island that cannot have the layout that the job fixes any more goes on without it") {
  JobSpec spec = testing::MakeSpec(12'000);
  spec.layout.replicas = 4;
  const Scene scene = testing::MakeSmallScene(spec, 1, 4);
  const RunResult result =
      PlayOne(scene, {At(0.2, FailureKind::kNode, "n0-3", Duration::max(), {"n0-3"})});
  CHECK(result.finished);
}

TEST_CASE("a deadline that no plan meets is refused, as the coordinator does") {
  JobSpec spec = testing::MakeSpec(1'000'000);
  spec.layout.deadline_hours = 0.001;
  const Scene scene = testing::MakeSmallScene(spec, 1, 2);
  Searches searches(&scene);
  PlanRequest request;
  request.spec = scene.spec;
  request.members = {{{"n0-0", 1}, "site-0", {}, {}}, {{"n0-1", 1}, "site-0", {}, {}}};
  CHECK(absl::IsFailedPrecondition(searches.Find(request).status()));
  request.number = 2;  // it trains already
  CHECK(searches.Find(request).ok());
}

TEST_CASE("what the job leaves out is not in the scene, and names that are not there are refused") {
  JobSpec spec = testing::MakeSpec(100);
  spec.layout.exclude = {"n0-1"};
  const Scene scene = testing::MakeSmallScene(spec, 1, 3);
  REQUIRE(scene.workers.size() == 2);
  CHECK(scene.workers[1].name == "n0-2");
  spec.layout.exclude = {"n9"};
  CHECK(absl::IsInvalidArgument(MakeScene(spec, testing::MakeCluster(1, 3), 0.45).status()));
}

TEST_CASE("failures that overlap end with the last one") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(200'000), 1, 2);
  // The shorter failure of the server and of the coordinator does not end the longer one.
  const std::vector<Failure> failures = {
      At(0.5, FailureKind::kServer, "server-0", hours(2)),
      At(0.6, FailureKind::kServer, "server-0", seconds(60)),
  };
  const RunResult both = PlayOne(scene, failures, 1, hours(2));
  const RunResult one = PlayOne(scene, {failures[0]}, 1, hours(2));
  CHECK(both.tokens == one.tokens);
}

// All parts of a pull share the link, and arrive at its end, minutes after it began.
TEST_CASE("a pull over a slow link takes as long as its bytes do") {
  JobSpec spec = testing::MakeSpec(int64_t{1} << 30);
  spec.outer.wait_for_all = true;
  Scene scene = testing::MakeSmallScene(spec, 2, 2);
  constexpr double kBytesPerSecond = 10e6;
  for (auto& [ends, link] : scene.links) {
    if (ends.first != ends.second) link.bytes_per_s = kBytesPerSecond;
  }
  const double once_s = 4 * static_cast<double>(scene.parameters()) / kBytesPerSecond;
  REQUIRE(once_s > 120);
  const RunResult result = PlayOne(scene, {}, 1, hours(6));
  const double round_s = Seconds(result.took) / static_cast<double>(result.rounds);
  CHECK(round_s < 1.3 * (2 * once_s + 16 * StepSeconds(scene)));
}

TEST_CASE("devices without a part in the plan wait, while their worker's others compute") {
  JobSpec spec = testing::MakeSpec(2'000);
  spec.layout.replicas = spec.layout.stages = spec.layout.tensor_parallel = 1;
  plan::Cluster cluster = testing::MakeCluster(1, 2);
  for (int m = 0; m < 2; ++m) {
    plan::Device second = cluster.devices[static_cast<size_t>(m)];
    second.id += "b";
    cluster.devices.push_back(second);
  }
  absl::StatusOr<Scene> scene = MakeScene(spec, cluster, 0.45);
  REQUIRE(scene.ok());
  REQUIRE(PlaceServices({}, "", *scene).ok());
  const RunResult result = PlayOne(*scene, {});
  REQUIRE(result.finished);
  CheckSums(*scene, result);
  // Three of four, from when the plan is set up.
  CHECK(Of(result, Use::kWaiting) >= 0.9 * 3 * Seconds(result.took));
  CHECK(Of(result, Use::kComputing) <= Seconds(result.took));
}

TEST_CASE("owners at each site push and pull their share") {
  JobSpec spec = testing::MakeSpec(100);
  spec.layout.island = IslandScope::kAll;
  const Scene scene = testing::MakeSmallScene(spec, 2, 2);
  Searches searches(&scene);
  Planner planner(&scene, &searches);
  PlanRequest request;
  request.spec = scene.spec;
  request.number = 1;
  std::vector<NodeId> members;
  for (const SceneWorker& worker : scene.workers) {
    request.members.push_back({{worker.name, 1}, worker.site, {}, {}});
  }
  const PlanMade made = planner.Plan(0, request, std::nullopt, 1);
  REQUIRE(made.plan.ok());
  std::set<std::string> sites;
  for (const IslandMember& member : made.plan->members) {
    members.push_back(member.worker);
    sites.insert("site-" + member.worker.substr(1, 1));
  }
  const std::map<std::string, double> shares = planner.ShareBySite(0, members);
  CHECK(shares.size() == sites.size());
  double sum = 0;
  for (const auto& [site, share] : shares) {
    CHECK(share > 0);
    sum += share;
  }
  CHECK(sum == Approx(1));
  for (const auto& [member, devices] : planner.CountDevices(0, members)) CHECK(devices == 1);
}

TEST_CASE("a lost disk, a worker's or a server's, does not end the job") {
  JobSpec spec = testing::MakeSpec(20'000);
  spec.schedule.checkpoint_every_steps = 32;
  const Scene scene = testing::MakeSmallScene(spec, 2, 2);
  const RunResult result = PlayOne(scene,
                                   {At(0.2, FailureKind::kDisk, "server-0", Duration::max()),
                                    At(0.4, FailureKind::kDisk, "n0-0", Duration::max(), {"n0-0"})},
                                   1, hours(48));
  CHECK(result.finished);
  CheckSums(scene, result);
}

TEST_CASE("a site that is lost for good takes its servers and the coordinator along") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(200'000), 2, 2);
  const RunResult result = PlayOne(
      scene,
      {At(0.5, FailureKind::kSite, scene.coordinator_site, Duration::max(), {"n0-0", "n0-1"})}, 1,
      hours(3));
  const RunResult calm = PlayOne(scene, {}, 1, hours(3));
  CheckSums(scene, result);
  CHECK(result.tokens <= calm.tokens / 4);
  CHECK(result.tokens > 0);
}

TEST_CASE("the loss of time is owed to the failure that caused it") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(200'000), 1, 3);
  // The second one takes nothing that the first has not taken.
  const RunResult result = PlayOne(scene,
                                   {At(0.5, FailureKind::kNode, "n0-2", hours(2), {"n0-2"}),
                                    At(1, FailureKind::kDevice, "n0-2/0", seconds(1), {"n0-2"})},
                                   1, hours(3));
  REQUIRE(!result.costs.empty());
  CHECK(result.costs[0].failure.kind == FailureKind::kNode);
  CHECK(result.costs[0].total() >= 2 * 3600);
  if (result.costs.size() > 1) CHECK(result.costs[1].total() < 60);
  // The coordinator's loss is one, too.
  const RunResult lost =
      PlayOne(scene, {At(0.5, FailureKind::kCoordinator, "coordinator", hours(1))}, 1, hours(2));
  REQUIRE(lost.costs.size() == 1);
  CHECK(lost.costs[0].failure.kind == FailureKind::kCoordinator);
}

TEST_CASE("a link's short outage loses no message") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(20'000), 2, 2);
  std::vector<Failure> failures;
  for (int i = 0; i < 200; ++i) {
    failures.push_back(At(0.1 + 0.01 * i, FailureKind::kLink,
                          i % 2 == 0 ? "site-1>site-0" : "site-0>site-1", seconds(3)));
  }
  const RunResult result = PlayOne(scene, failures);
  const RunResult calm = PlayOne(scene, {});
  REQUIRE(result.finished);
  CHECK(Seconds(result.took) < 1.05 * Seconds(calm.took) + 200 * 6);
}

TEST_CASE("an island that is cut off is not waited for longer than its grace") {
  JobSpec spec = testing::MakeSpec(400'000);
  spec.outer.grace_seconds = 30;
  const Scene scene = testing::MakeSmallScene(spec, 2, 2);
  const std::string far = scene.coordinator_site == "site-0" ? "site-1" : "site-0";
  const std::string to = far + ">" + scene.coordinator_site;
  const RunResult cut =
      PlayOne(scene, {At(1, FailureKind::kLink, to, Duration::max())}, 1, hours(6));
  const RunResult calm = PlayOne(scene, {}, 1, hours(6));
  // The other island's rounds go on.
  CHECK(cut.rounds > calm.rounds / 2);
}

}  // namespace
}  // namespace atl::rehearsal
