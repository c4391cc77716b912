#include <catch2/catch.hpp>

#include "worker/model/testing/weights_fixture.h"

namespace atl {
namespace {

// ---- folders ----

TEST_CASE("a folder that was written is read back bit for bit, whole or in shards") {
  FOR_EVERY_MODEL();
  const int64_t max_shard_bytes = GENERATE(int64_t{1} << 30, 1000);
  Folder folder;
  const Weights original = Weights::Random(config);
  Must(original.WriteTo(folder / "out", max_shard_bytes));
  const auto read_config = ReadModelConfig(folder / "out");
  Must(read_config.status());
  REQUIRE(*read_config == config);
  Weights copy(*read_config);
  Must(copy.ReadFrom(folder / "out"));
  REQUIRE(copy.values == original.values);
  REQUIRE(std::filesystem::exists(folder / "out/model.safetensors.index.json") ==
          (max_shard_bytes == 1000));
  for (const auto& file : std::filesystem::directory_iterator(folder / "out")) {
    REQUIRE(file.path().extension() != ".tmp");
  }
}

TEST_CASE("a_folder_whose_earlier_models_files_stay_is_not_written_as_if_they_were_gone") {
  const Weights original = Weights::Random(TinyModel(ModelFamily::kGpt2, false));
  const bool sharded = GENERATE(false, true);
  const std::string former = sharded ? "model.safetensors" : "model.safetensors.index.json";
  Folder folder;
  std::filesystem::create_directories(folder / ("out/" + former + "/within"));  // stays
  const absl::Status status = original.WriteTo(folder / "out", sharded ? 1000 : 1 << 30);
  REQUIRE_FALSE(status.ok());
  CHECK(absl::StrContains(status.message(), former));
}

ModelConfig Parsed(const std::string& json) {
  const auto config = ParseModelConfig(json, "config.json");
  Must(config.status());
  return *config;
}

constexpr char kTinySizes[] = R"("vocab_size": 19, "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2})";

TEST_CASE("folder_of_a_family_with_names_of_its_own_is_read_back") {
  const std::string experts = R"("num_experts": 3, "num_experts_per_tok": 2, )";
  const std::string wide = R"("moe_intermediate_size": 4, )";
  const std::string shared = R"("shared_expert_intermediate_size": 6, )";
  const std::string shares = R"("n_routed_experts": 3, "n_shared_experts": 2, )";
  for (const auto& [type, more] : {std::pair<std::string, std::string>("gemma2", ""),
                                   {"phi3", ""},
                                   {"mixtral", R"("num_local_experts": 3, )"},
                                   {"olmoe", experts},
                                   {"qwen2_moe", experts + wide + shared},
                                   {"qwen3_moe", experts + wide + R"("mlp_only_layers": [1], )"},
                                   {"dots1", shares + wide + R"("num_experts_per_tok": 2, )"}}) {
    CAPTURE(type);
    Folder folder;
    Weights original =
        Weights::Random(Parsed(R"({"model_type": ")" + type + "\", " + more + kTinySizes));
    // Gemma's norms are 1 less in files: of these numbers no bit is lost on the way.
    for (auto& layer : original.values) {
      for (float& value : layer) value = std::round(value * 256) / 256;
    }
    Must(original.WriteTo(folder.path(), 1000));
    REQUIRE(ReadModelConfig(folder.path()).value() == original.config);
    Weights copy(original.config);
    Must(copy.ReadFrom(folder.path()));
    CHECK(copy.values == original.values);
  }
}

TEST_CASE("gemmas_norms_in_files_are_one_less_and_phis_matrices_are_fused") {
  Folder folder;
  const Weights gemma =
      Weights::Random(Parsed(R"({"model_type": "gemma2", )" + std::string(kTinySizes)));
  Must(gemma.WriteTo(folder / "gemma"));
  const std::string norm = "model.layers.0.pre_feedforward_layernorm.weight";
  std::vector<float> in_file(8);
  Must(SafetensorsReader::Open(folder / "gemma/model.safetensors")->Read(norm, in_file));
  CHECK(in_file[3] == gemma.values[1][gemma.layouts[1].Find(norm).offset + 3] - 1);

  const Weights phi =
      Weights::Random(Parsed(R"({"model_type": "phi3", )" + std::string(kTinySizes)));
  Must(phi.WriteTo(folder / "phi"));
  const auto reader = SafetensorsReader::Open(folder / "phi/model.safetensors");
  CHECK(reader->tensors().at("model.layers.0.mlp.gate_up_proj.weight").shape ==
        std::vector<int64_t>{24, 8});
  CHECK(reader->tensors().at("model.layers.0.self_attn.qkv_proj.weight").shape ==
        std::vector<int64_t>{16, 8});
}

