// Mixtures of experts: what config.json says of them, where their parameters lie, what they cost.

#include <catch2/catch.hpp>
#include <numeric>

#include "common/model/hugging_face.h"
#include "common/model/stage_memory.h"
#include "common/model/tensor_layout.h"
#include "common/model/testing/model_sizes.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;

ModelConfig Mixture(const std::string& more = "") {
  const auto config = ParseModelConfig(
      absl::StrCat(R"({"model_type": "qwen2_moe", "vocab_size": 64, "hidden_size": 16,
          "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 4, "moe_intermediate_size": 8, "num_experts": 5,
          "num_experts_per_tok": 2, "shared_expert_intermediate_size": 12)",
                   more, "}"),
      "config.json");
  INFO(config.status().message());
  REQUIRE(config.ok());
  return *config;
}

std::string RefusalText(const absl::Status& status) {
  REQUIRE(absl::IsInvalidArgument(status));
  return std::string(status.message());
}

TEST_CASE("blocks_have_experts_by_step_and_list") {
  const auto dense = [](const std::string& more) { return Mixture(more).experts.dense_blocks; };
  CHECK(dense("").empty());
  CHECK(dense(R"(, "mlp_only_layers": null)").empty());
  CHECK(dense(R"(, "decoder_sparse_step": 2)") == std::vector<int64_t>{0, 2});
  // A file of which layers were cut off still lists them.
  CHECK(dense(R"(, "mlp_only_layers": [7, 1, 4, 5, 6])") == std::vector<int64_t>{1});
  const ModelConfig both = Mixture(R"(, "decoder_sparse_step": 2, "mlp_only_layers": [1, 0])");
  CHECK(both.experts.dense_blocks == std::vector<int64_t>{0, 1, 2});
  CHECK_FALSE(both.HasExperts(2));
  CHECK(both.HasExperts(3));
  CHECK(both.MeasuredBlock() == 3);
  CHECK(Mixture().MeasuredBlock() == 0);
  const auto again = ParseModelConfig(FormatModelConfig(both), "config.json");
  REQUIRE(again.ok());
  CHECK(*again == both);
  const std::vector<LayerLayout> layouts = MakeLayouts(both);
  CHECK(layouts[3].Find(Param::kUp) != nullptr);
  CHECK(layouts[3].Find(Param::kRouter) == nullptr);
  CHECK(layouts[4].Find(Param::kUp) == nullptr);
  CHECK(layouts[4].Find(Param::kRouter) != nullptr);
}

TEST_CASE("experts_that_a_job_file_gives_numbers_of_come_back_from_config_json") {
  ModelSpec spec;
  spec.family = GENERATE(ModelFamily::kMixtral, ModelFamily::kOlmoe, ModelFamily::kQwen2Moe,
                         ModelFamily::kQwen3Moe, ModelFamily::kDots1);
  spec.hidden = 16;
  spec.layers = 2;
  spec.heads = 2;
  spec.feed_forward = 40;
  spec.experts = 5;
  spec.experts_per_token = 2;
  spec.expert_hidden = 24;
  const auto config = ModelConfigFromSpec(spec, 32);
  REQUIRE(config.ok());
  CHECK(config->experts.count == 5);
  CHECK(config->experts.hidden == 24);
  const auto again = ParseModelConfig(FormatModelConfig(*config), "config.json");
  REQUIRE(again.ok());
  CHECK(again->experts == config->experts);
}

TEST_CASE("numbers_of_experts_that_no_mixture_has_are_refused") {
  const auto refusal = [](auto change) {
    ModelConfig config = Mixture();
    change(config.experts);
    return RefusalText(config.Validate());
  };
  CHECK_THAT(refusal([](Experts& e) { e.per_token = 6; }), Contains("experts per token is 6"));
  CHECK_THAT(refusal([](Experts& e) { e.per_token = 0; }), Contains("experts per token is 0"));
  CHECK_THAT(refusal([](Experts& e) { e.count = -1; }), Contains("experts is -1"));
  CHECK_THAT(refusal([](Experts& e) { e.hidden = 0; }), Contains("width of an expert is 0"));
  CHECK_THAT(refusal([](Experts& e) { e.auxiliary_loss = 2; }), Contains("auxiliary loss is 2"));
  CHECK_THAT(refusal([](Experts& e) {
               e.dense_blocks = {0, 1, 2, 3};
             }),
             Contains("blocks without experts is 4"));
}

