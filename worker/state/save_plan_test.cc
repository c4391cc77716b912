#include "worker/state/save_plan.h"

#include <bit>
#include <catch2/catch.hpp>
#include <set>

#include "worker/state/replay_log.h"

namespace atl::worker {
namespace {

HeldLayer Held(int32_t layer, Range owned, int64_t elements = 100) {
  HeldLayer held;
  held.shard.layer = layer;
  held.elements = elements;
  held.written = held.whole = true;
  held.owned = owned;
  held.optimizer_step = 5;
  return held;
}

// Returns what all members have once the plan is carried out.
HeldSaves Carried(const SavePlan& plan, int64_t save, const std::set<NodeId>& dead = {}) {
  HeldSaves saves;
  for (const auto& [worker, order] : plan.orders) {
    if (dead.contains(worker)) continue;
    HeldSave& held = saves[worker].emplace_back(HeldSave{save, 5, {}});
    for (const Unit& unit : order.own) held.units.push_back({unit, 100, Tier::kMemory});
    for (const SaveFetch& fetch : order.fetch) {
      held.units.push_back({fetch.unit, 100, Tier::kMemory});
    }
  }
  return saves;
}

// Stages without replicas.
const Holdings kPipeline = {{"a", {Held(0, {0, 100}), Held(1, {0, 100})}},
                            {"b", {Held(2, {0, 100}), Held(3, {0, 100})}},
                            {"c", {Held(4, {0, 100})}}};

TEST_CASE("a pipeline's units have a copy each, with another worker") {
  const int64_t copies = GENERATE(1, 2);
  const SavePlan plan = PlanSave(kPipeline, copies, {});
  REQUIRE(plan.copied);
  REQUIRE(plan.units.size() == 5);
  std::map<int32_t, std::set<NodeId>> holders;
  for (const auto& [worker, order] : plan.orders) {
    for (const Unit& unit : order.own) holders[unit.shard.layer].insert(worker);
    for (const SaveFetch& fetch : order.fetch) {
      REQUIRE(fetch.from != worker);
      holders[fetch.unit.shard.layer].insert(worker);
    }
  }
  for (const auto& [layer, workers] : holders) REQUIRE(std::ssize(workers) == copies + 1);
}

TEST_CASE("a pipeline over sites keeps its copies at other sites: a site may be lost") {
  const Holdings pipeline = {{"a1", {Held(0, {0, 100})}},
                             {"a2", {Held(1, {0, 100})}},
                             {"b1", {Held(2, {0, 100})}},
                             {"b2", {Held(3, {0, 100})}}};
  const SavePlan plan = PlanSave(pipeline, 1, {{"a1", "a"}, {"a2", "a"}, {"b1", "b"}, {"b2", "b"}});
  for (const std::set<NodeId>& lost : {std::set<NodeId>{"a1", "a2"}, {"b1", "b2"}}) {
    Holdings left;
    for (int32_t layer = 0; layer < 4; ++layer) {
      left[lost.contains("a1") ? "b1" : "a1"].push_back(Held(layer, {0, 100}));
    }
    REQUIRE(PlanRestore(left, Carried(plan, 7, lost), 7).kept);
  }
  for (const auto& [worker, order] : plan.orders) REQUIRE(order.fetch.size() == 1);
}

TEST_CASE("a pipeline's state survives as many lost members as it has copies, and not more") {
  const SavePlan plan = PlanSave(kPipeline, 1, {});
  for (const NodeId dead : {"a", "b", "c"}) {
    Holdings left;
    for (int32_t layer = 0; layer < 5; ++layer) {
      left[dead == "a" ? "b" : "a"].push_back(Held(layer, {0, 100}));
    }
    const StateTransferPlan transfers = PlanRestore(left, Carried(plan, 7, {dead}), 7);
    INFO(transfers.reason);
    REQUIRE(transfers.kept);
    REQUIRE(transfers.optimizer_step == 5);
    size_t sources = 0;
    for (const StateTransfer& move : transfers.transfers.begin()->second) {
      for (const StateSource& source : move.sources) {
        REQUIRE(source.save == 7);
        REQUIRE(source.from != dead);
        ++sources;
      }
    }
    REQUIRE(sources == 5);
  }
  const StateTransferPlan lost = PlanRestore(kPipeline, Carried(plan, 7, {"a", "b"}), 7);
  REQUIRE(!lost.kept);
  REQUIRE(lost.reason.find("no member holds layer") == 0);
  REQUIRE(!PlanRestore(kPipeline, Carried(plan, 7), 8).kept);
}

TEST_CASE("the remote tier is read for what no member has, and by each for itself") {
  const std::vector<HeldLayer> both = {Held(0, {0, 100}), Held(1, {0, 100})};
  const Holdings left = {{"a", both}, {"b", both}};
  HeldSaves saves;
  for (const NodeId worker : {"a", "b"}) {
    HeldSave& held = saves[worker].emplace_back(HeldSave{7, 5, {}});
    for (const int32_t layer : {0, 1}) {
      held.units.push_back({{LayerShard{layer, 0, {1}}, {0, 100}}, 100, Tier::kRemote});
    }
  }
  saves["a"][0].units.push_back({{LayerShard{0, 0, {1}}, {0, 60}}, 100, Tier::kDisk});
  saves["b"][0].units.push_back({{LayerShard{1, 0, {1}}, {30, 100}}, 100, Tier::kMemory});
  const StateTransferPlan transfers = PlanRestore(left, saves, 7);
  REQUIRE(transfers.kept);
  for (const NodeId worker : {"a", "b"}) {
    int64_t from_a = 0, from_b = 0;
    for (const StateTransfer& move : transfers.transfers.at(worker)) {
      for (const StateSource& source : move.sources) {
        (source.from == "a" ? from_a : from_b) += source.elements.size();
      }
    }
    // 70 elements are in the remote tier alone.
    CHECK(from_a == (worker == "a" ? 60 + 70 : 60));
    CHECK(from_b == (worker == "b" ? 70 + 70 : 70));
  }
}

TEST_CASE("sharded owners save their ranges, and what two own already has its copy") {
  const Holdings sharded = {{"a", {Held(0, {0, 60})}}, {"b", {Held(0, {60, 100})}}};
  const SavePlan plan = PlanSave(sharded, 1, {});
  REQUIRE(plan.orders.at("a").own == std::vector<Unit>{{LayerShard{}, {0, 60}}});
  REQUIRE(plan.orders.at("b").own == std::vector<Unit>{{LayerShard{}, {60, 100}}});
  REQUIRE(plan.orders.at("a").fetch.size() == 1);
  const Holdings twice = {{"a", {Held(0, {0, 100})}}, {"b", {Held(0, {0, 100})}}};
  for (const int64_t copies : {1, 2}) {  // there is no other member
    REQUIRE(!PlanSave(twice, copies, {}).copied);
    REQUIRE(PlanSave(twice, copies, {}).by_owners);
  }
}

TEST_CASE("where_some_have_one_owner_all_save_what_they_own_and_any_death_leaves_the_save_whole") {
  const Holdings mixed = {{"a", {Held(0, {0, 100}), Held(1, {0, 60})}},
                          {"b", {Held(0, {0, 100})}},
                          {"c", {Held(1, {60, 100})}}};
  const SavePlan plan = PlanSave(mixed, 1, {});
  REQUIRE(plan.copied);
  REQUIRE(!plan.by_owners);
  for (const Unit& unit : plan.units) {
    int holder_count = 0;
    for (const auto& [worker, order] : plan.orders) {
      holder_count += static_cast<int>(std::count(order.own.begin(), order.own.end(), unit));
      for (const SaveFetch& fetch : order.fetch) holder_count += fetch.unit == unit;
    }
    CHECK(holder_count == 2);
  }
}

TEST_CASE("the report to the coordinator names every unit and its holders") {
  const SavePlan plan = PlanSave(kPipeline, 1, {});
  LocalCheckpoint about;
  about.save = 7;
  const SavedState state = DescribeSave(
      plan, about, {{"a", 11, "", ""}, {"b", 12, "", ""}, {"c", 13, "", ""}}, {Tier::kMemory});
  REQUIRE(state.units.size() == 5);
  REQUIRE(state.holders.size() == 3);
  int bits = 0;
  for (const SavedHolder& holder : state.holders) bits += std::popcount(holder.units.at(0));
  REQUIRE(bits == 10);
  REQUIRE(state.holders[1].incarnation == 12);
}

LoggedStep Step(int64_t step) { return {step, {{step, step + 1}}, 0.1}; }

TEST_CASE("a log leads from a save to what is, if all that happened is known") {
  ReplayLog log;
  REQUIRE(!log.Since(1));
  log.Saved(1, 0);
  log.Stepped(Step(1));
  log.Stepped(Step(2));
  log.Saved(2, 0);
  log.Stepped(Step(3));
  REQUIRE(log.Since(1)->list.size() == 3);
  REQUIRE(log.Since(2)->list.size() == 1);
  REQUIRE(log.Since(2)->all);
  SECTION("an abandoned step is replayed") {
    log.Stepped(Step(3));
    REQUIRE(log.Since(1)->list.size() == 3);
  }
  SECTION("what is not known ends it") {
    log.Changed();
    log.Changed();
    log.Stepped(Step(4));
    REQUIRE(log.Since(1)->list.size() == 3);
    REQUIRE(!log.Since(1)->all);
    log.Saved(3, 0);
    REQUIRE(log.Since(3)->all);
    REQUIRE(!log.Since(2)->all);
  }
  SECTION("what is explained does not") {
    log.Changed();
    log.Explained();
    log.Stepped(Step(4));
    REQUIRE(log.Since(2)->all);
    REQUIRE(log.Since(2)->list.size() == 3);
    log.ForgetBase();
    REQUIRE(!log.Since(2)->all);
    REQUIRE(log.Since(2)->list.size() == 1);
  }
  SECTION("two changes with a save between them are two") {
    log.Changed();
    log.Saved(3, 0);
    log.Changed();
    log.Explained();
    REQUIRE(log.Since(3)->all);
    REQUIRE(log.Since(3)->list.size() == 1);
    REQUIRE(!log.Since(2)->all);
    log.Saved(4, 0);
    log.Explained();
    REQUIRE(log.Since(4)->list.empty());
    REQUIRE(log.Since(3)->list.size() == 1);
  }
}

}  // namespace
}  // namespace atl::worker
