#include "common/net/security.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/net/relay/words.h"
#include "common/net/tcp_endpoint.h"

namespace atl {
namespace {

constexpr size_t kKeyCharacters = 40;

absl::Status CheckKeys(const KeyPair& keys) {
  absl::StatusOr<std::string> public_key = DerivePublicKey(keys.secret_key);
  if (!public_key.ok()) return public_key.status();
  if (*public_key == keys.public_key) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the public key is not that of the secret key; make a new pair of keys");
}

// The first field of every line that is no comment. No Z85 key of 32 bytes begins with '#'.
absl::StatusOr<std::vector<std::string>> ReadKeys(absl::string_view flag, const std::string& path) {
  const std::string where = absl::StrCat(flag, " ", path);
  const auto bytes = RealFiles().Read(path, 1 << 20);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", bytes.status().message()));
  }
  const absl::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  std::vector<std::string> keys;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const absl::string_view key = line.substr(0, line.find_first_of(" \t"));
    if (!IsCurveKey(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ":", number,
                       ": does not begin with a Z85 key of 40 letters; "
                       "`atoll keygen` makes keys"));
    }
    keys.emplace_back(key);
  }
  return keys;
}

absl::Status CheckPlaintext(absl::string_view endpoint, bool allowed) {
  if (allowed || IsLoopback(endpoint)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(endpoint,
                   ": without keys only loopback addresses are used; give both ends keys "
                   "(--curve-key), or --insecure where the network is private by other means"));
}

}  // namespace

bool IsCurveKey(absl::string_view key) {
  std::array<uint8_t, 32> raw;
  return key.size() == kKeyCharacters &&
         zmq_z85_decode(raw.data(), std::string(key).c_str()) != nullptr;
}

absl::StatusOr<KeyPair> GenerateKeyPair() {
  std::array<char, kKeyCharacters + 1> public_key, secret_key;
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    return absl::UnimplementedError("this libzmq was built without CURVE");
  }
  return KeyPair{public_key.data(), secret_key.data()};
}

absl::StatusOr<std::string> DerivePublicKey(absl::string_view secret_key) {
  std::array<char, kKeyCharacters + 1> public_key;
  if (!IsCurveKey(secret_key) ||
      zmq_curve_public(public_key.data(), std::string(secret_key).c_str()) != 0) {
    return absl::InvalidArgumentError("the secret key is not a Z85 key of 40 letters");
  }
  return std::string(public_key.data());
}

absl::StatusOr<KeyPair> ReadCurveKey(const std::string& path) {
  if (path.empty()) return KeyPair{};
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("--curve-key ", path));
  }
  if ((info.st_mode & S_IROTH) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--curve-key ", path, ": all users can read it; chmod 600 ", path));
  }
  ATOLL_ASSIGN_OR_RETURN(const auto keys, ReadKeys("--curve-key", path));
  if (keys.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("--curve-key ", path, ": has ", keys.size(),
                                                   " keys; one secret key is expected"));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string public_key, DerivePublicKey(keys[0]));
  return KeyPair{public_key, keys[0]};
}

absl::StatusOr<std::vector<std::string>> ReadCurveClients(const std::string& path) {
  return ReadKeys("--curve-clients", path);
}

absl::Status WriteCurveKey(const KeyPair& keys, const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be made: ", std::strerror(errno),
                     errno == EEXIST ? "; remove it first if its key is not in use" : ""));
  }
  const std::string text = absl::StrCat("# Secret CURVE key of Atoll. The public key is ",
                                        keys.public_key, "\n", keys.secret_key, "\n");
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       fsync(file) == 0;
  const int error = errno;
  close(file);
  if (written) return absl::OkStatus();
  unlink(path.c_str());
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
}

bool IsLoopback(absl::string_view endpoint) {
  const std::vector<LinkWay> ways = ReadLinkWays(endpoint);
  return std::all_of(ways.begin(), ways.end(), [](const LinkWay& way) {
    absl::string_view address = way.endpoint;
    if (!absl::ConsumePrefix(&address, "tcp://")) return false;
    const size_t colon = address.rfind(':');
    return colon != absl::string_view::npos && IsLoopbackHost(address.substr(0, colon));
  });
}

absl::Status CheckSecurity(const ServerSecurity& security, absl::string_view endpoint) {
  ATOLL_RETURN_IF_ERROR(CheckListenEndpoint(endpoint));
  if (security.keys.empty()) {
    if (!security.allowed_client_keys.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          endpoint, ": client keys are listed but the server has none; give it a pair of keys"));
    }
    return CheckPlaintext(endpoint, security.allow_plaintext_beyond_loopback);
  }
  for (const std::string& key : security.allowed_client_keys) {
    if (!IsCurveKey(key)) {
      return absl::InvalidArgumentError(absl::StrCat(endpoint, ": allowed client key \"", key,
                                                     "\" is not a Z85 key of 40 letters"));
    }
  }
  return Annotate(CheckKeys(security.keys), endpoint);
}

absl::Status CheckSecurity(const ClientSecurity& security, absl::string_view endpoint,
                           absl::string_view server_key) {
  for (const LinkWay& way : ReadLinkWays(endpoint)) {
    ATOLL_RETURN_IF_ERROR(CheckTcpEndpoint(way.endpoint));
  }
  if (server_key.empty()) {
    return CheckPlaintext(endpoint, security.allow_plaintext_beyond_loopback);
  }
  if (!IsCurveKey(server_key)) {
    return absl::InvalidArgumentError(
        absl::StrCat(endpoint, ": server key \"", server_key, "\" is not a Z85 key of 40 letters"));
  }
  if (security.keys.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(endpoint,
                     ": the server takes only clients with a key and we have none; make "
                     "one with `atoll keygen`, add its public key to the server's "
                     "--curve-clients and give it here as --curve-key"));
  }
  return Annotate(CheckKeys(security.keys), absl::StrCat(endpoint, ": our own keys"));
}

}  // namespace atl
