// The job of a site's servers: versions of the job above that it adopts, and its contributions.

#include <catch2/catch.hpp>
#include <functional>

#include "common/element_ranges.h"
#include "kernels/host_ops.h"
#include "paramserver/core/server_fixture.h"

namespace atl::ps {
namespace {

const JobId kAbove = "above";
const std::vector<OwnedShard> kShards = {{0, 0, 4}, {1, 0, 2}, {2, 1, 3}};
const ContributionId kBy{7, 3, 2, 5};  // of the job above

// Parameters of the job above.
std::vector<float> Above(Version version, const OwnedShard& shard) {
  Rng rng(static_cast<uint64_t>(version), static_cast<uint64_t>(100 + shard.shard));
  std::vector<float> values(static_cast<size_t>(shard.elements));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}
std::vector<float> Above(Version version) {
  std::vector<float> all;
  for (const OwnedShard& shard : kShards) {
    for (const float value : Above(version, shard)) all.push_back(value);
  }
  return all;
}

struct Site {
  explicit Site(int64_t memory_bytes = 1 << 20) : server(memory_bytes) {
    server.outer.contributes_to = kAbove;
    server.outer.optimizer = "nesterov";
    server.Assign(shards);
  }

  void Fetch(Version version) {
    server.DeliverMessage(FetchBase{kJob, kAbove, version, Sources()});
  }
  std::vector<ShardSource> Sources() const {
    std::vector<ShardSource> sources;
    for (const OwnedShard& shard : shards) sources.push_back({shard, "above-1", "key"});
    return sources;
  }
  // The servers above answer so often.
  void Arrives(size_t parts = 100) {
    for (; parts > 0 && !server.fetches.empty(); --parts) {
      const FetchPart fetch = server.fetches.front();
      server.fetches.erase(server.fetches.begin());
      REQUIRE(fetch.job == kAbove);
      REQUIRE(fetch.slot == kPullTheta);
      REQUIRE(fetch.endpoint == "above-1");
      const OwnedShard& shard = shards.at(static_cast<size_t>(fetch.shard));
      std::vector<float> values = Above(fetch.version, shard);
      values = {values.begin() + fetch.range.begin, values.begin() + fetch.range.end};
      server.Do(PartFetched{fetch.token, absl::OkStatus(), ToSharedBytes(values)});
    }
  }
  void Refused() {
    for (const FetchPart& fetch : std::exchange(server.fetches, {})) {
      server.Do(PartFetched{fetch.token, absl::NotFoundError("it was replaced"), {}});
    }
  }
  // Brings it here and adopts it.
  void Adopt(Version own, Version version) {
    Fetch(version);
    Arrives();
    server.Sync();
    Commit(own, {.adopts = version});
  }
  void Commit(Version own, RoundStep step, std::vector<RoundTerm> terms = {}) {
    server.DeliverMessage(CommitRound{kJob, own, std::move(terms), {}, {}, std::move(step)});
    Sync();
  }
  void Sync() {
    if (syncs) server.Sync();
  }
  // A round of one island.
  void Round(Version own, bool contributes = false) {
    const ContributionId by = server.By(0, own - 1);
    server.PushAll(by, static_cast<uint64_t>(own));
    Sync();
    Commit(own, {.contributes = contributes}, {{by, 1.0}});
  }
  PushContribution Order(Version own) const {
    PushContribution order{kJob, own, kAbove, kBy, Sources(), {}};
    for (const OwnedShard& shard : shards) order.order.push_back({shard.shard, 0, 0, ""});
    return order;
  }
  // The part of the contribution that is in flight arrives.
  std::vector<ForwardPush> Pushed() {
    std::vector<ForwardPush> all;
    while (!server.forwards.empty()) {
      ForwardPush push = server.forwards.front();
      server.forwards.erase(server.forwards.begin());
      REQUIRE(push.endpoint == "above-1");
      server.Do(PushForwarded{push.token, absl::OkStatus()});
      all.push_back(std::move(push));
    }
    return all;
  }
  std::vector<float> Slot(size_t slot) {
    std::vector<float> all;
    for (const OwnedShard& shard : shards) {
      server.Do(PullArrived{kJob, kNoVersion, shard.shard, 900'000, 0, 0,
                            static_cast<int32_t>(slot) + 1});
      const auto reply = server.replies.extract(900'000);
      REQUIRE(!reply.empty());
      all.insert(all.end(), reply.mapped().values.begin(), reply.mapped().values.end());
    }
    return all;
  }
  std::vector<float> Base() { return Slot(1); }  // after nesterov's momentum
  std::vector<float> Contributed() { return Slot(2); }

  bool syncs = true;
  std::vector<OwnedShard> shards = kShards;
  ServerFixture server;
};

std::vector<float> Numbers(const SharedBytes& bytes) {
  std::vector<float> values(bytes.bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.bytes.data(), bytes.bytes.size());
  return values;
}

TEST_CASE("a_sites_job_begins_with_the_version_that_it_adopts") {
  Site site;
  site.server.sent.clear();
  site.Fetch(5);
  REQUIRE(site.server.fetches.size() == kShards.size());
  CHECK(site.server.fetches[0].version == 5);
  CHECK(site.server.fetches[0].public_key == "key");
  site.Arrives();
  CHECK(site.server.TakeSent<BaseFetched>().empty());  // nothing is durable yet
  site.server.Sync();
  for (int again = 0; again < 2; ++again) {
    const auto sent = site.server.TakeSent<BaseFetched>();
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].job == kJob);
    CHECK(sent[0].version == 5);
    site.Fetch(5);
    CHECK(site.server.fetches.empty());
  }
  CHECK(site.server.version() == kNoVersion);
  site.Commit(0, {.adopts = 5});
  CHECK(site.server.version() == 0);
  CHECK(site.server.AllTheta() == Above(5));
  CHECK(site.Base() == Above(5));
  for (const float value : site.Slot(0)) CHECK(value == 0);
}

TEST_CASE("a_contribution_is_base_less_contributed_in_the_push_encoding_as_often_as_it_is_pushed") {
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kBfloat16);
  Site site;
  site.server.outer.push_encoding = encoding;
  site.server.Assign(kShards);
  site.Adopt(0, 5);
  site.Round(1);
  site.Round(2, /*contributes=*/true);
  const std::vector<float> contributed = site.server.AllTheta();
  CHECK(site.Contributed() == contributed);
  site.Round(3);
  CHECK(site.Contributed() == contributed);
  site.server.DeliverMessage(site.Order(1));
  CHECK(site.server.forwards.empty());  // version 2 made the newest contribution
  std::vector<std::byte> bytes[3];
  for (int again = 0; again < 3; ++again) {
    if (again == 1) {
      site.server.Crash();
      site.server.Assign(kShards);
    }
    site.server.DeliverMessage(site.Order(2));
    const auto pushed = site.Pushed();
    REQUIRE(pushed.size() == kShards.size());
    for (const ForwardPush& push : pushed) {
      CHECK(push.id == PushId{kAbove, 7, 3, 2, 5, push.id.shard});
      CHECK(push.encoding == encoding);
      bytes[again].insert(bytes[again].end(), push.payload.bytes.begin(), push.payload.bytes.end());
    }
  }
  CHECK(bytes[1] == bytes[0]);
  CHECK(bytes[2] == bytes[0]);
  std::vector<float> difference = Above(5);
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= contributed[i];
  std::vector<std::byte> expected(difference.size() * (encoding == Encoding::kFloat32 ? 4 : 2));
  if (encoding == Encoding::kFloat32) {
    std::memcpy(expected.data(), difference.data(), expected.size());
  } else {
    ThreadPool pool(1);
    std::vector<Bfloat16> rounded(difference.size());
    ToBfloat16(difference, rounded, pool);
    std::memcpy(expected.data(), rounded.data(), expected.size());
  }
  CHECK(bytes[0] == expected);
}

