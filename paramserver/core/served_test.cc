// Quantised pulls: what islands hold moves by steps that every server and island makes alike.

#include <catch2/catch.hpp>
#include <cmath>

#include "common/net/tensor/tensor_types.h"
#include "kernels/add_delta.h"
#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

constexpr int64_t kElements = 600;  // the last block has 88

std::vector<float> Drawn(uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(kElements);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

// Words of a step are no numbers.
std::vector<uint32_t> ToBits(const std::vector<float>& words) {
  std::vector<uint32_t> bits(words.size());
  std::memcpy(bits.data(), words.data(), words.size() * sizeof(float));
  return bits;
}

// A server, and an island that pulls each version's step.
struct Island {
  explicit Island(Encoding pulls, int64_t snapshot_every = 0) : encoding(pulls) {
    fixture.outer.pull_encoding = pulls;
    fixture.Assign({{0, 0, kElements}}, snapshot_every);
    fixture.Push(fixture.Id(0, -1, 0), Drawn(1));
    fixture.Apply(0, {{fixture.By(0, -1), 1.0}});
    base = *Pulls(kPullServed);
  }
  void Round(uint64_t seed) {
    fixture.Push(fixture.Id(0, version, 0), Drawn(seed));
    fixture.Sync();
    ++version;
    fixture.Commit(version, {{fixture.By(0, version - 1), 1.0}});
    fixture.Sync();
  }
  // nullopt: refused.
  std::optional<std::vector<float>> Pulls(int32_t slot, int64_t begin = 0, int64_t elements = 0) {
    PullArrived pull_event{kJob, version, 0, ++token, begin, elements, slot};
    fixture.Do(pull_event);
    const auto reply = fixture.replies.find(token);
    if (reply == fixture.replies.end()) return std::nullopt;
    std::vector<float> values(reply->second.values.begin(), reply->second.values.end());
    fixture.replies.clear();  // they are leases
    return values;
  }
  void AddsStep(std::span<const float> words) {
    ThreadPool pool(1);
    AddDelta({words.data(), encoding, kElements}, base, base, pool);
  }
  const Encoding encoding;
  ServerFixture fixture;
  Version version = 0;
  Token token = 1'000'000;
  std::vector<float> base;
};

TEST_CASE("an island that adds each step has the bits that the server serves to a newcomer") {
  Island island(GENERATE(Encoding::kInt8, Encoding::kInt4));
  for (uint64_t round = 1; round <= 20; ++round) {
    island.Round(100 + round);
    const auto step = island.Pulls(kPullStep);
    REQUIRE(step);
    REQUIRE(std::ssize(*step) == EncodedWords(island.encoding, kElements));
    island.AddsStep(*step);
    REQUIRE(island.base == *island.Pulls(kPullServed));
  }
}

TEST_CASE("the rounding error stays below half a code over any number of rounds") {
  Island island(Encoding::kInt4);
  double worst = 0;
  for (uint64_t round = 1; round <= 50; ++round) {
    island.Round(100 + round);
    const std::vector<float> theta = *island.Pulls(kPullTheta);
    const std::vector<float> served = *island.Pulls(kPullServed);
    const std::vector<float> step = *island.Pulls(kPullStep);
    // A block's scale is its first word: the largest number of the step over 7.
    const float scale = step[0];
    for (size_t i = 0; i < static_cast<size_t>(kQuantBlock); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(theta[i] - served[i])) / scale);
    }
  }
  REQUIRE(worst > 0.1);
  REQUIRE(worst < 0.5001);
}

TEST_CASE("a part of a step that begins at a block is the same step") {
  Island island(Encoding::kInt4);
  island.Round(7);
  const int64_t begin = EncodedWords(island.encoding, 256);
  const auto whole = island.Pulls(kPullStep);
  const auto part =
      island.Pulls(kPullStep, begin, EncodedWords(island.encoding, kElements) - begin);
  REQUIRE(part);
  REQUIRE(ToBits(*part) == ToBits({whole->begin() + begin, whole->end()}));
}

TEST_CASE("a crash changes no bit of what is served, with and without a snapshot of it") {
  const int rounds = GENERATE(0, 1);
  Island steady(Encoding::kInt8, /*snapshot_every=*/2), crashed(Encoding::kInt8, 2);
  for (int round = 1; round <= rounds; ++round) {
    for (Island* island : {&steady, &crashed}) island->Round(static_cast<uint64_t>(round));
  }
  crashed.fixture.Crash();
  for (Island* island : {&steady, &crashed}) island->Round(99);
  REQUIRE(*steady.Pulls(kPullServed) == *crashed.Pulls(kPullServed));
  REQUIRE(*steady.Pulls(kPullTheta) == *crashed.Pulls(kPullTheta));
  REQUIRE(ToBits(*steady.Pulls(kPullStep)) == ToBits(*crashed.Pulls(kPullStep)));
}

TEST_CASE("without quantised pulls there is no step, and parameters are served as they are") {
  Island island(Encoding::kFloat32);
  island.Round(3);
  REQUIRE_FALSE(island.Pulls(kPullStep));
  REQUIRE(*island.Pulls(kPullServed) == *island.Pulls(kPullTheta));
}

TEST_CASE("an ended job serves what islands hold") {
  Island island(Encoding::kInt4);
  island.Round(3);
  const auto served = island.Pulls(kPullServed);
  island.fixture.DeliverMessage(EndJob{kJob});
  island.fixture.Sync();
  REQUIRE(*island.Pulls(kPullServed) == *served);
  REQUIRE(*island.Pulls(kPullTheta) == *served);
}

}  // namespace
}  // namespace atl::ps
