// Islands of several workers train as one device does, and move their state.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/island/group_fixture.h"

namespace atl::worker {
namespace {

TEST_CASE("islands of two and three workers have one device's losses") {
  const World world;
  const std::vector<IslandLayout> layouts = {
      Pipeline("two stages", {3, 3}, 2),
      Pipeline("three stages", {2, 1, 3}, 3),
      Replicas("unequal replicas", {5, 3}, 2),
      {.name = "two pipelines", .replicas = {{{3, 3}, 2, 2}, {{2, 4}, 4, 1}}, .workers = 2}};
  for (const IslandLayout& layout : layouts) {
    INFO(layout.name);
    SingleDeviceTrainer alone(world);
    TestGroup group(world, layout.workers, 2);
    std::vector<NodeId> names = {"w1", "w2", "w3"};
    names.resize(static_cast<size_t>(layout.workers));
    REQUIRE(!group.Take(layout, names).kept);  // there was nothing to keep
    REQUIRE(group["w1"].trainer->InitialWeights().ToString() == "OK");
    for (int64_t step = 0; step < 20; ++step) {
      REQUIRE(group["w1"].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    }
    const auto loss = group["w1"].trainer->Evaluate(20, 0);
    REQUIRE(loss.ok());
    REQUIRE(loss->loss == Approx(alone.trainer->Validate(20, 0)->loss).epsilon(1e-5));
  }
}

TEST_CASE("an_island_trains_an_encoder_on_the_masks_that_one_worker_alone_draws") {
  World world;
  world.spec.model.family = ModelFamily::kBert;
  world.spec.model.vocabulary = 257;  // bytes and the mask
  constexpr int64_t kTargets = 2;     // of 16 positions
  SingleDeviceTrainer alone(world);
  TestGroup group(world, 2, 2);
  group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  TestLeader& leader = *group["w1"].trainer;
  REQUIRE(leader.InitialWeights().ok());
  for (int64_t step = 0; step < 3; ++step) {
    const auto loss = leader.Step(Batch(step), GetLearningRate(step));
    REQUIRE(loss.status().ToString() == "OK");
    REQUIRE(loss->tokens == kBatch * kTargets);
    REQUIRE(loss->loss == Approx(alone.Step(step)).epsilon(1e-5));
    REQUIRE(group["w1"].member->CountMasked(Batch(step)).value() == kBatch * (16 - kTargets));
    REQUIRE(alone.trainer->CountMasked(Batch(step)).value() == kBatch * (16 - kTargets));
  }
  const auto validation = leader.Evaluate(8, 0);
  REQUIRE(validation.status().ToString() == "OK");
  REQUIRE(validation->loss == Approx(alone.trainer->Validate(8, 0)->loss).epsilon(1e-5));
  REQUIRE(leader.Evaluate(8, 0)->loss == validation->loss);  // masked the same way each time
}

TEST_CASE("an_island_trains_on_padded_documents_as_one_worker_alone_and_its_loss_falls") {
  World world;
  setenv("ATOLL_DATA_CACHE", (world.folder + "/cache").c_str(), 1);
  std::ofstream lines(world.folder + "/lines");
  constexpr absl::string_view kText = "the waves of the sea";
  for (size_t i = 0; i < 200; ++i) lines << kText.substr(0, 1 + i * 7 % kText.size()) << "\n";
  lines.close();
  world.spec.model = {.family = ModelFamily::kBert, .config_json = R"({"model_type": "bert",
      "vocab_size": 260, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4,
      "intermediate_size": 32, "max_position_embeddings": 16, "pad_token_id": 256,
      "cls_token_id": 257, "sep_token_id": 258, "mask_token_id": 259})"};
  world.spec.data.path = world.folder + "/lines";
  world.spec.data.pad_documents = true;
  constexpr int64_t kSteps = 30;
  for (const IslandLayout& layout :
       {Pipeline("two stages", {3, 3}, 2), Replicas("unequal replicas", {5, 3}, 2)}) {
    INFO(layout.name);
    SingleDeviceTrainer alone(world);
    TestGroup group(world, 2, 2);
    group.Take(layout, {"w1", "w2"});
    TestLeader& leader = *group["w1"].trainer;
    REQUIRE(leader.InitialWeights().ok());
    const double untrained = leader.Evaluate(40, 0)->loss;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto loss = leader.Step(Batch(step), GetLearningRate(step));
      REQUIRE(loss.status().ToString() == "OK");
      REQUIRE(loss->loss == Approx(alone.Step(step)).epsilon(1e-5));
      // One or two of 16 positions are targets, by the document's length.
      REQUIRE(group["w1"].member->CountMasked(Batch(step)).value() == kBatch * 16 - loss->tokens);
      REQUIRE((loss->tokens > kBatch && loss->tokens < 2 * kBatch));
    }
    const auto trained = leader.Evaluate(40, 0);
    REQUIRE(trained.status().ToString() == "OK");
    REQUIRE(trained->loss == Approx(alone.trainer->Validate(40, 0)->loss).epsilon(1e-5));
    CHECK(trained->loss < 0.8 * untrained);
  }
}

TEST_CASE("an_island_trains_on_a_mixture_and_validates_named_sets_as_one_worker_alone_does") {
  World world;
  std::ofstream(world.folder + "/more") << std::string(2000, 'x') << std::string(2000, 'y');
  std::ofstream(world.folder + "/held") << std::string(500, 'z');
  world.spec.data.path.clear();
  world.spec.data.sources = {{world.folder + "/text", 2}, {world.folder + "/more", 1}};
  world.spec.data.validation = {{"held", world.folder + "/held"}};
  SingleDeviceTrainer alone(world);
  TestGroup group(world, 2, 2);
  group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  TestLeader& leader = *group["w1"].trainer;
  REQUIRE(leader.InitialWeights().ok());
  for (int64_t step = 0; step < 6; ++step) {
    REQUIRE(group["w1"].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
  std::vector<double> losses;
  for (const int set : {0, 1}) {
    const auto loss = leader.Evaluate(0, set);
    REQUIRE(loss.status().ToString() == "OK");
    REQUIRE(loss->loss == Approx(alone.trainer->Validate(0, set)->loss).epsilon(1e-5));
    REQUIRE(loss->tokens == alone.trainer->Validate(0, set)->tokens);
    losses.push_back(loss->loss);
  }
  CHECK(losses[0] != losses[1]);
}

// Items of all kinds. Of the exact ones, for each letter one at most is answered right.
void AddTasks(World& world) {
  const std::string letters = "abcdefhiknostvw ,0123456789";
  std::ofstream exact(world.folder + "/exact"), choices(world.folder + "/choices"),
      texts(world.folder + "/texts");
  for (const char a : letters) {
    for (const char b : letters) exact << R"({"prompt": "", "answer": ")" << a << b << "\"}\n";
    choices << R"({"prompt": "the 25 )" << a << R"(", "choices": ["waves", "sea, the", "of )" << a
            << R"( longer one than fits"], "answer": )" << (a % 3) << "}\n";
    texts << R"({"text": "the waves of )" << a << " and the sea, 16 waves of it\"}\n";
  }
  world.spec.evaluation = {{"exact", world.folder + "/exact", TaskKind::kExact},
                           {"choices", world.folder + "/choices", TaskKind::kChoices},
                           {"texts", world.folder + "/texts", TaskKind::kPerplexity, 16, 9}};
}

