// The inner optimizer's moments through an exchange, on real devices of the host.

#include "kernels/codecs/moments.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels/add_delta.h"
#include "kernels/testing/reference/reference.h"
#include "tests/island/solo_island.h"

namespace atl::worker {
namespace {

constexpr Encoding kAlone = Encoding::kMomentsAlone;

struct TextFolder {
  TextFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "moments-XXXXXX").string();
    path = mkdtemp(name.data());
    std::ofstream text(path + "/text");
    for (int i = 0; i < 60; ++i) text << "the " << i * i << " waves of the sea, ";
  }
  ~TextFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

struct Moments {
  LayerBuffers first, second;
};

class AveragingIsland : public SoloIsland {
 public:
  AveragingIsland(const TextFolder& folder, InnerOptimizer optimizer, Encoding encoding)
      : SoloIsland({.spec = MakeSpec(folder, optimizer, encoding),
                    .make_device = [](int index) -> LocalDevice {
                      return {index, NewReferenceBackend(), NewReferenceBackend()};
                    }}) {
    Prepares();
    MakesWeights();
    theta = delta().values;
    Adopts(theta, {0, AdoptMode::kReplace});
  }
  void Steps(int count, int64_t first) {
    for (int64_t i = first; i < first + count; ++i) {
      Does<StepDone>(TrainStep{{{i * 2, i * 2 + 2}}, 1e-2});
    }
  }
  Moments Read() {
    Moments moments;
    for (size_t l = 0; l < facts.layers.size(); ++l) {
      const int64_t elements = facts.layers[l].elements;
      moments.first.emplace_back(elements);
      moments.second.emplace_back(elements);
      const ShardParts parts{{}, moments.first.back(), moments.second.back()};
      const LayerShard whole{static_cast<int32_t>(l), 0, {1}};
      REQUIRE(member().layers().GetShard(member().name(), whole, {0, elements}, parts).ok());
    }
    return moments;
  }
  void Capture() { Captures({{0, 1, 1, 0}, WithMoments(spec.outer.push_encoding), Shards()}); }
  DeltaView View(const ShardPlacement& shard) const {
    return {delta().encoded.at(shard.shard).data(), WithMoments(spec.outer.push_encoding),
            shard.elements};
  }
  LayerBuffers theta;

 private:
  static JobSpec MakeSpec(const TextFolder& folder, InnerOptimizer optimizer, Encoding encoding) {
    JobSpec spec;
    spec.name = "sea";
    spec.model.hidden = 8;
    spec.model.layers = 1;
    spec.model.heads = 2;
    spec.model.feed_forward = 16;
    spec.data.path = folder.path + "/text";
    spec.data.validation_fraction = 0.2;
    spec.data.sequence_length = 8;
    spec.inner.optimizer = optimizer;
    spec.inner.batch_sequences = 2;
    spec.outer.push_encoding = encoding;
    spec.outer.average_moments_steps = 4;
    spec.schedule.train_tokens = 640;
    return spec;
  }
};

// The means, in double precision, of what islands pushed.
struct Means {
  std::vector<std::vector<double>> ratios, second;
};
Means Exchange(const std::vector<AveragingIsland*>& islands, const std::vector<double>& weights) {
  Means means;
  ThreadPool pool(1);
  for (const ShardPlacement& shard : islands[0]->Shards()) {
    const auto n = static_cast<size_t>(shard.elements);
    std::vector<DeltaView> views;
    std::vector<double>& ratio_means = means.ratios.emplace_back(n);
    std::vector<double>& second_means = means.second.emplace_back(n);
    for (size_t i = 0; i < islands.size(); ++i) {
      views.push_back(islands[i]->View(shard));
      std::vector<float> u(n), v(n);
      DecodeRatios(views[i].encoding, islands[i]->delta().encoded.at(shard.shard), u, v);
      for (size_t e = 0; e < n; ++e) {
        ratio_means[e] += weights[i] * u[e];
        second_means[e] += weights[i] * v[e];
      }
    }
    std::vector<float> ratios(n), second(n);
    AverageMoments(views, weights, ratios, second, pool);
    std::vector<std::byte> bytes(EncodedBytes(kAlone, shard.elements));
    EncodeRatios(kAlone, ratios, second, bytes);
    for (AveragingIsland* island : islands) {
      PulledMoments& pulled = *island->trainer().outer()->pulled_moments();
      const auto layer = static_cast<size_t>(shard.layer);
      DecodeRatios(kAlone, bytes, pulled.first[layer], pulled.second[layer]);
      FirstFromRatios(pulled.first[layer], pulled.second[layer]);
    }
  }
  for (AveragingIsland* island : islands) {
    AdoptPulled adopt{1, AdoptMode::kReplace};
    adopt.moments = true;
    adopt.optimizer_steps = 4;
    island->Adopts(island->theta, adopt);
  }
  return means;
}

TEST_CASE("an_exchange_with_one_island_leaves_its_moments_as_the_codec_rounds_them") {
  const InnerOptimizer optimizer = GENERATE(InnerOptimizer::kAdamW, InnerOptimizer::kMuon);
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt4);
  TextFolder folder;
  AveragingIsland island(folder, optimizer, encoding);
  island.Steps(4, 0);
  const Moments before = island.Read();
  island.Capture();
  Exchange({&island}, {1});
  const Moments after = island.Read();
  int64_t with_second = 0, without_second = 0;
  for (size_t l = 0; l < before.first.size(); ++l) {
    for (size_t begin = 0; begin < before.first[l].size(); begin += kQuantBlock) {
      const size_t end = std::min(begin + kQuantBlock, before.first[l].size());
      double largest = 0, largest_ratio = 0, largest_second = 0;
      bool mixed = false;
      for (size_t i = begin; i < end; ++i) {
        const double m = before.first[l][i], v = before.second[l][i];
        largest = std::max(largest, std::abs(m));
        largest_second = std::max(largest_second, v);
        if (v > 0) largest_ratio = std::max(largest_ratio, std::abs(m) / std::sqrt(v));
        mixed = mixed || (v == 0 && m != 0);
      }
      for (size_t i = begin; i < end; ++i) {
        const double m = before.first[l][i], v = before.second[l][i];
        if (mixed && largest_second > 0) continue;  // a block of both kinds
        if (v == 0) {
          REQUIRE(std::abs(after.first[l][i] - m) <= largest / 253);
          without_second += m != 0;
          continue;
        }
        const double wanted = std::max(v, std::ldexp(largest_second, -15));
        REQUIRE(std::abs(std::log2(after.second[l][i] / wanted)) < 0.501);
        REQUIRE(std::abs(after.first[l][i] / std::sqrt(after.second[l][i]) - m / std::sqrt(v)) <=
                largest_ratio / 253);
        ++with_second;
      }
    }
  }
  CHECK(with_second > 100);
  CHECK((without_second > 100) == (optimizer == InnerOptimizer::kMuon));
  island.Steps(2, 4);  // it goes on from there
}

