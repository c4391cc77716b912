#include "coordinator/authorization.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/logging.h"

namespace atl {
namespace {

struct Rule {
  absl::string_view path;  // a call, or all calls that begin so
  std::vector<Role> roles;
};

const std::vector<Rule>& Rules() {
  const std::vector<Role> readers = {Role::kOperator, Role::kViewer};
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
      {"/atl.v1.Jobs/History", readers},
      {"/atl.v1.Jobs/Preview", readers},
      {"/atl.v1.Jobs/", {Role::kOperator}},
      {"/atl.v1.Status/", readers},
      {"/atl.v1.Backups/", {Role::kOperator}},
      {"/grpc.health.v1.Health/", all},
      {"/grpc.reflection.", all},
  };
  return rules;
}

class Authorizer : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto found = metadata.find(":path");
    const absl::string_view path =
        found == metadata.end() ? ""
                                : absl::string_view(found->second.data(), found->second.size());
    const auto caller = IdentityFrom(*context);
    absl::Status status = caller.status();
    if (status.ok() && caller->has_value()) status = Authorize(**caller, path);
    if (status.ok()) return grpc::Status::OK;
    LogWarning("access", status.message());
    return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                        std::string(status.message()));
  }
};

}  // namespace

absl::Status Authorize(const Identity& caller, absl::string_view path) {
  for (const Rule& rule : Rules()) {
    if (!absl::StartsWith(path, rule.path)) continue;
    for (const Role role : rule.roles) {
      if (role == caller.role) return absl::OkStatus();
    }
    return absl::PermissionDeniedError(absl::StrCat(
        "the certificate of ", RoleName(caller.role), " \"", caller.name, "\" does not allow ",
        path, ": it needs the role ",
        absl::StrJoin(rule.roles, " or ",
                      [](std::string* out, Role role) { absl::StrAppend(out, RoleName(role)); })));
  }
  return absl::PermissionDeniedError(absl::StrCat(path, ": no role may make this call"));
}

absl::StatusOr<std::optional<Identity>> IdentityFrom(const grpc::AuthContext& context) {
  if (context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty()) return std::nullopt;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    const absl::string_view text(uri.data(), uri.size());
    if (!absl::StartsWith(text, "atoll:")) continue;
    ATOLL_ASSIGN_OR_RETURN(const Identity identity, IdentityFromUri(text));
    return identity;
  }
  return absl::UnauthenticatedError(
      "the caller's certificate names no role: make it again with deploy/certificates");
}

absl::Status AuthorizeMember(const grpc::AuthContext& context, absl::string_view name) {
  ATOLL_ASSIGN_OR_RETURN(const std::optional<Identity> caller, IdentityFrom(context));
  if (!caller.has_value() || CoversName(*caller, name)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the certificate of ", RoleName(caller->role),
                                                  " \"", caller->name,
                                                  "\" does not allow to attach as \"", name, "\""));
}

std::shared_ptr<grpc::AuthMetadataProcessor> NewAuthorizer() {
  return std::make_shared<Authorizer>();
}

}  // namespace atl
