// Orders of a site's exchange: waiting, repeated, replaced.

#include <catch2/catch.hpp>

#include "paramserver/core/testing/site_fixture.h"

namespace atl::ps {
namespace {

TEST_CASE("a_version_waits_for_memory") {
  // Parameters, momentum, base and contributed, and two more tensors of 9 elements.
  Site site(/*memory_bytes=*/9 * 4 * 6);
  site.server.Sync();
  site.Adopt(0, 5);
  REQUIRE(site.server.version() == 0);
  const ContributionId first = site.server.By(0, 0), second = site.server.By(1, 0);
  site.server.PushAll(first, 1);
  site.server.PushAll(second, 2);
  site.server.Sync();
  site.server.sent.clear();
  site.Fetch(6);
  CHECK(site.server.fetches.empty());
  const auto faults = site.server.TakeSent<ServerFault>();
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].passing);
  site.Commit(1, {}, {{first, 0.5}, {second, 0.5}});
  site.server.Wait(kRetryInterval);
  CHECK(site.server.fetches.size() == kShards.size());
  CHECK(site.server.TakeSent<ServerFault>().empty());
  site.Arrives();
  // The fetched parameters count: there is room for one island's push now.
  site.server.PushAll(site.server.By(0, 1), 3);
  const Token token = site.server.Push(site.server.Id(1, 1, 0), {1, 1, 1, 1});
  CHECK(site.server.Answered(token, PushStatus::kRefused));
}

TEST_CASE("a_version_that_is_replaced_is_noted_and_retried_until_a_newer_one_is_ordered") {
  Site site;
  site.Fetch(5);
  site.Arrives(1);
  const size_t notes = site.server.notes.size();
  for (int i = 0; i < 3; ++i) {
    site.Refused();
    CHECK(site.server.fetches.empty());
    site.server.Wait(kRetryInterval);
    CHECK(site.server.fetches.size() == 2);
    CHECK(site.server.fetches[0].version == 5);
  }
  CHECK(site.server.notes.size() == notes + 1);
  site.server.sent.clear();
  site.Fetch(6);
  site.Refused();  // the older one
  site.server.Wait(kRetryInterval);
  REQUIRE(site.server.fetches.size() == kShards.size());
  for (const FetchPart& fetch : site.server.fetches) CHECK(fetch.version == 6);
  site.Arrives();
  site.Fetch(5);  // a late one
  CHECK(site.server.fetches.empty());
  site.server.Sync();
  const auto sent = site.server.TakeSent<BaseFetched>();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].version == 6);
  site.Commit(0, {.adopts = 6});
  CHECK(site.server.AllTheta() == Above(6));
}

TEST_CASE("a_newer_version_waits_for_the_round_that_adopts_an_older_one") {
  Site site;
  site.Fetch(5);
  site.Arrives();
  site.server.Sync();
  site.server.DeliverMessage(CommitRound{kJob, 0, {}, {}, {}, {.adopts = 5}});
  site.Fetch(6);
  CHECK(site.server.fetches.empty());
  site.server.Sync();
  CHECK(site.server.AllTheta() == Above(5));
  CHECK(site.server.fetches.size() == kShards.size());
}

TEST_CASE("a_contribution_is_pushed_until_it_is_there_or_another_order_comes") {
  Site site;
  site.Adopt(0, 5);
  site.Round(1, /*contributes=*/true);
  site.server.DeliverMessage(site.Order(1));
  const auto first = std::exchange(site.server.forwards, {});
  REQUIRE(first.size() == kShards.size());
  site.server.DeliverMessage(site.Order(1));  // a repetition changes nothing
  CHECK(site.server.forwards.empty());
  site.server.Do(PushForwarded{first[0].token, absl::OkStatus()});
  site.server.Do(PushForwarded{first[1].token, absl::UnavailableError("it is not there")});
  CHECK(site.server.forwards.empty());
  site.server.Wait(kRetryInterval);
  REQUIRE(site.server.forwards.size() == 1);
  CHECK(site.server.forwards[0].id == first[1].id);
  CHECK(Numbers(site.server.forwards[0].payload) == Numbers(first[1].payload));

  PushContribution other = site.Order(1);
  other.contribution.generation = 4;
  other.order = {{2, 0, 0, ""}};
  site.server.forwards.clear();
  site.server.DeliverMessage(other);
  REQUIRE(site.server.forwards.size() == 1);
  CHECK(site.server.forwards[0].id == PushId{kAbove, 7, 4, 2, 5, 2});
  site.server.Do(PushForwarded{first[2].token, absl::UnavailableError("late")});
  site.Pushed();
  site.server.Wait(kRetryInterval);
  CHECK(site.server.forwards.empty());

  site.server.DeliverMessage(site.Order(1));
  site.server.DeliverMessage(CommitRound{kJob, 2, {}, {}, {}, {.contributes = true}});
  for (const ForwardPush& push : std::exchange(site.server.forwards, {})) {
    site.server.Do(PushForwarded{push.token, absl::UnavailableError("it is not there")});
  }
  site.server.Wait(kRetryInterval);
  CHECK(site.server.forwards.empty());  // another contribution replaces it
}

