#include "coordinator/plan_io/profile_file.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

constexpr char kProfile[] = R"({
  "cluster": {
    "devices": [{"id": "a/0", "type": "cpu", "node": "a", "site": "s", "memory_bytes": "1000000000"},
                {"id": "b/0", "type": "cpu", "node": "b", "site": "s", "memory_bytes": "950000000"}],
    "links": [{"from": "a/0", "to": "b/0",
               "edges": [{"latency_ns": "1000", "bandwidth_bytes_per_s": 1e8}]}]
  },
  "times": [{"type": "cpu", "tensor_parallel": 1, "micro_batch_sequences": 1, "layer": 0,
             "forward_ns": "10", "weight_gradient_ns": "20"},
            {"type": "cpu", "tensor_parallel": 1, "micro_batch_sequences": 1, "layer": 1,
             "forward_ns": "1000", "input_gradient_ns": "1000", "weight_gradient_ns": "1000"}]
})";

plan::Model TwoLayers() {
  plan::Model model;
  model.layers.resize(2);
  return model;
}

absl::Status Read(std::string text, int layers = 2) {
  const auto profile = ParseProfileJson(text, "p.json");
  if (!profile.ok()) return profile.status();
  plan::Model model;
  model.layers.resize(layers);
  plan::CostOptions options;
  return ToProfiled(*profile, &model, &options).status();
}

struct Loaded {
  plan::Model model;
  plan::CostOptions options;
  absl::StatusOr<Profiled> profiled;
};

Loaded Load(const std::string& text, const plan::Model& model = TwoLayers()) {
  const auto profile = ParseProfileJson(text, "p.json");
  REQUIRE(profile.ok());
  Loaded loaded{model, {}, Profiled()};
  loaded.profiled = ToProfiled(*profile, &loaded.model, &loaded.options);
  INFO(loaded.profiled.status());
  REQUIRE(loaded.profiled.ok());
  return loaded;
}

std::string Changed(const std::string& from, const std::string& to) {
  std::string text = kProfile;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("a profile file becomes devices, times and links") {
  const auto [model, options, profiled] = Load(kProfile);
  REQUIRE(profiled->cluster.types.size() == 1);
  CHECK(profiled->cluster.types[0].memory_bytes == 950'000'000);  // of the smaller one
  CHECK(profiled->cluster.node_to_node.size() == 1);
  REQUIRE(profiled->table.size() == 1);
  CHECK(profiled->table.begin()->second[1].weight_s == Approx(1e-6));
}

TEST_CASE("a bad profile is refused with what is wrong") {
  CHECK_THAT(std::string(Read("{").message()), Catch::StartsWith("p.json: "));
  CHECK_THAT(std::string(Read("{\"speed\": 1}").message()), Catch::Contains("speed"));
  CHECK_THAT(std::string(Read(kProfile, 1).message()), Catch::Contains("another model"));
  CHECK_THAT(std::string(Read(kProfile, 3).message()), Catch::Contains("another model"));
  CHECK_THAT(std::string(Read(Changed("\"to\": \"b/0\"", "\"to\": \"x/0\"")).message()),
             Catch::Contains("a/0 > x/0"));
  CHECK_FALSE(Read(Changed("1e8", "-1")).ok());
  CHECK_FALSE(Read(Changed("\"forward_ns\": \"10\"", "\"forward_ns\": \"-10\"")).ok());
  CHECK_THAT(
      std::string(Read(Changed("\"forward_ns\": \"10\"", "\"forward_ns\": \"9223372036854775807\""))
                      .message()),
      Catch::Contains("an hour"));
  CHECK_FALSE(Read(Changed("\"b/0\", \"type\"", "\"a/0\", \"type\"")).ok());
  CHECK_FALSE(Read(Changed("\"b/0\", \"type\"", "\"\", \"type\"")).ok());
  CHECK_FALSE(Read(Changed("\"to\": \"b/0\"", "\"to\": \"a/0\"")).ok());
  CHECK_FALSE(Read(Changed("\"layer\": 1", "\"layer\": 0")).ok());
  CHECK_FALSE(Read(Changed("\"950000000\"", "\"-1\"")).ok());
  CHECK_THAT(
      std::string(Read(Changed("\"b/0\", \"type\": \"cpu\"", "\"b/0\", \"type\": \"tpu\\u0007\""))
                      .message()),
      Catch::Contains("\"tpu\\x07\" is not in the catalogue"));
}

TEST_CASE("what_a_profile_says_twice_leaves_out_or_cannot_mean_is_refused_by_field_and_value") {
  const auto refused = [](const std::string& text, const char* says) {
    const absl::Status status = Read(text);
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains(says));
  };
  refused(Changed("\"forward_ns\": \"10\"", "\"forward_ns\": \"0\""),
          "layer 0 on \"cpu\": forward_ns = 0");
  refused(Changed("\"input_gradient_ns\": \"1000\"", "\"input_gradient_ns\": \"-1\""),
          "layer 1 on \"cpu\": input_gradient_ns = -1");
  refused(Changed("\"tensor_parallel\": 1", "\"tensor_parallel\": 0"), "tensor_parallel = 0");
  refused(Changed("\"site\": \"s\"", "\"site\": \"s\\u001b\""), "a device's site is \"s\\x1b\"");
  refused(Changed("\"memory_bytes\": \"950000000\"",
                  "\"memory_bytes\": \"950000000\", \"price_per_hour\": \"NaN\""),
          "device \"b/0\": price_per_hour = nan");
  const char row[] = "{\"layer\": 1, \"tensor_parallel\": 2, \"micro_batch_sequences\": 4}";
  refused(Changed("\"times\": [", absl::StrCat("\"memory\": [", row, ", ", row, "], \"times\": [")),
          "memory of layer 1 appears twice for tensor_parallel = 2");
}

