// Who works for whom where several jobs share the workers. Pure; scheduling.h feeds it and carries
// its answer out.
//
// 1. Gangs. In the order of priority, then of submission, each job gets the workers of its least
//    number of islands, or takes none from others. It takes idle ones first, then those that others
//    have beyond their gangs, then gangs of jobs that come after it. From a job of higher priority
//    it takes none, and from one of its own priority that was submitted before only what that one
//    has beyond its gang. What a job has that idles goes to any gang, whatever the priority.
// 2. Quotas (quotas.h). A gang within its owner's quota goes before all that are not, whatever the
//    priority, and takes the islands with which others are above theirs. Another gang takes idle
//    workers, and those of the same quota.
// 3. Backfill. Workers that a waiting job cannot use yet, because its gang is incomplete even with
//    all that it may take, serve the jobs after it. That delays it by no more than an orderly
//    leave: it takes them back as soon as they complete its gang. The same holds for workers of a
//    job that prepares, once its gang is incomplete.
//    Only the first kWaitingMost of the jobs that wait are looked at.
// 4. What is idle then goes to the job of the highest priority that can use it, within quotas
//    first; among equal ones to the one with the least work left for its weight, then with the
//    fewest workers for it. That order ends jobs with the least sum of times, each times its
//    weight (Smith's rule).
// 5. Jobs of equal priority give what they have beyond their gangs to one with less work left for
//    its weight, if both train on for long enough (IsWorthChanging). Training changes that order
//    slowly and a move takes kUrgencyGain: hardly any is undone.

#ifndef ATOLL_COORDINATOR_CORE_SHARING_DIVIDE_H_
#define ATOLL_COORDINATOR_CORE_SHARING_DIVIDE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "coordinator/core/sharing/quotas.h"

namespace atl::coord {

struct SharingJob {
  JobId id;
  int64_t priority = 0;
  double weight = 1;       // above 0
  int64_t needed = 1;      // workers of its gang
  bool started = false;    // has islands: uses idle workers without a whole gang, too
  int64_t away = 0;        // workers that it lost a moment ago and that may come back
  double rounds_left = 0;  // that it trains for, with the workers that it has
  double work_left = 0;    // of one measure for all jobs; 0: not known
  bool idles = false;      // nothing is decided of it: it needs none of its workers, and uses none
  std::optional<size_t> quota = {};  // index, of its owner; nothing: it has none
};

// Workers that leave a job together: those of an island, or one without an island.
struct SharingUnit {
  std::vector<NodeId> workers;
  std::optional<size_t> job;  // index of the one that has them; else they are idle
  int64_t devices = 1;        // of the workers
};

struct Share {
  std::optional<size_t> job;  // that is to have the unit
  std::string reason;         // why that one, where another has it
};

struct Division {
  std::vector<Share> shares;              // by unit
  std::vector<bool> whole;                // by job: its gang is complete once it has its shares
  std::vector<std::string> beyond_quota;  // by job: why its gang is; empty: it is not
};

inline constexpr int kWaitingMost = 64;

// Returns whether the job can use the worker.
using MayHave = std::function<bool(size_t job, const NodeId& worker)>;

// The room that jobs have for more workers.
class Rooms {
 public:
  virtual ~Rooms() = default;
  // Returns whether the job has room for this worker, which fills it.
  virtual bool Take(size_t job, const NodeId& worker) = 0;
  // Restore undoes what the job has taken since Save, of the same job.
  virtual void Save(size_t job) = 0;
  virtual void Restore(size_t job) = 0;
};

// `jobs`: in the order of submission.
Division Divide(const std::vector<SharingJob>& jobs, const std::vector<DeviceQuota>& quotas,
                const std::vector<SharingUnit>& units, const MayHave& may_have, Rooms& rooms);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARING_DIVIDE_H_
