// Authenticated encryption and key agreement for links, as OpenSSL has them. Pure; thread-safe.
//
// A key seals any number of texts, each under a number of its own: the same number twice under one
// key would give both texts away.

#ifndef ATOLL_COMMON_NET_SEAL_H_
#define ATOLL_COMMON_NET_SEAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"

namespace atl {

inline constexpr size_t kSealTagBytes = 16;
using Secret = std::array<uint8_t, 32>;  // also a Curve25519 key, public or secret

enum class SealCipher : uint8_t { kAes256Gcm, kChaCha20Poly1305 };

// Returns whether this processor has instructions for AES: without, ChaCha20-Poly1305 is the
// quicker one.
bool HasAes();

struct SealKey {
  SealCipher cipher = SealCipher::kAes256Gcm;
  Secret secret = {};
};

// Encrypts `plain` into `sealed`, which has as many bytes and may be the same memory. Returns the
// tag, which also authenticates `header`.
std::string Seal(const SealKey& key, uint64_t number, absl::string_view header,
                 std::span<const std::byte> plain, std::byte* sealed);

// The inverse. False: the tag is not that of these bytes, number and header; what `plain` holds
// then means nothing and is not to be used.
bool Open(const SealKey& key, uint64_t number, absl::string_view header,
          std::span<const std::byte> sealed, absl::string_view tag, std::byte* plain);

// HKDF (RFC 5869) with SHA-256 and no salt. `info` says what the result is for.
Secret DeriveSecret(absl::string_view secret, absl::string_view info);

// X25519 (RFC 7748). CURVE's keys are such keys.
class AgreementKey {
 public:
  static AgreementKey Generate();
  static AgreementKey FromSecret(const Secret& secret);

  const Secret& public_key() const { return public_key_; }
  // Returns the secret that only the holders of the two keys can compute. InvalidArgument: the
  // other key is none.
  absl::StatusOr<std::string> Agree(const Secret& other_public_key) const;

 private:
  explicit AgreementKey(std::shared_ptr<void> key);
  std::shared_ptr<void> key_;  // an EVP_PKEY
  Secret public_key_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_SEAL_H_