TEST_CASE("what_is_adopted_replaces_the_contribution_and_keeps_rounds_since") {
  const bool round_between = GENERATE(false, true);
  Site site;
  site.Adopt(0, 5);
  site.Round(1);
  site.Round(2, /*contributes=*/true);
  const std::vector<float> contributed = site.server.AllTheta();
  if (round_between) site.Round(3);
  const std::vector<float> before = site.server.AllTheta();
  const std::vector<float> momentum = site.Slot(0);
  site.Adopt(round_between ? 4 : 3, 9);
  CHECK(site.Base() == Above(9));
  CHECK(site.Slot(0) == momentum);
  std::vector<float> expected = Above(9);
  for (size_t i = 0; i < expected.size() && round_between; ++i) {
    expected[i] = before[i] + (expected[i] - contributed[i]);
  }
  CHECK(site.server.AllTheta() == expected);  // without a round: of the job above, bit for bit
  site.server.DeliverMessage(site.Order(2));
  CHECK(site.server.forwards.empty());  // it was adopted
}

TEST_CASE("without_a_contribution_what_is_adopted_replaces_the_base") {
  Site site;
  site.Adopt(0, 5);
  site.Round(1);
  std::vector<float> expected = site.server.AllTheta();
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += Above(6)[i] - Above(5)[i];
  site.Adopt(2, 6);
  CHECK(site.server.AllTheta() == expected);
}