TEST_CASE("tasks have one device's scores in every layout") {
  World world;
  AddTasks(world);
  const std::vector<IslandLayout> layouts = {Pipeline("two stages", {3, 3}, 2),
                                             Replicas("unequal replicas", {5, 3}, 2),
                                             {.name = "tensor parallel",
                                              .replicas = {{{2, 4}, 4, 2}},
                                              .tensor_parallel = 2,
                                              .tensor_split_ratios = {1, 3},
                                              .workers = 2}};
  for (const IslandLayout& layout : layouts) {
    INFO(layout.name);
    SingleDeviceTrainer alone(world);
    TestGroup group(world, 2, 2);
    group.Take(layout, {"w1", "w2"});
    TestLeader& leader = *group["w1"].trainer;
    REQUIRE(leader.InitialWeights().ok());
    for (int64_t step = 0; step < 20; ++step) {
      REQUIRE(group["w1"].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    }
    const auto scores = leader.ScoreTasks({0, 1, 2});
    REQUIRE(scores.status().ToString() == "OK");
    REQUIRE(scores->size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      const TaskScore& score = (*scores)[i];
      const TaskScore one = alone.trainer->ScoreTask(world.spec.evaluation[i]).value();
      CHECK(score.name == world.spec.evaluation[i].name);
      CHECK(score.kind == one.kind);
      CHECK(score.items == one.items);
      CHECK(score.tokens == one.tokens);
      CHECK(score.accuracy == one.accuracy);
      CHECK(score.accuracy_standard_error == one.accuracy_standard_error);
      CHECK(score.normalised_accuracy == one.normalised_accuracy);
      CHECK(score.perplexity == Approx(one.perplexity).epsilon(1e-4));
      CHECK(score.byte_perplexity == Approx(one.byte_perplexity).epsilon(1e-4));
    }
    CHECK((*scores)[0].accuracy > 0);
    CHECK((*scores)[0].accuracy < 0.1);
    CHECK((*scores)[2].items == 9);
    // Training goes on as if nothing had been scored.
    REQUIRE(group["w1"].Step(20) == Approx(alone.Step(20)).epsilon(1e-5));
  }
}

TEST_CASE("a range of positions that is not of validation or of one task alone is refused") {
  World world;
  AddTasks(world);
  TestGroup group(world, 1);
  group.Take(Pipeline("one stage", {6}, 1), {"w1"});
  const GroupJob& job = *group["w1"].member->job();
  const int64_t first = job.GetTaskBegin(0), second = job.GetTaskBegin(1);
  const int64_t end = job.GetTaskBegin(2) + job.tasks[2].size();
  const auto refused = [&](int64_t from, int64_t count) {
    return absl::IsInvalidArgument(job.CheckEvaluated(from, count));
  };
  for (const int64_t begin : {int64_t{0}, first, second, end - 1}) {
    CHECK(job.CheckEvaluated(begin, 1).ok());
    CHECK(refused(begin, kBatch + 1));
  }
  for (const int64_t border : {first, second, end}) {
    CHECK(job.CheckEvaluated(border - 2, 2).ok());
    CHECK(refused(border - 1, 2));
  }
  CHECK(refused(end, 1));
  CHECK(refused(-1, 1));
  CHECK(refused(1, std::numeric_limits<int64_t>::max()));
}

TEST_CASE("a leader knows its followers' stage links, and every device's memory") {
  const World world;
  TestGroup group(world, 2);
  IslandPlan plan = group.PlanFor(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  for (PlanProgram& program : plan.programs) program.memory_peak_bytes = 1000;
  REQUIRE(group.Order(plan).ok());
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ToString() == "OK");
  leader.Step(0);
  leader.Step(1);  // gets the followers' replies to the step before
  const std::vector<DeviceMemoryState>& memory = leader.trainer->events.memory().devices;
  REQUIRE(memory.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(memory[i].device == absl::StrCat("w", i + 1, "/0"));
    CHECK(memory[i].predicted_bytes == 1000);
    CHECK(memory[i].peak_bytes > 1000);
  }
  REQUIRE(leader.trainer->events.stage_links().stage_links.size() ==
          2);  // activations one way, gradients the other
  CHECK(leader.trainer->events.stage_links().stage_links[1].from == "w2/0");
}

// Only every 16th step of fake devices is timed.
TEST_CASE("all members say how fast their devices and messages are, each window once", "[host]") {
  const World world;
  TestGroup group(world, 2);
  REQUIRE(group.Order(group.PlanFor(Pipeline("two stages", {4, 2}, 2), {"w1", "w2"})).ok());
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ToString() == "OK");
  CHECK(leader.member->Work().empty());
  // Measurements of followers travel in parallel to the steps.
  const auto measured = [&] {
    const auto& stage_links = leader.trainer->events.stage_links().stage_links;
    return leader.member->Work().at(0).window > 0 && group["w2"].member->Work().at(0).window > 0 &&
           std::all_of(stage_links.begin(), stage_links.end(),
                       [](const StageLinkState& stage_link) {
                         return stage_link.window > 0 && stage_link.quickest_bytes > 0;
                       });
  };
  for (int64_t step = 0; step < 41 || (step < 1000 && !measured()); ++step) leader.Step(step);
  const DeviceWork first = leader.member->Work().at(0), second = group["w2"].member->Work().at(0);
  CHECK(first.device == "w1/0");
  CHECK(second.device == "w2/0");
  CHECK(first.model_digest == ComputeModelDigest(leader.member->job()->facts.model, 16));
  CHECK(first.micro_batch_sequences * (first.blocks / 3) == kBatch);  // all micro-batches
  CHECK(second.blocks == second.heads);
  for (const DeviceWork& work : {first, second}) {
    CHECK(work.window > 0);
    CHECK(work.forward_seconds > 0);
    CHECK(work.backward_seconds > 0);
  }
  for (const StageLinkState& stage_link : leader.trainer->events.stage_links().stage_links) {
    CHECK(stage_link.window > 0);
    CHECK(stage_link.quickest_bytes > 0);
    CHECK(stage_link.quickest_seconds >= 0);  // less half a round trip, on loopback nothing is left
  }
  CHECK(leader.member->ListUnreachable().empty());
  // There is nothing yet of a new plan.
  REQUIRE(group.Order(group.PlanFor(Pipeline("even", {3, 3}, 2), {"w1", "w2"})).ok());
  CHECK(leader.member->Work().empty());
}

