// Access control of links: Curve25519 keys, in ZeroMQ's Z85 text form of 40 letters.
//
// With keys, every byte is encrypted and both ends are authenticated: the client knows the server's
// public key, the server lists the public keys of its clients. Without keys, links are plain TCP
// and are confined to loopback addresses, unless the operator says otherwise.

#ifndef ATOLL_COMMON_NET_SECURITY_H_
#define ATOLL_COMMON_NET_SECURITY_H_

#include <string>
#include <vector>

#include "common/status.h"

namespace atl {

struct KeyPair {
  std::string public_key;  // Z85, 40 letters; both empty: no encryption
  std::string secret_key;
  bool empty() const { return public_key.empty() && secret_key.empty(); }
};

// A fresh key pair from the system's random numbers.
absl::StatusOr<KeyPair> GenerateKeyPair();

// The public key that belongs to a secret key; an error when it is not a Z85 key.
absl::StatusOr<std::string> DerivePublicKey(absl::string_view secret_key);

// Returns whether the text is a key: 40 letters that decode.
bool IsCurveKey(absl::string_view key);

// ---- Files, as `atoll keygen` makes them; the same format for all. A line that begins with '#' is
// a comment; any other begins with a key, and what follows it on the line says whose it is.

// The pair of the one secret key in the file; an empty pair for an empty path. A file that
// all users can read is refused. Messages begin with "--curve-key PATH".
absl::StatusOr<KeyPair> ReadCurveKey(const std::string& path);

// The public keys in the file. Messages begin with "--curve-clients PATH" and name the line.
absl::StatusOr<std::vector<std::string>> ReadCurveClients(const std::string& path);

// Writes a file that ReadCurveKey reads and only its owner may. A file that exists is left alone.
absl::Status WriteCurveKey(const KeyPair& keys, const std::string& path);

struct ServerSecurity {
  KeyPair keys;                                  // empty: plaintext
  std::vector<std::string> allowed_client_keys;  // public keys; with keys, no other client gets in
  // Plaintext on an address other than loopback. For networks that are private by other means.
  bool allow_plaintext_beyond_loopback = false;
};

struct ClientSecurity {
  KeyPair keys;  // used with servers whose ServerAddress carries a key
  bool allow_plaintext_beyond_loopback = false;
};

// OK, or what is wrong with these keys and how to mend it.
absl::Status CheckSecurity(const ServerSecurity& security, absl::string_view endpoint);
absl::Status CheckSecurity(const ClientSecurity& security, absl::string_view endpoint,
                           absl::string_view server_key);

// Returns whether a tcp:// endpoint names a loopback address: 127.x.x.x, [::1] or localhost. With
// several ways (relay/words.h): whether all do.
bool IsLoopback(absl::string_view endpoint);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_SECURITY_H_
