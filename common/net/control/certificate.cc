#include "common/net/control/certificate.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace atl {
namespace {

constexpr int64_t kWarnSeconds = 14 * 86400;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

Bio Reader(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::string Date(const ASN1_TIME* time) {
  std::tm fields{};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return "an unreadable date";
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::FromTM(fields, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::string> CheckCertificate(absl::string_view what, const std::string& cert_pem,
                                             const std::string& key_pem, int64_t now_unix_s) {
  const Certificate certificate(
      PEM_read_bio_X509(Reader(cert_pem).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": holds no certificate that can be read"));
  }
  const Key key(PEM_read_bio_PrivateKey(Reader(key_pem).get(), nullptr, nullptr, nullptr));
  if (key == nullptr || X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": does not belong to the private key of --tls-key"));
  }
  std::time_t now = now_unix_s;
  const ASN1_TIME* begin = X509_get0_notBefore(certificate.get());
  const ASN1_TIME* end = X509_get0_notAfter(certificate.get());
  if (X509_cmp_time(begin, &now) > 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": is valid from ", Date(begin),
                                                   " only; is this machine's clock right?"));
  }
  if (X509_cmp_time(end, &now) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expired on ", Date(end), "; make a new one"));
  }
  std::time_t soon = now_unix_s + kWarnSeconds;
  if (X509_cmp_time(end, &soon) > 0) return std::string();
  return absl::StrCat(what, ": expires on ", Date(end));
}

absl::Status CheckKeyFile(absl::string_view what, const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();  // reading it says so
    return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
  }
  if ((info.st_mode & S_IRWXO) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", path, ": all users of this machine may read it; chmod o= ", path));
}

}  // namespace atl
