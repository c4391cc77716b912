// The job of a site's servers: versions of the job above that it adopts, and its contributions.

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "paramserver/core/testing/site_fixture.h"

namespace atl::ps {
namespace {

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

TEST_CASE("a_branched_job_begins_with_the_other_jobs_parameters_and_adopts_no_more") {
  Site site;
  site.server.outer.contributes_to = "";
  site.server.outer.pull_encoding = Encoding::kInt4;
  site.server.initial_job = absl::StrCat(kAbove, "@5");
  site.server.Assign(kShards);
  site.Commit(0, {.adopts = 5});
  CHECK(site.server.version() == kNoVersion);  // it was not fetched
  site.Adopt(0, 5);
  CHECK(site.server.version() == 0);
  CHECK(site.server.AllTheta() == Above(5));
  site.server.Crash();
  site.server.Assign(kShards);
  CHECK(site.server.version() == 0);
  CHECK(site.server.AllTheta() == Above(5));
  site.Commit(1, {.adopts = 6});
  CHECK(site.server.version() == 0);
  site.Commit(1, {.contributes = true});
  CHECK(site.server.version() == 0);
  site.Round(1);
  CHECK(site.server.version() == 1);
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
  fixture.Begin();
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

}  // namespace
}  // namespace atl::ps
