#include "coordinator/plan_io/profile_file.h"

#include <catch2/catch.hpp>

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

std::string Changed(const std::string& from, const std::string& to) {
  std::string text = kProfile;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("a profile file becomes devices, times and links") {
  const auto profile = ParseProfileJson(kProfile, "p.json");
  REQUIRE(profile.ok());
  plan::Model model = TwoLayers();
  plan::CostOptions options;
  const auto profiled = ToProfiled(*profile, &model, &options);
  REQUIRE(profiled.ok());
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
  CHECK_FALSE(Read(Changed("\"b/0\", \"type\"", "\"a/0\", \"type\"")).ok());
  CHECK_FALSE(Read(Changed("\"b/0\", \"type\"", "\"\", \"type\"")).ok());
  CHECK_FALSE(Read(Changed("\"to\": \"b/0\"", "\"to\": \"a/0\"")).ok());
  CHECK_FALSE(Read(Changed("\"layer\": 1", "\"layer\": 0")).ok());
  CHECK_FALSE(Read(Changed("\"950000000\"", "\"-1\"")).ok());
  CHECK_THAT(
      std::string(Read(Changed("\"b/0\", \"type\": \"cpu\"", "\"b/0\", \"type\": \"tpu\\u0007\""))
                      .message()),
      Catch::Contains("\"tpu\\x07\", of which there are no times"));
}

TEST_CASE("one small device does not shrink the others of its type") {
  const auto profile = ParseProfileJson(Changed("\"950000000\"", "\"500000000\""), "p.json");
  REQUIRE(profile.ok());
  plan::Model model = TwoLayers();
  plan::CostOptions options;
  const auto profiled = ToProfiled(*profile, &model, &options);
  REQUIRE(profiled.ok());
  REQUIRE(profiled->cluster.types.size() == 2);
  CHECK(profiled->cluster.types[0].memory_bytes == 1'000'000'000);
  CHECK(profiled->cluster.types[1].memory_bytes == 500'000'000);
}

TEST_CASE("a link within a node is not its card") {
  const auto profile = ParseProfileJson(Changed("\"node\": \"b\"", "\"node\": \"a\""), "p.json");
  REQUIRE(profile.ok());
  plan::Model model = TwoLayers();
  plan::CostOptions options;
  const auto profiled = ToProfiled(*profile, &model, &options);
  REQUIRE(profiled.ok());
  CHECK(profiled->cluster.measured.size() == 1);
  CHECK(profiled->cluster.node_to_node.empty());
  CHECK(profiled->cluster.site_to_site.empty());
}

}  // namespace
}  // namespace atl
