#include "worker/model/weights.h"

#include <sys/stat.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "worker/model/safetensors.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;

// ---- vocabulary of these tests ----

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "atoll_weights_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(*this / name, std::ios::binary) << bytes;
    return *this / name;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(*this / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Replace(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = Read(name);
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    Write(name, text.replace(at, from.size(), to));
  }

 private:
  std::string path_;
};

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Safetensors(const std::string& header, const std::string& data) {
  return Raw<uint64_t>({header.size()}) + header + data;
}

void Must(const absl::Status& status) {
  INFO(status.message());
  REQUIRE(status.ok());
}

ModelConfig Tiny(ModelFamily family, bool tied) {
  ModelConfig c;
  c.family = family;
  c.vocab = 19;
  c.d_model = 8;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = family == ModelFamily::kGpt2 ? 4 : 2;
  c.ffn = 12;
  c.max_positions = 10;
  c.tied_head = tied;
  return c;
}

// A model's parameters in plain host memory.
struct Weights {
  explicit Weights(const ModelConfig& c) : config(c), layouts(MakeLayouts(c)) {
    for (const LayerLayout& layout : layouts) {
      values.emplace_back(static_cast<size_t>(layout.size));
    }
  }
  static Weights Random(const ModelConfig& c) {
    Weights w(c);
    Rng rng(3);
    for (auto& layer : w.values) {
      for (float& value : layer) value = static_cast<float>(rng.Normal());
    }
    return w;
  }
  absl::Status WriteTo(const std::string& dir, int64_t max_shard_bytes = 1 << 30) const {
    return WriteModelFolder(
        dir, config, layouts, [&](int i) { return std::span<const float>(values[i]); },
        max_shard_bytes);
  }
  absl::Status ReadFrom(const std::string& dir) {
    std::vector<std::span<float>> layers(values.begin(), values.end());
    return ReadWeights(dir, layouts, layers);
  }

  ModelConfig config;
  std::vector<LayerLayout> layouts;
  std::vector<std::vector<float>> values;
};

std::string WhyNotRead(const ModelConfig& config, const std::string& dir) {
  const absl::Status status = Weights(config).ReadFrom(dir);
  REQUIRE_FALSE(status.ok());
  return std::string(status.message());
}

std::string WhyNotOpen(const std::string& path) {
  const auto reader = SafetensorsReader::Open(path);
  REQUIRE_FALSE(reader.ok());
  return std::string(reader.status().message());
}

#define FOR_EVERY_MODEL()                                                       \
  const ModelFamily family = GENERATE(ModelFamily::kGpt2, ModelFamily::kLlama); \
  const bool tied = GENERATE(false, true);                                      \
  const ModelConfig config = Tiny(family, tied)

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

TEST_CASE("a folder written in shards and then whole holds the new model") {
  Folder folder;
  const ModelConfig config = Tiny(ModelFamily::kLlama, false);
  Must(Weights(config).WriteTo(folder.path(), 1000));
  const Weights original = Weights::Random(config);
  Must(original.WriteTo(folder.path()));
  Weights copy(config);
  Must(copy.ReadFrom(folder.path()));
  REQUIRE(copy.values == original.values);
}

TEST_CASE("GPT-2's matrices are [in, out] in files and [out, in] in memory") {
  Folder folder;
  const Weights original = Weights::Random(Tiny(ModelFamily::kGpt2, true));
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
  const Weights original = Weights::Random(Tiny(ModelFamily::kGpt2, true));
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

  Weights untied = Weights::Random(Tiny(ModelFamily::kLlama, false));
  Must(untied.WriteTo(folder / "untied"));
  Must(Weights(Tiny(ModelFamily::kLlama, true)).ReadFrom(folder / "untied"));
}

