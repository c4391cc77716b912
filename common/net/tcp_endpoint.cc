#include "common/net/tcp_endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

// "10.0.0.1:7100", "[::1]:*", "host:0".
bool IsHostAndPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  const absl::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  if (absl::StrContains(host, "/")) return false;
  if (absl::StrContains(host, ":") && !(host.front() == '[' && host.back() == ']')) return false;
  int number = -1;
  return port == "*" || (absl::SimpleAtoi(port, &number) && number >= 0 && number <= 65535);
}

}  // namespace

absl::Status CheckTcpEndpoint(absl::string_view endpoint) {
  absl::string_view rest = endpoint;
  if (absl::ConsumePrefix(&rest, "tcp://") && IsHostAndPort(rest)) return absl::OkStatus();
  const std::string meant =
      IsHostAndPort(endpoint) ? absl::StrCat("; did you mean tcp://", endpoint, "?") : "";
  return absl::InvalidArgumentError(
      absl::StrCat("\"", endpoint, "\" must be tcp://ADDRESS:PORT", meant));
}

absl::Status CheckListenEndpoint(absl::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  const bool ranges =
      colon != absl::string_view::npos && absl::StrContains(endpoint.substr(colon), "-");
  if (!ranges) return CheckTcpEndpoint(endpoint);
  if (!ReadPortRange(endpoint)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", endpoint, "\": \"", endpoint.substr(colon + 1),
                     "\" must be FIRST-LAST, two ports from 1 to 65535, such as 7200-7209"));
  }
  return CheckTcpEndpoint(absl::StrCat(endpoint.substr(0, colon), ":*"));
}

std::optional<PortRange> ReadPortRange(absl::string_view endpoint) {
  const std::pair<absl::string_view, absl::string_view> ports =
      absl::StrSplit(endpoint.substr(endpoint.rfind(':') + 1), absl::MaxSplits('-', 1));
  PortRange range;
  const bool valid = absl::SimpleAtoi(ports.first, &range.first) &&
                     absl::SimpleAtoi(ports.second, &range.last) && range.first >= 1 &&
                     range.first <= range.last && range.last <= 65535;
  return valid ? std::optional(range) : std::nullopt;
}

bool IsLoopbackHost(absl::string_view host) {
  if (host == "[::1]" || host == "::1" || host == "localhost") return true;
  // Digits and points only: "127.evil.example" is a name of another owner.
  return absl::StartsWith(host, "127.") && std::all_of(host.begin(), host.end(), [](char c) {
           return c == '.' || (c >= '0' && c <= '9');
         });
}

}  // namespace atl
