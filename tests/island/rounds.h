// Outer rounds of real islands without daemons: their devices on the host, their pushes as they
// would travel, and the server's arithmetic on what it would decode, pulls as islands would add
// them: what quantising does to the loss.

#ifndef ATOLL_TESTS_ISLAND_ROUNDS_H_
#define ATOLL_TESTS_ISLAND_ROUNDS_H_

#include <cstdint>

#include "common/ids.h"
#include "common/protocol/job_spec.h"

namespace atl::worker {

struct RoundsOptions {
  JobSpec spec;     // of one worker an island; its encodings are those of pushes and pulls
  int islands = 2;  // take turns on the data
  int rounds = 10;
  bool error_feedback = true;  // of pushes, and of pulls
};

struct RoundsResult {
  double loss = 0;         // of the last version, over the validation sequences
  int64_t push_bytes = 0;  // of one round of one island
};

// Synchronous rounds; every island counts the same, nothing is clipped.
RoundsResult RunRounds(const RoundsOptions& options);

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_ROUNDS_H_
