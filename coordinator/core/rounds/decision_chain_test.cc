#include "coordinator/core/rounds/decision_chain.h"

#include <catch2/catch.hpp>
#include <functional>

#include "common/check.h"
#include "common/trust/pki.h"
#include "common/trust/signed_push.h"

namespace atl {
namespace {

// A cluster's authority and a member of it.
struct Members {
  KeyAndCertificate authority = MakeAuthority("00000000000000aa", 0, 4'000'000'000).value();
  std::string key = MakePrivateKey().value();
  std::string certificate = SignRequest(authority, MakeRequest(key).value(),
                                        {{Role::kWorker, "w1"}, {}, "", 0, 4'000'000'000})
                                .value();
};

const Members& TheMembers() {
  static const auto& members = *new Members();
  return members;
}

// Rounds that each have a contribution signed by w1, and one that is not signed.
std::vector<DecisionRecord> SignedRounds(int64_t rounds) {
  std::vector<DecisionRecord> decisions;
  for (int64_t round = 1; round <= rounds; ++round) {
    DecisionRecord decision;
    decision.job = "lm-1";
    decision.round = round;
    decision.version = round - 1;
    decision.closed_because = "all are in";
    decision.gram = {1, 2, 3, 4};
    PushRequest request;
    request.job = decision.job;
    request.contribution = {0, 1, 7, round - 2};
    request.consumed = {{8 * round, 8 * round + 8}};
    request.parts = {{0, 0, 10, std::string(32, static_cast<char>('a' + round))}};
    request.signature = PushSignature{.plan_number = 1, .build = "test"};
    ATOLL_CHECK(SignPush(TheMembers().key, &request).ok());
    DecisionParticipant p;
    p.contribution = request.contribution;
    p.worker = "w1";
    p.weight = 0.75;
    p.accepted = true;
    p.consumed = request.consumed;
    p.signature = request.signature;
    p.signature->key = ReadCertificate(TheMembers().certificate)->key_digest;
    decision.participants = {p, p};
    decision.participants[1].contribution.island = 1;
    decision.participants[1].worker = "site oslo";
    decision.participants[1].weight = 0.25;
    decision.participants[1].signature.reset();
    decision.digest_before = decisions.empty() ? "" : decisions.back().digest;
    decision.digest = DigestDecision(decision);
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

CheckedDecisions Check(const std::vector<DecisionRecord>& decisions) {
  return CheckDecisions(decisions, "", {TheMembers().certificate},
                        TheMembers().authority.certificate);
}

TEST_CASE("decisions_as_they_were_made_fit_and_are_counted") {
  const std::vector<DecisionRecord> decisions = SignedRounds(5);
  const CheckedDecisions checked = Check(decisions);
  CHECK(checked.problem.empty());
  CHECK(checked.bad_round == 0);
  CHECK(checked.decisions == 5);
  CHECK(checked.first_round == 1);
  CHECK(checked.last_round == 5);
  CHECK(checked.signed_contributions == 5);
  CHECK(checked.unsigned_contributions == 5);
  CHECK(checked.digest == decisions.back().digest);
  // Old ones are not kept.
  const CheckedDecisions later = Check({decisions.begin() + 2, decisions.end()});
  CHECK(later.bad_round == 0);
  CHECK(later.first_round == 3);
  CHECK(Check({}).decisions == 0);
}

TEST_CASE("the_first_round_that_was_changed_left_out_or_replaced_is_named") {
  const std::vector<DecisionRecord> decisions = SignedRounds(5);
  const auto bad_round = [&](const std::function<void(std::vector<DecisionRecord>&)>& change) {
    std::vector<DecisionRecord> changed = decisions;
    change(changed);
    return Check(changed).bad_round;
  };
  using Decisions = std::vector<DecisionRecord>;
  CHECK(bad_round([](Decisions& d) { d[2].participants[1].weight = 0.3; }) == 3);
  CHECK(bad_round([](Decisions& d) { d[2].participants[0].accepted = false; }) == 3);
  CHECK(bad_round([](Decisions& d) { d[2].participants.pop_back(); }) == 3);
  CHECK(bad_round([](Decisions& d) { d[2].step.learning_rate = 2; }) == 3);
  CHECK(bad_round([](Decisions& d) { d[2].step.layers = {{0, {0.5, 0.5}}}; }) == 3);
  CHECK(bad_round([](Decisions& d) { d[2].dropped = {{4, 1, 1, 0}}; }) == 3);
  CHECK(bad_round([](Decisions& d) { d[2].tokens = 1; }) == 3);
  CHECK(bad_round([](Decisions& d) { d[2].digest.clear(); }) == 3);
  CHECK(bad_round([](Decisions& d) { d.erase(d.begin() + 2); }) == 4);
  CHECK(bad_round([](Decisions& d) { d[0].gram.clear(); }) == 0);  // is not part of it
  // Who changes one round and makes its digest anew has to change all that follow.
  const auto replace = [](DecisionRecord& decision) {
    decision.closed_because = "nothing";
    decision.digest = DigestDecision(decision);
  };
  CHECK(bad_round([&](Decisions& d) { replace(d[2]); }) == 4);
  CHECK(bad_round([&](Decisions& d) { replace(d[4]); }) == 0);  // by its digest: it is another one
}

TEST_CASE("a_contribution_that_its_member_has_not_signed_does_not_fit_even_in_a_new_chain") {
  const auto checked = [&](const std::function<void(DecisionParticipant&)>& change) {
    std::vector<DecisionRecord> decisions = SignedRounds(3);
    change(decisions[1].participants[0]);
    for (size_t i = 1; i < decisions.size(); ++i) {
      decisions[i].digest_before = decisions[i - 1].digest;
      decisions[i].digest = DigestDecision(decisions[i]);
    }
    return Check(decisions).bad_round;
  };
  CHECK(checked([](DecisionParticipant&) {}) == 0);
  CHECK(checked([](DecisionParticipant& p) { p.consumed[0].end += 8; }) == 2);
  CHECK(checked([](DecisionParticipant& p) { p.contribution.base_version = 7; }) == 2);
  CHECK(checked([](DecisionParticipant& p) { p.signature->digest[0] ^= 1; }) == 2);
  CHECK(checked([](DecisionParticipant& p) { p.signature->signature.clear(); }) == 2);
  CHECK(checked([](DecisionParticipant& p) { p.signature->key = "00"; }) == 2);
}

TEST_CASE("certificates_of_another_authority_vouch_for_nothing") {
  const std::vector<DecisionRecord> decisions = SignedRounds(1);
  const Members others;
  CHECK(CheckDecisions(decisions, "", {TheMembers().certificate}, others.authority.certificate)
            .bad_round == 1);
  CHECK(CheckDecisions(decisions, "", {}, TheMembers().authority.certificate).bad_round == 1);
  // Without an authority the chain alone is checked.
  CHECK(CheckDecisions(decisions, "", {}, "").bad_round == 0);
}

TEST_CASE("decisions_of_a_build_without_digests_come_before_the_chain") {
  std::vector<DecisionRecord> decisions = SignedRounds(3);
  decisions[0].digest.clear();
  decisions[1].digest_before.clear();
  decisions[1].digest = DigestDecision(decisions[1]);
  decisions[2].digest_before = decisions[1].digest;
  decisions[2].digest = DigestDecision(decisions[2]);
  const CheckedDecisions checked = Check(decisions);
  CHECK(checked.bad_round == 0);
  CHECK(checked.decisions == 2);
  CHECK(checked.unchained == 1);
}

// Makes the digests of changed decisions anew, each of a new chain's too.
std::vector<DecisionRecord> Rechained(std::vector<DecisionRecord> decisions) {
  for (size_t i = 0; i < decisions.size(); ++i) {
    decisions[i].digest_before = i == 0 ? "" : decisions[i - 1].digest;
    decisions[i].digest = DigestDecision(decisions[i]);
  }
  return decisions;
}

TEST_CASE("only_the_worker_that_has_contributed_signs_its_contribution") {
  const std::vector<DecisionRecord> decisions = SignedRounds(2);
  const auto bad_round = [&](const Identity& identity) {
    const std::string certificate =
        SignRequest(TheMembers().authority, MakeRequest(TheMembers().key).value(),
                    {identity, {}, "", 0, 4'000'000'000})
            .value();
    return CheckDecisions(decisions, "", {certificate}, TheMembers().authority.certificate)
        .bad_round;
  };
  CHECK(bad_round({Role::kWorker, "w1"}) == 0);
  CHECK(bad_round({Role::kWorker, "w*"}) == 0);  // daemons share it
  CHECK(bad_round({Role::kWorker, "w3"}) == 1);
  CHECK(bad_round({Role::kCoordinator, "w1"}) == 1);
  CHECK(bad_round({Role::kOperator, "w1"}) == 1);
}

TEST_CASE("signatures_that_were_removed_are_missed") {
  std::vector<DecisionRecord> decisions = SignedRounds(4);
  decisions[2].participants[0].signature.reset();
  CHECK(Check(Rechained(decisions)).bad_round == 3);
  // All of them; the first round begins the chain.
  for (DecisionRecord& decision : decisions) decision.participants[0].signature.reset();
  CHECK(Check(Rechained(decisions)).bad_round == 2);
  CHECK(CheckDecisions(Rechained(decisions), "", {}, "").problem.empty());
}

TEST_CASE("the_newest_decisions_and_all_digests_are_missed_by_the_job_s_newest_digest") {
  std::vector<DecisionRecord> decisions = SignedRounds(4);
  const std::string newest = decisions.back().digest;
  CHECK(CheckDecisions(decisions, newest, {}, "").problem.empty());
  decisions.pop_back();
  CHECK(CheckDecisions(decisions, newest, {}, "").bad_round == 4);
  for (DecisionRecord& decision : decisions) decision.digest.clear();
  CHECK_FALSE(CheckDecisions(decisions, newest, {}, "").problem.empty());
  CHECK_FALSE(CheckDecisions({}, newest, {}, "").problem.empty());
}

TEST_CASE("a_decision_that_is_taken_over_begins_a_chain_and_is_named") {
  std::vector<DecisionRecord> decisions = SignedRounds(3), taken = SignedRounds(9);
  CHECK(Check(decisions).begins_at == 1);
  decisions.push_back(taken.back());
  decisions.back().digest_before.clear();
  decisions.back().digest = DigestDecision(decisions.back());
  const CheckedDecisions checked = Check(decisions);
  CHECK(checked.problem.empty());
  CHECK(checked.begins_at == 9);
  CHECK(Check({taken.begin() + 2, taken.end()}).begins_at == -1);
}

}  // namespace
}  // namespace atl
