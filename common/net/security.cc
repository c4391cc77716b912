#include "common/net/security.h"

#include <zmq.h>

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

constexpr size_t kKeyLetters = 40;

bool IsKey(absl::string_view key) {
  std::array<uint8_t, 32> raw;
  return key.size() == kKeyLetters &&
         zmq_z85_decode(raw.data(), std::string(key).c_str()) != nullptr;
}

absl::Status CheckKeys(const KeyPair& keys) {
  absl::StatusOr<std::string> public_key = PublicKeyOf(keys.secret_key);
  if (!public_key.ok()) return public_key.status();
  if (*public_key == keys.public_key) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the public key is not that of the secret key; make a new pair of keys");
}

absl::Status CheckPlaintext(absl::string_view endpoint, bool allowed) {
  if (allowed || IsLoopback(endpoint)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(endpoint,
                   ": without keys only loopback addresses are used; give both ends keys, "
                   "or allow plaintext where the network is private by other means"));
}

}  // namespace

absl::StatusOr<KeyPair> GenerateKeyPair() {
  std::array<char, kKeyLetters + 1> public_key, secret_key;
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    return absl::UnimplementedError("this libzmq was built without CURVE");
  }
  return KeyPair{public_key.data(), secret_key.data()};
}

absl::StatusOr<std::string> PublicKeyOf(absl::string_view secret_key) {
  std::array<char, kKeyLetters + 1> public_key;
  if (!IsKey(secret_key) ||
      zmq_curve_public(public_key.data(), std::string(secret_key).c_str()) != 0) {
    return absl::InvalidArgumentError("the secret key is not a Z85 key of 40 letters");
  }
  return std::string(public_key.data());
}

bool IsLoopback(absl::string_view endpoint) {
  if (!absl::ConsumePrefix(&endpoint, "tcp://")) return false;
  const size_t colon = endpoint.rfind(':');
  if (colon == absl::string_view::npos) return false;
  const absl::string_view host = endpoint.substr(0, colon);
  if (host == "[::1]" || host == "::1" || host == "localhost") return true;
  // Digits and points only: "127.evil.example" is a name that somebody else owns.
  return absl::StartsWith(host, "127.") && std::all_of(host.begin(), host.end(), [](char c) {
           return c == '.' || (c >= '0' && c <= '9');
         });
}

absl::Status CheckSecurity(const ServerSecurity& security, absl::string_view endpoint) {
  if (security.keys.empty()) {
    if (!security.allowed_client_keys.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          endpoint, ": client keys are listed but the server has none; give it a pair of keys"));
    }
    return CheckPlaintext(endpoint, security.allow_plaintext_beyond_loopback);
  }
  for (const std::string& key : security.allowed_client_keys) {
    if (!IsKey(key)) {
      return absl::InvalidArgumentError(absl::StrCat(endpoint, ": allowed client key \"", key,
                                                     "\" is not a Z85 key of 40 letters"));
    }
  }
  return Annotate(CheckKeys(security.keys), endpoint);
}

absl::Status CheckSecurity(const ClientSecurity& security, absl::string_view endpoint,
                           absl::string_view server_key) {
  if (server_key.empty()) {
    return CheckPlaintext(endpoint, security.allow_plaintext_beyond_loopback);
  }
  if (!IsKey(server_key)) {
    return absl::InvalidArgumentError(
        absl::StrCat(endpoint, ": server key \"", server_key, "\" is not a Z85 key of 40 letters"));
  }
  return Annotate(CheckKeys(security.keys), absl::StrCat(endpoint, ": our own keys"));
}

}  // namespace atl