TEST_CASE("experts_are_written_and_read_one_by_one") {
  Folder folder;
  const Weights mixture = Weights::Random(
      Parsed(R"({"model_type": "mixtral", "num_local_experts": 3, )" + std::string(kTinySizes)));
  Must(mixture.WriteTo(folder.path()));
  const std::string expert = "model.layers.1.block_sparse_moe.experts.2.";
  const auto reader = SafetensorsReader::Open(folder / "model.safetensors");
  std::vector<float> up(12 * 8);
  Must(reader->Read(expert + "w3.weight", up));
  const auto at = mixture.layouts[2].Find(Param::kExpertGate)->offset + (2 * 3 + 1) * 12 * 8;
  CHECK(std::equal(up.begin(), up.end(), mixture.values[2].begin() + at));
  CHECK(reader->tensors().at("model.layers.1.block_sparse_moe.gate.weight").shape ==
        std::vector<int64_t>{3, 8});
  CHECK(reader->tensors().at(expert + "w2.weight").shape == std::vector<int64_t>{8, 12});

  // One expert fewer, or more, than config.json says.
  ModelConfig more = mixture.config, fewer = mixture.config;
  more.experts.count = 4;
  fewer.experts.count = 2;
  CHECK_THAT(WhyNotRead(more, folder.path()),
             Catch::Contains("block_sparse_moe.gate.weight") && Catch::Contains("[4, 8]"));
  CHECK_FALSE(Weights(fewer).ReadFrom(folder.path()).ok());
}

TEST_CASE("stacked_experts_are_read_as_single_ones_are") {
  const char* family = GENERATE(R"("mixtral", "num_local_experts": 12)",
                                R"("qwen3_moe", "num_experts": 12, "moe_intermediate_size": 6)");
  Folder folder;
  const Weights mixture = Weights::Random(Parsed(
      absl::StrCat(R"({"model_type": )", family, R"(, "num_experts_per_tok": 2, )", kTinySizes)));
  const int64_t d = mixture.config.d_model, f = mixture.config.experts.hidden;
  std::vector<SafetensorsWriter::Spec> specs;
  std::vector<std::vector<float>> tensors;
  for (size_t l = 0; l < mixture.layouts.size(); ++l) {
    std::vector<float> gate_up, down;
    for (const ParamSpec& param : mixture.layouts[l].params) {
      const auto begin = mixture.values[l].begin() + param.offset;
      const std::vector<float> values(begin, begin + param.size);
      const bool expert = param.use == Param::kExpertGate || param.use == Param::kExpertUp;
      if (expert || param.use == Param::kExpertDown) {
        std::vector<float>& stack = expert ? gate_up : down;
        stack.insert(stack.end(), values.begin(), values.end());
        continue;
      }
      specs.push_back({param.name, param.shape});
      tensors.push_back(values);
    }
    if (gate_up.empty()) continue;
    const std::string experts = absl::StrCat("model.layers.", l - 1, ".mlp.experts.");
    specs.push_back({experts + "gate_up_proj", {12, 2 * f, d}});
    tensors.push_back(gate_up);
    specs.push_back({experts + "down_proj", {12, d, f}});
    tensors.push_back(down);
  }
  auto writer = SafetensorsWriter::Create(folder / "model.safetensors", specs);
  Must(writer.status());
  for (const std::vector<float>& tensor : tensors) Must(writer->Append(tensor));
  Must(writer->Finish());
  Weights copy(mixture.config);
  Must(copy.ReadFrom(folder.path()));
  CHECK(copy.values == mixture.values);
  ModelConfig more = mixture.config;
  more.experts.count = 13;
  CHECK_FALSE(Weights(more).ReadFrom(folder.path()).ok());
}

