// A folder with what shows who this end is: ca.pem, certificate.pem, key.pem and curve.key. Keys
// are readable by their owner alone. The certificate is written last, so a folder with one is
// complete, and a renewal replaces one file.

#ifndef ATOLL_COMMON_TRUST_IDENTITY_FOLDER_H_
#define ATOLL_COMMON_TRUST_IDENTITY_FOLDER_H_

#include <string>

#include "common/net/control/tls.h"
#include "common/status.h"
#include "common/trust/pki.h"

namespace atl {

class IdentityFolder {
 public:
  explicit IdentityFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  TlsOptions tls() const;
  std::string curve_key_path() const { return path_ + "/curve.key"; }

  // Returns whether the folder is complete.
  absl::StatusOr<bool> Exists() const;
  absl::StatusOr<CertificateFacts> Certificate() const;
  absl::StatusOr<CertificateFacts> Authority() const;

  // The keys, made where there are none yet: a join that is tried again is then the same one.
  struct Keys {
    std::string key;  // PEM, secret
    std::string curve_public_key;
  };
  absl::StatusOr<Keys> MakeKeys() const;
  absl::Status Store(const std::string& authority, const std::string& certificate) const;
  // A renewed one, of the same key.
  absl::Status ReplaceCertificate(const std::string& certificate) const;

 private:
  std::string path_;
};

// Durable, with these permissions from the first byte, in place of what is there.
absl::Status WriteFileWithMode(const std::string& path, const std::string& text, int mode);
// The whole of a PEM file, at most 1 MiB.
absl::StatusOr<std::string> ReadPemFile(const std::string& path);

}  // namespace atl

#endif  // ATOLL_COMMON_TRUST_IDENTITY_FOLDER_H_
