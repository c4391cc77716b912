#include "common/model/outer_copies.h"

#include <catch2/catch.hpp>

#include "common/model/job_model.h"
#include "common/model/layout.h"

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
  plan.members.push_back({"source", 1, "", ""});
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

TEST_CASE("host_copies_count_what_the_job_asks_for") {
  const JobFacts facts = {.layers = {{"x", 1000}, {"y", 200}, {"z", 30}}};
  JobSpec spec;
  spec.checkpoint.peer_copies = 0;
  spec.schedule.checkpoint_every_steps = 0;
  spec.schedule.validation_sequences = 0;
  const HostCopies least = MakeHostCopies(spec, ThreeStages(), facts, "b");
  CHECK(least.exchange_bytes == 3 * 200 * 4);
  CHECK(least.staging_bytes == 2 * 200 * 4);
  CHECK(least.save_bytes + least.peer_bytes + least.validation_bytes == 0);
  spec.checkpoint.peer_copies = 1;
  spec.schedule.checkpoint_every_steps = 5;
  spec.schedule.validation_sequences = 1;
  spec.outer.overlap = Overlap::kCarry;
  const HostCopies most = MakeHostCopies(spec, ThreeStages(), facts, "b");
  CHECK(most.exchange_bytes == 3 * 1200 * 4);
  CHECK(most.save_bytes == 3 * 200 * 4);
  CHECK(most.peer_bytes == 2 * 3 * 1200 * 4);
  CHECK(most.validation_bytes == 200 * 4);
  spec.outer.push_encoding = Encoding::kInt8;  // saves have the residuals, too
  CHECK(MakeHostCopies(spec, ThreeStages(), facts, "b").save_bytes == 4 * 200 * 4);
  spec.outer.overlap = Overlap::kNone;
  CHECK(MakeHostCopies(spec, ThreeStages(), facts, "b").validation_bytes == 0);
}

TEST_CASE("a_host_stages_the_frozen_layers_that_its_devices_get") {
  JobSpec spec;
  spec.schedule.validation_sequences = 0;
  spec.adapter = {.kind = AdapterKind::kLora, .rank = 4, .targets = {kAllLinear}};
  JobFacts facts;
  facts.model = {.vocabulary = 256, .hidden = 64, .layers = 1, .heads = 4, .feed_forward = 256};
  facts.model.key_value_heads = 4;
  const std::vector<LayerLayout> layouts = MakeLayouts(*ModelConfigFromFacts(facts.model, spec));
  for (const LayerLayout& layout : layouts) facts.layers.push_back({layout.name, layout.size});
  const auto all = MakeAllHostCopies(spec, ThreeStages(), facts);
  for (const auto& [worker, layer] : {std::pair("a", 0), {"b", 1}, {"c", 2}}) {
    const LayerLayout& layout = layouts[static_cast<size_t>(layer)];
    CAPTURE(worker);
    CHECK(all.at(worker).staging_bytes == 2 * 4 * layout.frozen_size);
    CHECK(layout.frozen_size > layout.size);
  }
}

}  // namespace
}  // namespace atl
