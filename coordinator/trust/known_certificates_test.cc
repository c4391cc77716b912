#include "coordinator/trust/known_certificates.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

constexpr int64_t kNow = 1'800'000'000;

KeyAndCertificate Authority() {
  return MakeAuthority("c0123456789abcde", kNow, kNow + 86400).value();
}

std::string Signed(const KeyAndCertificate& authority, const std::string& name) {
  CertificateContents contents{{Role::kWorker, name}, {}, ""};
  contents.from_unix_s = kNow;
  contents.until_unix_s = kNow + 60;
  return SignRequest(authority, MakeRequest(MakePrivateKey().value()).value(), contents).value();
}

TEST_CASE("a certificate of the authority's is read once") {
  const KeyAndCertificate authority = Authority();
  const std::string pem = Signed(authority, "w1");
  KnownCertificates known;
  const auto first = known.Look(pem, authority.certificate).value();
  CHECK(first->is_ours);
  CHECK(first->facts.identity.value().name == "w1");
  CHECK(known.Look(pem, authority.certificate).value() == first);
  CHECK(known.size() == 1);
}

TEST_CASE("what another authority signed, and what is no certificate, is not kept") {
  const KeyAndCertificate ours = Authority(), theirs = Authority();
  const std::string pem = Signed(theirs, "w1");
  KnownCertificates known;
  CHECK_FALSE(known.Look(pem, ours.certificate).value()->is_ours);
  CHECK_FALSE(known.Look("no certificate", ours.certificate).ok());
  CHECK(known.size() == 0);
  // It is not taken for ours by what is known of a like one.
  CHECK(known.Look(Signed(ours, "w1"), ours.certificate).value()->is_ours);
  CHECK_FALSE(known.Look(pem, ours.certificate).value()->is_ours);
}

TEST_CASE("without an authority of its own the handshake has verified it") {
  KnownCertificates known;
  CHECK(known.Look(Signed(Authority(), "w1"), "").value()->is_ours);
}

}  // namespace
}  // namespace atl
