#include "common/net/relay/words.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/check.h"

namespace atl {
namespace {

constexpr size_t kTagBytes = 16;
constexpr size_t kMemberBytesMax = 128;
constexpr char kScheme[] = "relay://";

// Makes 128 bits, as hexadecimal digits.
std::string MakeTag(const std::string& secret, const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned int bytes = 0;
  const auto* made =
      HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(), &bytes);
  ATOLL_CHECK(made != nullptr && bytes >= kTagBytes);
  return absl::BytesToHexString({reinterpret_cast<const char*>(out.data()), kTagBytes});
}

}  // namespace

std::vector<LinkWay> ReadLinkWays(absl::string_view endpoint) {
  std::vector<LinkWay> ways;
  for (absl::string_view way : absl::StrSplit(endpoint, absl::MaxSplits(',', kLinkWaysMax - 1))) {
    if (!absl::ConsumePrefix(&way, kScheme)) {
      ways.push_back({std::string(way), ""});
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(way, absl::MaxSplits('/', 1));
    ways.push_back({absl::StrCat("tcp://", parts.first), std::string(parts.second)});
  }
  return ways;
}

std::string LinkWay::relay() const {
  if (word.empty()) return "";
  return at_own_relay() ? "*" : std::string(absl::StripPrefix(endpoint, "tcp://"));
}

std::string MakeRelayEndpoint(const std::string& address, const std::string& word) {
  return absl::StrCat(kScheme, address, "/", word);
}

std::string DescribeEndpoint(absl::string_view endpoint) {
  std::string text;
  for (const LinkWay& way : ReadLinkWays(endpoint)) {
    if (way.at_own_relay()) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", "connects itself");
      continue;
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", way.word.empty() ? "" : "relay ",
                    way.word.empty() ? absl::string_view(way.endpoint)
                                     : absl::StripPrefix(way.endpoint, "tcp://"));
  }
  return text;
}

std::string MakeRelayText(const RelayWord& word) {
  return absl::StrCat(word.accepts ? "a" : "d", ".", word.incarnation, ".", word.member);
}

std::string SignRelayText(const std::string& secret, const std::string& text) {
  return absl::StrCat(text, ".", MakeTag(secret, text));
}

std::string MakeRelayWord(const std::string& secret, const RelayWord& word) {
  return SignRelayText(secret, MakeRelayText(word));
}

std::optional<RelayWord> ReadRelayWord(const std::string& secret, absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('.', 2));
  RelayWord word;
  if (parts.size() != 3 || (parts[0] != "a" && parts[0] != "d") ||
      !absl::SimpleAtoi(parts[1], &word.incarnation)) {
    return std::nullopt;
  }
  word.accepts = parts[0] == "a";
  word.member = std::string(parts[2].substr(0, parts[2].rfind('.')));
  if (word.member.empty() || word.member.size() > kMemberBytesMax) return std::nullopt;
  const std::string expected = MakeRelayWord(secret, word);
  const bool valid = expected.size() == text.size() &&
                     CRYPTO_memcmp(expected.data(), text.data(), text.size()) == 0;
  return valid ? std::optional(word) : std::nullopt;
}

}  // namespace atl
