// Adapters: their gradients, on one device and cut over a group, and what merging makes of them.

#include <catch2/catch.hpp>
#include <cmath>

#include "common/model/tensor_layout.h"
#include "common/rng.h"
#include "kernels/testing/reference/reference.h"
#include "worker/model/merge_adapter.h"
#include "worker/model/runner.h"
#include "worker/model/testing/weights_fixture.h"

namespace atl {
namespace {

// ---- vocabulary of these tests ----

constexpr int64_t kLength = 7;

ModelConfig Tiny(ModelFamily family, std::vector<std::string> targets, bool rslora = false) {
  ModelConfig c = TinyModel(family, /*tied=*/family == ModelFamily::kGpt2);
  if (family == ModelFamily::kGemma2) c.window = {.tokens = 4, .period = 2};
  c.adapter = {.rank = 3, .alpha = 5, .use_rslora = rslora, .targets = std::move(targets)};
  return c;
}

std::vector<float> RandomValues(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(0.3 * rng.Normal() + 0.05);
  return values;
}

// A model in double precision with random parameters, frozen and trained.
struct Subject {
  explicit Subject(const ModelConfig& config)
      : backend(NewReferenceBackend()), model(*Model::Create(config, DType::kFloat64)) {
    runner = *ModelRunner::Create(*backend, model, {.micro_batch_rows = 2, .seq_len = kLength});
    for (size_t l = 0; l < model.layers().size(); ++l) {
      const LayerLayout& layout = model.layers()[l]->layout();
      frozen.push_back(RandomValues(layout.frozen_size, 10 + l));
      trained.push_back(RandomValues(layout.size, 50 + l));
      Write();
    }
  }
  void Write() {
    for (size_t l = 0; l < frozen.size(); ++l) {
      LayerState& layer = runner->layer(static_cast<int>(l));
      const FrozenWeights weights(layer.layout(), frozen[l]);
      if (!frozen[l].empty()) Must(layer.WriteFrozen(runner->stream(), weights));
      std::copy(trained[l].begin(), trained[l].end(), Values(layer.params()).begin());
    }
  }
  static std::span<double> Values(const Tensor& x) {
    return {static_cast<double*>(x.data), static_cast<size_t>(x.size())};
  }
  double Loss() { return runner->Evaluate(tokens, 3)->mean(); }

