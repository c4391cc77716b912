// The moving average of the parameters (inner.ema).

#include <catch2/catch.hpp>

#include "common/net/tensor/tensor_types.h"
#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

std::vector<float> PullAverage(ServerFixture& fixture, ShardId shard = 0) {
  constexpr Token kToken = 77;
  fixture.Do(PullArrived{kJob, kNoVersion, shard, kToken, 0, 0, kPullAverage});
  const auto reply = fixture.replies.find(kToken);
  if (reply == fixture.replies.end()) return {};
  std::vector<float> values(reply->second.values.begin(), reply->second.values.end());
  fixture.replies.clear();  // they are leases
  return values;
}

TEST_CASE("the_average_begins_as_version_0_and_each_round_keeps_its_share_of_it") {
  ServerFixture fixture;
  fixture.ema = 0.99;
  fixture.outer.optimizer = GENERATE("sgd", "nesterov", "delayed_nesterov");
  fixture.outer.pull_encoding = GENERATE(Encoding::kFloat32, Encoding::kInt8);
  fixture.Begin(/*snapshot_every=*/2);
  std::vector<float> expected = fixture.Theta(0);
  REQUIRE(PullAverage(fixture) == expected);
  for (Version version = 1; version <= 5; ++version) {
    fixture.average_keep = version == 3 ? 1 : 0.5 + 0.1 * static_cast<double>(version % 3);
    fixture.Round(version);
    const std::vector<float> theta = fixture.Theta(0);
    const auto keep = static_cast<float>(fixture.average_keep);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = keep * expected[i] + (1 - keep) * theta[i];
    }
    const std::vector<float> average = PullAverage(fixture);
    REQUIRE(average.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) CHECK(average[i] == Approx(expected[i]));
    if (version % 2 == 1) fixture.Crash();  // from a snapshot, or along the log
    CHECK(PullAverage(fixture) == average);
  }
}

TEST_CASE("the_average_stays_when_the_job_ends_and_after_a_restart") {
  ServerFixture fixture;
  fixture.ema = 0.9;
  fixture.average_keep = 0.25;
  fixture.outer.pull_encoding = GENERATE(Encoding::kFloat32, Encoding::kInt8);
  fixture.Begin();
  fixture.Round(1);
  const std::vector<float> average = PullAverage(fixture);
  REQUIRE(average.size() == 4);
  fixture.DeliverMessage(EndJob{kJob});
  fixture.Sync();
  CHECK(PullAverage(fixture) == average);
  fixture.Crash();
  CHECK(PullAverage(fixture) == average);
}

TEST_CASE("a_filled_shards_average_begins_as_its_parameters") {
  ServerFixture receiver;
  const OwnedShard filled{1, 0, 2};
  ReceiveShards receive{kJob, 1, 1, {{filled, "giver", "", /*fill=*/true}}};
  receive.newest = {kJob, 1, {{ServerFixture::By(0, 0), 1.0}}, {}};
  receive.slots = 2;
  receiver.DeliverMessage(receive);
  receiver.Push({kJob, 0, 1, 1, FillBase(1), filled.shard}, {3, -1});
  receiver.Sync();
  AssignShards assign{kJob, {filled}, 0.5, 0.9, 0};
  assign.definition.spec.outer = receiver.outer;
  assign.definition.spec.inner.ema = 0.9;
  assign.definition.placement = 2;
  receiver.DeliverMessage(std::move(assign));
  receiver.Sync();
  CHECK(PullAverage(receiver, filled.shard) == std::vector<float>{3, -1});
}

TEST_CASE("a_job_without_an_average_refuses_to_serve_one") {
  ServerFixture fixture;
  fixture.Begin();
  CHECK(PullAverage(fixture).empty());
}

TEST_CASE("a_round_that_keeps_no_share_of_the_average_is_refused") {
  ServerFixture fixture;
  fixture.ema = 0.9;
  fixture.Begin();
  fixture.average_keep = GENERATE(-0.1, 1.1, std::nan(""));
  fixture.PushAll(fixture.By(0, 0), 2);
  fixture.Apply(1, {{fixture.By(0, 0), 1.0}});
  CHECK(fixture.version() == 0);
}

}  // namespace
}  // namespace atl::ps
