// Rounds that average the islands' moments.

#include "kernels/codecs/moments.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "common/protocol/outer_optimizer.h"
#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

const OwnedShard kOnly{0, 0, 300};
constexpr Encoding kPushed = WithMoments(Encoding::kFloat32);

struct Pushed {
  std::vector<float> delta, first, second;
};

Pushed DrawPush(uint64_t seed) {
  Rng rng(seed);
  Pushed push;
  for (int64_t i = 0; i < kOnly.elements; ++i) {
    push.delta.push_back(static_cast<float>(rng.Normal()));
    push.first.push_back(static_cast<float>(1e-3 * rng.Normal()));
    push.second.push_back(static_cast<float>(1e-6 * (0.1 + rng.Uniform())));
  }
  return push;
}

SharedBytes ToBytes(const Pushed& push) {
  ThreadPool pool(1);
  auto bytes = std::make_shared<std::vector<std::byte>>(EncodedBytes(kPushed, kOnly.elements));
  EncodeMoments(kPushed, push.first, push.second, *bytes);
  EncodeDelta(kPushed, push.delta, {}, *bytes, pool);
  return {bytes, *bytes};
}

class MomentsFixture : public ServerFixture {
 public:
  explicit MomentsFixture(bool begin = true) {
    outer.average_moments_steps = 16;
    if (!begin) return;
    Assign({kOnly}, /*snapshot_every=*/1);
    Push(Id(0, kNoVersion, 0), std::vector<float>(kOnly.elements, 1.0f));
    Apply(0, {{kInitial, 1.0}});
    sent.clear();
  }
  void PushMoments(IslandId island, Version base, const Pushed& push) {
    Push(Id(island, base, 0), kPushed, kOnly.elements, ToBytes(push));
  }
  // A round that averages the moments of those terms that have some.
  void ApplyAverage(Version version, std::vector<RoundTerm> terms) {
    Sync();
    CommitRound commit{kJob, version, std::move(terms), {}};
    commit.step.averages_moments = true;
    DeliverMessage(std::move(commit));
    Sync();
  }
  // Words of an encoding may be no numbers, which are equal to nothing.
  std::vector<uint32_t> PullAverage() {
    const std::vector<float> words = PullSlot(kPullMoments);
    std::vector<uint32_t> bits(words.size());
    std::memcpy(bits.data(), words.data(), words.size() * sizeof(float));
    return bits;
  }
  std::vector<float> PullSlot(int32_t slot) {
    Do(PullArrived{kJob, kNoVersion, 0, ++tokens_, 0, 0, slot});
    const auto reply = replies.find(tokens_);
    if (reply == replies.end()) return {};
    return {reply->second.values.begin(), reply->second.values.end()};
  }
  Token tokens_ = 1 << 20;
};

int32_t RatioSlot(const OuterSpec& outer) {
  const std::vector<std::string> slots = ListServerSlots({.outer = outer});
  return 1 +
         static_cast<int32_t>(std::find(slots.begin(), slots.end(), kRatioSlot) - slots.begin());
}

bool IsNear(const std::vector<float>& values, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::abs(values.at(i) - expected[i]) > 1e-6 * std::abs(expected[i])) return false;
  }
  return values.size() == expected.size();
}

