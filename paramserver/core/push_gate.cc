#include "paramserver/core/push_gate.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/protocol/limits.h"

namespace atl::ps {
namespace {

Verdict Refuse(std::string reason) { return {Verdict::kRefuse, std::move(reason)}; }

// Returns whether its elements are some of a shard of so many, in whole blocks of the encoding with
// the smallest (JobState knows the push's own).
bool IsPart(const PushId& id, int64_t shard_elements) {
  if (id.begin < 0 || id.elements <= 0 || id.elements > shard_elements ||
      id.begin > shard_elements - id.elements || id.begin % kQuantBlock != 0) {
    return false;
  }
  return id.elements % kQuantBlock == 0 || id.begin + id.elements == shard_elements;
}

// Returns whether the log can hold it: the limits are those of proto/control.proto.
bool IsStorable(const PushId& id) {
  return id.island >= 0 && id.island <= kMaxIsland && id.generation >= 0 &&
         id.generation <= kMaxGeneration && id.incarnation >= 0 && id.base_version >= kNoVersion &&
         id.base_version <= kMaxVersion;
}

std::string DescribeIncarnation(Generation generation, Incarnation incarnation) {
  return absl::StrCat("generation ", generation, ", incarnation ", incarnation);
}

}  // namespace

PushLedger::PushLedger(JobId job, std::span<const OwnedShard> shards) : job_(std::move(job)) {
  SetShards(shards);
}

Verdict PushLedger::Judge(const PushId& id, int64_t elements) const {
  const std::lock_guard lock(mutex_);
  if (IsFill(id.base_version)) return JudgeFillLocked(id, elements);
  if (const auto staged = staged_.find(id); staged != staged_.end()) {
    return {staged->second ? Verdict::kDuplicate : Verdict::kPending, ""};
  }
  if (IsDecidedLocked(ToContributionId(id))) return {Verdict::kDuplicate, ""};
  if (!closed_.empty()) return Refuse(closed_);
  if (!IsStorable(id)) {
    return Refuse("island, generation, incarnation or base version of the push is out of range");
  }
  const auto shard = elements_.find(id.shard);
  if (shard == elements_.end()) {
    return Refuse(absl::StrCat("shard ", id.shard, " of job ", job_, " is not on this server"));
  }
  const int64_t size = shard->second;
  if (elements != (id.elements == 0 ? size : id.elements)) {
    return Refuse(absl::StrCat("shard ", id.shard, " of job ", job_, " has ", size,
                               " elements, the push ", elements));
  }
  if (id.elements == 0 ? id.begin != 0 : !IsPart(id, size)) {
    return Refuse(absl::StrCat("elements ", id.begin, " to ", id.begin + id.elements,
                               " are not whole blocks of shard ", id.shard, " of job ", job_,
                               ", which has ", size));
  }
  if (const auto fence = fences_.find(id.island); fence != fences_.end()) {
    const IslandFence& now = fence->second;
    if (std::pair(id.generation, id.incarnation) < std::pair(now.generation, now.incarnation)) {
      return Refuse(absl::StrCat("island ", id.island, " of job ", job_, " is at ",
                                 DescribeIncarnation(now.generation, now.incarnation),
                                 " now; the push is of ",
                                 DescribeIncarnation(id.generation, id.incarnation)));
    }
  }
  if (IsStagedLocked(id, size)) return {Verdict::kDuplicate, ""};
  return {};
}

Verdict PushLedger::JudgeFillLocked(const PushId& id, int64_t elements) const {
  const auto shard = fills_.find(id.shard);
  if (shard == fills_.end() || id.base_version != FillBase(fill_base_)) {
    return Refuse(absl::StrCat("shard ", id.shard, " of job ", job_, " is not to be filled here"));
  }
  const bool fits = id.elements == 0 ? elements == shard->second && id.begin == 0
                                     : elements == id.elements && IsPart(id, shard->second);
  if (fits) return {};
  return Refuse(absl::StrCat("shard ", id.shard, " of job ", job_, " has ", shard->second,
                             " elements, the push ", elements));
}

bool PushLedger::IsStagedLocked(const PushId& id, int64_t shard_elements) const {
  PushId first = id;
  first.begin = first.elements = 0;
  ElementRanges staged;
  for (auto push = staged_.lower_bound(first); push != staged_.end(); ++push) {
    const PushId& other = push->first;
    if (ToContributionId(other) != ToContributionId(id) || other.shard != id.shard) break;
    if (push->second) staged.Add(other.RangeIn(shard_elements));
  }
  return staged.Covers(id.RangeIn(shard_elements));
}

void PushLedger::SetShards(std::span<const OwnedShard> shards) {
  const std::lock_guard lock(mutex_);
  elements_.clear();
  for (const OwnedShard& shard : shards) elements_[shard.shard] = shard.elements;
  std::erase_if(staged_, [&](const auto& push) { return !elements_.contains(push.first.shard); });
}

void PushLedger::ExpectFills(Version base, std::map<ShardId, int64_t> elements) {
  const std::lock_guard lock(mutex_);
  fill_base_ = base;
  fills_ = std::move(elements);
}

void PushLedger::Fence(std::span<const IslandFence> fences) {
  const std::lock_guard lock(mutex_);
  for (const IslandFence& fence : fences) {
    const auto [entry, added] = fences_.try_emplace(fence.island, fence);
    IslandFence& now = entry->second;
    if (std::pair(now.generation, now.incarnation) <
        std::pair(fence.generation, fence.incarnation)) {
      now = fence;
    }
  }
}

void PushLedger::Close(std::string reason) {
  const std::lock_guard lock(mutex_);
  closed_ = std::move(reason);
}

void PushLedger::AddPending(const PushId& id) {
  const std::lock_guard lock(mutex_);
  const bool added = staged_.emplace(id, false).second;
  ATOLL_CHECK(added);
}

void PushLedger::MarkDurable(const PushId& id) {
  const std::lock_guard lock(mutex_);
  if (const auto staged = staged_.find(id); staged != staged_.end()) staged->second = true;
}

void PushLedger::Decide(const ContributionId& contribution) {
  const std::lock_guard lock(mutex_);
  const PushId first{job_,
                     contribution.island,
                     contribution.generation,
                     contribution.incarnation,
                     contribution.base_version,
                     std::numeric_limits<ShardId>::min()};
  auto staged = staged_.lower_bound(first);
  while (staged != staged_.end() && ToContributionId(staged->first) == contribution) {
    staged = staged_.erase(staged);
  }
  if (IsDecidedLocked(contribution)) return;
  IslandDecisions& of_island = decided_[contribution.island];
  of_island.newest.push_back(contribution);
  if (of_island.newest.size() <= kDecidedKept) return;
  const ContributionId oldest = of_island.newest.front();
  of_island.newest.erase(of_island.newest.begin());
  of_island.forgotten = of_island.any_forgotten ? std::max(of_island.forgotten, oldest) : oldest;
  of_island.any_forgotten = true;
}

bool PushLedger::IsDecided(const ContributionId& contribution) const {
  const std::lock_guard lock(mutex_);
  return IsDecidedLocked(contribution);
}

bool PushLedger::IsDecidedLocked(const ContributionId& contribution) const {
  const auto found = decided_.find(contribution.island);
  if (found == decided_.end()) return false;
  const IslandDecisions& of_island = found->second;
  return (of_island.any_forgotten && contribution <= of_island.forgotten) ||
         std::find(of_island.newest.begin(), of_island.newest.end(), contribution) !=
             of_island.newest.end();
}

std::vector<IslandFence> PushLedger::Fences() const {
  const std::lock_guard lock(mutex_);
  std::vector<IslandFence> fences;
  for (const auto& [island, fence] : fences_) fences.push_back(fence);
  return fences;
}

std::vector<IslandDecisions> PushLedger::Decided() const {
  const std::lock_guard lock(mutex_);
  std::vector<IslandDecisions> decided;
  for (const auto& [island, of_island] : decided_) decided.push_back(of_island);
  return decided;
}

void PushLedger::Restore(std::span<const IslandFence> fences,
                         std::span<const IslandDecisions> decided) {
  Fence(fences);
  const std::lock_guard lock(mutex_);
  for (const IslandDecisions& of_island : decided) {
    const IslandId island =
        of_island.newest.empty() ? of_island.forgotten.island : of_island.newest.front().island;
    decided_[island] = of_island;
  }
}

std::string NotAssigned(const JobId& job) {
  return absl::StrCat("job ", job, " is not assigned to this server");
}

absl::Status PushGate::Admit(const PushId& id, Encoding encoding, int64_t elements) const {
  const std::lock_guard lock(mutex_);
  const auto ledger = ledgers_.find(id.job);
  if (ledger == ledgers_.end()) {
    return absl::NotFoundError(NotAssigned(id.job));
  }
  const Verdict verdict = ledger->second->Judge(id, elements);
  switch (verdict.kind) {
    case Verdict::kTake:
      return RoomLocked(EncodedBytes(encoding, elements));
    case Verdict::kPending:
      return absl::OkStatus();
    case Verdict::kDuplicate:
      return absl::AlreadyExistsError("staged or decided before");
    case Verdict::kRefuse:
      break;
  }
  return absl::FailedPreconditionError(verdict.reason);
}

absl::Status PushGate::CheckRoom(int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return RoomLocked(bytes);
}

absl::Status PushGate::RoomLocked(int64_t bytes) const {
  if (bytes <= staged_bytes_max_ - staged_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for ", bytes, " more staged bytes: ", staged_bytes_, " of ",
                   staged_bytes_max_, " are in use; raise --memory-bytes"));
}

void PushGate::SetLedger(const JobId& job, std::shared_ptr<const PushLedger> ledger) {
  const std::lock_guard lock(mutex_);
  ledgers_[job] = std::move(ledger);
}

void PushGate::RemoveLedger(const JobId& job) {
  const std::lock_guard lock(mutex_);
  ledgers_.erase(job);
}

void PushGate::SetRoom(int64_t staged_bytes, int64_t staged_bytes_max) {
  const std::lock_guard lock(mutex_);
  staged_bytes_ = staged_bytes;
  staged_bytes_max_ = staged_bytes_max;
}

}  // namespace atl::ps
