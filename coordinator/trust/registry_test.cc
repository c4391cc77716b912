#include "coordinator/trust/registry.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

constexpr int64_t kNow = 1'800'000'000;
const std::string kToken(64, 'a'), kKey(64, '1'), kOtherKey(64, '2');
const std::string kCurve(40, '1'), kOtherCurve(40, 'd');  // kCurve: kKey's

// A registry and its clock.
struct Cluster {
  TrustRegistry registry;
  int64_t now = kNow;

  absl::Status Create(int uses, std::vector<std::string> roles = {"worker"}, int64_t ttl_s = 60,
                      const std::string& id = kToken) {
    v1::CreateTokenRequest request;
    request.set_key_digest(id);
    for (const std::string& role : roles) request.add_roles(role);
    request.set_uses(uses);
    request.set_ttl_s(ttl_s);
    return registry.CreateToken(request, "operator/me", now).status();
  }
  v1::TrustDenial Join(const std::string& name, const std::string& key = kKey,
                       const std::string& role = "worker", const std::string& token = kToken,
                       const std::string& curve = "") {
    v1::TrustMember member;
    member.set_role(role);
    member.set_name(name);
    member.set_key_digest(key);
    member.set_curve_public_key(curve.empty() ? std::string(40, key[0]) : curve);
    member.set_token(token);
    return registry.Join(member, now).denial;
  }
  v1::TrustDenial Check(const std::string& name, const std::string& key = kKey,
                        Role role = Role::kWorker) {
    CertificateFacts facts;
    facts.identity = Identity{role, name};
    facts.key_digest = key;
    facts.from_unix_s = kNow - 10;
    facts.until_unix_s = kNow + 1000;
    return registry.CheckCertificate(facts, now).denial;
  }
  bool Revoke(const std::string& name, const std::string& role = "") {
    return registry.Revoke(name, role, "operator/me", now).ok();
  }
};

constexpr auto kAllowed = v1::TRUST_DENIAL_UNSPECIFIED;

TEST_CASE("a_token_lets_in_as_many_as_it_says_and_no_more") {
  Cluster c;
  REQUIRE(c.Create(2).ok());
  CHECK(c.Join("w1", kKey) == kAllowed);
  CHECK(c.Join("w2", kOtherKey) == kAllowed);
  CHECK(c.Join("w3", std::string(64, '3')) == v1::TRUST_DENIAL_TOKEN_USED);
}

TEST_CASE("repeated_join_of_same_member_consumes_no_token_use") {
  Cluster c;
  REQUIRE(c.Create(1).ok());
  CHECK(c.Join("w1") == kAllowed);
  CHECK(c.Join("w1") == kAllowed);                                // the answer was lost
  CHECK(c.Join("w1", kOtherKey) == v1::TRUST_DENIAL_TOKEN_USED);  // replayed by another
  CHECK(c.registry.FindToken(kToken)->uses_left() == 0);
}

TEST_CASE("a_token_is_for_its_roles_until_it_expires") {
  Cluster c;
  REQUIRE(c.Create(5, {"worker", "paramserver"}).ok());
  CHECK(c.Join("me", kKey, "operator") == v1::TRUST_DENIAL_TOKEN_ROLE);
  CHECK(c.Join("s1", kKey, "paramserver") == kAllowed);
  c.now += 60;
  CHECK(c.Join("w1") == v1::TRUST_DENIAL_TOKEN_EXPIRED);
  CHECK(c.Join("w1", kKey, "worker", std::string(64, 'b')) == v1::TRUST_DENIAL_TOKEN_UNKNOWN);
}

TEST_CASE("a_name_that_has_joined_is_reserved_until_it_is_revoked") {
  Cluster c;
  REQUIRE(c.Create(5).ok());
  REQUIRE(c.Join("w1", kKey) == kAllowed);
  CHECK(c.Join("w1", kOtherKey) == v1::TRUST_DENIAL_NAME);
  CHECK(c.Check("w1", kKey) == kAllowed);
  CHECK(c.Check("w1", kOtherKey) == v1::TRUST_DENIAL_REPLACED);
  REQUIRE(c.Revoke("w1"));
  CHECK(c.Check("w1", kKey) == v1::TRUST_DENIAL_REVOKED);
  REQUIRE(c.Join("w1", kOtherKey) == kAllowed);
  CHECK(c.Check("w1", kOtherKey) == kAllowed);
  CHECK(c.Check("w1", kKey) == v1::TRUST_DENIAL_REPLACED);
}

TEST_CASE("a_certificate_that_was_made_otherwise_is_allowed_until_its_name_is_revoked") {
  Cluster c;
  CHECK(c.Check("w1") == kAllowed);
  CHECK_FALSE(c.Revoke("w1"));
  REQUIRE(c.Revoke("w1", "worker"));
  CHECK(c.Check("w1") == v1::TRUST_DENIAL_REVOKED);
  CHECK(c.Check("w1", kKey, Role::kParameterServer) == kAllowed);  // of another role
  CHECK(c.Check("w2") == kAllowed);
}

