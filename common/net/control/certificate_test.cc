#include "common/net/control/certificate.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

namespace atl {
namespace {

constexpr int64_t kNow = 1'800'000'000;

struct Pair {
  std::string cert, key;
};

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

// A certificate that signs itself, valid from and to these days around kNow.
Pair MakePair(int from_days, int to_days) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  std::time_t now = kNow;
  X509_time_adj_ex(X509_getm_notBefore(certificate), from_days, 0, &now);
  X509_time_adj_ex(X509_getm_notAfter(certificate), to_days, 0, &now);
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  BIO* cert_bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(cert_bio, certificate);
  BIO* key_bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(key_bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return {Text(cert_bio), Text(key_bio)};
}

absl::StatusOr<std::string> Check(const Pair& pair) {
  return CheckCertificate("--tls-cert c.pem", pair.cert, pair.key, kNow);
}

TEST_CASE("a_valid_certificate_passes_without_a_warning") {
  CHECK(Check(MakePair(-1, 100)).value().empty());
}

TEST_CASE("a_certificate_that_expires_soon_is_a_warning") {
  CHECK_FALSE(Check(MakePair(-1, 13)).value().empty());
}

TEST_CASE("a_certificate_outside_its_dates_is_refused") {
  CHECK(absl::IsInvalidArgument(Check(MakePair(-10, -1)).status()));
  CHECK(absl::IsInvalidArgument(Check(MakePair(1, 10)).status()));
}

TEST_CASE("a_certificate_of_another_key_or_none_is_refused") {
  const Pair one = MakePair(-1, 100), other = MakePair(-1, 100);
  CHECK(absl::IsInvalidArgument(Check({one.cert, other.key}).status()));
  CHECK(absl::IsInvalidArgument(Check({"", one.key}).status()));
  CHECK(absl::IsInvalidArgument(Check({one.cert, "-----BEGIN nothing"}).status()));
}

TEST_CASE("a_key_file_must_not_be_readable_by_others") {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/key.pem";
  std::ofstream(path) << "secret";
  chmod(path.c_str(), 0640);
  CHECK(CheckKeyFile("--tls-key", path).ok());
  chmod(path.c_str(), 0644);
  CHECK(absl::IsInvalidArgument(CheckKeyFile("--tls-key", path)));
}

}  // namespace
}  // namespace atl
