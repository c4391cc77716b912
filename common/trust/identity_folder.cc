#include "common/trust/identity_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/net/control/certificate.h"
#include "common/net/security.h"
#include "common/paths.h"

namespace atl {
namespace {

constexpr int64_t kMaxPemBytes = 1 << 20;

absl::Status SystemError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
}

// Durable when OK.
absl::Status FillFile(const std::string& path, const std::string& text) {
  ATOLL_ASSIGN_OR_RETURN(const auto file, RealFiles().OpenAppend(path));
  ATOLL_RETURN_IF_ERROR(file->Append(std::array{AsBytes(text)}));
  return file->Sync();
}

absl::StatusOr<CertificateFacts> ReadFacts(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const std::string pem, ReadPemFile(path));
  absl::StatusOr<CertificateFacts> facts = ReadCertificate(pem);
  if (!facts.ok()) return Annotate(facts.status(), path);
  return facts;
}

}  // namespace

absl::Status WriteFileWithMode(const std::string& path, const std::string& text, int mode) {
  const std::string temporary = path + ".new";
  unlink(temporary.c_str());
  const int file =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, static_cast<mode_t>(mode));
  if (file < 0) return SystemError(temporary);
  const bool moded = fchmod(file, static_cast<mode_t>(mode)) == 0;
  absl::Status status = moded ? absl::OkStatus() : SystemError(temporary);
  close(file);
  if (status.ok()) status = FillFile(temporary, text);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  ATOLL_RETURN_IF_ERROR(RealFiles().Rename(temporary, path));
  return RealFiles().SyncFolder(GetParentFolder(path));
}

absl::StatusOr<std::string> ReadPemFile(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  return file.ReadAll(kMaxPemBytes);
}

TlsOptions IdentityFolder::tls() const {
  TlsOptions tls;
  tls.ca_path = path_ + "/ca.pem";
  tls.cert_path = path_ + "/certificate.pem";
  tls.key_path = path_ + "/key.pem";
  return tls;
}

absl::StatusOr<bool> IdentityFolder::Exists() const {
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(tls().cert_path));
  return found.has_value();
}

absl::StatusOr<CertificateFacts> IdentityFolder::Certificate() const {
  return ReadFacts(tls().cert_path);
}
absl::StatusOr<CertificateFacts> IdentityFolder::Authority() const {
  return ReadFacts(tls().ca_path);
}

absl::StatusOr<IdentityFolder::Keys> IdentityFolder::MakeKeys() const {
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(path_));
  if (chmod(path_.c_str(), 0700) != 0) return SystemError(path_);
  const std::string key_path = tls().key_path;
  ATOLL_ASSIGN_OR_RETURN(const auto key_found, FindPath(key_path));
  if (!key_found) {
    ATOLL_ASSIGN_OR_RETURN(const std::string made, MakePrivateKey());
    ATOLL_RETURN_IF_ERROR(WriteFileWithMode(key_path, made, 0600));
  }
  ATOLL_ASSIGN_OR_RETURN(const auto curve_key_found, FindPath(curve_key_path()));
  if (!curve_key_found) {
    ATOLL_ASSIGN_OR_RETURN(const KeyPair pair, GenerateKeyPair());
    ATOLL_RETURN_IF_ERROR(WriteCurveKey(pair, curve_key_path()));
  }
  Keys keys;
  ATOLL_RETURN_IF_ERROR(CheckKeyFile("the key", key_path));
  ATOLL_ASSIGN_OR_RETURN(keys.key, ReadPemFile(key_path));
  ATOLL_ASSIGN_OR_RETURN(const KeyPair pair, ReadCurveKey(curve_key_path()));
  keys.curve_public_key = pair.public_key;
  return keys;
}

absl::Status IdentityFolder::Store(const std::string& authority,
                                   const std::string& certificate) const {
  ATOLL_RETURN_IF_ERROR(WriteFileWithMode(tls().ca_path, authority, 0644));
  return ReplaceCertificate(certificate);
}

absl::Status IdentityFolder::ReplaceCertificate(const std::string& certificate) const {
  return WriteFileWithMode(tls().cert_path, certificate, 0644);
}

}  // namespace atl
