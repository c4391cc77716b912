// The vocabulary of tests of model folders.

#ifndef ATOLL_WORKER_MODEL_TESTING_WEIGHTS_FIXTURE_H_
#define ATOLL_WORKER_MODEL_TESTING_WEIGHTS_FIXTURE_H_

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "worker/model/safetensors.h"
#include "worker/model/weights.h"

namespace atl {

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

inline std::string Safetensors(const std::string& header, const std::string& data) {
  return Raw<uint64_t>({header.size()}) + header + data;
}

inline void Must(const absl::Status& status) {
  INFO(status.message());
  REQUIRE(status.ok());
}

inline ModelConfig TinyModel(ModelFamily family, bool tied) {
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
  absl::Status WriteTo(const std::string& dir, int64_t max_shard_bytes = 1 << 30,
                       WeightType type = WeightType::kFp32) const {
    return WriteModelFolder(
        dir, config, layouts, [&](int i) { return std::span<const float>(values[i]); },
        max_shard_bytes, type);
  }
  absl::Status ReadFrom(const std::string& dir) {
    std::vector<std::span<float>> layers(values.begin(), values.end());
    return ReadWeights(dir, layouts, layers);
  }

  ModelConfig config;
  std::vector<LayerLayout> layouts;
  std::vector<std::vector<float>> values;
};

inline std::string WhyNotRead(const ModelConfig& config, const std::string& dir) {
  const absl::Status status = Weights(config).ReadFrom(dir);
  REQUIRE_FALSE(status.ok());
  return std::string(status.message());
}

inline std::string WhyNotOpen(const std::string& path) {
  const auto reader = SafetensorsReader::Open(path);
  REQUIRE_FALSE(reader.ok());
  return std::string(reader.status().message());
}

#define FOR_EVERY_MODEL()                                                       \
  const ModelFamily family = GENERATE(ModelFamily::kGpt2, ModelFamily::kLlama); \
  const bool tied = GENERATE(false, true);                                      \
  const ModelConfig config = TinyModel(family, tied)

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_TESTING_WEIGHTS_FIXTURE_H_
