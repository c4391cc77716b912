// Join tokens. A token is 52 random-looking bytes in one word: the fingerprint of the cluster's
// authority, by which a joiner knows its coordinator, and a secret, by which the coordinator knows
// the joiner. The secret is the seed of an Ed25519 key: the joiner shows a certificate of that key
// in the TLS handshake, and the coordinator keeps the public key's digest alone. So the secret
// is never sent, what the coordinator stores opens no door, and nothing that was intercepted can be
// played again.

#ifndef ATOLL_COMMON_TRUST_TOKEN_H_
#define ATOLL_COMMON_TRUST_TOKEN_H_

#include <string>

#include "common/status.h"
#include "common/trust/pki.h"

namespace atl {

struct JoinToken {
  std::string fingerprint;  // of the authority, 32 bytes
  std::string secret;       // 20 bytes
};

// Makes a token with a fresh secret.
absl::StatusOr<JoinToken> NewToken(const std::string& fingerprint);

// The word: letters, digits, '-' and '_'. The error of parsing distinguishes a token that was cut
// or misspelt from one that is no token.
std::string ToText(const JoinToken& token);
absl::StatusOr<JoinToken> TokenFromText(absl::string_view text);

// The key of the secret and its certificate, for the handshake.
absl::StatusOr<KeyAndCertificate> TokenCertificate(const JoinToken& token);

// Returns the digest by which the coordinator knows the token: CertificateFacts::key_digest of the
// above.
absl::StatusOr<std::string> TokenKeyDigest(const JoinToken& token);

// "TOKEN@HOST:PORT".
struct JoinAddress {
  JoinToken token;
  std::string coordinator;  // "host:port", or a list of them
};
absl::StatusOr<JoinAddress> ParseJoinAddress(absl::string_view text);

}  // namespace atl

#endif  // ATOLL_COMMON_TRUST_TOKEN_H_
