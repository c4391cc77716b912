// Contributions that members vouch for: World pushes for a worker with a certificate, and answers
// for the servers.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/trust/pki.h"
#include "common/trust/signed_push.h"
#include "coordinator/core/rounds/decision_chain.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

const KeyAndCertificate& TheSigner() {
  static const auto& signer = *new KeyAndCertificate(KeyFromSeed(std::string(32, 's')).value());
  return signer;
}

// A job of islands 0 (a) and 1 (b) at version 0; `a` has shown a certificate since.
struct SignedWorld : World {
  SignedWorld() {
    StartJob({"ps-0"}, {"a", "b"}, "min=2");
    WorkerHello hello;
    hello.devices = {{"cpu", 1 << 30, 1}};
    hello.mark = GetClusterMark("a");
    hello.certificate = TheSigner().certificate;
    HandleEvent(FromWorker{"a", Island(0).incarnation, hello});
    DoLines({"worker a leases wanted=4"});
  }

  // Returns what `a` says of its next push, signed.
  PushRequest Request() {
    PushRequest push;
    push.job = "lm-1";
    push.contribution = {0, Order("a").generation, Order("a").author, 0};
    push.inner_steps = 4;
    push.consumed = Leases("a");
    push.tokens = 40;
    for (const ShardPlacement& shard : Job().shards) {
      push.parts.push_back({shard.shard, 0, shard.elements, std::string(32, 'd')});
    }
    push.signature = PushSignature{.plan_number = 0, .build = "test"};
    Sign(push);
    return push;
  }
  static void Sign(PushRequest& push) { REQUIRE(SignPush(TheSigner().key, &push).ok()); }
  void Push(const PushRequest& push) { HandleEvent(FromWorker{"a", Island(0).incarnation, push}); }
  bool IsTaken() const { return !Stored<ContributionRecord>().empty(); }
  // All of it is staged, and `b` contributes, too; the server answers as it would, but for this.
  void Decides(const PushRequest& push, std::vector<ContributionId> unfit) {
    for (const ShardPlacement& shard : Job().shards) {
      const ContributionId& c = push.contribution;
      HandleEvent(FromServer{"ps-0", 1,
                             PushStaged{{"lm-1", c.island, c.generation, c.incarnation,
                                         c.base_version, shard.shard, 0, 0}}});
    }
    Contribute("b", 4);
    Statistics statistics{
        "lm-1", 1, {push.contribution, {1, Order("b").generation, Order("b").author, 0}}, {}, {}};
    for (int32_t layer = 0; layer < 3; ++layer) {
      statistics.layers.push_back({layer, {1, 0.5, 0.5, 1}});
    }
    statistics.unfit = std::move(unfit);
    HandleEvent(FromServer{"ps-0", 1, statistics});
  }
};

TEST_CASE("a_worker_with_a_certificate_has_to_sign_what_it_pushes") {
  SignedWorld w;
  PushRequest push = w.Request();
  SECTION("signed") {
    w.Push(push);
    REQUIRE(w.IsTaken());
    const ContributionRecord record = w.Stored<ContributionRecord>()[0];
    CHECK(record.worker == "a");
    CHECK(record.site == "");  // under outer.max_share those without a site are one
    CHECK(record.parts == push.parts);
    REQUIRE(record.signature);
    CHECK(record.signature->signature == push.signature->signature);
    REQUIRE(w.Stored<JobRecord>()[0].signers.size() == 1);
    CHECK(w.Stored<JobRecord>()[0].signers[0].certificate == TheSigner().certificate);
    return;
  }
  SECTION("not_signed") { push.signature.reset(); }
  SECTION("without_digests") { push.parts.clear(); }
  SECTION("of_other_data") {
    ++push.consumed[0].begin;
    push.tokens = 30;
  }
  SECTION("of_other_bytes") { push.parts[1].digest[0] = 'x'; }
  SECTION("not_of_all_shards") {
    push.parts.pop_back();
    w.Sign(push);
  }
  SECTION("not_of_all_of_a_shard") {
    --push.parts[0].elements;
    w.Sign(push);
  }
  SECTION("of_a_shard_twice") {
    push.parts.insert(push.parts.begin(), push.parts[0]);
    w.Sign(push);
  }
  SECTION("by_another_key") {
    const KeyAndCertificate other = KeyFromSeed(std::string(32, 'o')).value();
    REQUIRE(SignPush(other.key, &push).ok());
  }
  const Generation before = w.Island(0).generation;
  w.Push(push);
  CHECK_FALSE(w.IsTaken());
  CHECK(w.Island(0).generation > before);  // it begins anew, and its data is free
}

TEST_CASE("what_servers_have_and_was_not_signed_does_not_count") {
  for (const bool fits : {true, false}) {
    INFO("fits: " << fits);
    SignedWorld w;
    const PushRequest push = w.Request();
    w.Push(push);
    w.Decides(push, fits ? std::vector<ContributionId>() : std::vector{push.contribution});
    const DecisionRecord decision = w.Stored<DecisionRecord>().back();
    REQUIRE(decision.version == 1);
    REQUIRE(decision.participants.size() == 2);
    CHECK(decision.participants[0].accepted == fits);
    CHECK(decision.participants[0].weight == Approx(fits ? 0.5 : 0));
    CHECK(decision.participants[1].weight == Approx(fits ? 0.5 : 1));
    CHECK(decision.participants[0].signature->signature == push.signature->signature);
    CHECK(decision.participants[0].consumed == push.consumed);
    CHECK_FALSE(decision.participants[1].signature);
  }
}

TEST_CASE("a_server_judges_only_what_it_had_to_compare") {
  SignedWorld w;
  const PushRequest push = w.Request();
  w.Push(push);
  w.Decides(push, {{1, w.Order("b").generation, w.Order("b").author, 0}});  // it is not signed
  const DecisionRecord decision = w.Stored<DecisionRecord>().back();
  REQUIRE(decision.participants.size() == 2);
  CHECK(decision.participants[1].accepted);
}

TEST_CASE("decisions_form_a_chain_over_restarts") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "min=2");
  for (int round = 0; round < 3; ++round) {
    w.Round({"a", "b"}, 4);
    if (round == 1) {
      w.DoLines({"coordinator restarts", "server ps-0 attaches incarnation=1",
                 "worker a attaches incarnation=1", "worker b attaches incarnation=1",
                 "servers answer"});
    }
  }
  const CheckedDecisions checked = CheckDecisions(
      w.Stored<DecisionRecord>(), w.Stored<ProgressRecord>()[0].decisions_digest, {}, "");
  CHECK(checked.problem.empty());
  CHECK(checked.decisions == 4);
  CHECK(checked.digest == w.Stored<ProgressRecord>()[0].decisions_digest);
}

}  // namespace
}  // namespace atl::testing