TEST_CASE("a_round_keeps_the_weighted_means_of_its_terms_moments") {
  MomentsFixture fixture;
  const Pushed a = DrawPush(1), b = DrawPush(2);
  fixture.PushMoments(0, 0, a);
  fixture.PushMoments(1, 0, b);
  fixture.Push(fixture.Id(2, 0, 0), DrawPush(3).delta);  // has none
  // Clipped: weights do not sum to 1.
  fixture.ApplyAverage(1,
                       {{fixture.By(0, 0), 0.3}, {fixture.By(1, 0), 0.1}, {fixture.By(2, 0), 0.2}});
  REQUIRE(fixture.version() == 1);
  std::vector<double> ratios(kOnly.elements), second(kOnly.elements);
  for (const auto& [push, weight] : {std::pair(&a, 0.75), std::pair(&b, 0.25)}) {
    std::vector<float> u(kOnly.elements), v(kOnly.elements);
    DecodeRatios(kPushed, ToBytes(*push).bytes, u, v);
    for (size_t i = 0; i < u.size(); ++i) {
      ratios[i] += weight * u[i];
      second[i] += weight * v[i];
    }
  }
  const int32_t slot = RatioSlot(fixture.outer);
  REQUIRE(IsNear(fixture.PullSlot(slot), ratios));
  REQUIRE(IsNear(fixture.PullSlot(slot + 1), second));
  const std::vector<float> words = fixture.PullSlot(kPullMoments);
  std::vector<float> u(kOnly.elements), v(kOnly.elements);
  DecodeRatios(Encoding::kMomentsAlone, std::as_bytes(std::span(words)), u, v);
  for (size_t i = 0; i < v.size(); ++i) {
    REQUIRE(std::abs(std::log2(v[i] / second[i])) < 0.5001);
  }
}

TEST_CASE("a_job_that_has_ended_has_no_averaged_moments") {
  MomentsFixture fixture(/*begin=*/false);
  fixture.ema = 0.9;
  fixture.Assign({kOnly}, /*snapshot_every=*/1);
  fixture.Push(fixture.Id(0, kNoVersion, 0), std::vector<float>(kOnly.elements, 1.0f));
  fixture.Apply(0, {{kInitial, 1.0}});
  fixture.PushMoments(0, 0, DrawPush(11));
  fixture.ApplyAverage(1, {{fixture.By(0, 0), 1.0}});
  REQUIRE(!fixture.PullSlot(kPullMoments).empty());
  fixture.DeliverMessage(EndJob{kJob});
  fixture.Sync();
  CHECK(fixture.PullSlot(kPullMoments).empty());
  fixture.Crash();
  CHECK(fixture.PullSlot(kPullMoments).empty());
}

TEST_CASE("moments_change_no_bit_of_the_parameters") {
  MomentsFixture with, without;
  const Pushed push = DrawPush(4);
  with.PushMoments(0, 0, push);
  with.ApplyAverage(1, {{with.By(0, 0), 1.0}});
  without.Push(without.Id(0, 0, 0), push.delta);
  without.Apply(1, {{without.By(0, 0), 1.0}});
  REQUIRE(with.version() == 1);
  REQUIRE(with.Theta(0) == without.Theta(0));
}

TEST_CASE("a_round_that_averages_none_keeps_the_newest_average") {
  MomentsFixture fixture;
  fixture.PushMoments(0, 0, DrawPush(5));
  fixture.ApplyAverage(1, {{fixture.By(0, 0), 1.0}});
  const std::vector<uint32_t> average = fixture.PullAverage();
  fixture.PushMoments(0, 1, DrawPush(6));
  fixture.Apply(2, {{fixture.By(0, 1), 1.0}});
  REQUIRE(fixture.version() == 2);
  REQUIRE(fixture.PullAverage() == average);
}

TEST_CASE("a_restarted_server_has_the_average_of_its_log_and_of_its_snapshot") {
  MomentsFixture fixture;
  for (Version version = 1; version <= 3; ++version) {
    fixture.PushMoments(0, version - 1, DrawPush(static_cast<uint64_t>(version)));
    fixture.ApplyAverage(version, {{fixture.By(0, version - 1), 1.0}});
    const std::vector<uint32_t> average = fixture.PullAverage();
    fixture.Crash();
    fixture.DeliverMessage(Welcome{});
    REQUIRE(fixture.version() == version);
    REQUIRE(fixture.PullAverage() == average);
  }
}

