// State resharding: which layers move where, and what hostile members may report.

#include "worker/state/state_transfer.h"

#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "worker/state/parts.h"

namespace atl::worker {
namespace {

HeldLayer Has(int32_t layer, int64_t step, LayerShard shard = {}) {
  shard.layer = layer;
  return {shard, "d", 10, step, /*written=*/true, {0, 10}, /*whole=*/true};
}
HeldLayer Needs(int32_t layer, LayerShard shard = {}) {
  shard.layer = layer;
  return {shard, "d", 10, 0, /*written=*/false, {0, 10}};
}
HeldLayer Spare(HeldLayer held) {
  held.surplus = true;
  return held;
}
std::vector<StateName> At(const std::vector<int64_t>& steps) {
  std::vector<StateName> states;
  for (const int64_t step : steps) states.push_back({{}, {}, step});
  return states;
}
LayerShard Rank(int32_t rank, std::vector<int32_t> ratios) { return {0, rank, std::move(ratios)}; }

std::vector<NodeId> SourceMembers(const StateTransferPlan& transfers, const NodeId& receiver) {
  std::vector<NodeId> all;
  if (!transfers.transfers.contains(receiver)) return all;
  for (const StateTransfer& move : transfers.transfers.at(receiver)) {
    for (const StateSource& source : move.sources) all.push_back(source.from);
  }
  return all;
}

TEST_CASE("what is held where it is needed stays, the rest comes from the member that sent least") {
  const Holdings holdings = {{"a", {Has(0, 5), Has(1, 5)}},
                             {"b", {Has(0, 5), Spare(Has(1, 5))}},
                             {"c", {Needs(0), Needs(1)}},
                             {"d", {Needs(0)}}};
  const StateTransferPlan transfers = PlanStateTransfer(holdings, At({5}));
  REQUIRE(transfers.kept);
  REQUIRE(transfers.optimizer_step == 5);
  REQUIRE(SourceMembers(transfers, "c") == std::vector<NodeId>{"a", "b"});
  REQUIRE(SourceMembers(transfers, "d") == std::vector<NodeId>{"a"});
  REQUIRE(SourceMembers(transfers, "a").empty());
}

TEST_CASE(
    "a step counts where all layers are held after it, else the one before, else all is lost") {
  const Holdings taken = {{"a", {Has(0, 6)}}, {"b", {Has(0, 5), Has(1, 6)}}};
  REQUIRE(PlanStateTransfer(taken, At({6, 5})).optimizer_step == 6);
  REQUIRE(SourceMembers(PlanStateTransfer(taken, At({6, 5})), "b") == std::vector<NodeId>{"a"});
  const Holdings torn = {{"a", {Has(0, 6)}}, {"b", {Has(0, 5), Has(1, 5)}}};
  REQUIRE(PlanStateTransfer(torn, At({6, 5})).optimizer_step == 5);
  REQUIRE(SourceMembers(PlanStateTransfer(torn, At({6, 5})), "a") == std::vector<NodeId>{"b"});
  const Holdings lost = {{"a", {Has(0, 6)}}, {"b", {Has(1, 5)}}};
  const StateTransferPlan transfers = PlanStateTransfer(lost, At({6, 5}));
  REQUIRE(!transfers.kept);
  REQUIRE(transfers.transfers.empty());
  REQUIRE(absl::StrContains(transfers.reason, "no member holds layer 1 at step 6"));
  // Old layers do not count, unless the step is not known.
  const Holdings stale = {{"a", {Has(0, 3)}}};
  REQUIRE(!PlanStateTransfer(stale, At({6, 5})).kept);
  REQUIRE(PlanStateTransfer(stale, StatesIn(stale)).optimizer_step == 3);
  REQUIRE(PlanStateTransfer({{"a", {Needs(0)}}}, {}).reason == "no member holds any layer yet");
}

HeldLayer Of(HeldLayer held, int64_t parameters_since, int64_t moments_since) {
  held.parameters_since = {1, parameters_since};
  held.moments_since = {1, moments_since};
  return held;
}

TEST_CASE("layers of another change of the state do not fit, though they are at the same step") {
  // b was unavailable when the others adopted a version, and still holds the state before it.
  const Holdings remote = {{"a", {Of(Has(0, 5), 7, 3)}}, {"b", {Of(Has(1, 5), 6, 3)}}};
  const StateName now{{1, 7}, {1, 3}, 5};
  CHECK(!PlanStateTransfer(remote, {now}).kept);
  const Holdings fetched = {
      {"a", {Of(Has(0, 5), 7, 3), Spare(Of(Has(1, 5), 7, 3))}},
      {"b", {Of(Has(1, 5), 6, 3)}},
  };
  CHECK(SourceMembers(PlanStateTransfer(fetched, {now}), "b") == std::vector<NodeId>{"a"});
  // A member about to replace the parameters needs the moments alone: of one optimizer.
  const StateTransferPlan moments = PlanStateTransfer(remote, StatesIn(remote));
  CHECK(moments.kept);
  CHECK(moments.state == StateName{{}, {1, 3}, 5, /*any_parameters=*/true});
  const Holdings others = {{"a", {Of(Has(0, 5), 7, 3)}}, {"b", {Of(Has(1, 5), 7, 4)}}};
  CHECK(!PlanStateTransfer(others, StatesIn(others)).kept);
  // A state of which all is there comes before one with more steps, of which some is missing.
  const Holdings torn = {{"a", {Of(Has(0, 9), 7, 3), Spare(Of(Has(0, 8), 7, 3))}},
                         {"b", {Of(Has(1, 8), 7, 3)}}};
  CHECK(PlanStateTransfer(torn, StatesIn(torn)).state == StateName{{1, 7}, {1, 3}, 8});
}

// Owns elements [begin, end).
HeldLayer Owning(HeldLayer held, int64_t begin, int64_t end) {
  held.owned = {begin, end};
  return held;
}
// Returns a layer of a step that ended before owners' parameters came.
HeldLayer Torn(HeldLayer held) {
  held.whole = false;
  return held;
}
StateSource From(const NodeId& source, int32_t parts, int64_t begin, int64_t end) {
  return {{0, 0, {1}}, source, parts, {begin, end}};
}

TEST_CASE("moments come from their owners, as many as are owned; parameters from any member") {
  const Holdings holdings = {{"a", {Owning(Has(0, 5), 0, 4)}},
                             {"b", {Owning(Has(0, 5), 4, 10)}},
                             {"c", {Owning(Needs(0), 2, 6)}}};
  const StateTransferPlan transfers = PlanStateTransfer(holdings, At({5}));
  REQUIRE(transfers.kept);
  REQUIRE(transfers.transfers.at("c")[0].sources ==
          std::vector<StateSource>{From("a", kAllParts, 2, 4), From("b", kAllParts, 4, 6),
                                   From("a", kParametersPart, 0, 2),
                                   From("b", kParametersPart, 6, 10)});
}

TEST_CASE("what no owner holds any more is lost, unless there is another owner") {
  const HeldLayer first = Owning(Has(0, 5), 0, 5), second = Owning(Has(0, 5), 5, 10);
  REQUIRE(!PlanStateTransfer({{"a", {first}}, {"c", {Needs(0)}}}, At({5})).kept);
  const StateTransferPlan transfers =
      PlanStateTransfer({{"a", {first}}, {"b", {second}}, {"c", {Needs(0)}}}, At({5}));
  REQUIRE(SourceMembers(transfers, "c") == std::vector<NodeId>{"a", "b"});
}

TEST_CASE("a step that owners have taken is whole where all of them are there") {
  const Holdings torn = {{"a", {Torn(Owning(Has(0, 6), 0, 5))}},
                         {"b", {Torn(Owning(Has(0, 6), 5, 10))}}};
  const StateTransferPlan transfers = PlanStateTransfer(torn, At({6, 5}));
  REQUIRE(transfers.optimizer_step == 6);
  REQUIRE(transfers.transfers.at("a")[0].sources ==
          std::vector<StateSource>{From("a", kAllParts, 0, 5), From("b", kParametersPart, 5, 10)});
  REQUIRE(!PlanStateTransfer({{"a", torn.at("a")}}, At({6, 5})).kept);
}

TEST_CASE("who owns other elements from now on keeps what it has") {
  const Holdings holdings = {{"a", {Spare(Owning(Has(0, 3), 0, 5)), Owning(Needs(0), 0, 10)}},
                             {"b", {Spare(Owning(Has(0, 3), 5, 10))}}};
  REQUIRE(PlanStateTransfer(holdings, At({3})).transfers.at("a")[0].sources ==
          std::vector<StateSource>{From("a", kAllParts, 0, 5), From("b", kAllParts, 5, 10)});
}

TEST_CASE("a cut that changes takes all ranks of the other cut") {
  const Holdings holdings = {{"a", {Spare(Has(0, 1, Rank(0, {1, 3}))), Needs(0)}},
                             {"b", {Spare(Has(0, 1, Rank(1, {1, 3})))}}};
  REQUIRE(SourceMembers(PlanStateTransfer(holdings, At({1})), "a") ==
          std::vector<NodeId>{"a", "b"});
  const Holdings half = {{"a", {Spare(Has(0, 1, Rank(0, {1, 3}))), Needs(0)}}};
  REQUIRE(!PlanStateTransfer(half, At({1})).kept);
}

TEST_CASE("a head's copy of the table is written like a layer and is no source for others") {
  HeldLayer table = Has(0, 2);
  table.table_only = true;
  REQUIRE(!PlanStateTransfer({{"a", {table}}, {"b", {Needs(0)}}}, At({2})).kept);
  table.written = false;
  REQUIRE(SourceMembers(PlanStateTransfer({{"a", {table}}, {"b", {Has(0, 2)}}}, At({2})), "a") ==
          std::vector<NodeId>{"b"});
}

// Two stages of one layer, each cut in two of 1 and 3 parts: a/0 and a/1, b/0 and b/1.
IslandPlan CutPlan() {
  IslandPlan plan;
  plan.number = 4;
  plan.tensor_split_ratios = {2, 6};
  plan.replicas.push_back({{{0, 1, {"a/0", "a/1"}, {}}, {1, 1, {"b/0", "b/1"}, {}}}, 1, 2});
  return plan;
}
HeldLayer On(const std::string& device, int32_t layer, int32_t rank) {
  HeldLayer held = Needs(layer, {layer, rank, {1, 3}});
  held.device = device;
  return held;
}

TEST_CASE(
    "a member that does not list what the plan gives it is named, and nothing is taken from it") {
  const Holdings all = {{"a", {On("a/0", 0, 0), On("a/1", 0, 1)}},
                        {"b", {On("b/0", 1, 0), On("b/1", 1, 1)}},
                        {"c", {Spare(Has(9, 1))}}};
  REQUIRE(CheckHoldings(CutPlan(), all).ToString() == "OK");
  const auto refused = [&](auto change, absl::string_view reason) {
    Holdings changed = all;
    change(changed);
    const absl::Status status = CheckHoldings(CutPlan(), changed);
    INFO(status.ToString());
    REQUIRE(absl::IsInternal(status));
    REQUIRE(absl::StrContains(status.message(), reason));
  };
  SECTION("too little") {
    refused([](Holdings& h) { h.erase("b"); }, "b does not say that b/0 holds layer 1");
    refused([](Holdings& h) { h["b"].pop_back(); }, "b does not say that b/1 holds layer 1");
    refused([](Holdings& h) { h["b"][1].surplus = true; }, "b does not say that b/1 holds layer 1");
  }
  SECTION("too much") {
    refused([](Holdings& h) { h["b"].push_back(On("b/0", 0, 0)); }, "b says that b/0 holds");
    refused([](Holdings& h) { h["b"].push_back(On("b/1", 1, 1)); }, "b says that b/1 holds");
    refused([](Holdings& h) { h["c"].push_back(On("a/0", 0, 0)); }, "c says that a/0 holds");
    refused([](Holdings& h) { h["c"].push_back(Has(0, 1)); }, "c says that d holds layer 0");
  }
  SECTION("another cut") {
    refused([](Holdings& h) { h["b"][1].shard.rank = 0; }, "b says that b/1 holds");
    refused(
        [](Holdings& h) {
          h["b"][1].shard.tensor_split_ratios = {1, 1};
        },
        "b says that b/1 holds");
  }
  SECTION("a table apart") {
    HeldLayer table = On("b/1", 0, 1);
    table.table_only = true;
    Holdings tied = all;
    tied["b"].push_back(table);
    REQUIRE(CheckHoldings(CutPlan(), tied).ToString() == "OK");
    table.shard.layer = 1;
    refused([&](Holdings& h) { h["b"].push_back(table); }, "b says that b/1 holds");
  }
}

}  // namespace
}  // namespace atl::worker
