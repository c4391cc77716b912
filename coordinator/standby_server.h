// Answers for a coordinator that does not lead: every call gets UNAVAILABLE with the leader's
// address, every page a redirection to the leader's.

#ifndef ATOLL_COORDINATOR_STANDBY_SERVER_H_
#define ATOLL_COORDINATOR_STANDBY_SERVER_H_

#include <memory>
#include <string>

#include "coordinator/server.h"
#include "coordinator/trust/access_control.h"

namespace atl {

class StandbyServer {
 public:
  // Listens for calls, and for the web page if options say so. `access` outlives it.
  static absl::StatusOr<std::unique_ptr<StandbyServer>> Start(const ServerOptions& options,
                                                              AccessControl* access);
  virtual ~StandbyServer() = default;

  virtual int port() const = 0;
  virtual std::string page_url() const = 0;  // empty: none

  // Returns who leads; an empty page: it has none. Any thread.
  virtual void SetLeader(const std::string& address, const std::string& page_url) = 0;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STANDBY_SERVER_H_
