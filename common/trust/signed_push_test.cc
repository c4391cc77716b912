#include "common/trust/signed_push.h"

#include <catch2/catch.hpp>
#include <functional>
#include <span>

#include "common/trust/pki.h"

namespace atl {
namespace {

PushRequest MakeRequest() {
  PushRequest request;
  request.job = "lm-1";
  request.contribution = {2, 5, 77, 9};
  request.consumed = {{0, 16}, {32, 40}};
  request.parts = {{0, 0, 256, std::string(32, 'a')}, {1, 0, 100, std::string(32, 'b')}};
  request.signature = PushSignature{.plan_number = 3, .build = "1.2"};
  return request;
}

std::string MakeText(const PushRequest& request) {
  return MakeSignedText(request.job, request.contribution, request.consumed, *request.signature);
}

TEST_CASE("a_signature_is_of_everything_that_is_signed") {
  const KeyAndCertificate signer = KeyFromSeed(std::string(32, 's')).value();
  PushRequest request = MakeRequest();
  REQUIRE(SignPush(signer.key, &request).ok());
  const std::string signature = request.signature->signature;
  REQUIRE(HasSigned(signer.certificate, MakeText(request), signature));
  const KeyAndCertificate other = KeyFromSeed(std::string(32, 'o')).value();
  CHECK_FALSE(HasSigned(other.certificate, MakeText(request), signature));
  CHECK_FALSE(HasSigned("no certificate", MakeText(request), signature));
  CHECK_FALSE(HasSigned(signer.certificate, MakeText(request), signature.substr(1)));
  const std::vector<std::function<void(PushRequest&)>> changes = {
      [](PushRequest& r) { r.job = "lm-2"; },
      [](PushRequest& r) { r.contribution.island = 3; },
      [](PushRequest& r) { r.contribution.generation = 6; },
      [](PushRequest& r) { r.contribution.incarnation = 78; },
      [](PushRequest& r) { r.contribution.base_version = 8; },
      [](PushRequest& r) { r.consumed[1].end = 41; },
      [](PushRequest& r) { r.consumed.pop_back(); },
      [](PushRequest& r) { r.signature->plan_number = 4; },
      [](PushRequest& r) { r.signature->build = "1.2\nplan 4"; },
      [](PushRequest& r) { r.signature->digest[0] ^= 1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    INFO("change " << i);
    PushRequest changed = request;
    changes[i](changed);
    CHECK_FALSE(HasSigned(signer.certificate, MakeText(changed), signature));
  }
}

TEST_CASE("keys_of_an_authority_sign_too_and_what_is_no_key_does_not") {
  const KeyAndCertificate authority = MakeAuthority("00000000000000aa", 0, 4'000'000'000).value();
  PushRequest request = MakeRequest();  // P-256, as members' keys
  REQUIRE(SignPush(authority.key, &request).ok());
  CHECK(HasSigned(authority.certificate, MakeText(request), request.signature->signature));
  CHECK_FALSE(SignPush("no key", &request).ok());
}

TEST_CASE("the_digest_of_parts_is_of_their_bytes_places_and_encoding") {
  const std::string text = "0123456789abcdef";
  const auto bytes = std::as_bytes(std::span(text));
  CHECK(DigestPart(Encoding::kFloat32, bytes).size() == kDigestBytes);
  CHECK(DigestPart(Encoding::kFloat32, bytes) == DigestPart(Encoding::kFloat32, bytes));
  CHECK(DigestPart(Encoding::kFloat32, bytes) != DigestPart(Encoding::kInt8, bytes));
  CHECK(DigestPart(Encoding::kFloat32, bytes) != DigestPart(Encoding::kFloat32, bytes.first(8)));
  const std::vector<PartDigest> parts = MakeRequest().parts;
  const std::string all = DigestPush(parts, {3, 0});
  for (const auto& change : std::vector<std::function<void(PartDigest&)>>{
           [](PartDigest& p) { p.shard = 2; }, [](PartDigest& p) { p.begin = 4; },
           [](PartDigest& p) { p.elements = 99; }, [](PartDigest& p) { p.digest[31] ^= 1; }}) {
    std::vector<PartDigest> changed = parts;
    change(changed[1]);
    CHECK(DigestPush(changed, {3, 0}) != all);
  }
  CHECK(DigestPush(parts, {3, 1}) != all);
  CHECK(DigestPush(parts, {}) != all);
}

}  // namespace
}  // namespace atl
