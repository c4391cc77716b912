#include "common/net/seal.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <cstring>

#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "common/check.h"

namespace atl {
namespace {

constexpr size_t kNonceBytes = 12;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

const uint8_t* Bytes(absl::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// Looking an algorithm up takes longer than sealing a header.
const EVP_CIPHER* GetCipher(SealCipher cipher) {
  static const EVP_CIPHER* const aes = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  static const EVP_CIPHER* const chacha = EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr);
  return cipher == SealCipher::kAes256Gcm ? aes : chacha;
}

// This thread's context for the cipher, with the key, the number and the header in it.
EVP_CIPHER_CTX* Begin(const SealKey& key, uint64_t number, absl::string_view header, bool seals) {
  thread_local Context contexts[2];
  Context& context = contexts[static_cast<int>(key.cipher)];
  if (context == nullptr) context.reset(EVP_CIPHER_CTX_new());
  uint8_t nonce[kNonceBytes] = {};
  std::memcpy(nonce + kNonceBytes - sizeof number, &number, sizeof number);
  ATOLL_CHECK(EVP_CipherInit_ex2(context.get(), GetCipher(key.cipher), key.secret.data(), nonce,
                                 seals ? 1 : 0, nullptr) == 1);
  int size = 0;
  ATOLL_CHECK(header.empty() || EVP_CipherUpdate(context.get(), nullptr, &size, Bytes(header),
                                                 static_cast<int>(header.size())) == 1);
  return context.get();
}

void Update(EVP_CIPHER_CTX* context, std::span<const std::byte> in, std::byte* out) {
  if (in.empty()) return;
  int size = 0;
  ATOLL_CHECK(EVP_CipherUpdate(context, reinterpret_cast<uint8_t*>(out), &size,
                               reinterpret_cast<const uint8_t*>(in.data()),
                               static_cast<int>(in.size())) == 1 &&
              size == static_cast<int>(in.size()));
}

}  // namespace

bool HasAes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_AES) != 0 && (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0;
#else
  return false;
#endif
}

std::string Seal(const SealKey& key, uint64_t number, absl::string_view header,
                 std::span<const std::byte> plain, std::byte* sealed) {
  EVP_CIPHER_CTX* const context = Begin(key, number, header, /*seals=*/true);
  Update(context, plain, sealed);
  std::string tag(kSealTagBytes, '\0');
  uint8_t none[1];
  int size = 0;
  ATOLL_CHECK(EVP_CipherFinal_ex(context, none, &size) == 1 && size == 0);
  ATOLL_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kSealTagBytes, tag.data()) == 1);
  return tag;
}

bool Open(const SealKey& key, uint64_t number, absl::string_view header,
          std::span<const std::byte> sealed, absl::string_view tag, std::byte* plain) {
  if (tag.size() != kSealTagBytes) return false;
  EVP_CIPHER_CTX* const context = Begin(key, number, header, /*seals=*/false);
  Update(context, sealed, plain);
  ATOLL_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kSealTagBytes,
                                  const_cast<char*>(tag.data())) == 1);
  uint8_t none[1];
  int size = 0;
  return EVP_CipherFinal_ex(context, none, &size) == 1;
}

Secret DeriveSecret(absl::string_view secret, absl::string_view info) {
  static EVP_KDF* const hkdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(hkdf),
                                                                          EVP_KDF_CTX_free);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<char*>(secret.data()),
                                        secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<char*>(info.data()),
                                        info.size()),
      OSSL_PARAM_construct_end()};
  Secret derived;
  ATOLL_CHECK(EVP_KDF_derive(context.get(), derived.data(), derived.size(), params) == 1);
  return derived;
}

AgreementKey::AgreementKey(std::shared_ptr<void> key) : key_(std::move(key)) {
  size_t size = public_key_.size();
  ATOLL_CHECK(EVP_PKEY_get_raw_public_key(static_cast<EVP_PKEY*>(key_.get()), public_key_.data(),
                                          &size) == 1);
}

AgreementKey AgreementKey::Generate() {
  EVP_PKEY* const key = EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519");
  ATOLL_CHECK(key != nullptr, "no random numbers for a key");
  return AgreementKey(std::shared_ptr<EVP_PKEY>(key, EVP_PKEY_free));
}

AgreementKey AgreementKey::FromSecret(const Secret& secret) {
  EVP_PKEY* const key =
      EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, secret.data(), secret.size());
  ATOLL_CHECK(key != nullptr);
  return AgreementKey(std::shared_ptr<EVP_PKEY>(key, EVP_PKEY_free));
}

absl::StatusOr<std::string> AgreementKey::Agree(const Secret& other_public_key) const {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> other(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, other_public_key.data(),
                                  other_public_key.size()),
      EVP_PKEY_free);
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> context(
      EVP_PKEY_CTX_new(static_cast<EVP_PKEY*>(key_.get()), nullptr), EVP_PKEY_CTX_free);
  std::string shared(32, '\0');
  size_t size = shared.size();
  // OpenSSL refuses the points of small order, whose result is public.
  if (EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_derive_set_peer(context.get(), other.get()) != 1 ||
      EVP_PKEY_derive(context.get(), reinterpret_cast<uint8_t*>(shared.data()), &size) != 1 ||
      size != shared.size()) {
    return absl::InvalidArgumentError("no key can be agreed with this public key");
  }
  return shared;
}

}  // namespace atl
