#include "common/trust/token.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

constexpr char kPrefix[] = "atoll1";
constexpr size_t kFingerprintBytes = 32;
constexpr size_t kSecretBytes = 20;
constexpr size_t kCheckBytes = 4;  // of a digest: against misspelling
constexpr char kSeedPurpose[] = "atoll join token 1:";

std::string ComputeTokenChecksum(absl::string_view bytes) {
  return Sha256(bytes).substr(0, kCheckBytes);
}

}  // namespace

absl::StatusOr<JoinToken> NewToken(const std::string& fingerprint) {
  if (fingerprint.size() != kFingerprintBytes) {
    return absl::InvalidArgumentError("the authority's fingerprint has not 32 bytes");
  }
  ATOLL_ASSIGN_OR_RETURN(std::string secret, RandomBytes(kSecretBytes));
  return JoinToken{fingerprint, std::move(secret)};
}

std::string ToText(const JoinToken& token) {
  const std::string bytes = token.fingerprint + token.secret;
  return absl::StrCat(kPrefix, absl::WebSafeBase64Escape(bytes + ComputeTokenChecksum(bytes)));
}

absl::StatusOr<JoinToken> TokenFromText(absl::string_view text) {
  constexpr size_t kBytes = kFingerprintBytes + kSecretBytes;
  std::string bytes;
  if (!absl::ConsumePrefix(&text, kPrefix)) {
    return absl::InvalidArgumentError("this is no join token: `atoll token create` makes them");
  }
  if (!absl::WebSafeBase64Unescape(text, &bytes) || bytes.size() != kBytes + kCheckBytes ||
      bytes.substr(kBytes) != ComputeTokenChecksum(bytes.substr(0, kBytes))) {
    return absl::InvalidArgumentError(
        "the join token was cut or misspelt: copy the whole word that `atoll token create` "
        "printed");
  }
  return JoinToken{bytes.substr(0, kFingerprintBytes),
                   bytes.substr(kFingerprintBytes, kSecretBytes)};
}

absl::StatusOr<KeyAndCertificate> TokenCertificate(const JoinToken& token) {
  return KeyFromSeed(Sha256(absl::StrCat(kSeedPurpose, token.secret)));
}

absl::StatusOr<std::string> TokenKeyDigest(const JoinToken& token) {
  ATOLL_ASSIGN_OR_RETURN(const KeyAndCertificate made, TokenCertificate(token));
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(made.certificate));
  return facts.key_digest;
}

absl::StatusOr<JoinAddress> ParseJoinAddress(absl::string_view text) {
  const size_t at = text.find('@');
  if (at == absl::string_view::npos || at + 1 == text.size()) {
    return absl::InvalidArgumentError("must be TOKEN@HOST:PORT of the coordinator");
  }
  ATOLL_ASSIGN_OR_RETURN(JoinToken token, TokenFromText(text.substr(0, at)));
  return JoinAddress{std::move(token), std::string(text.substr(at + 1))};
}

}  // namespace atl
