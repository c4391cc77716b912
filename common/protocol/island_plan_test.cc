#include "common/protocol/island_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/tensor_groups.h"

namespace atl {
namespace {

constexpr auto F = PlanOpKind::kForward, B = PlanOpKind::kInputGradient,
               W = PlanOpKind::kWeightGradient, Send = PlanOpKind::kSend,
               Receive = PlanOpKind::kReceive, Sync = PlanOpKind::kSync,
               Optimizer = PlanOpKind::kOptimizer;

constexpr int32_t kLayers = 6;
constexpr int64_t kSequences = 9;

// All forwards, then all backwards, for every stage the device holds.
std::vector<PlanOp> FillAndDrain(const std::vector<int32_t>& stages, int32_t micro_batches) {
  std::vector<PlanOp> ops;
  for (const int32_t s : stages) {
    for (int32_t m = 0; m < micro_batches; ++m) ops.push_back({F, s, m});
  }
  for (auto s = stages.rbegin(); s != stages.rend(); ++s) {
    for (int32_t m = 0; m < micro_batches; ++m) ops.push_back({B, *s, m});
    for (int32_t m = 0; m < micro_batches; ++m) ops.push_back({W, *s, m});
  }
  return ops;
}

// Replica 0: two stages, three micro-batches of two. Replica 1: one stage, one micro-batch of
// three. Two workers of two devices; every stage is one device.
IslandPlan Good() {
  IslandPlan plan;
  plan.number = 1;
  plan.members = {{.worker = "w1"}, {.worker = "w2"}};
  plan.replicas.resize(2);
  plan.replicas[0] = {{{0, 4, {"w1/0"}, {1, 3}}, {4, 2, {"w1/1"}, {}}}, 2, 3};
  plan.replicas[1] = {{{0, 6, {"w2/0"}, {}}}, 3, 1};
  plan.programs = {CompleteProgram(plan, "w1/0", FillAndDrain({0}, 3)),
                   CompleteProgram(plan, "w1/1", FillAndDrain({1}, 3)),
                   CompleteProgram(plan, "w2/0", FillAndDrain({0}, 1))};
  return plan;
}

std::string MessageAfter(const std::function<void(IslandPlan&)>& change) {
  IslandPlan plan = Good();
  change(plan);
  return std::string(Validate(plan, kLayers, kSequences).message());
}

std::string Check(const IslandPlan& plan) {
  return std::string(Validate(plan, kLayers, kSequences).message());
}

using Plan = IslandPlan&;

TEST_CASE("a good plan is accepted") { REQUIRE(Check(Good()) == ""); }

TEST_CASE("who waits for a step waits for as long as it may take") {
  using std::chrono::seconds;
  IslandPlan plan = Good();
  CHECK(StepLimit(plan, seconds(60)) == seconds(60));
  plan.step_ns = Duration(seconds(5)).count();
  CHECK(StepLimit(plan, seconds(60)) == seconds(60));
  plan.step_ns = Duration(seconds(90)).count();
  CHECK(StepLimit(plan, seconds(60)) == seconds(900));
  plan.step_ns = std::numeric_limits<int64_t>::max();
  CHECK(StepLimit(plan, seconds(60)) == std::chrono::hours(10));
  // A layer of 463 MB, twice over a link of 100 Mbit/s.
  CHECK(GetStateTransferLimit(463'000'000) > seconds(2 * 37));
}

TEST_CASE("devices have names") {
  REQUIRE(WorkerFromDevice("w1/12") == "w1");
  REQUIRE(IndexFromDevice("w1/12") == 12);
  for (const char* bad : {"w1", "w1/", "/0", "w1/x", "w1/-1", "w1/0x", "", "w1/99999999999"}) {
    CAPTURE(bad);
    REQUIRE(IndexFromDevice(bad) == -1);
  }
}

TEST_CASE("members are named once") {
  REQUIRE(MessageAfter([](Plan p) { p.number = 0; }) == "plan: number 0: must be at least 1");
  REQUIRE(MessageAfter([](Plan p) { p.members.clear(); }) == "plan: it has no members");
  REQUIRE(MessageAfter([](Plan p) { p.members[1].worker = "w1"; }) ==
          "plan: member w1 is there twice");
  REQUIRE(MessageAfter([](Plan p) { p.members[1].worker = ""; }) == "plan: a member has no name");
}

TEST_CASE("stages hold every layer once") {
  REQUIRE(MessageAfter([](Plan p) { p.replicas.clear(); }) == "plan: it has no replicas");
  REQUIRE(MessageAfter([](Plan p) { p.replicas[0].stages[1].first_layer = 3; }) ==
          "plan: replica 0, stage 1: it starts at layer 3, but layer 4 comes next");
  REQUIRE(MessageAfter([](Plan p) { p.replicas[1].stages[0].layers = 5; }) ==
          "plan: replica 1: its stages hold 5 layers, the job has 6");
  REQUIRE(MessageAfter([](Plan p) { p.replicas[1].stages[0].layers = 0; }) ==
          "plan: replica 1, stage 0: it has 0 layers");
  REQUIRE(MessageAfter([](Plan p) { p.replicas[0].stages[0].recomputed_layers = {4}; }) ==
          "plan: replica 0, stage 0: recomputed layer 4 is not one of its layers, or not in "
          "ascending order");
}

TEST_CASE("a device has one place") {
  const auto renamed = [](const char* name) {
    return MessageAfter([&](Plan p) { p.replicas[1].stages[0].devices = {name}; });
  };
  REQUIRE(renamed("w2") ==
          "plan: replica 1, stage 0: \"w2\" is no device; it must be \"worker/index\"");
  REQUIRE(renamed("w3/0") == "plan: replica 1, stage 0: w3/0 belongs to no member of the island");
  REQUIRE(renamed("w1/1") == "plan: replica 1, stage 0: w1/1 already works in replica 0");
  REQUIRE(MessageAfter([](Plan p) {
            p.replicas[1].stages[0].devices = {"w2/0", "w2/1"};
          }) == "plan: replica 1, stage 0: 2 devices share layer 0, but 1 in replica 0");
  IslandPlan plan = Good();
  plan.replicas[0].stages[0].devices = plan.replicas[1].stages[0].devices = {"w2/0", "w2/0"};
  REQUIRE(Check(plan) == "plan: replica 0, stage 0: w2/0 is there twice");
  plan.replicas[0].stages[0].devices = {"w1/0", "w1/1"};
  plan.replicas[0].stages[1].devices = {"w1/1", "w1/0"};
  REQUIRE(Check(plan) == "plan: replica 0, stage 1: w1/1 has rank 0, but rank 1 in stage 0");
}

// Two stages of 2 and 1 devices, and of 1 and 3; programs for all.
IslandPlan ByStage(int first, int second) {
  IslandPlan plan;
  plan.number = 1;
  plan.members = {{.worker = "w1"}, {.worker = "w2"}};
  plan.replicas = {{{{0, 4, {}, {}}, {4, 2, {}, {}}}, 3, 3}};
  for (int i = 0; i < first; ++i) {
    plan.replicas[0].stages[0].devices.push_back("w1/" + std::to_string(i));
  }
  for (int i = 0; i < second; ++i) {
    plan.replicas[0].stages[1].devices.push_back("w2/" + std::to_string(i));
  }
  for (int s = 0; s < 2; ++s) {
    for (const std::string& device : plan.replicas[0].stages[s].devices) {
      plan.programs.push_back(CompleteProgram(plan, device, FillAndDrain({s}, 3)));
    }
  }
  return plan;
}

TEST_CASE("groups_of_stages_may_be_of_unlike_size_but_not_those_of_a_layer") {
  REQUIRE(Check(ByStage(2, 1)) == "");
  REQUIRE(Check(ByStage(1, 3)) == "");
  REQUIRE(TensorParallel(ByStage(1, 3)) == 3);
  REQUIRE(TensorDegree(ByStage(1, 3), 3) == 1);
  REQUIRE(TensorDegree(ByStage(1, 3), 4) == 3);
  REQUIRE(GetTensorSplitRatios(ByStage(1, 3), 5) == std::vector<int32_t>{1, 1, 1});
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  REQUIRE(MessagePairs(2, 3) == Pairs{{0, 0}, {1, 1}, {0, 2}});
  REQUIRE(MessagePairs(3, 1) == Pairs{{0, 0}});
  IslandPlan plan = ByStage(2, 1);
  plan.replicas[0].stages[1].devices = {"w1/0"};
  REQUIRE(Check(plan) == "plan: replica 0, stage 1: w1/0 is one of 1 devices, but of 2 in stage 0");
}

TEST_CASE("micro-batches hold exactly a step's sequences") {
  REQUIRE(MessageAfter([](Plan p) { p.replicas[1].micro_batches = 0; }) ==
          "plan: replica 1: 0 micro-batches of 3 sequences, for a step of 9");
  REQUIRE(MessageAfter([](Plan p) { p.replicas[1].micro_batch_sequences = 2; }) ==
          "plan: its micro-batches take 8 sequences, a step has 9");
  REQUIRE(MessageAfter([](Plan p) { p.replicas[1].micro_batches = 2; }) ==
          "plan: its micro-batches take 12 sequences, a step has 9");
  REQUIRE(MessageAfter([](Plan p) { p.replicas[1].micro_batch_sequences = 5; }) == "");
}

TEST_CASE("tensor shares are one per rank") {
  REQUIRE(MessageAfter([](Plan p) {
            p.tensor_split_ratios = {1, 1};
          }) == "plan: tensor_split_ratios: 2 of them, but replica 0, stage 0 has 1 device");
  REQUIRE(MessageAfter([](Plan p) { p.tensor_split_ratios = {0}; }) ==
          "plan: tensor_split_ratios: 0 must be at least 1");
}

TEST_CASE("every device has one program") {
  REQUIRE(MessageAfter([](Plan p) { p.programs.pop_back(); }) ==
          "plan: there is no program for w2/0");
  REQUIRE(MessageAfter([](Plan p) { p.programs[2] = p.programs[1]; }) ==
          "plan: there are two programs for w1/1");
  REQUIRE(MessageAfter([](Plan p) { p.programs[2].device = "w2/7"; }) ==
          "plan: there is a program for w2/7, which no stage names");
}

// The position of an operation in w1/0's program.
std::vector<PlanOp>& Ops(Plan p) { return p.programs[0].ops; }
std::vector<PlanOp>::iterator Find(Plan p, PlanOp op) {
  const auto found = std::find(Ops(p).begin(), Ops(p).end(), op);
  REQUIRE(found != Ops(p).end());
  return found;
}
void Swap(Plan p, PlanOp a, PlanOp b) { std::iter_swap(Find(p, a), Find(p, b)); }

TEST_CASE("a program has every operation of its stages once") {
  REQUIRE(MessageAfter([](Plan p) {
            Ops(p).erase(Find(p, {F, 0, 2}));
          }) == "plan: program of w1/0 lacks F of micro-batch 2 in stage 0");
  REQUIRE(MessageAfter([](Plan p) {
            Ops(p).erase(Find(p, {Send, 0, 1}));
          }) == "plan: program of w1/0 lacks send the activation of micro-batch 1 in stage 0");
  REQUIRE(MessageAfter([](Plan p) {
            Ops(p).erase(Find(p, {Receive, 0, 1, 0, true}));
          }) == "plan: program of w1/0 lacks receive the gradient of micro-batch 1 in stage 0");
  REQUIRE(MessageAfter([](Plan p) {
            Ops(p).erase(Find(p, {Sync, 0, 0, 3}));
          }) == "plan: program of w1/0 lacks sync of layer 3");
  REQUIRE(MessageAfter([](Plan p) {
            Ops(p).insert(Ops(p).begin(), {F, 0, 0});
          }) ==
          "plan: program of w1/0, operation 1 (F of micro-batch 0 in stage 0): it is there twice");
  REQUIRE(MessageAfter([](Plan p) { Ops(p)[0].micro_batch = 3; }) ==
          "plan: program of w1/0, operation 0 (F of micro-batch 3 in stage 0): its replica has 3 "
          "micro-batches");
  REQUIRE(MessageAfter([](Plan p) { Ops(p)[0].stage = 1; }) ==
          "plan: program of w1/0, operation 0 (F of micro-batch 0 in stage 1): the device does not "
          "hold this stage");
  REQUIRE(MessageAfter([](Plan p) {
            Ops(p)[0] = {Receive, 0, 0};
          }) ==
          "plan: program of w1/0, operation 0 (receive the activation of micro-batch 0 in stage 0)"
          ": there is no stage -1");
  REQUIRE(MessageAfter([](Plan p) { Ops(p)[0].gradient = true; }) ==
          "plan: program of w1/0, operation 0 (F of micro-batch 0 in stage 0): it is no message, "
          "but says gradient");
}

TEST_CASE("a program has a possible order") {
  REQUIRE(MessageAfter([](Plan p) {
            Swap(p, {F, 0, 0}, {Send, 0, 0});
          }) ==
          "plan: program of w1/0, operation 0 (send the activation of micro-batch 0 in stage 0): "
          "it needs F of micro-batch 0 in stage 0, which is later");
  REQUIRE(MessageAfter([](Plan p) {
            Swap(p, {B, 0, 0}, {W, 0, 0});
          }).find("it needs B of micro-batch 0 in stage 0, which is later") != std::string::npos);
  REQUIRE(MessageAfter([](Plan p) {
            Swap(p, {W, 0, 0}, {W, 0, 1});
          }).find("weight gradients must be added in the order of micro-batches") !=
          std::string::npos);
  REQUIRE(MessageAfter([](Plan p) {
            Swap(p, {Sync, 0, 0, 2}, {Sync, 0, 0, 1});
          }).find("layers must be synchronised in descending order") != std::string::npos);
  REQUIRE(MessageAfter([](Plan p) {
            Swap(p, {W, 0, 2}, {Sync, 0, 0, 3});
          }).find("(sync of layer 3): the stage's last weight gradient comes later") !=
          std::string::npos);
  REQUIRE(MessageAfter([](Plan p) { Ops(p).pop_back(); }) ==
          "plan: program of w1/0 does not end in its optimizer step");
  REQUIRE(MessageAfter([](Plan p) {
            Swap(p, {Optimizer}, {Sync, 0, 0, 0});
          }).find("(optimizer): it must be the last one") != std::string::npos);
}

TEST_CASE("one replica synchronises with no other") {
  IslandPlan plan = Good();
  plan.replicas.pop_back();
  plan.programs.pop_back();
  REQUIRE(Validate(plan, kLayers, 6).message() ==
          "plan: program of w1/0, operation 15 (sync of layer 3): the island has one replica");
}

TEST_CASE("programs that wait for each other are refused") {
  // w1/0 wants the gradient of micro-batch 0 before it sends what micro-batch 0's B needs: its own
  // later forward is not what w1/1 lacks, but w1/1 does all forwards first.
  REQUIRE(MessageAfter([](Plan p) {
            const auto receive = Find(p, {Receive, 0, 0, 0, true});
            std::rotate(Find(p, {F, 0, 2}), receive, receive + 1);
          }) ==
          "plan: program of w1/0, operation 4 (receive the gradient of micro-batch 0 in stage 0): "
          "it would wait for ever; the programs wait for each other in a circle");
}

// Two stages of tensor-parallel pairs.
IslandPlan Pairs() {
  IslandPlan plan = Good();
  plan.replicas.pop_back();
  plan.replicas[0].stages[0].devices = {"w1/0", "w1/1"};
  plan.replicas[0].stages[1].devices = {"w2/0", "w2/1"};
  plan.programs.clear();
  for (const int32_t s : {0, 1}) {
    for (const std::string& device : plan.replicas[0].stages[s].devices) {
      plan.programs.push_back(CompleteProgram(plan, device, FillAndDrain({s}, 3)));
    }
  }
  return plan;
}

// Good() with its second replica cut like the first one, and both cross from w1 to w2.
IslandPlan TwoOverOneLink() {
  IslandPlan plan = Good();
  plan.replicas = {{{{0, 2, {"w1/0"}, {}}, {2, 4, {"w2/0"}, {}}}, 1, 3},
                   {{{0, 2, {"w1/1"}, {}}, {2, 4, {"w2/1"}, {}}}, 1, 3}};
  plan.programs.clear();
  for (const int32_t s : {0, 1}) {
    for (const PlanReplica& replica : plan.replicas) {
      plan.programs.push_back(
          CompleteProgram(plan, replica.stages[s].devices[0], FillAndDrain({s}, 3)));
    }
  }
  plan.link_orders = {{"a", "b", {}}, {"b", "a", {}}};
  for (int32_t m = 0; m < 3; ++m) {
    for (const int32_t r : {0, 1}) {
      plan.link_orders[0].messages.push_back({r, 0, m, false});
      plan.link_orders[1].messages.push_back({r, 1, m, true});
    }
  }
  return plan;
}

template <typename Change>
std::string LinkOrderError(const Change& change) {
  IslandPlan plan = TwoOverOneLink();
  change(plan);
  return std::string(Validate(plan, kLayers, 6).message());
}

TEST_CASE("a link's order has all messages of its stage links, once") {
  REQUIRE(LinkOrderError([](Plan) {}) == "");
  REQUIRE(LinkOrderError([](Plan p) { p.link_orders[1].messages[3].replica = 2; }) ==
          "plan: link order 1, the gradient of micro-batch 1 from stage 1 of replica 2: there is "
          "no such replica");
  REQUIRE(LinkOrderError([](Plan p) { p.link_orders[1].messages[0].stage = 0; }) ==
          "plan: link order 1, the gradient of micro-batch 0 from stage 0 of replica 0: no stage "
          "sends that");
  REQUIRE(LinkOrderError([](Plan p) { p.link_orders[0].messages[5].micro_batch = 3; }) ==
          "plan: link order 0, the activation of micro-batch 3 from stage 0 of replica 1: its "
          "replica has 3 micro-batches");
  REQUIRE(
      LinkOrderError([](Plan p) { p.link_orders[0].messages[1] = p.link_orders[0].messages[0]; }) ==
      "plan: link order 0, the activation of micro-batch 0 from stage 0 of replica 0: it is "
      "there twice");
  REQUIRE(LinkOrderError([](Plan p) { p.link_orders[0].messages.pop_back(); }) ==
          "plan: link order 0 has 2 of the 3 micro-batches of stage 0 of replica 1");
  REQUIRE(LinkOrderError([](Plan p) { p.link_orders[0].messages.clear(); }) ==
          "plan: link order 0 is empty");
  REQUIRE(MessageAfter([](Plan p) {
            p.link_orders = {{"a", "a", {{0, 0, 0, false}}}};
          }) ==
          "plan: link order 0, the activation of micro-batch 0 from stage 0 of replica 0: it stays "
          "within a worker");
}

TEST_CASE("tensor-parallel devices do F and B in one order, W as they like") {
  IslandPlan plan = Pairs();
  REQUIRE(Validate(plan, kLayers, 6).ok());
  const auto early = Find(plan, {W, 0, 0});
  std::rotate(Find(plan, {B, 0, 1}), early, early + 1);
  REQUIRE(Validate(plan, kLayers, 6).message() == "");
  Swap(plan, {F, 0, 0}, {F, 0, 1});
  Swap(plan, {Send, 0, 0}, {Send, 0, 1});
  REQUIRE(Validate(plan, kLayers, 6).message() ==
          "plan: program of w1/0, operation 0 (F of micro-batch 1 in stage 0): it would wait for "
          "ever; the programs wait for each other in a circle");
}

TEST_CASE("a device that holds two neighbouring stages sends itself nothing") {
  IslandPlan plan = Good();
  plan.replicas.pop_back();
  plan.replicas[0].stages = {
      {0, 2, {"w1/0"}, {}}, {2, 2, {"w2/0"}, {}}, {4, 1, {"w2/0"}, {}}, {5, 1, {"w1/0"}, {}}};
  const auto v_shape = [&](int32_t first, int32_t second) {
    std::vector<PlanOp> ops;
    for (const PlanOpKind kind : {F, B}) {
      for (int32_t m = 0; m < 3; ++m) {
        ops.push_back({kind, kind == F ? first : second, m});
        if (second == first + 1) ops.push_back({kind, kind == F ? second : first, m});
      }
      for (int32_t m = 0; second > first + 1 && m < 3; ++m) {
        ops.push_back({kind, kind == F ? second : first, m});
      }
    }
    return ops;
  };
  plan.programs = {CompleteProgram(plan, "w1/0", v_shape(0, 3)),
                   CompleteProgram(plan, "w2/0", v_shape(1, 2))};
  REQUIRE(Validate(plan, kLayers, 6).message() == "");
  const auto count = [&](PlanOpKind kind) {
    return std::count_if(plan.programs[1].ops.begin(), plan.programs[1].ops.end(),
                         [&](const PlanOp& op) { return op.kind == kind; });
  };
  REQUIRE(count(W) == 6);  // added after their B
  REQUIRE(count(Send) == 6);
  REQUIRE(count(Receive) == 6);
  plan.programs[1].ops.insert(plan.programs[1].ops.begin(), {Send, 1, 0});
  REQUIRE(Validate(plan, kLayers, 6).message() ==
          "plan: program of w2/0, operation 0 (send the activation of micro-batch 0 in stage 1): "
          "stage 2 is on this device too");
}

TEST_CASE("a follower's plan has its own programs, and these are checked") {
  const IslandPlan whole = Good();
  IslandPlan own = KeepWorkerPrograms(whole, "w1");
  REQUIRE(own.programs.size() == 2);
  const auto check = [](const IslandPlan& plan, const NodeId& worker) {
    return std::string(ValidateFor(worker, plan, kLayers, kSequences).message());
  };
  CHECK(check(own, "w1") == "");
  CHECK(check(whole, "w1") == "");
  CHECK(check(own, "w2") == "plan: there is no program for w2/0");
  CHECK(Check(own) == "plan: there is no program for w2/0");
  own.programs.pop_back();
  CHECK(check(own, "w1") == "plan: there is no program for w1/1");
  own = KeepWorkerPrograms(whole, "w2");
  own.programs[0].ops.pop_back();
  CHECK(check(own, "w2") == "plan: program of w2/0 does not end in its optimizer step");
  own.programs = whole.programs;  // nothing else is left out
  CHECK(own == whole);
}

TEST_CASE("CompleteProgram adds weight gradients in the order of micro-batches") {
  IslandPlan plan = Good();
  std::vector<PlanOp> ops = FillAndDrain({0}, 3);
  std::reverse(ops.end() - 3, ops.end());  // W 2 1 0, as a search may leave them
  REQUIRE(CompleteProgram(plan, "w1/0", ops) == plan.programs[0]);
}

TEST_CASE("CompleteProgram makes a weight gradient wait for the B of the one whose turn it is") {
  const IslandPlan plan = Good();
  const std::vector<PlanOp> late = {{F, 0, 0}, {F, 0, 1}, {F, 0, 2}, {B, 0, 1},
                                    {W, 0, 1}, {B, 0, 0}, {B, 0, 2}};
  std::string order;
  for (const PlanOp& op : CompleteProgram(plan, "w1/0", late).ops) {
    if (op.kind == B) order += "B" + std::to_string(op.micro_batch);
    if (op.kind == W) order += "W" + std::to_string(op.micro_batch);
  }
  REQUIRE(order == "B1B0W0W1B2W2");  // 0 and 2 have no W of their own: unsplit
}

TEST_CASE("CompleteProgram sends the gradient of an unsplit backward after its W") {
  const IslandPlan plan = Good();
  const std::vector<PlanOp> unsplit = {{F, 1, 0}, {B, 1, 0}, {F, 1, 1},
                                       {B, 1, 1}, {F, 1, 2}, {B, 1, 2}};
  const std::vector<PlanOp> ops = CompleteProgram(plan, "w1/1", unsplit).ops;
  const auto sent =
      std::find_if(ops.begin(), ops.end(), [](const PlanOp& op) { return op.kind == Send; });
  REQUIRE((sent - 1)->kind == W);
  REQUIRE((sent - 2)->kind == B);
}

TEST_CASE("CompleteProgram synchronises a stage as soon as it and those behind it are complete") {
  IslandPlan plan = Good();
  plan.replicas[0].stages = {{0, 2, {"w1/0"}, {}}, {2, 2, {"w1/1"}, {}}, {4, 2, {"w1/0"}, {}}};
  const std::vector<PlanOp> ops = CompleteProgram(plan, "w1/0", FillAndDrain({0, 2}, 3)).ops;
  std::string order;
  for (const PlanOp& op : ops) {
    if (op.kind == W) order += "W" + std::to_string(op.stage);
    if (op.kind == Sync) order += "S" + std::to_string(op.layer);
  }
  REQUIRE(order == "W2W2W2S5S4W0W0W0S1S0");
}

TEST_CASE("a step is distributed in order, and of a short one each replica has its share") {
  using Rows = std::vector<std::vector<MicroBatchRows>>;
  REQUIRE(AssignSequences(Good(), 9) == Rows{{{0, 2}, {2, 2}, {4, 2}}, {{6, 3}}});
  REQUIRE(AssignSequences(Good(), 5) == Rows{{{0, 2}, {2, 2}, {4, 0}}, {{4, 1}}});
  REQUIRE(AssignSequences(Good(), 1) == Rows{{{0, 1}, {1, 0}, {1, 0}}, {{1, 0}}});
}

TEST_CASE("a replica has no sequences where those before are rounded up past its share") {
  IslandPlan plan = Good();
  plan.replicas.resize(1, plan.replicas[0]);
  plan.replicas.resize(3, plan.replicas[0]);
  for (PlanReplica& replica : plan.replicas) {
    replica.micro_batches = 4;
    replica.micro_batch_sequences = 8;
  }
  plan.replicas[1].micro_batches = plan.replicas[1].micro_batch_sequences = 1;
  for (int64_t sequences = 0; sequences <= 65; ++sequences) {
    int64_t first = 0;
    for (const std::vector<MicroBatchRows>& rows : AssignSequences(plan, sequences)) {
      for (const MicroBatchRows& some : rows) {
        REQUIRE(some.first_row == first);
        REQUIRE(some.rows >= 0);
        first += some.rows;
      }
    }
    REQUIRE(first == sequences);
  }
}

}  // namespace
}  // namespace atl
