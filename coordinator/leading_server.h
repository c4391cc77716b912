// A coordinator that owns its store and serves: core and gRPC services together. Health checking
// and reflection are on, so that usual tools can look at it.

#ifndef ATOLL_COORDINATOR_LEADING_SERVER_H_
#define ATOLL_COORDINATOR_LEADING_SERVER_H_

#include <memory>
#include <string>

#include "coordinator/server.h"
#include "coordinator/store.h"
#include "coordinator/trust/access_control.h"

namespace atl {

// Returns credentials to listen, for those that `access` admits. Calls are not authorized by it.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    AccessControl* access, const std::string& listen);

class LeadingServer {
 public:
  // Recovers and listens; nothing is answered before Run. `access` outlives it.
  static absl::StatusOr<std::unique_ptr<LeadingServer>> Start(const ServerOptions& options,
                                                              AccessControl* access,
                                                              std::unique_ptr<Store> store);
  virtual ~LeadingServer() = default;

  virtual int port() const = 0;                 // that it listens on
  virtual std::string page_url() const = 0;     // of the web page; empty: none
  virtual std::string metrics_url() const = 0;  // without "/metrics"; empty: none

  // Serves until Stop (OK), or until the store fails or is another process's, and then ends all
  // connections. Once.
  virtual absl::Status Run() = 0;
  virtual void Stop() = 0;  // any thread
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_LEADING_SERVER_H_
