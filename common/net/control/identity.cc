#include "common/net/control/identity.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

constexpr char kScheme[] = "atoll:";
constexpr Role kRoles[] = {Role::kCoordinator, Role::kWorker, Role::kParameterServer,
                           Role::kOperator, Role::kViewer};

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kCoordinator:
      return "coordinator";
    case Role::kWorker:
      return "worker";
    case Role::kParameterServer:
      return "paramserver";
    case Role::kOperator:
      return "operator";
    case Role::kViewer:
      return "viewer";
    case Role::kJoiner:
      return "token";
  }
  return "";
}

absl::StatusOr<Role> RoleFromName(absl::string_view name) {
  for (const Role role : kRoles) {
    if (RoleName(role) == name) return role;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name.substr(0, 100), "\" is no role; there are ",
      absl::StrJoin(kRoles, ", ",
                    [](std::string* out, Role role) { absl::StrAppend(out, RoleName(role)); })));
}

std::string ToText(const Identity& identity) {
  return absl::StrCat(RoleName(identity.role), "/", identity.name);
}

std::string UriFrom(const Identity& identity) { return absl::StrCat(kScheme, ToText(identity)); }

absl::StatusOr<Identity> IdentityFromUri(absl::string_view uri) {
  absl::string_view rest = uri;
  const size_t slash = uri.find('/');
  if (absl::ConsumePrefix(&rest, kScheme) && slash != absl::string_view::npos &&
      slash + 1 < uri.size()) {
    const absl::StatusOr<Role> role = RoleFromName(rest.substr(0, rest.find('/')));
    if (role.ok()) return Identity{*role, std::string(uri.substr(slash + 1))};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", uri.substr(0, 200),
                   "\": must be atoll:ROLE/NAME, and ROLE one of "
                   "coordinator, worker, paramserver, operator and viewer"));
}

bool CoversName(const Identity& identity, absl::string_view name) {
  absl::string_view pattern = identity.name;
  if (absl::ConsumeSuffix(&pattern, "*")) return absl::StartsWith(name, pattern);
  return name == pattern;
}

}  // namespace atl