TEST_CASE("large_shards_are_fetched_and_pushed_in_parts_few_at_a_time") {
  constexpr int64_t kPart = JobDriver::kPartElements;
  Site site(/*memory_bytes=*/int64_t{1} << 30);
  site.shards = {{0, 0, 5 * kPart / 2}, {1, 0, 2}, {2, 1, kPart}};
  site.server.Assign(site.shards);
  site.Fetch(5);
  CHECK(site.server.fetches.size() == JobDriver::kFetchesAtOnce);
  size_t parts = 0;
  ElementRanges ranges;
  while (!site.server.fetches.empty()) {
    const FetchPart fetch = site.server.fetches.front();
    site.server.fetches.erase(site.server.fetches.begin());
    if (fetch.shard == 0) ranges.Add(fetch.range);
    CHECK(fetch.range.size() <= kPart);
    const std::vector<float> values(static_cast<size_t>(fetch.range.size()), 2.0F);
    site.server.Do(PartFetched{fetch.token, absl::OkStatus(), ToSharedBytes(values)});
    ++parts;
  }
  CHECK(parts == 5);
  CHECK(ranges.Covers({0, 5 * kPart / 2}));
  site.server.Sync();
  site.Commit(0, {.adopts = 5});
  site.Commit(1, {.contributes = true});
  REQUIRE(site.server.version() == 1);
  PushContribution order{kJob, 1, kAbove, kBy, site.Sources(), {}};
  order.order = {{0, kPart / 4, 9 * kPart / 4, ""}, {1, 0, 0, ""}, {0, 0, kPart / 4, ""}};
  site.server.DeliverMessage(order);
  CHECK(site.server.forwards.size() == JobDriver::kForwardsAtOnce);
  ElementRanges pushed;
  for (const ForwardPush& push : site.Pushed()) {
    CHECK(push.elements <= kPart);
    CHECK(std::ssize(push.payload.bytes) == 4 * push.elements);
    if (push.id.shard == 0) pushed.Add({push.id.begin, push.id.begin + push.id.elements});
  }
  CHECK(pushed.Covers({0, 5 * kPart / 2}));
}

TEST_CASE("jobs_of_a_site_share_the_fetches_at_once") {
  Site site;
  std::vector<OwnedShard> shards;
  std::vector<ShardSource> sources;
  for (ShardId shard = 0; shard < 3; ++shard) {
    shards.push_back({shard, 0, 2});
    sources.push_back({shards.back(), "above-1", ""});
  }
  AssignShards assign{"job-0", shards, 0.5, 0.9, 0};
  assign.definition.spec.outer = site.server.outer;
  site.server.DeliverMessage(assign);
  site.Fetch(5);
  site.server.DeliverMessage(FetchBase{"job-0", kAbove, 5, sources});
  CHECK(site.server.fetches.size() == JobDriver::kFetchesAtOnce);
  size_t parts = 0;
  for (; !site.server.fetches.empty(); ++parts) {
    const FetchPart fetch = site.server.fetches.front();
    site.server.fetches.erase(site.server.fetches.begin());
    const std::vector<float> values(static_cast<size_t>(fetch.range.size()), 2.0F);
    site.server.Do(PartFetched{fetch.token, absl::OkStatus(), ToSharedBytes(values)});
  }
  CHECK(parts == 6);
  site.server.sent.clear();
  site.server.Sync();
  CHECK(site.server.TakeSent<BaseFetched>().size() == 2);
}

}  // namespace
}  // namespace atl::ps
