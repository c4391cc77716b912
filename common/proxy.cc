#include "common/proxy.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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

}  // namespace

void PrepareProxyVariables() {
  for (const auto& [small, large] :
       {std::pair("https_proxy", "HTTPS_PROXY"), std::pair("no_proxy", "NO_PROXY")}) {
    const std::string value = Variable(large);
    if (!value.empty()) setenv(small, value.c_str(), /*overwrite=*/0);
  }
  const std::string exempt = Variable("no_proxy");
  setenv("no_proxy", absl::StrCat(exempt, exempt.empty() ? "" : ",", kThisMachine).c_str(), 1);
}

std::string FindProxy(absl::string_view host) {
  std::string proxy = Variable("https_proxy");
  if (proxy.empty()) proxy = Variable("http_proxy");
  if (proxy.empty()) return "";
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  const std::string exempt = Variable("no_proxy");
  for (absl::string_view end : absl::StrSplit(exempt, ',')) {
    end = absl::StripAsciiWhitespace(end);
    if (!end.empty() && absl::EndsWithIgnoreCase(host, end)) return "";
  }
  return absl::StrContains(proxy, "://") ? proxy : absl::StrCat("http://", proxy);
}

std::string WithoutPassword(absl::string_view url) {
  const size_t begin = url.find("://"), at = url.rfind('@');
  if (begin == absl::string_view::npos || at == absl::string_view::npos) return std::string(url);
  return absl::StrCat(url.substr(0, begin + 3), url.substr(at + 1));
}

}  // namespace atl
