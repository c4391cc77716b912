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
  ~StandbyServer();

  int port() const;
  std::string page_url() const;  // empty: none

  // Returns who leads; an empty page: it has none. Any thread.
  void SetLeader(const std::string& address, const std::string& page_url);

 private:
  class Impl;
  explicit StandbyServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STANDBY_SERVER_H_
