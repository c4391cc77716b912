#include "common/http/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

constexpr absl::string_view kThisMachine = "localhost,127.0.0.1,::1";

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The bytes of an IPv4 or IPv6 address; empty: it is a name.
std::string ParseAddress(const std::string& text) {
  std::string bytes(sizeof(in6_addr), '\0');
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1)
    bytes.resize(sizeof(in_addr));
  else if (inet_pton(AF_INET6, text.c_str(), bytes.data()) != 1)
    bytes.clear();
  return bytes;
}

// Returns whether an address is in a network, "10.0.0.0/8".
bool IsInNetwork(const std::string& address, absl::string_view network) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(network, absl::MaxSplits('/', 1));
  const std::string base = ParseAddress(parts.first);
  int bits = 0;
  if (base.empty() || base.size() != address.size() || !absl::SimpleAtoi(parts.second, &bits))
    return false;
  if (bits < 0 || bits > 8 * static_cast<int>(base.size())) return false;
  for (size_t i = 0; bits > 0; ++i, bits -= 8) {
    const int shift = bits >= 8 ? 0 : 8 - bits;
    if (static_cast<uint8_t>(base[i]) >> shift != static_cast<uint8_t>(address[i]) >> shift)
      return false;
  }
  return true;
}

}  // namespace

void PrepareProxyVariables() {
  for (const auto& [small, large] :
       {std::pair("https_proxy", "HTTPS_PROXY"), std::pair("no_proxy", "NO_PROXY")}) {
    const std::string value = Variable(large);
    if (!value.empty()) setenv(small, value.c_str(), /*overwrite=*/0);
  }
  std::string proxy = Variable("https_proxy"), exempt = Variable("no_proxy");
  if (proxy.empty()) proxy = Variable("http_proxy");
  if (!proxy.empty() && !absl::StrContains(proxy, "://")) proxy = absl::StrCat("http://", proxy);
  if (!proxy.empty()) setenv("https_proxy", proxy.c_str(), 1);
  if (!absl::EndsWith(exempt,
                      kThisMachine))  // as it does in a program that one of ours has started
    absl::StrAppend(&exempt, exempt.empty() ? "" : ",", kThisMachine);
  setenv("no_proxy", exempt.c_str(), 1);
  // gRPC compares ends of addresses, too: its channels go by FindProxy alone.
  setenv("no_grpc_proxy", "-", 1);
}

std::string FindProxy(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  const std::string exempt = Variable("no_proxy"), address = ParseAddress(std::string(host));
  for (absl::string_view entry : absl::StrSplit(exempt, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    if (entry == "*" || IsInNetwork(address, entry)) return "";
    if (absl::ConsumePrefix(&entry, "[")) absl::ConsumeSuffix(&entry, "]");
    if (!address.empty() && ParseAddress(std::string(entry)) == address) return "";
    absl::ConsumePrefix(&entry, ".");
    if (address.empty() && !entry.empty() &&
        absl::EndsWithIgnoreCase(absl::StrCat(".", host), absl::StrCat(".", entry)))
      return "";
  }
  return Variable("https_proxy");
}

std::string WithoutPassword(absl::string_view url) {
  const size_t begin = url.find("://"), at = url.rfind('@');
  if (begin == absl::string_view::npos || at == absl::string_view::npos) return std::string(url);
  return absl::StrCat(url.substr(0, begin + 3), url.substr(at + 1));
}

}  // namespace atl