TEST_CASE("a member without a job refuses calls for layers and for the parameter servers") {
  const World world;
  TestWorker worker(world, "w1");
  GroupMember& member = *worker.member;
  member.Close();
  StateTransfer move;
  move.sources.emplace_back();
  CHECK(absl::IsFailedPrecondition(member.layers().Fetch({move}, 0)));
  OuterExchange& outer = member.outer_exchange();
  CHECK(absl::IsFailedPrecondition(outer.Do(OuterLayoutCall())));
  CHECK(absl::IsFailedPrecondition(outer.Do(CaptureCall())));
  CHECK(absl::IsFailedPrecondition(outer.Do(ApplyCall())));
  CHECK(absl::IsFailedPrecondition(outer.Do(FinishCall())));
  CHECK(absl::IsFailedPrecondition(outer.Do(PutBaseInCall())));
  CHECK(absl::IsFailedPrecondition(outer.Do(InitialWeightsCall())));
  CHECK(absl::IsFailedPrecondition(outer.Do(FetchTablesCall())));
  std::vector<float> whole(1);
  CHECK(absl::IsFailedPrecondition(outer.ReadLayer(OuterKind::kBase, 0, whole)));
}

TEST_CASE("without a plan a worker trains on its first device, exactly as one device does") {
  World world;
  world.spec.layout.island = IslandScope::kWorker;
  SingleDeviceTrainer alone(world);
  TestWorker worker(world, "w1");
  REQUIRE(worker.trainer->InitialWeights().ok());
  for (int64_t step = 0; step < 5; ++step) {
    REQUIRE(worker.Step(step) == Approx(alone.Step(step)).epsilon(1e-6));
  }
}