  std::unique_ptr<Backend> backend;
  Model model;
  std::unique_ptr<ModelRunner> runner;
  std::vector<std::vector<float>> frozen, trained;
  std::vector<int32_t> tokens = [] {
    Rng rng(4);
    std::vector<int32_t> all(3 * (kLength + 1));
    for (int32_t& token : all) token = static_cast<int32_t>(rng.Below(19));
    return all;
  }();
};

const ModelFamily kDecoders[] = {ModelFamily::kLlama, ModelFamily::kGpt2, ModelFamily::kPhi3,
                                 ModelFamily::kQwen3, ModelFamily::kGemma2};

// ---- layouts ----

TEST_CASE("an_adapter_trains_two_matrices_of_each_target_and_nothing_else") {
  const auto layouts = MakeLayouts(Tiny(ModelFamily::kLlama, {"q_proj", "v_proj"}));
  CHECK(layouts.front().size == 0);
  CHECK(layouts.back().size == 0);
  std::vector<std::string> names;
  for (const ParamSpec& param : layouts[1].params) names.push_back(param.name);
  const std::string block = "base_model.model.model.layers.0.self_attn.";
  CHECK(names ==
        std::vector<std::string>{block + "q_proj.lora_A.weight", block + "v_proj.lora_A.weight",
                                 block + "q_proj.lora_B.weight", block + "v_proj.lora_B.weight"});
  CHECK(layouts[1].size == 3 * (8 + 8) + 3 * (8 + 4));
  CHECK(layouts[1].frozen_size == MakeLayouts(TinyModel(ModelFamily::kLlama, false))[1].size);
}

TEST_CASE("a_new_adapter_changes_nothing_and_its_a_is_uniform_up_to_the_root_of_its_inputs") {
  const auto layouts = MakeLayouts(Tiny(ModelFamily::kLlama, {kAllLinear}));
  std::vector<float> values(static_cast<size_t>(layouts[1].size));
  InitLayer(layouts[1], 2, 7, values);
  for (const ParamSpec& param : layouts[1].params) {
    const auto own = std::span(values).subspan(static_cast<size_t>(param.offset),
                                               static_cast<size_t>(param.size));
    const double bound =
        param.use == Param::kAdapterA ? 1 / std::sqrt(static_cast<double>(param.shape[1])) : 0;
    double most = 0;
    for (const float x : own) most = std::max(most, std::abs(double{x}));
    CAPTURE(param.name, bound, most);
    CHECK(most <= bound);
    CHECK(most >= 0.8 * bound);
  }
}

// ---- gradients ----

TEST_CASE("gradients_of_adapters_are_the_losss_slopes") {
  for (const ModelFamily family : kDecoders) {
    Subject s(Tiny(family, {kAllLinear}, family == ModelFamily::kPhi3));
    (void)*s.runner->Train(s.tokens, 3);
    for (int l = 0; l < static_cast<int>(s.model.layers().size()); ++l) {
      LayerState& layer = s.runner->layer(l);
      const auto values = Subject::Values(layer.params()), grads = Subject::Values(layer.grads());
      for (const ParamSpec& param : layer.layout().params) {
        for (int64_t i = param.offset; i < param.end(); i += 5) {
          const auto at = static_cast<size_t>(i);
          const double start = values[at], step = 1e-4;
          values[at] = start + step;
          const double up = s.Loss();
          values[at] = start - step;
          const double down = s.Loss();
          values[at] = start;
          CAPTURE(param.name, i - param.offset);
          // The factor of a mean is a float.
          REQUIRE((up - down) / (2 * step) == Approx(grads[at]).epsilon(1e-5).margin(1e-7));
        }
      }
    }
  }
}

// ---- merging ----

TEST_CASE("the_merged_model_computes_what_the_model_with_its_adapter_does") {
  for (const ModelFamily family : kDecoders) {
    const ModelConfig config = Tiny(family, {kAllLinear});
    Subject adapted(config), merged(config);
    const double before = [&] {
      Subject base(config);
      for (auto& layer : base.trained) std::ranges::fill(layer, 0.0f);
      base.Write();
      return base.Loss();
    }();
    for (size_t l = 0; l < merged.frozen.size(); ++l) {
      MergeAdapter(merged.model.layers()[l]->layout(), config.adapter, merged.trained[l],
                   merged.frozen[l]);
      std::ranges::fill(merged.trained[l], 0.0f);
    }
    merged.Write();
    CHECK(merged.Loss() == Approx(adapted.Loss()).epsilon(1e-6));
    CHECK(std::abs(adapted.Loss() / before - 1) > 1e-3);
  }
}

// ---- files ----

TEST_CASE("an_adapter_that_was_written_as_pefts_is_read_again") {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kGpt2}) {
    const Folder folder;
    Weights weights = Weights::Random(Tiny(family, {kAllLinear}));
    const auto source = [&](int l) { return std::span<const float>(weights.values[l]); };
    Must(WriteAdapterFolder(folder.path(), weights.config, weights.layouts, source, "base"));
    Must(CheckAdapter(folder.path(), weights.config.adapter, weights.layouts));
    Weights again(weights.config);
    const std::vector<std::span<float>> layers(again.values.begin(), again.values.end());
    Must(ReadAdapter(folder.path(), again.layouts, layers));
    CHECK(again.values == weights.values);
    const AdapterSpec spec = *ReadAdapterConfig(folder.path());
    CHECK(*WithAdapter(weights.config.Base(), spec) == weights.config);
    // PEFT's names and shapes, whatever the base's matrices are.
    const auto reader = *SafetensorsReader::Open(folder / kAdapterWeightsFile);
    const std::string matrix = family == ModelFamily::kGpt2
                                   ? "base_model.model.transformer.h.1.mlp.c_fc.lora_"
                                   : "base_model.model.model.layers.1.mlp.up_proj.lora_";
    CHECK(reader.tensors().at(matrix + "A.weight").shape == std::vector<int64_t>{3, 8});
    CHECK(reader.tensors().at(matrix + "B.weight").shape == std::vector<int64_t>{12, 3});
  }
}

TEST_CASE("an_adapter_of_another_kind_is_refused_by_the_field_that_says_so") {
  const std::string good = FormatAdapterConfig(Tiny(ModelFamily::kLlama, {"q_proj"}), "");
  REQUIRE(ParseAdapterConfig(good, "f").ok());
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return std::string(ParseAdapterConfig(text, "f").status().message());
  };
  CHECK(absl::StrContains(refused("\"use_dora\": false", "\"use_dora\": true"), "use_dora"));
  CHECK(absl::StrContains(refused("\"bias\": \"none\"", "\"bias\": \"all\""), "bias"));
  CHECK(absl::StrContains(refused("\"modules_to_save\": null", "\"modules_to_save\": [\"x\"]"),
                          "modules_to_save"));
  CHECK(absl::StrContains(refused("LORA", "IA3"), "peft_type"));
  CHECK(absl::StrContains(refused("\"r\": 3", "\"r\": 0"), "r "));
  CHECK(absl::StrContains(refused("\"r\": 3", "\"r\": 3, \"rank_pattern\": {\"a\": 4}"),
                          "rank_pattern"));
  CHECK(absl::StrContains(refused("\"lora_alpha\": 5.0", "\"lora_alpha\": 1e7"), "lora_alpha"));
}

