#include <map>
#include <set>

#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

// Two workers at each of two sites, in replicas of two stages; `slower`: this one's blocks take
// twice as long.
PlanRequest TwoSites(const std::string& slower = "") {
  PlanRequest request = MakePlanRequest(6, 8);
  request.spec.layout.stages = 2;
  for (const char* name : {"a1", "a2", "b1", "b2"}) {
    PlanMember worker = MeasuredWorker(name, name == slower ? 2 : 1);
    worker.site = std::string(1, name[0]);
    request.members.push_back(worker);
  }
  for (const auto& [from, to] : {std::pair("a1", "a2"), std::pair("b1", "b2")}) {
    Link(request, from, to, 0.05, 1e9);
  }
  for (const char* from : {"a1", "a2"}) {
    for (const char* to : {"b1", "b2"}) Link(request, from, to, 1, 2e8);
  }
  return request;
}

std::map<std::string, std::set<int>> ListLayersByDevice(const std::vector<PlanReplica>& replicas) {
  std::map<std::string, std::set<int>> layers;
  for (const PlanReplica& replica : replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) {
        for (int i = 0; i < stage.layers; ++i) layers[device].insert(stage.first_layer + i);
      }
    }
  }
  return layers;
}

// How many layers the devices had before that they have now.
int CountInPlace(const std::vector<PlanReplica>& now, const std::vector<PlanReplica>& before) {
  auto had = ListLayersByDevice(before);
  int layers = 0;
  for (const auto& [device, its] : ListLayersByDevice(now)) {
    layers += static_cast<int>(
        std::count_if(its.begin(), its.end(), [&](int i) { return had[device].contains(i); }));
  }
  return layers;
}

// Changes the plan as if it had run with the two devices of each replica exchanged.
std::vector<PlanReplica> SwapDevices(std::vector<PlanReplica> replicas) {
  for (PlanReplica& replica : replicas) {
    const std::string first = replica.stages[0].devices[0], second = replica.stages[1].devices[0];
    for (PlanStage& stage : replica.stages) {
      REQUIRE(stage.devices.size() == 1);
      stage.devices[0] = stage.devices[0] == first ? second : first;
    }
  }
  return replicas;
}

TEST_CASE("of layouts that are as fast the one that leaves layers where they are is planned") {
  PlanRequest request = TwoSites();
  const IslandPlan first = Planned(request);
  request.number = 2;
  request.ran = first.replicas;
  CHECK(ListLayersByDevice(Planned(request).replicas) == ListLayersByDevice(first.replicas));
  request.ran = SwapDevices(first.replicas);
  CHECK(ListLayersByDevice(Planned(request).replicas) == ListLayersByDevice(request.ran));
}

TEST_CASE("after a loss the workers that are left keep their layers") {
  for (const char* lost : {"a2", "b1", "b2"}) {
    INFO(lost);
    PlanRequest request = TwoSites();
    for (PlanMember& member : request.members) member.site = "here";
    for (LinkProfile& link : request.links) link.bandwidth_bytes_per_s = 1e9;
    const IslandPlan first = Planned(request);
    request.number = 2;
    request.ran = SwapDevices(first.replicas);
    std::erase_if(request.members, [&](const PlanMember& m) { return m.member.worker == lost; });
    const std::vector<PlanReplica> next = Planned(request).replicas;
    CHECK(CountInPlace(next, request.ran) >= CountInPlace(SwapDevices(next), request.ran));
    CHECK(CountInPlace(next, request.ran) > 0);
  }
}

TEST_CASE("workers keep their layers when others join, whichever of these reach each other well") {
  for (const double between_new_ones : {2e8, 1e5}) {
    PlanRequest request = TwoSites();
    request.ran = Planned(request).replicas;
    request.number = 2;
    for (const char* name : {"c1", "d1"}) {
      PlanMember worker = request.members[0];
      worker.member.worker = name;
      worker.profiles[0].device = absl::StrCat(name, "/0");
      worker.site = std::string(1, name[0]);
      for (const char* other : {"a1", "a2", "b1", "b2"}) Link(request, other, name, 1, 2e8);
      request.members.push_back(worker);
    }
    Link(request, "c1", "d1", 1, between_new_ones);
    const IslandPlan next = Planned(request);
    REQUIRE(next.replicas.size() == 3);
    // Over a fast link between the new ones a faster plan takes one worker's half elsewhere.
    CHECK(CountInPlace(next.replicas, request.ran) >= (between_new_ones > 1e6 ? 12 : 16));
  }
}

TEST_CASE("devices that are slower there do not stay where their layers are") {
  PlanRequest request = TwoSites("b1");
  const IslandPlan first = Planned(request);
  request.number = 2;
  request.ran = SwapDevices(first.replicas);
  const IslandPlan next = Planned(request);
  CHECK(static_cast<double>(next.step_ns) < 1.011 * static_cast<double>(first.step_ns));
}

}  // namespace
}  // namespace atl
