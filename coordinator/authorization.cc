#include "coordinator/authorization.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace atl {
namespace {

struct Rule {
  absl::string_view path;  // a call; or all of a service or package, ending in "/" or "."
  std::vector<Role> roles;
};

const std::vector<Rule>& Rules() {
  const std::vector<Role> readers = {Role::kOperator, Role::kViewer};
  const std::vector<Role> members = {Role::kWorker, Role::kParameterServer, Role::kOperator,
                                     Role::kViewer};
  const std::vector<Role> all = {Role::kCoordinator, Role::kWorker, Role::kParameterServer,
                                 Role::kOperator, Role::kViewer};
  // The first rule that fits holds.
  static const auto& rules = *new std::vector<Rule>{
      {"/atl.v1.WorkerControl/", {Role::kWorker}},
      {"/atl.v1.ServerControl/", {Role::kParameterServer}},
      {"/atl.v1.Jobs/Validate", readers},
      {"/atl.v1.Jobs/List", readers},
      {"/atl.v1.Jobs/Get", readers},
      {"/atl.v1.Jobs/Watch", readers},
      {"/atl.v1.Jobs/Logs", readers},
      {"/atl.v1.Jobs/Decisions", readers},
      {"/atl.v1.Jobs/History", readers},
      {"/atl.v1.Jobs/Preview", readers},
      {"/atl.v1.Jobs/", {Role::kOperator}},
      {"/atl.v1.Status/", readers},
      {"/atl.v1.Backups/", {Role::kOperator}},
      {"/atl.v1.Trust/Join", {Role::kJoiner}},
      {"/atl.v1.Trust/Renew", members},
      {"/atl.v1.Trust/", {Role::kOperator}},
      {"/grpc.health.v1.Health/", all},
      {"/grpc.reflection.", all},
  };
  return rules;
}

bool Fits(absl::string_view path, absl::string_view rule) {
  const bool is_group = absl::EndsWith(rule, "/") || absl::EndsWith(rule, ".");
  return is_group ? absl::StartsWith(path, rule) : path == rule;
}

Verdict Denied(std::string reason) { return {v1::TRUST_DENIAL_ROLE, std::move(reason)}; }

}  // namespace

Verdict Authorize(const Identity& caller, absl::string_view path) {
  for (const Rule& rule : Rules()) {
    if (!Fits(path, rule.path)) continue;
    if (std::find(rule.roles.begin(), rule.roles.end(), caller.role) != rule.roles.end()) return {};
    return Denied(absl::StrCat(
        "the certificate of ", ToText(caller), " does not allow ", path, ": it needs the role ",
        absl::StrJoin(rule.roles, " or ",
                      [](std::string* out, Role role) { absl::StrAppend(out, RoleName(role)); })));
  }
  return Denied(absl::StrCat(path, ": no role may make this call"));
}

}  // namespace atl
