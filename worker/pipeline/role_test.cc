#include "worker/pipeline/role.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

constexpr auto F = PlanOpKind::kForward, B = PlanOpKind::kInputGradient,
               W = PlanOpKind::kWeightGradient;
constexpr int32_t kLayers = 6;

// Programs are added by the tests that look at them.
IslandPlan Replicas(std::vector<std::vector<PlanStage>> replicas) {
  IslandPlan plan;
  plan.number = 1;
  for (std::vector<PlanStage>& stages : replicas) {
    plan.replicas.push_back({std::move(stages), 1, 3});
  }
  return plan;
}

std::vector<std::string> Syncs(const DeviceRole& role) {
  std::vector<std::string> all;
  for (const SyncTask& task : role.syncs) {
    const char* what = task.what == SyncTask::What::kLayer   ? "layer "
                       : task.what == SyncTask::What::kTable ? "table "
                                                             : "rest ";
    std::string text = what + std::to_string(task.layer) + " among";
    for (const DeviceGroup& group : role.groups) {
      if (group.name != task.group) continue;
      for (const std::string& device : group.devices) text += " " + device;
    }
    all.push_back(text);
  }
  return all;
}

using Texts = std::vector<std::string>;

TEST_CASE("each layer is synchronised among those that hold it, last layer first") {
  const IslandPlan plan = Replicas({{{0, 4, {"w1/0"}}, {4, 2, {"w1/1"}}}, {{0, 6, {"w2/0"}}}});
  REQUIRE(Syncs(MakeDeviceRole(plan, "w1/0", kLayers, TiedTable::kNone)) ==
          Texts{"layer 3 among w1/0 w2/0", "layer 2 among w1/0 w2/0", "layer 1 among w1/0 w2/0",
                "layer 0 among w1/0 w2/0"});
  REQUIRE(Syncs(MakeDeviceRole(plan, "w1/1", kLayers, TiedTable::kNone)) ==
          Texts{"layer 5 among w1/1 w2/0", "layer 4 among w1/1 w2/0"});
  const DeviceRole both = MakeDeviceRole(plan, "w2/0", kLayers, TiedTable::kNone);
  REQUIRE(both.syncs.size() == 6);
  // Layers with the same holders share a group.
  REQUIRE(both.groups ==
          std::vector<DeviceGroup>{{"sync/0", {"w1/1", "w2/0"}}, {"sync/1", {"w1/0", "w2/0"}}});
}

TEST_CASE("a tied table is shared by embeddings and heads, what is beside it by embeddings") {
  const IslandPlan plan = Replicas({{{0, 4, {"w1/0"}}, {4, 2, {"w1/1"}}}, {{0, 6, {"w2/0"}}}});
  const DeviceRole embedding = MakeDeviceRole(plan, "w1/0", kLayers, TiedTable::kTrained);
  REQUIRE_FALSE(embedding.table_copy);
  REQUIRE(Syncs(embedding) == Texts{"layer 3 among w1/0 w2/0", "layer 2 among w1/0 w2/0",
                                    "layer 1 among w1/0 w2/0", "table 0 among w1/0 w1/1 w2/0",
                                    "rest 0 among w1/0 w2/0"});
  const DeviceRole head = MakeDeviceRole(plan, "w1/1", kLayers, TiedTable::kTrained);
  REQUIRE(head.table_copy);
  REQUIRE(Syncs(head) == Texts{"layer 5 among w1/1 w2/0", "layer 4 among w1/1 w2/0",
                               "table 0 among w1/0 w1/1 w2/0"});
  REQUIRE_FALSE(
      MakeDeviceRole(plan, "w2/0", kLayers, TiedTable::kTrained).table_copy);  // both in one stage
}

TEST_CASE("one replica synchronises nothing but a tied table between its ends") {
  const IslandPlan line = Replicas({{{0, 3, {"w1/0"}}, {3, 2, {"w1/1"}}, {5, 1, {"w2/0"}}}});
  REQUIRE(MakeDeviceRole(line, "w1/0", kLayers, TiedTable::kNone).syncs.empty());
  REQUIRE(Syncs(MakeDeviceRole(line, "w1/0", kLayers, TiedTable::kTrained)) ==
          Texts{"table 0 among w1/0 w2/0"});
  REQUIRE(Syncs(MakeDeviceRole(line, "w1/1", kLayers, TiedTable::kTrained)).empty());
  REQUIRE(Syncs(MakeDeviceRole(line, "w2/0", kLayers, TiedTable::kTrained)) ==
          Texts{"table 0 among w1/0 w2/0"});
  // Both ends on one device, in stages of their own: it adds its two gradients.
  const IslandPlan v = Replicas({{{0, 3, {"w1/0"}}, {3, 2, {"w1/1"}}, {5, 1, {"w1/0"}}}});
  REQUIRE(Syncs(MakeDeviceRole(v, "w1/0", kLayers, TiedTable::kTrained)) == Texts{"table 0 among"});
  REQUIRE(MakeDeviceRole(v, "w1/0", kLayers, TiedTable::kTrained).table_copy);
}

