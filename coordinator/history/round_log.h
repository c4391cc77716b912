// Reads once, from what the core stores, what has happened to jobs and their rounds. Curves
// (history.h), counters, traces and the watch on progress follow it. Pure.

#ifndef ATOLL_COORDINATOR_HISTORY_ROUND_LOG_H_
#define ATOLL_COORDINATOR_HISTORY_ROUND_LOG_H_

#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "coordinator/core/core.h"

namespace atl {

// A job has come, or what it is has changed.
struct JobStored {
  const JobRecord* record;
};
struct RemovedJob {};
// Also while it stays in its state.
struct JobProgressed {
  const ProgressRecord* record;
  bool state_changed = false;
};
// Each round once, also where its decision is stored again.
struct RoundDecided {
  const DecisionRecord* record;
  // When the push of each of its participants was granted; 0: before the coordinator's start.
  std::vector<int64_t> granted_ms;
};
struct WorkersEvicted {
  int64_t times = 0;
  const char* reason;
};
struct LeaderChanged {};
struct MembersLost {
  IslandId island = 0;
  std::vector<LostMember> members;
};

struct JobEvent {
  JobId job;
  int64_t unix_ms = 0;
  std::variant<JobStored, RemovedJob, JobProgressed, RoundDecided, WorkersEvicted, LeaderChanged,
               MembersLost>
      what;
};

class RoundLog {
 public:
  // Takes what the core knew at its start; returns how far its jobs are. `records` must outlive it.
  std::vector<JobEvent> Recover(const std::vector<StoreRecord>& records);
  // After each step of the core: the event, and what it made the core store, which must outlive
  // what this returns.
  std::vector<JobEvent> Read(int64_t unix_ms, const CoordinatorEvent& event,
                             const std::vector<StoreWrite>& writes);

 private:
  struct Island {
    Incarnation leader = 0;
    int64_t evictions = 0;
    int64_t members_lost = 0;
  };
  struct Job {
    std::optional<JobState> state;
    int64_t last_round = -1;
    std::map<ContributionId, int64_t> granted_ms;  // undecided
    std::map<IslandId, Island> islands;
  };

  // Null: it has been removed.
  Job* Find(const JobId& job);

  std::map<JobId, Job> jobs_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_HISTORY_ROUND_LOG_H_
