#include "paramserver/core/push_gate.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
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

Verdict PushLedger::Judge(const PushId& id, int64_t elements) const {
  if (IsFill(id.base_version)) return JudgeFill(id, elements);
  if (const auto staged = staged_.find(id); staged != staged_.end()) {
    return {staged->second ? Verdict::kDuplicate : Verdict::kPending, ""};
  }
  if (IsDecided(ToContributionId(id))) return {Verdict::kDuplicate, ""};
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
  if (IsStaged(id, size)) return {Verdict::kDuplicate, ""};
  return {};
}

Verdict PushLedger::JudgeFill(const PushId& id, int64_t elements) const {
  const auto shard = fills_.elements.find(id.shard);
  if (shard == fills_.elements.end() || id.base_version != FillBase(fills_.base)) {
    return Refuse(absl::StrCat("shard ", id.shard, " of job ", job_, " is not to be filled here"));
  }
  const bool fits = id.elements == 0 ? elements == shard->second && id.begin == 0
                                     : elements == id.elements && IsPart(id, shard->second);
  if (fits) return {};
  return Refuse(absl::StrCat("shard ", id.shard, " of job ", job_, " has ", shard->second,
                             " elements, the push ", elements));
}

bool PushLedger::IsStaged(const PushId& id, int64_t shard_elements) const {
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

void PushLedger::Apply(const LedgerChange& change) {
  std::visit([this](const auto& what) { On(what); }, change);
}

void PushLedger::On(const HeldShards& change) {
  elements_.clear();
  for (const OwnedShard& shard : change.shards) elements_[shard.shard] = shard.elements;
  std::erase_if(staged_, [&](const auto& push) { return !elements_.contains(push.first.shard); });
}

void PushLedger::On(const FencedRecord& change) {
  for (const IslandFence& fence : change.islands) {
    const auto [entry, added] = fences_.try_emplace(fence.island, fence);
    IslandFence& now = entry->second;
    if (std::pair(now.generation, now.incarnation) <
        std::pair(fence.generation, fence.incarnation)) {
      now = fence;
    }
  }
}

// One that is durable may have been decided meanwhile.
void PushLedger::On(const NotedPush& change) {
  if (!change.durable) ATOLL_CHECK(staged_.emplace(change.id, false).second);
  if (const auto staged = staged_.find(change.id); staged != staged_.end()) {
    staged->second = change.durable;
  }
}

void PushLedger::On(const ContributionId& contribution) {
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
  if (IsDecided(contribution)) return;
  IslandDecisions& of_island = decided_[contribution.island];
  of_island.newest.push_back(contribution);
  if (of_island.newest.size() <= kDecidedKept) return;
  const ContributionId oldest = of_island.newest.front();
  of_island.newest.erase(of_island.newest.begin());
  of_island.forgotten = of_island.any_forgotten ? std::max(of_island.forgotten, oldest) : oldest;
  of_island.any_forgotten = true;
}

bool PushLedger::IsDecided(const ContributionId& contribution) const {
  const auto found = decided_.find(contribution.island);
  if (found == decided_.end()) return false;
  const IslandDecisions& of_island = found->second;
  return (of_island.any_forgotten && contribution <= of_island.forgotten) ||
         std::find(of_island.newest.begin(), of_island.newest.end(), contribution) !=
             of_island.newest.end();
}

std::vector<IslandFence> PushLedger::Fences() const {
  std::vector<IslandFence> fences;
  for (const auto& [island, fence] : fences_) fences.push_back(fence);
  return fences;
}

std::vector<IslandDecisions> PushLedger::Decided() const {
  std::vector<IslandDecisions> decided;
  for (const auto& [island, of_island] : decided_) decided.push_back(of_island);
  return decided;
}

void PushLedger::Restore(const std::vector<IslandFence>& fences,
                         const std::vector<IslandDecisions>& decided) {
  On(FencedRecord{fences});
  for (const IslandDecisions& of_island : decided) {
    const IslandId island =
        of_island.newest.empty() ? of_island.forgotten.island : of_island.newest.front().island;
    decided_[island] = of_island;
  }
}

std::string NotAssigned(const JobId& job) {
  return absl::StrCat("job ", job, " is not assigned to this server");
}

absl::Status StagingRoom::Check(int64_t more) const {
  if (more <= bytes_max - bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("no room for ", more,
                                                   " more staged bytes: ", bytes, " of ", bytes_max,
                                                   " are in use; raise --memory-bytes"));
}

void PushGate::Apply(std::vector<GateChange> changes, const StagingRoom& room) {
  room_ = room;
  for (GateChange& change : changes) {
    if (auto* ledger = std::get_if<PushLedger>(&change.what)) {
      ledgers_.insert_or_assign(change.job, std::move(*ledger));
    } else if (const auto* what = std::get_if<LedgerChange>(&change.what)) {
      ledgers_.at(change.job).Apply(*what);
    } else {
      ledgers_.erase(change.job);
    }
  }
}

absl::Status PushGate::Admit(const PushId& id, Encoding encoding, int64_t elements) const {
  const auto ledger = ledgers_.find(id.job);
  if (ledger == ledgers_.end()) return absl::NotFoundError(NotAssigned(id.job));
  const Verdict verdict = ledger->second.Judge(id, elements);
  switch (verdict.kind) {
    case Verdict::kTake:
      return room_.Check(EncodedBytes(encoding, elements));
    case Verdict::kPending:
      return absl::OkStatus();
    case Verdict::kDuplicate:
      return absl::AlreadyExistsError("staged or decided before");
    case Verdict::kRefuse:
      break;
  }
  return absl::FailedPreconditionError(verdict.reason);
}

}  // namespace atl::ps
