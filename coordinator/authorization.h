// Who may make which call of the coordinator, by the role in the caller's certificate.
//
//   worker        its own Attach stream, under its own name
//   paramserver   the same
//   viewer        every call that only reads
//   operator      every call of the command line
//
// A call that no rule names is denied. Plaintext connections have no identity and may do
// everything: they are confined to loopback, or the operator passed --insecure (common/net/tls.h).

#ifndef ATOLL_COORDINATOR_AUTHORIZATION_H_
#define ATOLL_COORDINATOR_AUTHORIZATION_H_

#include <memory>
#include <optional>
#include <string>

#include "common/net/identity.h"
#include "common/status.h"

namespace grpc {
class AuthContext;
class AuthMetadataProcessor;
}  // namespace grpc

namespace atl {

// PERMISSION_DENIED, with the caller, the call and the roles that may make it. `path` is
// "/PACKAGE.SERVICE/METHOD". Pure.
absl::Status Authorize(const Identity& caller, absl::string_view path);

// The caller's identity; nullopt on a plaintext connection; the error where its certificate has
// none.
absl::StatusOr<std::optional<Identity>> IdentityFrom(const grpc::AuthContext& context);

// OK if the caller may attach as this member; any thread.
absl::Status AuthorizeMember(const grpc::AuthContext& context, absl::string_view name);

// For ServerCredentials: applies Authorize to every call, logs what is denied.
std::shared_ptr<grpc::AuthMetadataProcessor> NewAuthorizer();

}  // namespace atl

#endif  // ATOLL_COORDINATOR_AUTHORIZATION_H_
