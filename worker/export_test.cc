// A global model over real sockets into a folder.

#include "worker/export.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/model/layout.h"
#include "common/net/testing/test_handler.h"
#include "worker/model/merge_adapter.h"
#include "worker/model/weights.h"
#include "worker/outer/transfer_limits.h"

namespace atl::worker {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

constexpr float kAhead = 0.5f;  // averages, of the parameters

// A server that holds a small model at version 7 in many shards, and a client that refuses more
// transfers at a time than an export may have.
class Export {
 public:
  explicit Export(bool adapts = false)
      : link({}, Options()), path_((fs::temp_directory_path() / "export-XXXXXX").string()) {
    REQUIRE(mkdtemp(path_.data()) != nullptr);
    request.job = "job-1";
    request.version = 7;
    request.folder = path_ + "/model";
    request.config.family = ModelFamily::kGpt2;
    request.config.vocab = 16;
    request.config.d_model = 8;
    request.config.layers = 2;
    request.config.heads = request.config.kv_heads = 2;
    request.config.ffn = 16;
    request.config.max_positions = 12;
    if (adapts) request.config.adapter = {.rank = 2, .alpha = 4, .targets = {kAllLinear}};
    request.base = path_ + "/base";
    layouts = MakeLayouts(request.config);
    for (size_t layer = 0; layer < layouts.size(); ++layer) {
      std::vector<float>& values = theta.emplace_back(static_cast<size_t>(layouts[layer].size));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(1000 * layer + i);
      for (int64_t begin = 0; begin < layouts[layer].size; begin += 50) Add(layer, begin);
    }
  }
  ~Export() { fs::remove_all(path_); }

  absl::Status Run() {
    return ExportModel(*link.client, request, [this](double share) { reported.push_back(share); });
  }

  TestLink link;
  ExportRequest request;
  std::vector<LayerLayout> layouts;
  std::vector<std::vector<float>> theta;
  std::vector<double> reported;

 private:
  static TensorClientOptions Options() {
    TensorClientOptions options;
    options.transfers_max = kShardsAtOnce;
    return options;
  }
  void Add(size_t layer, int64_t begin) {
    const int64_t elements = std::min<int64_t>(50, layouts[layer].size - begin);
    const ShardId id = static_cast<ShardId>(request.shards.size());
    request.shards.push_back({id, static_cast<int32_t>(layer), begin, elements, "ps1",
                              link.address.endpoint, link.address.public_key});
    const auto from = theta[layer].begin() + begin;
    link.handler.Hold(id, std::make_shared<std::vector<float>>(from, from + elements), 7);
    const auto average = std::make_shared<std::vector<float>>(from, from + elements);
    for (float& value : *average) value += kAhead;
    link.handler.HoldAverage(id, average);
  }