TEST_CASE("a folder written in shards and then whole holds the new model") {
  Folder folder;
  const ModelConfig config = TinyModel(ModelFamily::kLlama, false);
  Must(Weights(config).WriteTo(folder.path(), 1000));
  const Weights original = Weights::Random(config);
  Must(original.WriteTo(folder.path()));
  Weights copy(config);
  Must(copy.ReadFrom(folder.path()));
  REQUIRE(copy.values == original.values);
}

TEST_CASE("GPT-2's matrices are [in, out] in files and [out, in] in memory") {
  Folder folder;
  const Weights original = Weights::Random(TinyModel(ModelFamily::kGpt2, true));
  Must(original.WriteTo(folder.path()));
  const auto reader = SafetensorsReader::Open(folder / "model.safetensors");
  const std::string name = "transformer.h.1.mlp.c_fc.weight";
  REQUIRE(reader->tensors().at(name).shape == std::vector<int64_t>{8, 12});
  std::vector<float> file(96);
  Must(reader->Read(name, file));
  const ParamSpec& param = original.layouts[2].Find(name);
  REQUIRE(file[3 * 12 + 5] == original.values[2][param.offset + 5 * 8 + 3]);
}

TEST_CASE("names without their prefix and transformers' left-overs are understood") {
  Folder folder;
  const Weights original = Weights::Random(TinyModel(ModelFamily::kGpt2, true));
  Must(original.WriteTo(folder.path()));
  // Same length of the header: spaces where the prefix was.
  std::string file = folder.Read("model.safetensors");
  const std::string prefix = "\"transformer.";
  for (size_t at; (at = file.find(prefix)) != std::string::npos;) {
    file.replace(at, prefix.size(), std::string(prefix.size() - 1, ' ') + "\"");
  }
  folder.Write("model.safetensors", file);
  Weights copy(original.config);
  Must(copy.ReadFrom(folder.path()));
  REQUIRE(copy.values == original.values);

  Weights untied = Weights::Random(TinyModel(ModelFamily::kLlama, false));
  Must(untied.WriteTo(folder / "untied"));
  Must(Weights(TinyModel(ModelFamily::kLlama, true)).ReadFrom(folder / "untied"));
}

ModelConfig TinyBert() {
  ModelConfig config = TinyModel(ModelFamily::kBert, true);
  config.kv_heads = config.heads;
  config.norm_eps = 1e-12;
  config.token_types = 2;
  config.mask_token = 3;
  return config;
}

TEST_CASE("a_folder_of_bert_is_read_without_what_masked_tokens_do_not_train") {
  Folder folder;
  const Weights original = Weights::Random(TinyBert());
  Must(original.WriteTo(folder.path(), 1000));
  std::string header = "{", data;
  for (const char* name :
       {"bert.pooler.dense.weight", "cls.seq_relationship.bias", "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias", "bert.embeddings.position_ids"}) {
    absl::StrAppend(&header, data.empty() ? "" : ",", "\"", name,
                    "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[", data.size(), ",",
                    data.size() + 8, "]}");
    data += Raw<float>({1, 2});
  }
  folder.Write("more.safetensors", Safetensors(header + "}", data));
  folder.Replace("model.safetensors.index.json", "\"weight_map\": {",
                 "\"weight_map\": {\"bert.pooler.dense.weight\": \"more.safetensors\",");
  REQUIRE(ReadModelConfig(folder.path()).value() == original.config);
  Weights copy(original.config);
  Must(copy.ReadFrom(folder.path()));
  REQUIRE(copy.values == original.values);
}

// Replaces `from` in the header by `to`, which is not longer; spaces take up the rest.
void RenameInHeader(const Folder& folder, const std::string& from, std::string to) {
  REQUIRE(to.size() <= from.size());
  to.resize(from.size(), ' ');
  folder.Replace("model.safetensors", from, to);
}

