// Private keys, certificate requests and certificates, as PEM: what a cluster's authority signs and
// its members show. Over OpenSSL; keys are P-256. No call logs or returns a key but those that make
// one.
//
// A certificate carries its holder's identity (common/net/control/identity.h) and, of a member, the
// public CURVE key of its links, as URIs among the subject's alternative names: "atoll:worker/w1",
// "atollcurve:KEY".

#ifndef ATOLL_COMMON_TRUST_PKI_H_
#define ATOLL_COMMON_TRUST_PKI_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "common/net/control/identity.h"
#include "common/status.h"

namespace atl {

// Certificates begin so long before they are made: clocks differ.
inline constexpr int64_t kBackdatedS = 300;

struct KeyAndCertificate {
  std::string key;          // PEM, secret
  std::string certificate;  // PEM
};

// The contents of a certificate to make.
struct CertificateContents {
  Identity identity;
  std::vector<std::string> hosts;  // names and addresses by which others dial the holder
  std::string curve_public_key;    // Z85; empty: none
  int64_t from_unix_s = 0;
  int64_t until_unix_s = 0;
};

// Statements of a certificate; IsSignedBy says whether they are true.
struct CertificateFacts {
  absl::StatusOr<Identity> identity = absl::NotFoundError("");  // the error says what is wrong
  std::string cluster;                                          // of an authority; else empty
  std::string curve_public_key;
  std::string key_digest;   // SHA-256 of the public key, lower-case hexadecimal
  std::string fingerprint;  // SHA-256 of the whole certificate, 32 bytes
  int64_t from_unix_s = 0;
  int64_t until_unix_s = 0;
};

// "2026-11-22 10:00:00 UTC".
std::string FormatUtc(int64_t unix_s);

// OK if a certificate may name a person so: at most 63 letters, digits, '.', '_', '@' and '-'.
absl::Status CheckUserName(absl::string_view name);

absl::StatusOr<std::string> MakePrivateKey();

// A new authority, which signs itself; its subject carries the cluster's id.
absl::StatusOr<KeyAndCertificate> MakeAuthority(const std::string& cluster, int64_t from_unix_s,
                                                int64_t until_unix_s);

// A request that proves possession of the key and says nothing else.
absl::StatusOr<std::string> MakeRequest(const std::string& key_pem);

// The digest of a request's public key, if its proof holds.
absl::StatusOr<std::string> RequestKeyDigest(const std::string& request_pem);

// A certificate for the request's key that says `contents` and nothing of the request.
absl::StatusOr<std::string> SignRequest(const KeyAndCertificate& authority,
                                        const std::string& request_pem,
                                        const CertificateContents& contents);

// Reads the first certificate in the text.
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem);

// Returns whether the authority has signed the certificate for a holder; dates are not checked.
bool IsSignedBy(const std::string& certificate_pem, const std::string& authority_pem);

// Returns whether the certificate names the host: a DNS name or an address, IPv6 without brackets.
bool NamesHost(const std::string& certificate_pem, const std::string& host);

// The certificate in the text with this fingerprint; nullopt: there is none.
std::optional<std::string> FindCertificate(const std::string& pem, const std::string& fingerprint);

// Signs the text with a holder's key; of a P-256 key: ECDSA over SHA-256, as DER.
absl::StatusOr<std::string> SignText(const std::string& key_pem, absl::string_view text);
// Returns whether the certificate's key has signed the text; dates and authority are not checked.
bool HasSigned(const std::string& certificate_pem, absl::string_view text,
               absl::string_view signature);

// ---- For tokens (token.h) ----

// The Ed25519 key of these 32 secret bytes, with a certificate for it that signs itself and says
// nothing.
absl::StatusOr<KeyAndCertificate> KeyFromSeed(const std::string& seed);

// Hashes the texts, one after the other.
std::string Sha256(std::initializer_list<absl::string_view> texts);
inline std::string Sha256(absl::string_view bytes) { return Sha256({bytes}); }
// Returns random bytes from the system's generator.
absl::StatusOr<std::string> RandomBytes(int count);
// Compares in constant time.
bool EqualSecrets(absl::string_view a, absl::string_view b);

}  // namespace atl

#endif  // ATOLL_COMMON_TRUST_PKI_H_
