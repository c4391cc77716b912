#include "common/model/outer_copies.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

IslandPlan ThreeStages() {
  IslandPlan plan;
  PlanReplica replica;
  for (int32_t stage = 0; stage < 3; ++stage) {
    const NodeId worker(1, static_cast<char>('a' + stage));
    plan.members.push_back({worker, 1, "", ""});
    replica.stages.push_back({stage, 1, {worker + "/0"}, {}});
  }
  plan.replicas = {replica};
  plan.members.push_back({"lender", 1, "", ""});
  return plan;
}

using Workers = std::vector<NodeId>;
using Kept = std::map<NodeId, int64_t>;

TEST_CASE("the members behind an owner keep copies, each once, as far as there are any") {
  const IslandPlan plan = ThreeStages();
  CHECK(WithCopies(plan, {"b"}, 0) == Workers{"b"});
  CHECK(WithCopies(plan, {"b"}, 1) == Workers{"b", "c"});
  CHECK(WithCopies(plan, {"c"}, 1) == Workers{"c", "a"});
  CHECK(WithCopies(plan, {"a", "b"}, 1) == Workers{"a", "b"});
  CHECK(WithCopies(plan, {"a", "b"}, 2) == Workers{"a", "b", "c"});
  CHECK(WithCopies(plan, {"a"}, 7) == Workers{"a", "b", "c"});
}

TEST_CASE("a worker keeps what it owns and its share of the copies") {
  const std::vector<LayerSize> layers = {{"x", 1000}, {"y", 200}, {"z", 30}};
  CHECK(KeptElements(ThreeStages(), layers, 0, kQuantBlock) ==
        Kept{{"a", 1000}, {"b", 200}, {"c", 30}});
  CHECK(KeptElements(ThreeStages(), layers, 1, kQuantBlock) ==
        Kept{{"a", 1030}, {"b", 1200}, {"c", 230}});
}

}  // namespace
}  // namespace atl
