// Checks of the PEM files of mutual TLS before they are used, so that a mistake is named at the
// start instead of as a handshake that fails.

#ifndef ATOLL_COMMON_NET_CONTROL_CERTIFICATE_H_
#define ATOLL_COMMON_NET_CONTROL_CERTIFICATE_H_

#include <cstdint>
#include <string>

#include "common/status.h"

namespace atl {

// The first certificate of `cert_pem` must be valid at `now_unix_s` and belong to `key_pem`.
// Returns a warning where it expires within 14 days, else an empty string. Messages begin with
// `what`.
absl::StatusOr<std::string> CheckCertificate(absl::string_view what, const std::string& cert_pem,
                                             const std::string& key_pem, int64_t now_unix_s);

// INVALID_ARGUMENT if others than owner and group may read the file: its key is not secret.
absl::Status CheckKeyFile(absl::string_view what, const std::string& path);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_CERTIFICATE_H_