TEST_CASE(
    "sites_without_a_link_between_them_are_refused_and_a_link_measured_one_way_holds_for_both") {
  const std::string two =
      Changed("\"node\": \"b\", \"site\": \"s\"", "\"node\": \"b\", \"site\": \"t\"");
  const auto profile = ParseProfileJson(two, "p.json");
  REQUIRE(profile.ok());
  plan::Model model = TwoLayers();
  plan::CostOptions options;
  const auto profiled = ToProfiled(*profile, &model, &options);
  REQUIRE(profiled.ok());
  CHECK(profiled->cluster.LinkBetween(1, 0).bytes_per_s == 1e8);
  v1::ClusterProfile apart = *profile;
  apart.mutable_cluster()->clear_links();
  CHECK_THAT(std::string(ToProfiled(apart, &model, &options).status().message()),
             Catch::Contains("no link from site \"s\" to site \"t\""));
}

TEST_CASE("one small device does not shrink the others of its type") {
  const auto [model, options, profiled] = Load(Changed("\"950000000\"", "\"500000000\""));
  REQUIRE(profiled->cluster.types.size() == 2);
  CHECK(profiled->cluster.types[0].memory_bytes == 1'000'000'000);
  CHECK(profiled->cluster.types[1].memory_bytes == 500'000'000);
}

TEST_CASE("a link within a node is not its card") {
  const auto [model, options, profiled] = Load(Changed("\"node\": \"b\"", "\"node\": \"a\""));
  CHECK(profiled->cluster.measured.size() == 1);
  CHECK(profiled->cluster.node_to_node.empty());
  CHECK(profiled->cluster.site_to_site.empty());
}

std::string WithMemory(const std::string& row) {
  return Changed("\"times\": [", "\"memory\": [" + row + "], \"times\": [");
}

TEST_CASE("hostile_sizes_of_memory_are_refused_before_they_are_added_up") {
  const std::string size = "\"layer\": 0, \"tensor_parallel\": 1, \"micro_batch_sequences\": 1";
  CHECK(Read(WithMemory("{" + size + ", \"stash_bytes\": \"4096\"}")).ok());
  for (const char* bytes : {"9223372036854775807", "-1", "1125899906842625"}) {
    for (const char* field :
         {"stash_bytes", "output_bytes", "parameter_bytes", "workspace_bytes"}) {
      INFO(field << " = " << bytes);
      const absl::Status status =
          Read(WithMemory("{" + size + ", \"" + field + "\": \"" + bytes + "\"}"));
      CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    }
  }
  for (const char* row : {R"({"layer": 0, "tensor_parallel": 1, "micro_batch_sequences": 0})",
                          R"({"layer": 0, "tensor_parallel": 0, "micro_batch_sequences": 1})",
                          R"({"layer": 2, "tensor_parallel": 1, "micro_batch_sequences": 1})",
                          R"({"layer": -1, "tensor_parallel": 1, "micro_batch_sequences": 1})"}) {
    INFO(row);
    CHECK(Read(WithMemory(row)).code() == absl::StatusCode::kInvalidArgument);
  }
}

std::string MemoryRow(int layer, int degree, int rows, int64_t parameters, int64_t stash,
                      int64_t workspace) {
  return absl::StrCat("{\"layer\": ", layer, ", \"tensor_parallel\": ", degree,
                      ", \"micro_batch_sequences\": ", rows, ", \"parameter_bytes\": \"",
                      parameters, "\", \"stash_bytes\": \"", stash, "\", \"workspace_bytes\": \"",
                      workspace, "\"}");
}

// The model has them in two bytes each, the devices that were measured in four.
TEST_CASE("frozen_weights_are_of_the_type_that_was_measured") {
  const auto profile = ParseProfileJson(
      WithMemory(MemoryRow(0, 1, 1, 1000, 0, 0) + "," + MemoryRow(1, 1, 1, 3600, 0, 0)), "p.json");
  REQUIRE(profile.ok());
  plan::Model model = TwoLayers();
  model.layers[0].frozen_bytes = 500;
  model.layers[1].frozen_bytes = 1000;
  model.layers[1].parameters = 100;
  plan::CostOptions options;
  REQUIRE(ToProfiled(*profile, &model, &options).ok());
  CHECK(model.layers[0].frozen_bytes == 1000);
  CHECK(model.layers[1].frozen_bytes == 2000);
  CHECK(options.state_bytes_per_parameter == Approx(16));
}

// Layer 0 was measured on one device and on each of two, which keep more than half of it.
TEST_CASE("memory_of_tensor_parallel_devices_is_what_was_measured_of_them") {
  const std::string rows =
      absl::StrCat(MemoryRow(0, 1, 1, 1000, 400, 0), ",", MemoryRow(0, 1, 2, 1000, 800, 0), ",",
                   MemoryRow(0, 2, 2, 600, 480, 0), ",", MemoryRow(1, 1, 2, 2000, 100, 16), ",",
                   MemoryRow(0, 2, 4, 1, 1, 0));  // no row of one device has this size
  plan::Model layers = TwoLayers();
  layers.layers[0].parameters = 100;
  layers.layers[1].parameters = 200;
  const auto [model, options, profiled] = Load(WithMemory(rows), layers);
  CHECK(options.state_bytes_per_parameter == Approx(10));
  const plan::Costs costs(model, profiled->table, options, profiled->memory);
  const plan::DeviceType& type = profiled->cluster.types[0];
  const plan::StageCosts one = costs.For(type, 1, 1), two = costs.For(type, 2, 1),
                         four = costs.For(type, 4, 1);
  CHECK(one.StateBytes(0, 1) == 1000 + 8);  // with the workspace of one sequence
  CHECK(one.StashBytes(0, 1) == 400);
  CHECK(two.StateBytes(0, 1) == 600);
  CHECK(two.StashBytes(0, 1) == 240);
  CHECK(two.StateBytes(1, 2) == 1000);  // not measured: half
  CHECK(four.StateBytes(0, 1) == 300);  // half of what each of two has
  CHECK(four.StashBytes(0, 1) == 120);
}

// A stash of 400 bytes beside an output of 100: 600 on one device, and 300 + 200 on each of two.
TEST_CASE("each_device_that_shares_a_layer_has_all_of_its_input_and_of_its_gradient") {
  const auto row = [](int degree, int stash) {
    return absl::StrCat("{\"layer\": 0, \"tensor_parallel\": ", degree,
                        ", \"micro_batch_sequences\": 1, \"stash_bytes\": \"", stash,
                        "\", \"output_bytes\": \"100\"}");
  };
  const auto [model, options, profiled] = Load(WithMemory(row(1, 400) + "," + row(2, 300)));
  const plan::Costs costs(model, profiled->table, options, profiled->memory);
  CHECK(costs.For(profiled->cluster.types[0], 1, 1).StashBytes(0, 1) == 600);
  CHECK(costs.For(profiled->cluster.types[0], 2, 1).StashBytes(0, 1) == 500);
}

std::string WithRuntime(const std::string& runtime) {
  return Changed("\"times\"", absl::StrCat("\"runtime\": {", runtime, "}, \"times\""));
}

TEST_CASE("a_described_runtime_takes_its_context_and_what_its_allocator_adds") {
  plan::Model layers = TwoLayers();
  layers.layers[0].parameters = 10;
  layers.layers[0].stash_bytes = 40;
  const auto [model, options, profiled] = Load(
      WithRuntime(R"("name": "other", "context_bytes": "1000", "allocator_ratio": 1.5)"), layers);
  CHECK_FALSE(options.runtime.blocking_messages);
  const plan::StageCosts costs =
      plan::Costs(model, profiled->table, options).For(profiled->cluster.types[0], 1, 2);
  CHECK(costs.StateBytes(0, 1) == 1000 + 270);  // 18 bytes a parameter
  CHECK(costs.StashBytes(0, 1) == 120);
  for (const char* bad :
       {R"("context_bytes": "-1")", R"("context_bytes": "9223372036854775807")",
        R"("allocator_ratio": 0.5)", R"("all_reduce_ratio": 17)", R"("allocator_ratio": "NaN")"}) {
    INFO(bad);
    CHECK(Read(WithRuntime(bad)).code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("recomputation_saves_no_more_than_was_measured_of_a_stash") {
  const auto profile = ParseProfileJson(WithMemory(MemoryRow(1, 1, 1, 1000, 400, 50)), "p.json");
  REQUIRE(profile.ok());
  plan::Model model = TwoLayers();
  model.layers[0].out_bytes = 100;
  model.layers[1].backward_bytes = 200;
  model.layers[1].again_bytes = 5000;
  plan::CostOptions options;
  REQUIRE(ToProfiled(*profile, &model, &options).ok());
  const plan::Layer& layer = model.layers[1];
  CHECK(layer.again_bytes > 0);
  CHECK(layer.again_bytes + layer.backward_bytes + 100 <= layer.stash_bytes);
}

TEST_CASE("trunks_and_edges_of_a_profile_reach_the_planner") {
  const std::string text = Changed(
      "\"edges\": [{\"latency_ns\": \"1000\", \"bandwidth_bytes_per_s\": 1e8}]}]",
      "\"edges\": [{\"latency_ns\": \"1000\", \"bandwidth_bytes_per_s\": 1e8, \"trunk\": \"t\"},"
      "{\"latency_ns\": \"1000\", \"bandwidth_bytes_per_s\": 1e8}]}],"
      "\"trunks\": [{\"name\": \"t\", \"bandwidth_bytes_per_s\": 5e7}]");
  const auto [model, options, profiled] = Load(text);
  REQUIRE(profiled->cluster.trunks.size() == 1);
  const plan::Link link = profiled->cluster.LinkBetween(0, 1);
  REQUIRE(link.edges.size() == 2);
  CHECK(link.edges[0].trunk == 0);
  CHECK(link.bytes_per_s == Approx(1.5e8).epsilon(1e-3));
}

// Two sites joined by a trunk; "cpu" is no type of the catalogue.
v1::ClusterSpec Described() {
  v1::ClusterSpec spec;
  for (const char* name : {"a", "b", "c"}) {
    v1::Device* device = spec.add_devices();
    device->set_id(std::string(name) + "/0");
    device->set_type("cpu");
    device->set_node(name);
    device->set_site(name[0] == 'c' ? "far" : "s");
  }
  spec.mutable_devices(2)->set_memory_bytes(2'000'000'000);
  spec.add_trunks()->set_name("sea");
  spec.mutable_trunks(0)->set_bandwidth_bytes_per_s(1e6);
  for (const auto& [from, to] : {std::pair("s", "far"), std::pair("far", "s")}) {
    v1::Link* link = spec.add_links();
    link->set_from(from);
    link->set_to(to);
    v1::Edge* edge = link->add_edges();
    edge->set_bandwidth_bytes_per_s(1e7);
    edge->set_trunk("sea");
    v1::BandwidthChange* change = edge->add_changes();
    change->set_time_ns(1000);
    change->set_factor(0.5);
  }
  return spec;
}

TEST_CASE("a_described_cluster_gets_the_times_memory_and_links_that_were_measured") {
  const auto profile = ParseProfileJson(kProfile, "p.json");
  REQUIRE(profile.ok());
  plan::Model model = TwoLayers();
  plan::CostOptions options;
  const auto both = ToProfiled(Described(), *profile, &model, &options);
  INFO(both.status());
  REQUIRE(both.ok());
  const plan::Cluster& cluster = both->cluster;
  REQUIRE(cluster.devices.size() == 3);
  CHECK(cluster.types[cluster.devices[0].type].memory_bytes == 1'000'000'000);  // measured
  CHECK(cluster.types[cluster.devices[2].type].memory_bytes == 2'000'000'000);  // described
  CHECK(cluster.types[0].flops_per_s > 0);
  CHECK(both->table.size() == 1);
  CHECK(cluster.LinkBetween(0, 1).bytes_per_s == Approx(1e8).epsilon(1e-3));  // measured
  const plan::Link sea = cluster.LinkBetween(0, 2);
  REQUIRE(sea.edges.size() == 1);
  CHECK(sea.edges[0].trunk == 0);
  CHECK(sea.edges[0].changes.size() == 1);
}

TEST_CASE("a_described_device_of_a_type_without_times_is_refused_beside_a_profile") {
  const auto profile = ParseProfileJson(kProfile, "p.json");
  REQUIRE(profile.ok());
  plan::Model model = TwoLayers();
  plan::CostOptions options;
  v1::ClusterSpec unknown = Described();
  unknown.mutable_devices(1)->set_type("abacus");
  CHECK_FALSE(ToProfiled(unknown, *profile, &model, &options).ok());
  v1::ClusterSpec sizeless = Described();
  sizeless.mutable_devices(2)->clear_memory_bytes();
  CHECK(ToProfiled(sizeless, *profile, &model, &options).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace atl