TEST_CASE(
    "pushes_with_moments_that_come_again_are_duplicates_and_survive_a_crash_before_the_round") {
  MomentsFixture fixture;
  const Pushed push = DrawPush(7);
  fixture.PushMoments(0, 0, push);
  fixture.Sync();
  fixture.Crash();
  const Token again = fixture.Push(fixture.Id(0, 0, 0), kPushed, kOnly.elements, ToBytes(push));
  REQUIRE(fixture.Answered(again, PushStatus::kDuplicate));
  fixture.ApplyAverage(1, {{fixture.By(0, 0), 1.0}});
  REQUIRE(fixture.version() == 1);
  std::vector<float> u(kOnly.elements), v(kOnly.elements);
  DecodeRatios(kPushed, ToBytes(push).bytes, u, v);
  REQUIRE(fixture.PullSlot(RatioSlot(fixture.outer)) == u);
}

TEST_CASE("the_parts_of_a_push_with_moments_make_the_bits_of_the_whole") {
  MomentsFixture whole, parts;
  const Pushed push = DrawPush(8);
  whole.PushMoments(0, 0, push);
  const SharedBytes bytes = ToBytes(push);
  const auto cut = static_cast<size_t>(EncodedBytes(kPushed, 256));
  PushId id = parts.Id(0, 0, 0);
  id.begin = 256;
  id.elements = 44;
  parts.Push(id, kPushed, 44, {bytes.owner, bytes.bytes.subspan(cut)});
  id.begin = 0;
  id.elements = 256;
  parts.Push(id, kPushed, 256, {bytes.owner, bytes.bytes.first(cut)});
  for (MomentsFixture* fixture : {&whole, &parts}) {
    fixture->ApplyAverage(1, {{fixture->By(0, 0), 1.0}});
    REQUIRE(fixture->version() == 1);
  }
  REQUIRE(whole.Theta(0) == parts.Theta(0));
  REQUIRE(whole.PullAverage() == parts.PullAverage());
}

TEST_CASE("a_shard_that_moves_brings_its_average_along") {
  MomentsFixture giver, receiver(/*begin=*/false);
  giver.PushMoments(0, 0, DrawPush(9));
  giver.ApplyAverage(1, {{giver.By(0, 0), 1.0}});
  ReceiveShards receive{kJob, 1, 1, {{kOnly, "giver", "", false}}};
  receive.newest = {kJob, 1, {{giver.By(0, 0), 1.0}}, {}};
  receive.decided = {kInitial, giver.By(0, 0)};
  receive.slots = static_cast<int32_t>(ListServerSlots({.outer = giver.outer}).size());
  receiver.DeliverMessage(receive);
  while (!receiver.fetches.empty()) {
    const FetchPart fetch = receiver.fetches.front();
    receiver.fetches.erase(receiver.fetches.begin());
    receiver.Do(
        PartFetched{fetch.token, absl::OkStatus(),
                    ToSharedBytes(fetch.slot > 0 ? giver.PullSlot(fetch.slot) : giver.Theta(0))});
  }
  receiver.Sync();
  AssignShards assign{kJob, {kOnly}, 0.5, 0.9, 0};
  assign.definition.spec.outer = giver.outer;
  assign.definition.placement = 2;
  receiver.DeliverMessage(assign);
  receiver.Sync();
  REQUIRE(receiver.version() == 1);
  REQUIRE(receiver.PullAverage() == giver.PullAverage());
}

TEST_CASE("a_job_without_averages_refuses_moments") {
  ServerFixture fixture;
  fixture.Assign({kOnly});
  fixture.Push(fixture.Id(0, kNoVersion, 0), std::vector<float>(kOnly.elements, 1.0f));
  fixture.Apply(0, {{kInitial, 1.0}});
  const Token token =
      fixture.Push(fixture.Id(0, 0, 0), kPushed, kOnly.elements, ToBytes(DrawPush(1)));
  REQUIRE(fixture.Answered(token, PushStatus::kRefused));
}

}  // namespace
}  // namespace atl::ps
