// Where the members of a group find each other: short values under keys.

#ifndef ATOLL_WORKER_COLLECTIVES_RENDEZVOUS_H_
#define ATOLL_WORKER_COLLECTIVES_RENDEZVOUS_H_

#include <string>

#include "common/status.h"
#include "common/time.h"

namespace atl::worker {

// Values are at most some kilobytes, keys at most some hundred letters. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Lets every member of the island know a value. Each key is set once.
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;

  // Waits until another member has set the key. DEADLINE_EXCEEDED names it; UNAVAILABLE or ABORTED
  // say why it will never come.
  virtual absl::StatusOr<std::string> Get(const std::string& key, Instant deadline) = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_RENDEZVOUS_H_