  std::string path_;
};

TEST_CASE("A model of many shards is fetched a few at a time, and written whole") {
  Export fixture;
  fixture.request.ema = GENERATE(false, true);
  REQUIRE(fixture.request.shards.size() > 5 * kShardsAtOnce);
  const absl::Status exported = fixture.Run();
  INFO(exported.message());
  REQUIRE(exported.ok());
  CHECK(std::is_sorted(fixture.reported.begin(), fixture.reported.end()));
  CHECK(fixture.reported.back() == 1);
  std::vector<std::vector<float>> read;
  std::vector<std::span<float>> buffers;
  for (const LayerLayout& layout : fixture.layouts) read.emplace_back(layout.size);
  for (std::vector<float>& layer : read) buffers.emplace_back(layer);
  REQUIRE(ReadWeights(fixture.request.folder, fixture.layouts, buffers).ok());
  for (std::vector<float>& layer : fixture.theta) {
    for (float& value : layer) value += fixture.request.ema ? kAhead : 0;
  }
  CHECK(read == fixture.theta);
}

TEST_CASE("weights_are_written_in_the_type_that_is_requested") {
  Export fixture;
  fixture.request.weight_type = WeightType::kBf16;
  REQUIRE(fixture.Run().ok());
  const auto reader = SafetensorsReader::Open(fixture.request.folder + "/model.safetensors");
  REQUIRE(reader.ok());
  for (const auto& [name, entry] : reader->tensors()) CHECK(entry.dtype == "BF16");
  std::ifstream config(fs::path(fixture.request.folder) / "config.json");
  const std::string text{std::istreambuf_iterator<char>(config), {}};
  CHECK_THAT(text, Contains("\"torch_dtype\": \"bfloat16\""));
}

TEST_CASE("an_adapter_is_written_as_its_two_files_and_merged_as_the_model_it_makes") {
  Export fixture(/*adapts=*/true);
  const std::string base = fixture.request.base;
  const ModelConfig plain = fixture.request.config.Base();
  const std::vector<LayerLayout> layouts = MakeLayouts(plain);
  std::vector<std::vector<float>> weights;
  for (const LayerLayout& layout : layouts) {
    weights.emplace_back(static_cast<size_t>(layout.size), 0.5f);
  }
  const auto source = [&](int l) { return std::span<const float>(weights[l]); };
  REQUIRE(WriteModelFolder(base, plain, layouts, source).ok());
  REQUIRE(fixture.Run().ok());
  const auto has = [&](const char* name) {
    return fs::exists(fs::path(fixture.request.folder) / name);
  };
  CHECK((has("adapter_config.json") && has("adapter_model.safetensors")));
  CHECK_FALSE(has("config.json"));
  std::vector<std::vector<float>> read;
  std::vector<std::span<float>> buffers;
  for (const LayerLayout& layout : fixture.layouts) read.emplace_back(layout.size);
  for (std::vector<float>& layer : read) buffers.emplace_back(layer);
  REQUIRE(ReadAdapter(fixture.request.folder, fixture.layouts, buffers).ok());
  CHECK(read == fixture.theta);

  fixture.request.merge = true;
  REQUIRE(fixture.Run().ok());
  CHECK((has("config.json") && has("model.safetensors")));
  CHECK_FALSE((has("adapter_config.json") || has("adapter_model.safetensors")));
  std::vector<std::vector<float>> merged;
  std::vector<std::span<float>> spans;
  for (const LayerLayout& layout : layouts) merged.emplace_back(layout.size);
  for (std::vector<float>& layer : merged) spans.emplace_back(layer);
  REQUIRE(ReadWeights(fixture.request.folder, layouts, spans).ok());
  for (size_t l = 0; l < layouts.size(); ++l) {
    MergeAdapter(fixture.layouts[l], fixture.request.config.adapter, fixture.theta[l], weights[l]);
    CHECK(merged[l] == weights[l]);
  }
  CHECK(merged[1] != std::vector<float>(merged[1].size(), 0.5f));

  // An export that cannot be written leaves the earlier form.
  fixture.request.merge = false;
  fs::create_directory(fs::path(fixture.request.folder) / "adapter_config.json");
  CHECK_FALSE(fixture.Run().ok());
  CHECK((has("config.json") && has("model.safetensors")));
}

TEST_CASE("merging_without_an_adapter_is_refused") {
  Export fixture;
  fixture.request.merge = true;
  CHECK(absl::IsInvalidArgument(fixture.Run()));
}

TEST_CASE("folder_with_another_model_is_refused_and_stays_as_it_is") {
  Export fixture;
  fs::create_directories(fixture.request.folder);
  std::ofstream(fs::path(fixture.request.folder) / "config.json") << "{}";
  CHECK(absl::IsAlreadyExists(fixture.Run()));
  CHECK(fs::file_size(fs::path(fixture.request.folder) / "config.json") == 2);
  CHECK_FALSE(fs::exists(fs::path(fixture.request.folder) / "model.safetensors"));
  fs::remove(fs::path(fixture.request.folder) / "config.json");
  REQUIRE(fixture.Run().ok());
  CHECK(fixture.Run().ok());  // the same job's own
  const JobId own = std::exchange(fixture.request.job, "another-1");
  const absl::Status other = fixture.Run();
  CHECK(absl::IsAlreadyExists(other));
  CHECK_THAT(std::string(other.message()), Contains(own));
}

TEST_CASE("A server that has advanced is reported with its version, and ends the export") {
  Export fixture;
  fixture.request.version = 6;
  const absl::Status refused = fixture.Run();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(refused.message()), Contains("from ps1 at tcp://"));
  CHECK(fixture.link.client->counters().transfers_failed <= kShardsAtOnce);
  CHECK_FALSE(fs::exists(fixture.request.folder));
}

TEST_CASE("One shard that cannot be had ends the export, and is named") {
  Export fixture;
  const ShardId missing = 9999;
  fixture.request.shards.back().shard = missing;
  const absl::Status failed = fixture.Run();
  CHECK_THAT(std::string(failed.message()), Contains("shard 9999 from ps1"));
  CHECK(fixture.reported.back() < 1);
  CHECK_FALSE(fs::exists(fixture.request.folder));
}

}  // namespace
}  // namespace atl::worker
