// Which island trains on which data: positions of a job's data, as many as its budget, each leased
// to an island, pushed in a contribution under way, or committed; the others are free. A set of
// intervals; promise N5.
//
// Positions lie on one axis, or on one for each site that has data of its own (PositionRange). The
// budget is of all axes together: which share of it a site's data gets follows from how fast its
// islands train.
//
// Pure. Remembers which intervals changed, so that storing it stays small.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_LEDGER_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_LEDGER_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "coordinator/core/records.h"

namespace atl {

inline constexpr size_t kLeaseRangesMax = 1024;

class Ledger {
 public:
  explicit Ledger(int64_t budget = 0) : budget_(budget) {}

  // The lowest free positions of an axis, at most `wanted` of them and no more than the budget
  // leaves, in as few ranges as they make, at most `max_ranges`.
  std::vector<PositionRange> Lease(IslandId island, int64_t wanted,
                                   size_t max_ranges = kLeaseRangesMax, int64_t axis = 0);
  // Leases exactly these; false (and nothing changes) unless all are free and disjoint.
  bool LeaseExactly(IslandId island, const std::vector<PositionRange>& ranges);

  // Leased ranges of the island become the contribution's. An error names the range that is not
  // leased to it, and nothing changes.
  absl::Status Push(const ContributionId& contribution, const std::vector<PositionRange>& ranges);
  void Commit(const ContributionId& contribution);  // what it pushed is in the model
  void Return(const ContributionId& contribution);  // what it pushed is free again
  // Leases the positions that the contribution pushed to the island.
  void Reassign(const ContributionId& contribution, IslandId island);
  void Release(IslandId island);  // what it leases is free again

  // Commits what a job's servers say is committed, and nothing else, with this budget from now on.
  // False, and nothing changes, unless the ranges are disjoint and together within it.
  bool CommitOnly(const std::vector<PositionRange>& ranges, int64_t budget);
  std::vector<PositionRange> Committed() const;

  int64_t budget() const { return budget_; }
  // The least budget that covers all that is leased, pushed and committed.
  int64_t LeastBudget() const;
  void SetBudget(int64_t budget);  // REQUIRES: at least LeastBudget()
  int64_t Count(LedgerUse use) const;
  int64_t Leased(IslandId island) const;  // not pushed
  std::vector<PositionRange> LeasedRanges(IslandId island) const;
  int64_t free() const { return budget_ - used_; }
  // Returns whether the range lies on one axis, among its first `budget` positions.
  bool IsRange(const PositionRange& range) const;

  // Return and restore what is stored: intervals by begin. Restore returns false if one contradicts
  // another.
  std::vector<LedgerRecord> Records(const JobId& job) const;
  bool Restore(const LedgerRecord& record);
  // Writes for every interval that changed since the last call.
  std::vector<StoreWrite> TakeChanges(const JobId& job);

  template <class V>
  void VisitFields(V& v) {
    v(budget_, used_, intervals_, changed_);
  }

 private:
  struct Interval {
    int64_t end = 0;
    LedgerUse use = LedgerUse::kLeased;
    IslandId island = -1;
    ContributionId contribution;
  };
  static bool SameHolder(const Interval& a, const Interval& b);

  void SplitAt(int64_t position);
  void Free(const PositionRange& range);
  // REQUIRES: the range is free. Merges with neighbours of the same holder.
  void Put(const PositionRange& range, Interval holder);
  bool IsFree(const PositionRange& range) const;
  bool IsLeasedTo(IslandId island, const PositionRange& range) const;
  std::vector<PositionRange> PushedBy(const ContributionId& contribution) const;
  LedgerRecord MakeLedgerRecord(const JobId& job, int64_t begin, const Interval& interval) const;

  int64_t budget_;
  int64_t used_ = 0;                       // positions of all intervals
  std::map<int64_t, Interval> intervals_;  // by begin; disjoint
  std::set<int64_t> changed_;              // begins
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_LEDGER_H_