TEST_CASE("mixtures_whose_numbers_are_too_large_together_are_refused") {
  ModelConfig many = Mixture();
  many.layers = 4096;
  many.experts.count = 32;
  CHECK(many.Validate().ok());
  many.experts.count = 33;
  CHECK_THAT(RefusalText(many.Validate()), Contains("experts of all layers is 135168"));
  ModelConfig wide = Mixture();
  wide.experts.count = 4096;
  wide.experts.hidden = 4096;
  CHECK(wide.Validate().ok());
  wide.experts.hidden = 4097;
  CHECK_THAT(RefusalText(wide.Validate()), Contains("width of all experts of a block is 16781312"));
}

TEST_CASE("numbers_of_which_defaults_are_made_are_refused_before_them") {
  for (const ModelFamily family : {ModelFamily::kQwen2Moe, ModelFamily::kDots1}) {
    ModelSpec spec;
    spec.family = family;
    spec.vocabulary = 64;
    spec.layers = 1;
    spec.heads = 4;
    spec.hidden = int64_t{1} << 62;
    CHECK_THAT(RefusalText(ModelConfigFromSpec(spec, 8).status()), Contains("d_model is "));
    spec.hidden = 16;
    spec.feed_forward = int64_t{1} << 62;
    CHECK_THAT(RefusalText(ModelConfigFromSpec(spec, 8).status()), Contains("ffn is "));
  }
}

TEST_CASE("a_mixture_without_its_number_of_experts_is_refused_by_the_fields_name") {
  const auto refusal = [](const std::string& more) {
    return RefusalText(
        ParseModelConfig(
            absl::StrCat(R"({"model_type": "dots1", "vocab_size": 64, "hidden_size": 16,
            "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 4)",
                         more, "}"),
            "config.json")
            .status());
  };
  CHECK_THAT(refusal(""), Contains("n_routed_experts"));
  CHECK_THAT(refusal(R"(, "n_routed_experts": 4)"), Contains("num_experts_per_tok"));
}

TEST_CASE("experts_lie_side_by_side_each_whole") {
  const ModelConfig config = Mixture();
  const LayerLayout block = MakeLayouts(config)[1];
  const int64_t expert = 3 * 8 * 16, first = block.Find(Param::kExpertGate)->offset;
  for (int e = 0; e < 5; ++e) {
    const std::string prefix = absl::StrCat("model.layers.0.mlp.experts.", e, ".");
    const ParamSpec& gate = block.Find(prefix + "gate_proj.weight");
    const ParamSpec& up = block.Find(prefix + "up_proj.weight");
    const ParamSpec& down = block.Find(prefix + "down_proj.weight");
    CHECK(gate.offset == first + e * expert);
    CHECK(up.offset == gate.end());
    CHECK(down.offset == up.end());
    CHECK(down.shape == std::vector<int64_t>{16, 8});
  }
  CHECK(block.Find(Param::kSharedUp)->offset == block.Find(Param::kSharedGate)->end());
  CHECK(block.Find(Param::kRouter)->shape == std::vector<int64_t>{5, 16});
  CHECK(block.Find(Param::kSharedWeight)->shape == std::vector<int64_t>{1, 16});
  CHECK(block.decay_size == block.Find(Param::kSharedWeight)->end());
}

TEST_CASE("ranks_hold_experts_by_their_shares_and_join_to_the_whole") {
  const ModelConfig config = Mixture(R"(, "mlp_only_layers": [2])");
  const std::vector<LayerLayout> whole = MakeLayouts(config);
  for (const std::vector<int32_t>& ratios : {std::vector<int32_t>{}, {1, 3}, {1, 1, 2}}) {
    const int ranks = ratios.empty() ? 2 : static_cast<int>(ratios.size());
    const auto parts = CutModel(config, ranks, ratios);
    REQUIRE(parts.ok());
    int64_t experts = 0;
    std::vector<std::vector<LayerLayout>> cut;
    for (const TensorPart& part : *parts) {
      CHECK(part.experts.begin == experts);
      experts = part.experts.end;
      cut.push_back(MakeLayouts(config, part));
    }
    CHECK(experts == 5);
    if (ratios.size() == 2) CHECK(parts->back().experts.size() == 4);
    for (size_t l = 0; l < whole.size(); ++l) {
      std::vector<float> values(static_cast<size_t>(whole[l].size)), joined(values.size(), -1);
      std::iota(values.begin(), values.end(), 0.0f);
      int64_t counted = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const LayerLayout& part = cut[static_cast<size_t>(rank)][l];
        std::vector<float> buffer(static_cast<size_t>(part.size));
        CutLayer(whole[l], part, values, buffer);
        JoinLayer(whole[l], part, buffer, joined);
        for (const Range& range : CountedRanges(part, rank)) counted += range.size();
      }
      CHECK(joined == values);
      CHECK(counted == whole[l].size);
    }
  }
  CHECK_THAT(RefusalText(CutModel(config, 5, {}).status()), Contains("4 key-value heads"));
  ModelConfig few = config;
  few.experts.count = 2;
  CHECK_THAT(RefusalText(CutModel(few, 3, {}).status()), Contains("2 experts in a block"));
}

