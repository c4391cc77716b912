#include "coordinator/core/shards/placement.h"

#include <catch2/catch.hpp>
#include <map>
#include <tuple>

#include "coordinator/core/shards/replicas.h"

namespace atl {
namespace {

std::vector<ShardDescriptor> Cut(const std::vector<LayerSize>& layers, int64_t bytes) {
  auto shards = CutShards(layers, bytes);
  REQUIRE(shards.ok());
  return *shards;
}

TEST_CASE("a layer within the limit is one shard; a larger one is cut into equal shards") {
  const auto shards = Cut({{"small", 10}, {"large", 25}}, 40);
  REQUIRE(shards.size() == 4);
  CHECK(shards[0].elements == 10);
  CHECK(shards[1].elements == 9);
  CHECK(shards[2].elements == 8);
  CHECK(shards[3].elements == 8);
  CHECK(shards[3].layer == 1);
  CHECK(shards[3].begin == 17);
  CHECK(shards[3].shard == 3);
}

TEST_CASE("a_layer_without_elements_has_no_shard") {
  const auto shards = CutShards({{"embedding", 0}, {"a", 10}, {"head", 0}}, 1 << 20);
  REQUIRE(shards.ok());
  REQUIRE(shards->size() == 1);
  CHECK(shards->front().layer == 1);
}

TEST_CASE("running_statistics_have_shards_of_their_own") {
  const auto shards = Cut({{"a", 10, 4}, {"b", 5}}, 40);
  REQUIRE(shards.size() == 3);
  CHECK(shards[0].elements == 6);
  CHECK(shards[1].begin == 6);
  CHECK(shards[1].elements == 4);
  CHECK(shards[2].layer == 1);
}

TEST_CASE("shards_end_where_experts_do_and_experts_are_counted_in_all_layers") {
  const std::vector<LayerSize> layers = {
      {"dense", 8}, {"a", 20, 0, 2, 4, 6}, {"b", 10, 0, 2, 0, 5}};
  const auto shards = CutShards(layers, 16, /*by_expert=*/true);
  REQUIRE(shards.ok());
  std::vector<std::tuple<int32_t, int64_t, int64_t, int32_t>> cut;
  for (const ShardDescriptor& shard : *shards) {
    cut.emplace_back(shard.layer, shard.begin, shard.elements, shard.expert);
  }
  CHECK(cut == std::vector<std::tuple<int32_t, int64_t, int64_t, int32_t>>{{0, 0, 4, -1},
                                                                           {0, 4, 4, -1},
                                                                           {1, 0, 4, -1},
                                                                           {1, 4, 3, 0},
                                                                           {1, 7, 3, 0},
                                                                           {1, 10, 3, 1},
                                                                           {1, 13, 3, 1},
                                                                           {1, 16, 4, -1},
                                                                           {2, 0, 3, 2},
                                                                           {2, 3, 2, 2},
                                                                           {2, 5, 3, 3},
                                                                           {2, 8, 2, 3}});
  CHECK(CutShards(layers, 16)->front().expert == -1);
}

TEST_CASE("too many shards are an error that says so") {
  const auto shards = CutShards({{"huge", kPlacedElementsMax}}, 4);
  CHECK(shards.status().message().find("allow larger shards") != std::string::npos);
}

TEST_CASE("the largest shard goes first, always to the server with the least") {
  const auto placement = PlaceShards(Cut({{"a", 5}, {"b", 9}, {"c", 4}, {"d", 6}}, 1 << 20),
                                     {{"ps-0", 1, 10000}, {"ps-1", 1, 10000}}, 12);
  REQUIRE(placement.ok());
  CHECK(GetActiveServer((*placement)[1]) == "ps-0");  // 9
  CHECK(GetActiveServer((*placement)[3]) == "ps-1");  // 6
  CHECK(GetActiveServer((*placement)[0]) == "ps-1");  // 5
  CHECK(GetActiveServer((*placement)[2]) == "ps-0");  // 4
  CHECK(MaxOverMean(*placement) == Approx(13.0 / 12));
}

TEST_CASE("a_far_server_gets_so_much_less_at_first") {
  const auto shards = Cut({{"a", 10}, {"b", 10}, {"c", 10}, {"d", 10}}, 1 << 20);
  const auto placement =
      PlaceShards(shards, {{"far", /*cost=*/3, 10000}, {"near", /*cost=*/1, 10000}}, 4);
  REQUIRE(placement.ok());
  std::map<NodeId, int> count;
  for (const ShardDescriptor& shard : *placement) ++count[GetActiveServer(shard)];
  CHECK(count == std::map<NodeId, int>{{"far", 1}, {"near", 3}});
}

TEST_CASE("a small server gets what fits; none that fits is an error with the numbers") {
  const auto shards = Cut({{"a", 10}, {"b", 10}, {"c", 10}}, 1 << 20);
  const auto placement = PlaceShards(shards, {{"ps-0", 1, 120}, {"ps-1", 1, 240}}, 12);
  REQUIRE(placement.ok());
  std::map<NodeId, int> count;
  for (const ShardDescriptor& shard : *placement) ++count[GetActiveServer(shard)];
  CHECK(count["ps-0"] == 1);
  CHECK(count["ps-1"] == 2);
  const auto none = PlaceShards(shards, {{"ps-0", 1, 120}, {"ps-1", 1, 200}}, 12);
  CHECK(none.status().message() ==
        "parameter servers have too little memory: 360 bytes for parameters, outer optimizer "
        "state and one staged pseudo-gradient, 320 free on 2 of them");
}

TEST_CASE("facts that no worker could mean are refused") {
  JobFacts facts{{{"a", 10}}, 5, 5, 1};
  CHECK(Validate(facts).ok());
  facts.layers[0].elements = -1;
  CHECK_FALSE(Validate(facts).ok());
  facts.layers[0].elements = 0;
  CHECK_FALSE(Validate(facts).ok());
  CHECK(Validate(JobFacts{{{"frozen", 0}, {"a", 10}}, 5, 5, 1}).ok());
  facts.layers[0].elements = kPlacedElementsMax + 1;
  CHECK_FALSE(Validate(facts).ok());
  CHECK_FALSE(Validate(JobFacts{{}, 5, 5, 1}).ok());
  CHECK_FALSE(Validate(JobFacts{{{"a", 10}}, 0, 5, 1}).ok());
}

TEST_CASE("the first fact that differs is named with both values") {
  const JobFacts ours{{{"a", 10}, {"b", 20}}, 5, 5, 1};
  CHECK(Difference(ours, ours).empty());
  JobFacts theirs = ours;
  theirs.layers[1].elements = 21;
  CHECK(Difference(ours, theirs) == "elements of layer b: 21 here, 20 on the others");
  theirs = ours;
  theirs.model.config_json = "{}";
  CHECK(Difference(ours, theirs) == "the model's numbers (config.json)");
  theirs = ours;
  theirs.data_digest = 2;
  CHECK(Difference(ours, theirs) == "digest of the data: 2 here, 1 on the others");
  CHECK(Difference(ours, theirs, {{.name = "arc"}, {.name = "wiki"}}) ==
        "digest of the data and of the evaluations arc, wiki: 2 here, 1 on the others");
  theirs = ours;
  theirs.base_digest = 7;
  CHECK_FALSE(Difference(ours, theirs).empty());
}

}  // namespace
}  // namespace atl