TEST_CASE("tensor-parallel ranks have groups of their own, and neighbours of their rank") {
  const IslandPlan plan =
      Replicas({{{0, 4, {"a/0", "a/1"}}, {4, 2, {"a/2", "a/3"}}}, {{0, 6, {"b/0", "b/1"}}}});
  const DeviceRole role = MakeDeviceRole(plan, "a/1", kLayers, TiedTable::kNone);
  REQUIRE(role.rank == 1);
  REQUIRE(role.stages[0].next == "a/3");
  REQUIRE(role.stages[0].before.empty());
  REQUIRE(role.stages[0].tensor_group == "tensor/0");
  REQUIRE(MakeDeviceRole(plan, "a/3", kLayers, TiedTable::kNone).stages[0].tensor_group ==
          "tensor/1");
  REQUIRE(Syncs(role)[0] == "layer 3 among a/1 b/1");
}

TEST_CASE("slots are what the program needs at once") {
  IslandPlan plan = Replicas({{{0, 4, {"w1/0"}}, {4, 2, {"w1/1"}}}});
  const auto with = [&](const std::vector<PlanOp>& first) {
    plan.programs = {CompleteProgram(plan, "w1/0", first)};
    return MakeDeviceRole(plan, "w1/0", kLayers, TiedTable::kNone).stages[0];
  };
  const StageRole fill = with({{F, 0, 0},
                               {F, 0, 1},
                               {F, 0, 2},
                               {B, 0, 0},
                               {B, 0, 1},
                               {W, 0, 0},
                               {B, 0, 2},
                               {W, 0, 1},
                               {W, 0, 2}});
  REQUIRE(fill.forward_slots == 3);
  REQUIRE(fill.backward_slots == 2);
  REQUIRE_FALSE(fill.fused);
  const StageRole turns = with({{F, 0, 0},
                                {B, 0, 0},
                                {W, 0, 0},
                                {F, 0, 1},
                                {B, 0, 1},
                                {W, 0, 1},
                                {F, 0, 2},
                                {B, 0, 2},
                                {W, 0, 2}});
  REQUIRE(turns.forward_slots == 1);
  REQUIRE(turns.backward_slots == 1);
  REQUIRE(turns.fused);  // stage 0 sends no gradient between B and W
}

TEST_CASE("ranks_of_groups_of_unlike_size_know_whom_they_send_to_and_receive_from") {
  const IslandPlan plan =
      Replicas({{{0, 2, {"w1/0", "w1/1"}}, {2, 2, {"w2/0", "w2/1", "w2/2"}}, {4, 2, {"w3/0"}}}});
  using Receivers = std::vector<std::pair<int32_t, std::string>>;
  const DeviceRole first = MakeDeviceRole(plan, "w1/0", kLayers, TiedTable::kNone);
  REQUIRE(first.ranks == 2);
  REQUIRE(first.stages[0].to_next == Receivers{{0, "w2/0"}, {2, "w2/2"}});
  REQUIRE(first.stages[0].next == "w2/0");
  const DeviceRole third = MakeDeviceRole(plan, "w2/2", kLayers, TiedTable::kNone);
  REQUIRE(third.ranks == 3);
  REQUIRE(third.stages[0].before == "w1/0");
  REQUIRE(third.stages[0].to_before.empty());
  REQUIRE(third.stages[0].next == "w3/0");
  REQUIRE(third.stages[0].to_next.empty());
  const DeviceRole last = MakeDeviceRole(plan, "w3/0", kLayers, TiedTable::kNone);
  REQUIRE(last.ranks == 1);
  REQUIRE(last.stages[0].before == "w2/0");
  REQUIRE(last.stages[0].to_before == Receivers{{0, "w2/0"}, {1, "w2/1"}, {2, "w2/2"}});
}

TEST_CASE("stages on one device hand over in each other's slots") {
  IslandPlan plan = Replicas({{{0, 2, {"w1/0"}}, {2, 2, {"w1/1"}}, {4, 2, {"w1/1"}}}});
  plan.replicas[0].micro_batches = 2;
  plan.programs = {CompleteProgram(plan, "w1/1",
                                   {{F, 1, 0},
                                    {F, 1, 1},
                                    {F, 2, 0},
                                    {F, 2, 1},
                                    {B, 2, 0},
                                    {B, 2, 1},
                                    {B, 1, 0},
                                    {B, 1, 1},
                                    {W, 1, 0},
                                    {W, 1, 1},
                                    {W, 2, 0},
                                    {W, 2, 1}})};
  const DeviceRole role = MakeDeviceRole(plan, "w1/1", kLayers, TiedTable::kNone);
  REQUIRE(role.stages[0].next_is_here);
  REQUIRE(role.stages[1].before_is_here);
  REQUIRE(role.stages[1].forward_slots == 2);   // from F of the stage before
  REQUIRE(role.stages[0].backward_slots == 2);  // from B of the stage after
  REQUIRE_FALSE(role.stages[0].fused);

  std::vector<PlanOp> turns;  // one micro-batch after the other, W with its B
  for (const int32_t m : {0, 1}) {
    for (const PlanOp& op : {PlanOp{F, 1, m}, PlanOp{F, 2, m}, PlanOp{B, 2, m}, PlanOp{B, 1, m}}) {
      turns.push_back(op);
    }
  }
  plan.programs = {CompleteProgram(plan, "w1/1", turns)};
  const DeviceRole fused = MakeDeviceRole(plan, "w1/1", kLayers, TiedTable::kNone);
  REQUIRE(fused.stages[0].backward_slots == 1);
  REQUIRE(fused.stages[0].fused);
  REQUIRE(fused.stages[1].fused);
}

}  // namespace
}  // namespace atl::worker