TEST_CASE("a_certificate_outside_its_dates_is_denied") {
  Cluster c;
  c.now = kNow + 1001;
  CHECK(c.Check("w1") == v1::TRUST_DENIAL_EXPIRED);
  c.now = kNow - 11;
  CHECK(c.Check("w1") == v1::TRUST_DENIAL_EXPIRED);
}

TEST_CASE("curve_keys_follow_those_who_use_links") {
  Cluster c;
  REQUIRE(c.Create(5, {"worker", "paramserver"}).ok());
  REQUIRE(c.Join("w1") == kAllowed);
  REQUIRE(c.Join("s1", kKey, "paramserver", kToken, kOtherCurve) == kAllowed);
  REQUIRE(c.registry.Keys().allowed_size() == 2);  // servers fetch shards from each other
  REQUIRE(c.Revoke("w1"));
  REQUIRE(c.registry.Keys().allowed_size() == 1);
  CHECK(c.registry.Keys().allowed(0) == kOtherCurve);
  REQUIRE(c.registry.Keys().revoked_size() == 1);
  CHECK(c.registry.Keys().revoked(0) == kCurve);
  const std::string mine(40, 'e');
  CHECK(c.registry.NoteCurveKey({Role::kOperator, "me"}, mine));
  CHECK_FALSE(c.registry.NoteCurveKey({Role::kOperator, "me"}, mine));
  CHECK_FALSE(c.registry.NoteCurveKey({Role::kOperator, "me"}, "short"));
  CHECK(c.registry.Keys().allowed_size() == 2);
}

TEST_CASE("a_curve_key_is_of_one_member_and_no_other_can_take_or_revoke_it") {
  Cluster c;
  REQUIRE(c.Create(5).ok());
  REQUIRE(c.Join("w1", kKey, "worker", kToken, kCurve) == kAllowed);
  // Neither by joining, nor by a certificate made otherwise.
  CHECK(c.Join("w2", kOtherKey, "worker", kToken, kCurve) == v1::TRUST_DENIAL_NAME);
  CHECK_FALSE(c.registry.NoteCurveKey({Role::kOperator, "me"}, kCurve));
  CHECK(c.registry.FindToken(kToken)->uses_left() == 4);
  // Nor by a join that comes again with other keys.
  REQUIRE(c.Join("w2", kOtherKey, "worker", kToken, kOtherCurve) == kAllowed);
  CHECK(c.Join("w2", kOtherKey, "worker", kToken, kCurve) == v1::TRUST_DENIAL_NAME);
  REQUIRE(c.Revoke("w2"));
  REQUIRE(c.registry.Keys().allowed_size() == 1);
  CHECK(c.registry.Keys().allowed(0) == kCurve);
  CHECK(c.registry.Keys().revoked_size() == 1);
  CHECK(c.Join("w3", std::string(64, '3'), "worker", kToken, std::string(40, '"')) ==
        v1::TRUST_DENIAL_NAME);  // not Z85
}

TEST_CASE("a_revoked_member_joins_again_with_new_keys_only") {
  Cluster c;
  REQUIRE(c.Create(5).ok());
  REQUIRE(c.Join("w1", kKey) == kAllowed);
  REQUIRE(c.Revoke("w1"));
  CHECK(c.Join("w1", kKey, "worker", kToken, kOtherCurve) == v1::TRUST_DENIAL_REVOKED);
  CHECK(c.Join("w1", kOtherKey, "worker", kToken, kCurve) == v1::TRUST_DENIAL_NAME);
  REQUIRE(c.Join("w1", kOtherKey) == kAllowed);
  CHECK(c.registry.Keys().allowed_size() == 1);
  CHECK(c.registry.Keys().revoked_size() == 1);
}

TEST_CASE("a_token_from_before_the_revocation_does_not_let_a_member_in_again") {
  Cluster c;
  REQUIRE(c.Create(5).ok());
  REQUIRE(c.Join("w1", kKey) == kAllowed);
  c.now += 10;
  REQUIRE(c.Revoke("w1"));
  CHECK(c.Join("w1", kOtherKey) == v1::TRUST_DENIAL_REVOKED);
  CHECK(c.Join("w2", kOtherKey) == kAllowed);  // another name
  const std::string fresh(64, 'b');
  REQUIRE(c.Create(1, {"worker"}, 60, fresh).ok());
  CHECK(c.Join("w1", std::string(64, '3'), "worker", fresh) == kAllowed);
}

// "worker/w1"; with " but for KEY" where a key has joined since.
std::vector<std::string> Refused(const Cluster& c) {
  std::vector<std::string> all;
  for (const v1::RefusedHolder& one : c.registry.Refused(c.now)) {
    all.push_back(absl::StrCat(one.role(), "/", one.name(),
                               one.key_digest().empty() ? "" : " but for " + one.key_digest()));
  }
  return all;
}