TEST_CASE("three_islands_adopt_the_weighted_means_of_their_moments") {
  TextFolder folder;
  std::vector<std::unique_ptr<AveragingIsland>> islands;
  std::vector<AveragingIsland*> all;
  for (int i = 0; i < 3; ++i) {
    islands.push_back(
        std::make_unique<AveragingIsland>(folder, InnerOptimizer::kAdamW, Encoding::kInt4));
    all.push_back(islands.back().get());
    all.back()->Steps(4, 4 * i);
    all.back()->Capture();
  }
  const Means means = Exchange(all, {0.5, 0.3, 0.2});
  const Moments adopted = all[0]->Read();
  for (AveragingIsland* island : all) {
    REQUIRE(island->Read().first == adopted.first);
    REQUIRE(island->Read().second == adopted.second);
  }
  for (size_t l = 0; l < adopted.first.size(); ++l) {
    const double largest = *std::max_element(means.second[l].begin(), means.second[l].end());
    for (size_t i = 0; i < adopted.first[l].size(); ++i) {
      if (means.second[l][i] < std::ldexp(largest, -14)) continue;  // may be at the codec's limit
      REQUIRE(std::abs(std::log2(adopted.second[l][i] / means.second[l][i])) < 0.501);
      REQUIRE(std::abs(adopted.first[l][i] / std::sqrt(adopted.second[l][i]) - means.ratios[l][i]) <
              0.05);
    }
  }
}

TEST_CASE("an_island_that_joins_has_the_averaged_moments_at_their_age") {
  TextFolder folder;
  AveragingIsland trained(folder, InnerOptimizer::kAdamW, Encoding::kInt4);
  AveragingIsland newcomer(folder, InnerOptimizer::kAdamW, Encoding::kInt4);
  trained.Steps(4, 0);
  trained.Capture();
  newcomer.Capture();  // for the views alone: it weighs nothing
  Exchange({&trained, &newcomer}, {1, 0});
  REQUIRE(newcomer.Read().first == trained.Read().first);
  REQUIRE(newcomer.Read().second == trained.Read().second);
  const int64_t position = 40;
  for (AveragingIsland* island : {&trained, &newcomer}) island->Steps(1, position);
  REQUIRE(newcomer.Theta() == trained.Theta());  // bias is corrected alike
}

}  // namespace
}  // namespace atl::worker
