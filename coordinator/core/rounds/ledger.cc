#include "coordinator/core/rounds/ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace atl {

bool Ledger::SameHolder(const Interval& a, const Interval& b) {
  return a.use == b.use && a.island == b.island && a.contribution == b.contribution;
}

void Ledger::SplitAt(int64_t position) {
  auto it = intervals_.upper_bound(position);
  if (it == intervals_.begin()) return;
  --it;
  if (it->first == position || it->second.end <= position) return;
  Interval right = it->second;
  it->second.end = position;
  changed_.insert(it->first);
  changed_.insert(position);
  intervals_.emplace(position, right);
}

void Ledger::Free(const PositionRange& range) {
  SplitAt(range.begin);
  SplitAt(range.end);
  for (auto it = intervals_.lower_bound(range.begin);
       it != intervals_.end() && it->first < range.end;) {
    changed_.insert(it->first);
    used_ -= it->second.end - it->first;
    it = intervals_.erase(it);
  }
}

void Ledger::Put(const PositionRange& range, Interval holder) {
  holder.end = range.end;
  auto [it, inserted] = intervals_.emplace(range.begin, holder);
  ATOLL_CHECK(inserted && range.begin < range.end);
  changed_.insert(range.begin);
  used_ += range.size();
  if (auto next = std::next(it); next != intervals_.end()) {
    ATOLL_CHECK(next->first >= range.end);
    if (next->first == range.end && SameHolder(next->second, holder)) {
      it->second.end = next->second.end;
      changed_.insert(next->first);
      intervals_.erase(next);
    }
  }
  if (it == intervals_.begin()) return;
  auto previous = std::prev(it);
  ATOLL_CHECK(previous->second.end <= range.begin);
  if (previous->second.end == range.begin && SameHolder(previous->second, holder)) {
    previous->second.end = it->second.end;
    changed_.insert(previous->first);
    intervals_.erase(it);
  }
}

int64_t Ledger::LeastBudget() const {
  int64_t least = used_;
  for (const auto& [begin, interval] : intervals_) {
    least = std::max(least, interval.end - begin / kAxisPositions * kAxisPositions);
  }
  return least;
}

void Ledger::SetBudget(int64_t budget) {
  ATOLL_CHECK(budget >= LeastBudget());
  budget_ = budget;
}

bool Ledger::IsRange(const PositionRange& range) const {
  if (range.begin < 0 || range.begin >= range.end) return false;
  const int64_t first = range.begin / kAxisPositions * kAxisPositions;
  return range.end - first <= budget_;
}

bool Ledger::IsFree(const PositionRange& range) const {
  if (!IsRange(range) || range.size() > free()) return false;
  auto it = intervals_.lower_bound(range.begin);
  if (it != intervals_.end() && it->first < range.end) return false;
  return it == intervals_.begin() || std::prev(it)->second.end <= range.begin;
}

bool Ledger::IsLeasedTo(IslandId island, const PositionRange& range) const {
  if (range.begin < 0 || range.begin >= range.end) return false;
  auto it = intervals_.upper_bound(range.begin);
  if (it == intervals_.begin()) return false;
  --it;  // leased neighbours are merged, so one interval has to hold all of it
  return it->second.use == LedgerUse::kLeased && it->second.island == island &&
         it->second.end >= range.end;
}

std::vector<PositionRange> Ledger::Lease(IslandId island, int64_t wanted, size_t max_ranges,
                                         int64_t axis) {
  std::vector<PositionRange> ranges;
  wanted = std::min(wanted, free());
  int64_t position = axis * kAxisPositions;
  const int64_t end = position + budget_;
  for (auto it = intervals_.lower_bound(position); wanted > 0 && ranges.size() < max_ranges; ++it) {
    const bool last = it == intervals_.end() || it->first >= end;
    const int64_t gap_end = last ? end : it->first;
    if (gap_end > position) {
      ranges.push_back({position, std::min(gap_end, position + wanted)});
      wanted -= ranges.back().size();
    }
    if (last) break;
    position = it->second.end;
  }
  for (const PositionRange& range : ranges) Put(range, {0, LedgerUse::kLeased, island, {}});
  return ranges;
}

bool Ledger::LeaseExactly(IslandId island, const std::vector<PositionRange>& ranges) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    bool fits = IsFree(ranges[i]);
    if (fits) {
      Put(ranges[i], {0, LedgerUse::kLeased, island, {}});
      continue;
    }
    for (size_t j = 0; j < i; ++j) Free(ranges[j]);
    return false;
  }
  return true;
}