TEST_CASE("norms_of_bert_have_googles_names_or_transformers") {
  Folder folder;
  const Weights original = Weights::Random(TinyBert());
  Must(original.WriteTo(folder.path()));
  const std::string weight = "embeddings.LayerNorm.weight\"";
  RenameInHeader(folder, weight, "embeddings.LayerNorm.gamma\"");
  const std::string transform = "transform.LayerNorm.weight\"";
  RenameInHeader(folder, transform, "transform.LayerNorm.gamma\"");
  Weights copy(original.config);
  Must(copy.ReadFrom(folder.path()));
  CHECK(copy.values == original.values);

  // A second file has the same tensors by the other name.
  const std::string header = R"({"bert.embeddings.LayerNorm.beta":{"dtype":"F32","shape":[8],)"
                             R"("data_offsets":[0,32]}})";
  folder.Write("more.safetensors", Safetensors(header, std::string(32, '\0')));
  folder.Write("model.safetensors.index.json",
               R"({"weight_map": {"a": "model-1.safetensors", "b": "more.safetensors"}})");
  std::filesystem::rename(folder / "model.safetensors", folder / "model-1.safetensors");
  CHECK_THAT(WhyNotRead(original.config, folder.path()),
             Contains("more.safetensors: tensor \"bert.embeddings.LayerNorm.beta\" is also in ") &&
                 Contains("model-1.safetensors as \"bert.embeddings.LayerNorm.bias\""));
}

TEST_CASE("counts_of_batches_are_skipped_in_models_of_images_alone") {
  Folder folder;
  const Weights images = Weights::Random(
      Parsed(R"({"model_type": "resnet", "image_size": 9, "depths": [1], "hidden_sizes": [4],
                 "embedding_size": 4, "layer_type": "basic", "num_labels": 5})"));
  Must(images.WriteTo(folder.path(), 100));
  folder.Write("more.safetensors",
               Safetensors(R"({"layer1.0.bn1.num_batches_tracked":{"dtype":"I64","shape":[],)"
                           R"("data_offsets":[0,8]}})",
                           Raw<int64_t>({7})));
  folder.Replace("model.safetensors.index.json", "\"weight_map\": {",
                 "\"weight_map\": {\"n\": \"more.safetensors\",");
  Weights copy(images.config);
  Must(copy.ReadFrom(folder.path()));
  CHECK(copy.values == images.values);
  Must(CheckWeights(folder.path(), images.layouts));

  const Weights llama = Weights::Random(TinyModel(ModelFamily::kLlama, true));
  Must(llama.WriteTo(folder / "llama", 1000));
  std::filesystem::rename(folder / "more.safetensors", folder / "llama/more.safetensors");
  folder.Replace("llama/model.safetensors.index.json", "\"weight_map\": {",
                 "\"weight_map\": {\"n\": \"more.safetensors\",");
  CHECK_THAT(WhyNotRead(llama.config, folder / "llama"),
             Contains("num_batches_tracked\" is not one of this model's"));
}

TEST_CASE("tensors_of_a_type_that_is_not_read_are_refused_from_headers_alone") {
  Folder folder;
  const Weights weights(TinyModel(ModelFamily::kLlama, true));
  Must(weights.WriteTo(folder.path()));
  Must(CheckWeights(folder.path(), weights.layouts));
  RenameInHeader(folder, "\"F32\"", "\"I32\"");
  const std::string problem = "\" is I32; expected F32, F16 or BF16";
  CHECK_THAT(std::string(CheckWeights(folder.path(), weights.layouts).message()),
             Contains("tensor \"model.") && Contains(problem));
  CHECK_THAT(WhyNotRead(weights.config, folder.path()), Contains(problem));
}

TEST_CASE("paths_in_messages_have_one_slash_after_a_folder_that_ends_in_one") {
  Folder folder;
  CHECK_THAT(WhyNotRead(TinyModel(ModelFamily::kLlama, true), folder.path() + "/"),
             Contains(folder.path() + "/: has neither model.safetensors"));
  CHECK_THAT(std::string(ReadModelConfig(folder.path() + "/").status().message()),
             Contains(folder.path() + "/config.json"));
}