ModelConfig TinyBert() {
  ModelConfig config = Tiny(ModelFamily::kBert, true);
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

TEST_CASE("what is missing, extra, or of another shape is named") {
  Folder folder;
  const ModelConfig tied = Tiny(ModelFamily::kLlama, true),
                    config = Tiny(ModelFamily::kLlama, false);
  Must(Weights(tied).WriteTo(folder.path()));
  REQUIRE_THAT(WhyNotRead(config, folder.path()),
               Contains("1 tensors are missing: lm_head.weight"));
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
  REQUIRE_THAT(WhyNotRead(tied, folder / "nowhere"), Contains("nowhere/model.safetensors: cannot"));
}

TEST_CASE("weights_that_are_not_finite_are_refused_by_name") {
  Folder folder;
  const ModelConfig config = Tiny(ModelFamily::kLlama, true);
  Weights weights = Weights::Random(config);
  weights.values[1][5] =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
  Must(weights.WriteTo(folder.path()));
  REQUIRE_THAT(WhyNotRead(config, folder.path()),
               Contains("tensor \"model.layers.0.") && Contains("not finite"));
}

TEST_CASE("headers_alone_show_missing_and_misshapen_tensors") {
  Folder folder;
  const ModelConfig tied = Tiny(ModelFamily::kLlama, true);
  ModelConfig wider = tied;
  wider.ffn = 16;
  Must(Weights(tied).WriteTo(folder.path()));
  CHECK(CheckWeights(folder.path(), MakeLayouts(tied)).ok());
  CHECK(absl::IsInvalidArgument(CheckWeights(folder.path(), MakeLayouts(wider))));
  CHECK(absl::IsInvalidArgument(
      CheckWeights(folder.path(), MakeLayouts(Tiny(ModelFamily::kLlama, false)))));
}

TEST_CASE("fifo_as_weights_is_refused_without_waiting") {
  Folder folder;
  const ModelConfig config = Tiny(ModelFamily::kLlama, true);
  REQUIRE(mkfifo((folder / "model.safetensors").c_str(), 0644) == 0);
  REQUIRE_THAT(WhyNotRead(config, folder.path()), Contains("is a FIFO"));
  REQUIRE(mkfifo((folder / "config.json").c_str(), 0644) == 0);
  CHECK_FALSE(ReadModelConfig(folder.path()).ok());
}

TEST_CASE("pickles_are_refused_with_the_conversion_to_do") {
  for (const std::string name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    Folder folder;
    folder.Write(name, "\x80\x02}q");
    REQUIRE_THAT(WhyNotRead(Tiny(ModelFamily::kLlama, true), folder.path()),
                 Contains("has " + name) && Contains("safe_serialization=True"));
  }
}

TEST_CASE("an index that points outside its folder, or at a missing shard, is refused") {
  Folder folder;
  const ModelConfig config = Tiny(ModelFamily::kLlama, false);
  Must(Weights(config).WriteTo(folder.path(), 1000));
  folder.Replace("model.safetensors.index.json", "model-00001", "../odel-001");
  REQUIRE_THAT(WhyNotRead(config, folder.path()), Contains("is not a file of this folder"));
  folder.Replace("model.safetensors.index.json", "../odel-001", "model-99999");
  REQUIRE_THAT(WhyNotRead(config, folder.path()),
               Contains("model-99999") && Contains("cannot open"));
}

// ---- safetensors ----

TEST_CASE("half precisions become fp32 exactly") {
  Folder folder;
  const std::string header = R"({"h":{"dtype":"F16","shape":[6],"data_offsets":[0,12]},)"
                             R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[12,16]},)"
                             R"("i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}})";
  const std::string data = Raw<uint16_t>({0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x7c00}) +
                           Raw<uint16_t>({0x3f80, 0xc049}) + Raw<int64_t>({1});
  const auto reader = SafetensorsReader::Open(folder.Write("f", Safetensors(header, data)));
  std::vector<float> half(6), brain(2), one(1);
  Must(reader->Read("h", half));
  REQUIRE(half == std::vector<float>{1, -2, 65504, 0x1p-24f, -0.0f, INFINITY});
  Must(reader->Read("b", brain));
  REQUIRE(brain == std::vector<float>{1, -3.140625f});
  REQUIRE_THAT(std::string(reader->Read("i", one).message()), Contains("is I64; expected F32"));
}