absl::Status Ledger::Push(const ContributionId& contribution,
                          const std::vector<PositionRange>& ranges) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!IsLeasedTo(contribution.island, ranges[i])) {
      for (size_t j = 0; j < i; ++j) {
        Free(ranges[j]);
        Put(ranges[j], {0, LedgerUse::kLeased, contribution.island, {}});
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "positions ", ranges[i].begin, " to ", ranges[i].end, " are not leased to this island"));
    }
    Free(ranges[i]);
    Put(ranges[i], {0, LedgerUse::kPushed, contribution.island, contribution});
  }
  return absl::OkStatus();
}

std::vector<PositionRange> Ledger::PushedBy(const ContributionId& contribution) const {
  std::vector<PositionRange> ranges;
  for (const auto& [begin, interval] : intervals_) {
    if (interval.use == LedgerUse::kPushed && interval.contribution == contribution) {
      ranges.push_back({begin, interval.end});
    }
  }
  return ranges;
}

void Ledger::Commit(const ContributionId& contribution) {
  for (const PositionRange& range : PushedBy(contribution)) {
    Free(range);
    Put(range, {0, LedgerUse::kCommitted, -1, {}});
  }
}

void Ledger::Return(const ContributionId& contribution) {
  for (const PositionRange& range : PushedBy(contribution)) Free(range);
}

void Ledger::Reassign(const ContributionId& contribution, IslandId island) {
  for (const PositionRange& range : PushedBy(contribution)) {
    Free(range);
    Put(range, {0, LedgerUse::kLeased, island, {}});
  }
}

std::vector<PositionRange> Ledger::LeasedRanges(IslandId island) const {
  std::vector<PositionRange> ranges;
  for (const auto& [begin, interval] : intervals_) {
    if (interval.use == LedgerUse::kLeased && interval.island == island) {
      ranges.push_back({begin, interval.end});
    }
  }
  return ranges;
}

void Ledger::Release(IslandId island) {
  for (const PositionRange& range : LeasedRanges(island)) Free(range);
}

bool Ledger::CommitOnly(const std::vector<PositionRange>& ranges, int64_t budget) {
  Ledger fresh(budget);
  for (const PositionRange& range : ranges) {
    if (!fresh.IsFree(range)) return false;
    fresh.Put(range, {0, LedgerUse::kCommitted, -1, {}});
  }
  for (const auto& [begin, interval] : intervals_) fresh.changed_.insert(begin);
  fresh.changed_.merge(changed_);
  *this = std::move(fresh);
  return true;
}

std::vector<PositionRange> Ledger::Committed() const {
  std::vector<PositionRange> ranges;
  for (const auto& [begin, interval] : intervals_) {
    if (interval.use == LedgerUse::kCommitted) ranges.push_back({begin, interval.end});
  }
  return ranges;
}

int64_t Ledger::Count(LedgerUse use) const {
  int64_t count = 0;
  for (const auto& [begin, interval] : intervals_) {
    if (interval.use == use) count += interval.end - begin;
  }
  return count;
}

int64_t Ledger::Leased(IslandId island) const {
  int64_t count = 0;
  for (const auto& [begin, interval] : intervals_) {
    if (interval.use == LedgerUse::kLeased && interval.island == island) {
      count += interval.end - begin;
    }
  }
  return count;
}

LedgerRecord Ledger::MakeLedgerRecord(const JobId& job, int64_t begin,
                                      const Interval& interval) const {
  return {job, {begin, interval.end}, interval.use, interval.island, interval.contribution};
}

std::vector<LedgerRecord> Ledger::Records(const JobId& job) const {
  std::vector<LedgerRecord> records;
  for (const auto& [begin, interval] : intervals_) {
    records.push_back(MakeLedgerRecord(job, begin, interval));
  }
  return records;
}

bool Ledger::Restore(const LedgerRecord& record) {
  if (!IsFree(record.range)) return false;
  Interval interval{record.range.end, record.use, record.island, record.contribution};
  intervals_.emplace(record.range.begin, interval);
  used_ += record.range.size();
  return true;
}

std::vector<StoreWrite> Ledger::TakeChanges(const JobId& job) {
  std::vector<StoreWrite> writes;
  for (int64_t begin : changed_) {
    auto it = intervals_.find(begin);
    const bool deleted = it == intervals_.end();
    LedgerRecord record{job, {begin, begin}};
    if (!deleted) record = MakeLedgerRecord(job, begin, it->second);
    writes.push_back({record, deleted});
  }
  changed_.clear();
  return writes;
}

}  // namespace atl
