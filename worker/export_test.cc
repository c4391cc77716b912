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
#include "worker/model/weights.h"
#include "worker/outer/transfer_limits.h"

namespace atl::worker {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// A server that holds a small model at version 7 in many shards, and a client that refuses more
// transfers at a time than an export may have.
class Export {
 public:
  Export() : link({}, Options()), path_((fs::temp_directory_path() / "export-XXXXXX").string()) {
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
  }

  std::string path_;
};

TEST_CASE("A model of many shards is fetched a few at a time, and written whole") {
  Export fixture;
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
