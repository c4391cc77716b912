// The addresses of names in endpoints, of which libzmq tries the first one alone.

#ifndef ATOLL_COMMON_NET_NAME_ADDRESSES_H_
#define ATOLL_COMMON_NET_NAME_ADDRESSES_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/time.h"

namespace atl {

// Thread-safe. At most kNamesMax are known and kLookupsMax looked up at a time, on threads that
// outlive it for as long as the system's resolver takes.
class NameAddresses {
 public:
  static constexpr size_t kNamesMax = 1024;
  static constexpr int kLookupsMax = 4;
  static constexpr Duration kKept = std::chrono::seconds(30);

  // Returns the endpoints of all addresses of "tcp://name:port", in the system's order, as last
  // looked up; none: they are not known yet, or are fewer than two. Looks them up again where that
  // was kKept ago. Never waits.
  std::vector<std::string> Find(const std::string& endpoint, Instant now);

 private:
  struct State;
  const std::shared_ptr<State> state_ = MakeState();
  static std::shared_ptr<State> MakeState();
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_NAME_ADDRESSES_H_