TEST_CASE(
    "revoked_certificates_are_listed_until_they_expire_also_after_the_name_has_joined_again") {
  using Names = std::vector<std::string>;
  Cluster c;
  REQUIRE(c.Create(5, {"worker"}, 30 * 86400).ok());
  const auto join = [&](const std::string& key, int64_t expires_unix_s) {
    v1::TrustMember member;
    member.set_role("worker");
    member.set_name("w1");
    member.set_key_digest(key);
    member.set_curve_public_key(std::string(40, key[0]));
    member.set_token(kToken);
    member.set_expires_unix_s(expires_unix_s);
    return c.registry.Join(member, c.now).ok();
  };
  REQUIRE(join(kKey, kNow + 1000));
  CHECK(Refused(c).empty());
  REQUIRE(c.Revoke("w1"));
  CHECK(Refused(c) == Names{"worker/w1"});
  REQUIRE(join(kOtherKey, kNow + 500));
  REQUIRE(join(kOtherKey, kNow + 500));  // the answer was lost
  CHECK(Refused(c) == Names{"worker/w1 but for " + kOtherKey});
  REQUIRE(c.Revoke("w1"));
  CHECK(Refused(c) == Names{"worker/w1"});
  c.now += 600;  // the first key's certificate is still valid
  CHECK(Refused(c) == Names{"worker/w1"});
  c.now += 401;
  CHECK(Refused(c).empty());
  // When a certificate that was made otherwise expires is not known.
  REQUIRE(c.Revoke("me", "operator"));
  CHECK(Refused(c) == Names{"operator/me"});
}

TEST_CASE("members_are_forgotten_a_month_after_their_certificates_expired") {
  Cluster c;
  v1::TrustRecords records;
  for (const auto& [name, expires_unix_s] :
       std::vector<std::pair<std::string, int64_t>>{{"old", kNow - 31 * 86400},
                                                    {"recent", kNow - 29 * 86400},
                                                    {"valid", kNow + 1},
                                                    {"undated", 0}}) {
    v1::TrustMember* member = records.add_members();
    member->set_role("worker");
    member->set_name(name);
    member->set_key_digest(kKey);
    member->set_expires_unix_s(expires_unix_s);
  }
  c.registry = TrustRegistry(records);
  REQUIRE(c.Create(1).ok());
  REQUIRE(c.Join("w1", kOtherKey) == kAllowed);
  std::vector<std::string> names;
  for (const v1::TrustMember& member : c.registry.records().members()) {
    names.push_back(member.name());
  }
  CHECK(names == std::vector<std::string>{"recent", "valid", "undated", "w1"});
  CHECK(c.Check("valid", kOtherKey) == v1::TRUST_DENIAL_REPLACED);  // found where it is now
}

TEST_CASE("a_revocation_survives_a_clock_that_is_years_ahead_for_a_moment") {
  Cluster c;
  v1::TrustRecords records;
  v1::TrustMember* member = records.add_members();
  member->set_role("worker");
  member->set_name("w1");
  member->set_key_digest(kKey);
  member->set_expires_unix_s(kNow + 1000);
  c.registry = TrustRegistry(records);
  REQUIRE(c.Revoke("w1"));
  const auto before = c.Check("w1", kKey);
  REQUIRE(before != kAllowed);
  c.now += int64_t{3653} * 86400;
  REQUIRE(c.Create(1).ok());
  REQUIRE(c.Join("w2", kOtherKey) == kAllowed);
  c.now -= int64_t{3653} * 86400;
  CHECK(c.Check("w1", kKey) == before);
}

TEST_CASE("tokens_are_bounded_and_bad_ones_refused") {
  Cluster c;
  CHECK_FALSE(c.Create(1, {}).ok());
  CHECK_FALSE(c.Create(1, {"coordinator"}).ok());
  CHECK_FALSE(c.Create(1, {"root"}).ok());
  CHECK_FALSE(c.Create(-1).ok());
  CHECK_FALSE(c.Create(1, {"worker"}, 31 * 86400).ok());
  CHECK_FALSE(c.Create(1, {"worker"}, 60, "short").ok());
  REQUIRE(c.Create(1).ok());
  CHECK_FALSE(c.Create(1).ok());  // the same again
  CHECK(c.registry.DeleteToken("aaaa").ok());
  CHECK_FALSE(c.registry.DeleteToken("aaaa").ok());
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(c.Create(1, {"worker"}, 60, absl::StrCat(std::string(60, 'b'), 1000 + i)).ok());
  }
  CHECK(absl::IsResourceExhausted(c.Create(1)));
  c.now += 60 + 86400 + 1;  // they are forgotten
  CHECK(c.Create(1).ok());
}

}  // namespace
}  // namespace atl