// PEFT's ways to begin that change the base's weights: what is trained then is beside other ones.
TEST_CASE("an_adapter_that_has_changed_its_base_is_refused") {
  const std::string good = FormatAdapterConfig(Tiny(ModelFamily::kLlama, {"q_proj"}), "");
  const auto with = [&](const std::string& field) {
    return ParseAdapterConfig("{" + field + ", " + good.substr(good.find('"')), "f").status();
  };
  for (const char* init : {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\""}) {
    CHECK(with(absl::StrCat("\"init_lora_weights\": ", init)).ok());
  }
  for (const char* init : {"\"pissa\"", "\"olora\"", "\"loftq\"", "\"corda\"", "\"eva2\"", "1"}) {
    const absl::Status status = with(absl::StrCat("\"init_lora_weights\": ", init));
    CHECK(absl::StrContains(status.message(), "init_lora_weights"));
  }
  CHECK(with("\"loftq_config\": {}").ok());
  CHECK(absl::StrContains(with("\"loftq_config\": {\"loftq_bits\": 4}").message(), "loftq_config"));
}

TEST_CASE("a_base_from_the_hub_is_named_as_peft_loads_it") {
  const Folder folder;
  const Weights weights = Weights::Random(Tiny(ModelFamily::kLlama, {"q_proj"}));
  const auto source = [&](int l) { return std::span<const float>(weights.values[l]); };
  const auto write = [&](const std::string& base) {
    Must(WriteAdapterFolder(folder.path(), weights.config, weights.layouts, source, base));
    return folder.Read(kAdapterConfigFile);
  };
  CHECK_THAT(write("hf://org/name@v2"), Contains("\"base_model_name_or_path\": \"org/name\"") &&
                                            Contains("\"revision\": \"v2\""));
  CHECK_THAT(write("/models/base"), Contains("\"base_model_name_or_path\": \"/models/base\"") &&
                                        Contains("\"revision\": null"));
}

TEST_CASE("copies_of_weights_have_one_digest_however_they_are_cut_and_others_another") {
  const Folder folder;
  // Larger tensors are sampled.
  ModelConfig config = TinyModel(ModelFamily::kLlama, false);
  config.vocab = 1024;
  Weights weights = Weights::Random(config);
  const auto digest = [&](int64_t shard_bytes) {
    std::filesystem::remove_all(folder / "model");
    Must(weights.WriteTo(folder / "model", shard_bytes));
    const auto made = DigestWeights(folder / "model", weights.layouts);
    Must(made.status());
    return *made;
  };
  const uint64_t first = digest(1 << 30);
  CHECK(first != 0);
  CHECK(digest(1 << 10) == first);
  for (size_t l = 0; l < weights.layouts.size(); ++l) {
    for (const ParamSpec& param : weights.layouts[l].params) {
      CAPTURE(param.name);
      float& last = weights.values[l][static_cast<size_t>(param.end() - 1)];
      const float was = std::exchange(last, last + 1);
      CHECK(digest(1 << 30) != first);
      last = was;
    }
  }
  std::swap(weights.values[1], weights.values[2]);  // of the same shapes
  CHECK(digest(1 << 30) != first);
}

TEST_CASE("a_target_that_no_matrix_is_called_is_refused_with_the_matrices_there_are") {
  const AdapterSpec spec{.kind = AdapterKind::kLora, .rank = 2, .targets = {"query"}};
  const auto config = WithAdapter(TinyModel(ModelFamily::kLlama, false), spec);
  REQUIRE(absl::IsInvalidArgument(config.status()));
  CHECK(absl::StrContains(config.status().message(), "self_attn.q_proj"));
  ModelConfig bert = TinyModel(ModelFamily::kBert, true);
  CHECK(absl::IsInvalidArgument(WithAdapter(bert, spec).status()));
}

TEST_CASE("an_adapter_of_another_rank_or_of_other_matrices_is_refused") {
  const Folder folder;
  const Weights weights = Weights::Random(Tiny(ModelFamily::kLlama, {"q_proj"}));
  Must(WriteAdapterFolder(
      folder.path(), weights.config, weights.layouts,
      [&](int l) { return std::span<const float>(weights.values[l]); }, ""));
  const auto check = [&](const AdapterConfig& adapter) {
    ModelConfig config = weights.config;
    config.adapter = adapter;
    return CheckAdapter(folder.path(), adapter, MakeLayouts(config));
  };
  AdapterConfig adapter = weights.config.adapter;
  CHECK(check(adapter).ok());
  adapter.alpha = 1;
  CHECK(absl::IsInvalidArgument(check(adapter)));
  adapter = weights.config.adapter;
  adapter.targets = {"k_proj"};
  CHECK(absl::IsInvalidArgument(check(adapter)));
  adapter.targets = {"q_proj", "k_proj"};
  CHECK(absl::IsInvalidArgument(check(adapter)));
}

}  // namespace
}  // namespace atl