TEST_CASE("what is missing, extra, or of another shape is named") {
  Folder folder;
  const ModelConfig tied = TinyModel(ModelFamily::kLlama, true),
                    config = TinyModel(ModelFamily::kLlama, false);
  Must(Weights(tied).WriteTo(folder.path()));
  REQUIRE_THAT(WhyNotRead(config, folder.path()),
               Contains("1 tensor is missing: lm_head.weight") &&
                   Contains("set tie_word_embeddings to true in config.json"));
  ModelConfig deeper = tied, shallower = tied, wider = tied;
  deeper.layers = 3;
  shallower.layers = 1;
  wider.ffn = 16;
  REQUIRE_THAT(WhyNotRead(deeper, folder.path()),
               Contains("9 tensors are missing: model.layers.2.") && Contains(", ..."));
  REQUIRE_THAT(WhyNotRead(shallower, folder.path()),
               Contains("tensor \"model.layers.1.") && Contains("is not one of this model's"));
  REQUIRE_THAT(WhyNotRead(wider, folder.path()),
               Contains("has shape [8, 12]; config.json requests [8, 16]"));
  REQUIRE_THAT(WhyNotRead(tied, folder / "nowhere"), Contains("nowhere: there is no such folder"));
}

TEST_CASE("weights_that_are_not_finite_are_refused_by_name") {
  Folder folder;
  const ModelConfig config = TinyModel(ModelFamily::kLlama, true);
  Weights weights = Weights::Random(config);
  weights.values[1][5] =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
  Must(weights.WriteTo(folder.path()));
  REQUIRE_THAT(WhyNotRead(config, folder.path()),
               Contains("tensor \"model.layers.0.") && Contains("not finite"));
}

TEST_CASE("headers_alone_show_missing_and_misshapen_tensors") {
  Folder folder;
  const ModelConfig tied = TinyModel(ModelFamily::kLlama, true);
  ModelConfig wider = tied;
  wider.ffn = 16;
  Must(Weights(tied).WriteTo(folder.path()));
  CHECK(CheckWeights(folder.path(), MakeLayouts(tied)).ok());
  CHECK(absl::IsInvalidArgument(CheckWeights(folder.path(), MakeLayouts(wider))));
  CHECK(absl::IsInvalidArgument(
      CheckWeights(folder.path(), MakeLayouts(TinyModel(ModelFamily::kLlama, false)))));
}

TEST_CASE("fifo_as_weights_is_refused_without_waiting") {
  Folder folder;
  const ModelConfig config = TinyModel(ModelFamily::kLlama, true);
  REQUIRE(mkfifo((folder / "model.safetensors").c_str(), 0644) == 0);
  REQUIRE_THAT(WhyNotRead(config, folder.path()), Contains("is a FIFO"));
  REQUIRE(mkfifo((folder / "config.json").c_str(), 0644) == 0);
  CHECK_FALSE(ReadModelConfig(folder.path()).ok());
}

TEST_CASE("pickles_are_refused_with_the_conversion_to_do") {
  for (const std::string name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    Folder folder;
    folder.Write(name, "\x80\x02}q");
    REQUIRE_THAT(WhyNotRead(TinyModel(ModelFamily::kLlama, true), folder.path()),
                 Contains("has " + name) && Contains("safe_serialization=True"));
  }
}

TEST_CASE("folders_without_weights_are_refused_by_what_they_hold") {
  const ModelConfig config = TinyModel(ModelFamily::kLlama, true);
  Folder adapter;
  adapter.Write("adapter_config.json",
                R"({"peft_type": "LORA", "base_model_name_or_path": "org/base"})");
  adapter.Write("adapter_model.safetensors", "");
  CHECK_THAT(WhyNotRead(config, adapter.path()),
             Contains("is an adapter (LORA) of org/base") && Contains("merge_and_unload"));
  CHECK_THAT(std::string(ReadModelConfig(adapter.path()).status().message()),
             Contains("is an adapter"));
  Folder parts;
  parts.Write("model-00001-of-00003.safetensors", "");
  parts.Write("model-00003-of-00003.safetensors", "");
  CHECK_THAT(WhyNotRead(config, parts.path()),
             Contains("has 2 of 3 parts") && Contains("no model.safetensors.index.json"));
  Folder other;
  other.Write("model.gguf", "");
  CHECK_THAT(WhyNotRead(config, other.path()),
             Contains("but model.gguf, which Atoll does not read"));
}