TEST_CASE("a hostile safetensors file is refused before its numbers are believed") {
  Folder folder;
  const auto why = [&](const std::string& header, size_t data_bytes = 8) {
    return WhyNotOpen(folder.Write("f", Safetensors(header, std::string(data_bytes, 'x'))));
  };
  const auto tensor = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  REQUIRE(
      SafetensorsReader::Open(folder.Write("f", Safetensors(tensor("[2]", "[0,8]"), "12345678")))
          .ok());
  REQUIRE_THAT(why(tensor("[3]", "[0,8]")), Contains("tensor \"a\" has shape [3]"));
  REQUIRE_THAT(why(tensor("[3]", "[0,12]")), Contains("data_offsets"));
  REQUIRE_THAT(why(tensor("[4294967296,4294967296]", "[0,8]")), Contains("shape"));
  REQUIRE_THAT(why(tensor("[-2]", "[0,8]")), Contains("is -2; expected a whole number"));
  REQUIRE_THAT(why(tensor("[18446744073709551615]", "[0,8]")), Contains("whole number"));
  REQUIRE_THAT(why(tensor("[2.0]", "[0,8]")), Contains("whole number"));
  REQUIRE_THAT(why(tensor("[2]", "[8,0]")), Contains("data from byte 8 to 0"));
  REQUIRE_THAT(why(tensor("[1]", "[4,8]")), Contains("gap at byte 0"));
  REQUIRE_THAT(why(tensor("[1]", "[0,4]")), Contains("has 8 bytes of data, its header says 4"));
  REQUIRE_THAT(why(tensor("[1,1,1,1,1,1,1,1,2]", "[0,8]")), Contains("more than 8 dimensions"));
  REQUIRE_THAT(why(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                   R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
               Contains("overlap"));
  REQUIRE_THAT(why(R"({"a":1})"), Contains("is not {dtype, shape, data_offsets}"));
  REQUIRE_THAT(why(R"({"a":{"dtype":"X","shape":[2],"data_offsets":[0,8]}})"),
               Contains("unknown dtype"));
  REQUIRE_THAT(why(R"({"a":{},"a":{}})"), Contains("key \"a\" is given twice"));
  REQUIRE_THAT(why(std::string(100000, '[')), Contains("f: "));
  REQUIRE_THAT(why("[1]"), Contains("expected a JSON object"));
  REQUIRE_THAT(why("{"), Contains("not valid JSON"));
  REQUIRE_THAT(WhyNotOpen(folder.Write("f", Raw<uint64_t>({uint64_t{1} << 60}) + "{}")),
               Contains("says that its header has"));
  REQUIRE_THAT(WhyNotOpen(folder.Write("f", "1234567")), Contains("too short"));
}

TEST_CASE("a file cut anywhere, or with any bit of its header wrong, never reads outside") {
  Folder folder;
  Must(Weights::Random(Tiny(ModelFamily::kLlama, true)).WriteTo(folder.path()));
  const std::string whole = folder.Read("model.safetensors");
  for (size_t bytes = 0; bytes < whole.size(); bytes += 97) {
    WhyNotOpen(folder.Write("cut", whole.substr(0, bytes)));
  }
  Rng rng(1);
  for (int i = 0; i < 400; ++i) {
    std::string broken = whole;
    broken[rng.Below(1000)] ^= static_cast<char>(1 << rng.Below(8));
    const auto reader = SafetensorsReader::Open(folder.Write("broken", broken));
    if (!reader.ok()) continue;  // a changed name or number may still make a valid file
    for (const auto& [name, entry] : reader->tensors()) {
      REQUIRE(entry.end <= static_cast<int64_t>(whole.size()));
    }
  }
}

// ---- weights from a seed ----

TEST_CASE("weights from a seed never change and do not depend on other tensors") {
  const ModelConfig config = Tiny(ModelFamily::kLlama, false);
  const auto layouts = MakeLayouts(config);
  std::vector<float> first(static_cast<size_t>(layouts[1].size)), again = first, other = first;
  InitLayer(layouts[1], 2, 7, first);
  InitLayer(layouts[1], 2, 7, again);
  InitLayer(layouts[1], 2, 8, other);
  REQUIRE(first == again);
  REQUIRE(first != other);
  REQUIRE(std::bit_cast<uint32_t>(first[0]) == 0xbc54747b);
}

TEST_CASE("weights from a seed have GPT-2's distribution") {
  ModelConfig config = Tiny(ModelFamily::kGpt2, true);
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

}  // namespace
}  // namespace atl
