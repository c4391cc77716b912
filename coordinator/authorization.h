// Who may make which call of the coordinator, by the role in the caller's certificate.
//
//   token         Trust.Join
//   worker        its own Attach stream, under its own name
//   paramserver   the same
//   viewer        every call that only reads
//   operator      every call of the command line
//   all but token renew their own certificate
//
// A call that no rule names is denied. Plaintext connections have no identity and may do
// everything: they are confined to loopback, or the operator passed --insecure
// (common/net/control/tls.h).

#ifndef ATOLL_COORDINATOR_AUTHORIZATION_H_
#define ATOLL_COORDINATOR_AUTHORIZATION_H_

#include "common/net/control/identity.h"
#include "coordinator/trust/registry.h"

namespace atl {

// A denial has the caller, the call and the roles that may make it. `path` is
// "/PACKAGE.SERVICE/METHOD". Pure.
Verdict Authorize(const Identity& caller, absl::string_view path);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_AUTHORIZATION_H_