TEST_CASE("a_token_costs_the_experts_that_it_goes_through") {
  const ModelConfig config = Mixture(R"(, "mlp_only_layers": [2])");
  const int64_t d = 16;
  CHECK(FeedForwardWeights(config, 0) == 3 * d * (2 * 8 + 12) + 5 * d + d);
  CHECK(FeedForwardWeights(config, 2) == 3 * d * 40);
  CHECK(IdleParameters(config, 1) == 3 * 3 * d * 8);
  CHECK(IdleParameters(config, 0) == 0);
  CHECK(IdleParameters(config, 3) == 0);
  const double attention = 2.0 * 4 * d * d * 32 + 4.0 * d * 32 * 32 / 2;
  CHECK(ForwardFlops(config, 1, 32) ==
        attention + 2.0 * 32 * static_cast<double>(FeedForwardWeights(config, 0)));
  ModelConfig more = config;
  more.experts.count = 50;
  const double routed = 2.0 * 32 * 45 * d;
  CHECK(ForwardFlops(more, 1, 32) == ForwardFlops(config, 1, 32) + routed);
}

TEST_CASE("memory_of_a_mixture_grows_with_its_experts_and_activations_with_those_of_a_token") {
  const ElementBytes element{4, 4};
  const BatchShape shape{1, 32};
  const auto footprint = [&](const ModelConfig& config, int layer) {
    return ComputeLayerFootprints(config, WholePart(config), shape, element)[layer];
  };
  const ModelConfig config = Mixture(R"(, "mlp_only_layers": [2])");
  ModelConfig more = config, each = config;
  more.experts.count = 6;
  each.experts.per_token = 3;
  const LayerFootprint is = footprint(config, 1);
  CHECK(footprint(more, 1).parameter_bytes == is.parameter_bytes + 8 * (3 * 8 * 16 + 16));
  // The scores of one more expert.
  CHECK(footprint(more, 1).forward_stash_bytes - is.forward_stash_bytes <= 4 * 32 + 64);
  CHECK(footprint(each, 1).parameter_bytes == is.parameter_bytes);
  CHECK(footprint(each, 1).forward_stash_bytes >= is.forward_stash_bytes + 4 * 32 * 3 * 8);
  CHECK(footprint(each, 3).forward_stash_bytes == footprint(config, 3).forward_stash_bytes);
}

TEST_CASE("adapters_of_a_mixture_are_those_of_attention") {
  AdapterSpec spec;
  spec.kind = AdapterKind::kLora;
  spec.rank = 2;
  spec.alpha = 2;
  spec.targets = {"q_proj", "o_proj"};
  const auto adapted = WithAdapter(Mixture(), spec);
  REQUIRE(adapted.ok());
  const LayerLayout block = MakeLayouts(*adapted)[1];
  CHECK(block.params.size() == 4);
  CHECK(block.frozen_size == MakeLayouts(Mixture())[1].size);
  const std::vector<LayerCosts> costs = CostsByLayer(*adapted, 32, {4, 4});
  CHECK(costs[1].frozen_flops ==
        2.0 * 32 * static_cast<double>(4 * 16 * 16 + FeedForwardWeights(Mixture(), 0)));
  for (const char* target : {"all-linear", "gate_proj", "mlp.experts.0.up_proj", "gate"}) {
    spec.targets = {target};
    CHECK_THAT(RefusalText(WithAdapter(Mixture(), spec).status()),
               Contains(target) && Contains("self_attn.v_proj") && !Contains("mlp.gate_proj"));
  }
}

}  // namespace
}  // namespace atl
