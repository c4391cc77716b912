#include "common/net/control/certificate.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/trust/pki.h"

namespace atl {

namespace {

constexpr int64_t kWarnSeconds = 14 * 86400;

}  // namespace

absl::StatusOr<std::string> CheckCertificate(absl::string_view what, const std::string& cert_pem,
                                             const std::string& key_pem, int64_t now_unix_s) {
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate(cert_pem);
  if (!facts.ok()) return Annotate(facts.status(), what);
  const absl::StatusOr<std::string> proof = SignText(key_pem, what);
  if (!proof.ok() || !HasSigned(cert_pem, what, *proof)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": does not belong to the private key of --tls-key"));
  }
  if (now_unix_s < facts->from_unix_s) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": is valid from ",
                                                   FormatUtc(facts->from_unix_s),
                                                   " only; is this machine's clock right?"));
  }
  if (now_unix_s > facts->until_unix_s) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expired on ", FormatUtc(facts->until_unix_s), "; make a new one"));
  }
  if (now_unix_s + kWarnSeconds < facts->until_unix_s) return std::string();
  return absl::StrCat(what, ": expires on ", FormatUtc(facts->until_unix_s));
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
