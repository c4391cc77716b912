// Who is at the other end of a TLS connection, as its certificate says: a URI "atoll:ROLE/NAME"
// among the subject's alternative names (deploy/certificates and `atoll init` write it).

#ifndef ATOLL_COMMON_NET_CONTROL_IDENTITY_H_
#define ATOLL_COMMON_NET_CONTROL_IDENTITY_H_

#include <string>

#include "common/status.h"

namespace atl {

// kJoiner: a client that shows a token, and has no certificate yet.
enum class Role { kCoordinator, kWorker, kParameterServer, kOperator, kViewer, kJoiner };

struct Identity {
  Role role = Role::kViewer;
  std::string name;  // "rack-*": every name that begins so, for daemons that share a certificate

  friend bool operator==(const Identity&, const Identity&) = default;
};

// Returns the role's name as in the URI: coordinator, worker, paramserver, operator, viewer; of a
// joiner "token".
absl::string_view RoleName(Role role);

// Returns the role of that name, of those that certificates carry: not a joiner's.
absl::StatusOr<Role> RoleFromName(absl::string_view name);

// "atoll:worker/w1", and without the scheme "worker/w1".
std::string UriFrom(const Identity& identity);
std::string ToText(const Identity& identity);

// The error says what is wrong with the URI.
absl::StatusOr<Identity> IdentityFromUri(absl::string_view uri);

// Returns whether the identity may act under this name.
bool CoversName(const Identity& identity, absl::string_view name);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_IDENTITY_H_