TEST_CASE("a_rejected_contribution_is_undone_by_adopting_the_base_again") {
  Site site;
  site.Adopt(0, 5);
  site.Round(1, /*contributes=*/true);
  CHECK(site.server.AllTheta() != Above(5));
  site.server.sent.clear();
  site.Fetch(5);  // the job above has made no version since
  CHECK(site.server.fetches.empty());
  CHECK(site.server.TakeSent<BaseFetched>().size() == 1);
  site.Commit(2, {.adopts = 5});
  CHECK(site.server.AllTheta() == Above(5));
}

TEST_CASE("a_round_without_contributions_changes_nothing_of_a_sites_job") {
  Site site;
  site.Adopt(0, 5);
  site.Round(1);
  const std::vector<float> theta = site.server.AllTheta();
  const std::vector<float> momentum = site.Slot(0);
  site.Commit(2, {});
  site.Commit(3, {.contributes = true});
  CHECK(site.server.version() == 3);
  CHECK(site.server.AllTheta() == theta);
  CHECK(site.Slot(0) == momentum);
  CHECK(site.Contributed() == theta);
}

TEST_CASE("a_replay_of_every_part_of_an_exchange_gives_the_same_bits") {
  const int64_t snapshot_every = GENERATE(0, 1, 2);
  const bool synced = GENERATE(false, true);
  using Step = std::function<void(Site&)>;
  const auto fetch = [](Version version, size_t parts) -> Step {
    return [=](Site& site) { site.Fetch(version), site.Arrives(parts), site.Sync(); };
  };
  const auto round = [](Version own, bool contributes) -> Step {
    return [=](Site& site) { site.Round(own, contributes); };
  };
  const auto commit = [](Version own, RoundStep step) -> Step {
    return [=](Site& site) { site.Commit(own, step); };
  };
  // Each may be repeated.
  const std::vector<Step> steps = {fetch(5, 1),
                                   fetch(5, 3),
                                   commit(0, {.adopts = 5}),
                                   round(1, false),
                                   round(2, true),
                                   fetch(6, 2),
                                   round(3, false),
                                   fetch(8, 2),
                                   round(4, false),
                                   fetch(8, 3),
                                   round(5, false),
                                   commit(6, {.adopts = 8}),
                                   round(7, true),
                                   commit(8, {}),
                                   fetch(9, 3),
                                   round(9, false),
                                   commit(10, {.adopts = 9}),
                                   round(11, false)};
  struct Bits {
    std::vector<float> theta, base, contributed;
    bool operator==(const Bits&) const = default;
  };
  const auto run = [&](size_t crash_at) {
    Site site;
    site.server.Assign(kShards, snapshot_every);
    for (size_t i = 0; i < steps.size(); ++i) {
      if (i == crash_at) {
        site.syncs = synced;
        steps[i](site);
        site.syncs = true;
        for (int again = 0; again < 2; ++again) {
          site.server.Crash();
          site.server.Assign(kShards, snapshot_every);
          site.server.Sync();
        }
      }
      steps[i](site);
    }
    return Bits{site.server.AllTheta(), site.Base(), site.Contributed()};
  };
  const Bits expected = run(steps.size());
  CHECK(expected.base == Above(9));
  for (size_t i = 0; i < steps.size(); ++i) {
    INFO("a crash at step " << i);
    CHECK(run(i) == expected);
  }
}

TEST_CASE("what_no_exchange_can_be_is_refused") {
  Site site;
  const auto refused = [&](Version own, RoundStep step, std::vector<RoundTerm> terms = {}) {
    const Version before = site.server.version();
    site.server.sent.clear();
    site.Commit(own, std::move(step), std::move(terms));
    CHECK(site.server.version() == before);
    return site.server.TakeSent<ServerFault>().size() == 1;
  };
  CHECK(refused(0, {.adopts = 5}));  // it was not fetched
  site.Fetch(5);
  site.Arrives(2);
  site.server.Sync();
  CHECK(refused(0, {.adopts = 5}));  // not all of it
  site.Arrives();
  site.server.Sync();
  CHECK(refused(0, {.adopts = 4}));
  CHECK(refused(0, {.adopts = -2}));
  CHECK(refused(0, {.contributes = true}));
  site.server.PushAll(site.server.By(0, -1), 1);
  site.server.Sync();
  CHECK(refused(0, {.adopts = 5}, {{site.server.By(0, -1), 1.0}}));
  CHECK(refused(0, {.contributes = true}, {{site.server.By(0, -1), 1.0}}));
  site.Commit(0, {.adopts = 5});
  CHECK(site.server.version() == 0);
  CHECK(refused(1, {.adopts = 4}));

  const auto fault = [&](ToServerMessage message) {
    site.server.sent.clear();
    site.server.DeliverMessage(std::move(message));
    return site.server.TakeSent<ServerFault>().size() == 1;
  };
  CHECK(fault(FetchBase{kJob, "another", 6, site.Sources()}));
  CHECK(fault(FetchBase{kJob, kAbove, 6, {site.Sources()[0]}}));
  CHECK(site.server.fetches.empty());
  site.Round(1, /*contributes=*/true);
  PushContribution order = site.Order(1);
  order.order[0].elements = 5;
  CHECK(fault(order));
  order = site.Order(1);
  order.to_job = "another";
  CHECK(fault(order));
  order = site.Order(1);
  order.targets.pop_back();
  CHECK(fault(order));
  CHECK(site.server.forwards.empty());
}

