#include "common/trust/pki.h"

#include <catch2/catch.hpp>

#include "common/trust/token.h"

namespace atl {
namespace {

constexpr int64_t kNow = 1'800'000'000;
constexpr char kCluster[] = "c0123456789abcde";

KeyAndCertificate Authority() { return MakeAuthority(kCluster, kNow, kNow + 86400).value(); }

std::string Sign(const KeyAndCertificate& authority, const CertificateContents& contents) {
  return SignRequest(authority, MakeRequest(MakePrivateKey().value()).value(), contents).value();
}

TEST_CASE("a_certificate_says_what_it_was_signed_for") {
  const KeyAndCertificate authority = Authority();
  const std::string request = MakeRequest(MakePrivateKey().value()).value();
  CertificateContents contents{{Role::kWorker, "w1"}, {"host.example", "10.0.0.1", "::1"}, "KEY"};
  contents.from_unix_s = kNow;
  contents.until_unix_s = kNow + 60;
  const std::string pem = SignRequest(authority, request, contents).value();
  const CertificateFacts facts = ReadCertificate(pem).value();
  CHECK(facts.identity.value() == contents.identity);
  CHECK(facts.curve_public_key == "KEY");
  CHECK(facts.from_unix_s == kNow);
  CHECK(facts.until_unix_s == kNow + 60);
  CHECK(facts.key_digest == RequestKeyDigest(request).value());
  for (const std::string host : {"host.example", "10.0.0.1", "::1"}) CHECK(NamesHost(pem, host));
  for (const std::string host : {"other.example", "10.0.0.2", "w1", ""}) {
    CHECK_FALSE(NamesHost(pem, host));
  }
}

TEST_CASE("an_authoritys_subject_carries_the_clusters_id") {
  CHECK(ReadCertificate(Authority().certificate)->cluster == kCluster);
}

TEST_CASE("a_name_adds_no_other_name_to_a_certificate") {
  const std::string name = "w1,URI:atoll:operator/me,DNS:evil.example";
  const std::string pem = Sign(Authority(), {{Role::kWorker, name}, {}, ""});
  CHECK(ReadCertificate(pem)->identity.value() == Identity{Role::kWorker, name});
  CHECK_FALSE(NamesHost(pem, "evil.example"));
}

TEST_CASE("only_what_the_authority_signed_is_signed_by_it") {
  const KeyAndCertificate ours = Authority(), others = Authority();  // of the same subject
  const std::string pem = Sign(ours, {{Role::kWorker, "w1"}, {}, ""});
  CHECK(IsSignedBy(pem, ours.certificate));
  CHECK_FALSE(IsSignedBy(pem, others.certificate));
  CHECK_FALSE(IsSignedBy(ours.certificate, ours.certificate));
  CHECK_FALSE(IsSignedBy("", ours.certificate));
}

TEST_CASE("a_request_must_prove_a_p256_key") {
  CHECK(absl::IsInvalidArgument(RequestKeyDigest("").status()));
  std::string request = MakeRequest(MakePrivateKey().value()).value();
  request[request.size() / 2] = request[request.size() / 2] == 'A' ? 'B' : 'A';
  CHECK_FALSE(RequestKeyDigest(request).ok());
  const JoinToken token = NewToken(Sha256("a")).value();
  CHECK_FALSE(MakeRequest(TokenCertificate(token)->key).ok());  // Ed25519
}

TEST_CASE("a_token_survives_its_text_and_a_misspelt_one_does_not") {
  const JoinToken token = NewToken(Sha256("authority")).value();
  const std::string text = ToText(token);
  const JoinToken read = TokenFromText(text).value();
  CHECK(read.fingerprint == token.fingerprint);
  CHECK(read.secret == token.secret);
  for (size_t i = 0; i < text.size(); i += 7) {
    std::string wrong = text;
    wrong[i] = wrong[i] == 'A' ? 'B' : 'A';
    CHECK(absl::IsInvalidArgument(TokenFromText(wrong).status()));
  }
  CHECK_FALSE(TokenFromText(text.substr(1)).ok());
  CHECK_FALSE(TokenFromText(text + "A").ok());
  CHECK_FALSE(TokenFromText("").ok());
  const JoinAddress address = ParseJoinAddress(text + "@[::1]:7000").value();
  CHECK(address.coordinator == "[::1]:7000");
  CHECK_FALSE(ParseJoinAddress(text).ok());
}

TEST_CASE("a_tokens_key_is_the_same_each_time_and_another_for_another_secret") {
  const JoinToken one = NewToken(Sha256("a")).value(), other = NewToken(Sha256("a")).value();
  CHECK(TokenKeyDigest(one).value() == TokenKeyDigest(one).value());
  CHECK(TokenKeyDigest(one).value() != TokenKeyDigest(other).value());
  // Its certificate says nothing of a role.
  CHECK_FALSE(ReadCertificate(TokenCertificate(one)->certificate)->identity.ok());
}

TEST_CASE("the_authority_is_found_in_a_chain_by_its_fingerprint") {
  const KeyAndCertificate ours = Authority(), others = Authority();
  const std::string chain = Sign(ours, {{Role::kWorker, "w1"}, {}, ""}) + ours.certificate;
  const std::string fingerprint = ReadCertificate(ours.certificate)->fingerprint;
  CHECK(FindCertificate(chain, fingerprint) == ours.certificate);
  CHECK_FALSE(FindCertificate(chain, ReadCertificate(others.certificate)->fingerprint));
}

}  // namespace
}  // namespace atl