TEST_CASE("a worker alone whose data cannot be read for a while goes on where it was") {
  World world;
  world.spec.layout.island = IslandScope::kWorker;
  SingleDeviceTrainer alone(world);
  TestWorker worker(world, "w1");
  const auto sets_up = [&] { return worker.trainer->Configure(kJob, 1, IslandPlan()); };
  REQUIRE(sets_up().ok());
  REQUIRE(worker.trainer->InitialWeights().ok());
  REQUIRE(worker.Step(0) == Approx(alone.Step(0)).epsilon(1e-6));
  std::stringstream text;
  text << std::ifstream(world.spec.data.path).rdbuf();
  std::ofstream(world.spec.data.path, std::ios::trunc).close();
  for (int tries = 0; tries < 2; ++tries) {  // for the same reason every time
    // Other sequences than those that step 0 may have read ahead.
    const auto failed = worker.trainer->Step(Batch(5), GetLearningRate(1));
    REQUIRE(Says(failed.status().message(), world.spec.data.path));
    const auto taken = sets_up();
    REQUIRE(taken.ok());
    REQUIRE(taken->kept);
    REQUIRE_FALSE(taken->step_taken);
  }
  // A version that is adopted meanwhile is not forgotten.
  LayerBuffers& pulled = *worker.member->outer_exchange().state()->pulled();
  for (size_t l = 0; l < pulled.size(); ++l) {
    REQUIRE(alone.trainer->GetParameters(static_cast<int>(l), pulled[l]).ok());
    pulled[l][0] += 1;
    REQUIRE(alone.trainer->SetParameters(static_cast<int>(l), pulled[l]).ok());
  }
  REQUIRE(worker.trainer->AdoptPulled({0, AdoptMode::kReplace}).ToString() == "OK");
  std::ofstream(world.spec.data.path, std::ios::trunc) << text.rdbuf();
  for (int64_t step = 1; step < 4; ++step) {
    REQUIRE(worker.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
  // Nothing was predicted for it that its steps could be compared with.
  CHECK(worker.member->Work().empty());
  CHECK(worker.member->ListUnreachable().empty());
}

TEST_CASE("plans follow each other and the state moves bit for bit") {
  const World world;
  TestGroup group(world, 3, 2);
  group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  int64_t step = 0;
  for (; step < 3; ++step) leader.Step(step);
  const IslandLayout tensor = {.name = "tensor parallel",
                               .replicas = {{{2, 4}, 4, 2}},
                               .tensor_parallel = 2,
                               .tensor_split_ratios = {1, 3},
                               .workers = 2};
  const std::vector<std::pair<IslandLayout, std::vector<NodeId>>> plans = {
      {Pipeline("three stages", {2, 2, 2}, 3), {"w1", "w2", "w3"}},
      {Replicas("replicas", {3, 3, 2}, 3), {"w1", "w2", "w3"}},
      {tensor, {"w1", "w3"}},
      {Pipeline("elsewhere", {1, 5}, 2), {"w1", "w2"}},
      {Pipeline("w1 only watches", {4, 2}, 2), {"w1", "w2", "w3"}}};
  for (const auto& [layout, names] : plans) {
    INFO(layout.name);
    const State before = leader.Read();
    IslandPlan plan = group.PlanFor(layout, names);
    // A member that the new plan has no use for is a source of what it holds.
    for (const char* old : {"w2", "w3"}) {
      if (std::find(names.begin(), names.end(), old) == names.end()) {
        plan.members.push_back(group[old].Address());
      }
    }
    const auto taken = group.Order(plan);
    INFO(taken.status().ToString());
    REQUIRE(taken.ok());
    INFO(taken->reason);
    REQUIRE(taken->kept);
    REQUIRE(!taken->step_taken);
    REQUIRE(leader.trainer->optimizer_steps() == step);
    REQUIRE((leader.Read() == before));
    leader.Step(step++);
  }
  SingleDeviceTrainer alone(world);
  double loss = 0;
  for (int64_t s = 0; s < step; ++s) loss = alone.Step(s);
  REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  REQUIRE(loss > 0);
}

TEST_CASE("layers move whose state is larger than what may wait to be sent") {
  const World world;
  PeerLinkOptions link;
  TestWorker measure(world, "measure");
  int64_t largest = 0;  // of one part of a layer
  for (const LayerSize& layer : measure.layers) largest = std::max(largest, 4 * layer.elements);
  link.queued_bytes_max = 2 * largest;  // and a layer has three parts
  TestGroup group(world, 2, 1, {}, link);
  group.Take(Pipeline("two stages", {1, 5}, 2), {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  int64_t step = 0;
  for (const std::vector<int32_t>& stages :
       {std::vector<int32_t>{5, 1}, std::vector<int32_t>{6}, std::vector<int32_t>{1, 5}}) {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    ++step;
    const State before = leader.Read();
    const Reconfigured taken =
        group.Take(Pipeline("another", stages, std::ssize(stages)), {"w1", "w2"});
    INFO(taken.reason);
    REQUIRE(taken.kept);
    REQUIRE((leader.Read() == before));
  }
  REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
}

TEST_CASE("what has come whole before a fetch was broken off is not fetched again") {
  const World world;
  TestGroup group(world, 2);
  group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  REQUIRE(group["w1"].trainer->InitialWeights().ok());
  GroupMember& member = *group["w1"].member;
  const LayerShard first{0, 0, {1}}, second{1, 0, {1}};
  const auto from = [&](const LayerShard& shard, const NodeId& source) -> StateSource {
    const int64_t elements = group["w1"].layers[static_cast<size_t>(shard.layer)].elements;
    return {shard, source, kAllParts, {0, elements}};
  };
  const absl::Status status = member.layers().Fetch(
      {{first, {from(first, "w1")}}, {second, {from(second, "who has failed")}}}, 9);
  REQUIRE(Says(status.message(), "layer 1"));
  std::map<int32_t, int64_t> steps;
  for (const HeldLayer& held : member.layers().Held()) {
    CHECK(held.written);
    steps[held.shard.layer] = held.optimizer_step;
  }
  CHECK(steps == std::map<int32_t, int64_t>{{0, 9}, {1, 0}, {2, 0}});
}

}  // namespace
}  // namespace atl::worker