TEST_CASE("pointers_of_git_lfs_are_refused_as_what_they_are") {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
  Folder folder;
  folder.Write("config.json", pointer);
  folder.Write("model.safetensors", pointer);
  CHECK_THAT(WhyNotRead(TinyModel(ModelFamily::kLlama, true), folder.path()),
             Contains("model.safetensors: is a Git LFS pointer") && Contains("git lfs pull"));
  CHECK_THAT(std::string(ReadModelConfig(folder.path()).status().message()),
             Contains("config.json: is a Git LFS pointer"));
}

TEST_CASE("an index that points outside its folder, or at a missing shard, is refused") {
  Folder folder;
  const ModelConfig config = TinyModel(ModelFamily::kLlama, false);
  Must(Weights(config).WriteTo(folder.path(), 1000));
  folder.Replace("model.safetensors.index.json", "model-00001", "../odel-001");
  REQUIRE_THAT(WhyNotRead(config, folder.path()), Contains("is not a file of this folder"));
  folder.Replace("model.safetensors.index.json", "../odel-001", "model-99999");
  REQUIRE_THAT(WhyNotRead(config, folder.path()),
               Contains("model-99999") && Contains("cannot open"));
}

// ---- safetensors ----

TEST_CASE("weights from a seed never change and do not depend on other tensors") {
  const ModelConfig config = TinyModel(ModelFamily::kLlama, false);
  const auto layouts = MakeLayouts(config);
  std::vector<float> first(static_cast<size_t>(layouts[1].size)), again = first, other = first;
  InitLayer(layouts[1], 2, 7, first);
  InitLayer(layouts[1], 2, 7, again);
  InitLayer(layouts[1], 2, 8, other);
  REQUIRE(first == again);
  REQUIRE(first != other);
  REQUIRE(std::bit_cast<uint32_t>(first[0]) == 0xbc54747b);
}

TEST_CASE("weights_from_a_seed_are_in_proportion_to_initializer_range") {
  ModelConfig config = TinyModel(ModelFamily::kLlama, false);
  const auto layouts = MakeLayouts(config);
  config.initializer_range = 0.5;
  const auto wider = MakeLayouts(config);
  std::vector<float> base(static_cast<size_t>(layouts[1].size)), wide = base;
  InitLayer(layouts[1], 2, 7, base);
  InitLayer(wider[1], 2, 7, wide);
  for (const ParamSpec& param : layouts[1].params) {
    const float factor = param.shape.size() == 1 ? 1 : 25;  // 0.5 / 0.02; norms are ones
    for (int64_t i = param.offset; i < param.end(); ++i) {
      REQUIRE(wide[i] == Approx(factor * base[i]).margin(1e-9));
    }
  }
}

TEST_CASE("weights from a seed have GPT-2's distribution") {
  ModelConfig config = TinyModel(ModelFamily::kGpt2, true);
  config.d_model = 128;
  config.ffn = 512;
  config.layers = 8;
  const auto layouts = MakeLayouts(config);
  std::vector<float> values(static_cast<size_t>(layouts[3].size));
  InitLayer(layouts[3], config.layers, 1, values);
  for (const ParamSpec& param : layouts[3].params) {
    const std::span<const float> tensor = std::span(values).subspan(param.offset, param.size);
    double sum = 0, squares = 0;
    for (const float value : tensor) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const double mean = sum / static_cast<double>(param.size);
    CAPTURE(param.name);
    if (param.shape.size() == 1) {
      const bool ones = absl::StrContains(param.name, "ln_") && param.name.back() == 't';
      REQUIRE(squares == (ones ? static_cast<double>(param.size) : 0));
      REQUIRE(mean == (ones ? 1 : 0));
    } else {
      const bool residual = absl::StrContains(param.name, "c_proj");
      REQUIRE(std::abs(mean) < 5e-4);
      REQUIRE(std::sqrt(squares / static_cast<double>(param.size)) ==
              Approx(residual ? 0.005 : 0.02).epsilon(0.02));
    }
  }
}

#undef FOR_EVERY_MODEL

}  // namespace
}  // namespace atl
