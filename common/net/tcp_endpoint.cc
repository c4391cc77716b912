#include "common/net/tcp_endpoint.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

bool IsLoopbackHost(absl::string_view host) {
  if (host == "[::1]" || host == "::1" || host == "localhost") return true;
  // Digits and points only: "127.evil.example" is a name of another owner.
  return absl::StartsWith(host, "127.") && std::all_of(host.begin(), host.end(), [](char c) {
           return c == '.' || (c >= '0' && c <= '9');
         });
}

}  // namespace atl