TEST_CASE("a_job_that_contributes_to_no_other_refuses_exchanges") {
  ServerFixture fixture;
  fixture.Assign();
  fixture.PushAll(fixture.By(0, -1), 1);
  fixture.Sync();
  fixture.Commit(0, {{fixture.By(0, -1), 1.0}});
  fixture.Sync();
  fixture.sent.clear();
  fixture.DeliverMessage(FetchBase{kJob, kAbove, 5, {}});
  fixture.DeliverMessage(CommitRound{kJob, 1, {}, {}, {}, {.adopts = 5}});
  fixture.DeliverMessage(CommitRound{kJob, 1, {}, {}, {}, {.contributes = true}});
  fixture.Sync();
  CHECK(fixture.TakeSent<ServerFault>().size() == 3);
  CHECK(fixture.version() == 0);
}

TEST_CASE("a_sites_job_with_quantised_pulls_or_fragments_is_refused") {
  Site site;
  for (const bool fragments : {false, true}) {
    OuterSpec outer = site.server.outer;
    if (fragments) outer.fragments = 2;
    if (!fragments) outer.pull_encoding = Encoding::kInt8;
    AssignShards assign{kJob, kShards, 0.5, 0.9, 0};
    assign.definition.spec.outer = outer;
    site.server.sent.clear();
    site.server.DeliverMessage(assign);
    CHECK(site.server.TakeSent<ServerFault>().size() == 1);
  }
}

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

TEST_CASE("the_job_above_takes_a_contribution_as_an_islands_and_the_site_adopts_what_it_makes") {
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kBfloat16);
  Site site;
  ServerFixture above;
  AssignShards assign{kAbove, kShards, /*outer_learning_rate=*/1, /*outer_momentum=*/0, 0};
  assign.definition.spec.outer.optimizer = "sgd";
  above.DeliverMessage(assign);
  const ContributionId initial{0, 1, 1, kNoVersion};
  for (const OwnedShard& shard : kShards) {
    above.Push({kAbove, 0, 1, 1, kNoVersion, shard.shard}, Above(5, shard));
  }
  above.Sync();
  above.DeliverMessage(CommitRound{kAbove, 0, {{initial, 1.0}}, {}});
  above.Sync();
  const auto theta_above = [&] {
    std::vector<float> all;
    for (const OwnedShard& shard : kShards) {
      const std::vector<float> theta = above.core().Parameters(kAbove, shard.shard);
      all.insert(all.end(), theta.begin(), theta.end());
    }
    return all;
  };
  const auto adopt = [&](Version own, Version version) {
    site.Fetch(version);
    for (const FetchPart& fetch : std::exchange(site.server.fetches, {})) {
      above.Do(PullArrived{fetch.job, fetch.version, fetch.shard, 800'000, fetch.range.begin,
                           fetch.range.size(), fetch.slot});
      const auto reply = above.replies.extract(800'000);
      REQUIRE(!reply.empty());
      const std::vector<float> values(reply.mapped().values.begin(), reply.mapped().values.end());
      site.server.Do(PartFetched{fetch.token, absl::OkStatus(), ToSharedBytes(values)});
    }
    site.server.Sync();
    site.Commit(own, {.adopts = version});
  };
  site.server.outer.push_encoding = encoding;
  site.server.Assign(kShards);
  adopt(0, 0);
  REQUIRE(site.server.AllTheta() == theta_above());
  site.Round(1, /*contributes=*/true);
  for (const PushStatus status : {PushStatus::kStaged, PushStatus::kDuplicate}) {
    site.server.DeliverMessage(site.Order(1));
    for (const ForwardPush& push : site.Pushed()) {
      const Token token = above.Push(push.id, push.encoding, push.elements, push.payload);
      above.Sync();
      CHECK(above.Answered(token, status));
    }
  }
  above.DeliverMessage(CommitRound{kAbove, 1, {{kBy, 1.0}}, {}});
  above.Sync();
  REQUIRE(above.core().version(kAbove) == 1);
  const std::vector<float> theta = site.server.AllTheta();
  const std::vector<float> next = theta_above();
  for (size_t i = 0; i < theta.size(); ++i) CHECK(next[i] == Approx(theta[i]).margin(0.02));
  adopt(2, 1);
  CHECK(site.server.AllTheta() == next);
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
