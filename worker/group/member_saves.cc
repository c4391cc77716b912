// GroupMember: saved states of the island.

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "worker/group/member.h"

namespace atl::worker {
namespace {

// While the newer save is made the older one is kept.
int64_t BytesOf(const SaveOrder& order) {
  int64_t elements = 0;
  for (const Unit& unit : order.own) elements += unit.elements.size();
  for (const SaveOrder::Fetch& fetch : order.fetch) elements += fetch.unit.elements.size();
  return 2 * std::popcount(static_cast<uint32_t>(kAllParts)) * elements *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace

absl::Status GroupMember::Save(KeeperTask task, int64_t optimizer_step, int64_t keep,
                               Keeper::Done done) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  keeper_->Cancel();
  for (const HeldSave& held : units_.Held()) {
    if (held.save != keep) units_.Drop(held.save);
  }
  if (const int64_t bytes = BytesOf(task.order);
      options_.saves_bytes_max > 0 && bytes > options_.saves_bytes_max) {
    done(task.save, 0,
         absl::StrCat("saved states would take ", BytesText(bytes), " of ", name(),
                      "'s memory, and may take ", BytesText(options_.saves_bytes_max),
                      "; set checkpoint.peer_copies = 0, or use workers with more memory"));
    return absl::OkStatus();
  }
  units_.Begin(task.save, optimizer_step);
  for (const Unit& unit : task.order.own) {
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job_->LayoutOf(unit.shard));
    if (unit.elements.end > layout.size) {
      return absl::InvalidArgumentError(absl::StrCat("elements up to ", unit.elements.end, " of ",
                                                     ToString(unit.shard), ", which has ",
                                                     layout.size));
    }
    const auto parts = std::make_shared<OwnedParts>(unit.elements.size(), kAllParts);
    ATOLL_RETURN_IF_ERROR(GetShard(name(), unit.shard, unit.elements, parts->parts()));
    ATOLL_RETURN_IF_ERROR(units_.Put(task.save, {unit, layout.size, parts}));
  }
  for (SaveOrder::Fetch& fetch : task.order.fetch) {
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job_->LayoutOf(fetch.unit.shard));
    fetch.elements = layout.size;
    if (fetch.unit.elements.end > layout.size) return absl::InvalidArgumentError("no such unit");
  }
  Log([&](ReplayLog& log) { log.Saved(task.save); });
  keeper_->Prepare(std::move(task), std::move(done));
  return absl::OkStatus();
}

void GroupMember::ForgetSaves(int64_t save, int32_t tiers) {
  if ((tiers & (1 << static_cast<int>(Tier::kMemory))) != 0) units_.DropBefore(save);
}

void GroupMember::StopSaving() {
  keeper_->Cancel();
  calls_.Fail(absl::AbortedError("nothing is saved any more"));
  inbox_.Fail(absl::AbortedError("nothing is saved any more"));
  keeper_->Stop();
}

void GroupMember::DropSaves() {
  keeper_->Cancel();
  units_.Clear();
  Log([](ReplayLog& log) { log.Clear(); });
}

std::optional<ReplayLog::Changes> GroupMember::ChangesSince(int64_t save) const {
  const std::lock_guard lock(log_mutex_);
  return log_.Since(save);
}

void GroupMember::Log(const std::function<void(ReplayLog&)>& change) {
  const std::lock_guard lock(log_mutex_);
  change(log_);
}

absl::Status GroupMember::GetSaved(const NodeId& from, int64_t save, const LayerShard& shard,
                                   Range elements, const ShardParts& out) {
  if (from != name()) {
    v1::LayerCall of;
    of.set_of_save(save);
    return Borrow(from, shard, elements, std::move(of), out);
  }
  ATOLL_ASSIGN_OR_RETURN(const StoredUnit stored, units_.Find(save, shard, elements));
  const Range within{elements.begin - stored.unit.elements.begin,
                     elements.end - stored.unit.elements.begin};
  const PartMap from_parts = PartsOf(SliceOf(stored.parts->parts(), kAllParts, within));
  for (const auto& [part, to] : PartsOf(out)) {
    const std::span<float> values = from_parts.at(part);
    std::copy(values.begin(), values.end(), to.begin());
  }
  return absl::OkStatus();
}

// False: it is not here.
absl::StatusOr<bool> GroupMember::LendSaved(const Loan& loan) {
  const LayerShard shard = FromWire(loan.what.shard());
  const Range elements{loan.what.begin(), loan.what.end()};
  // Whether it is here is asked before memory is taken.
  if (!units_.Find(loan.what.of_save(), shard, elements).ok()) return false;
  const auto parts = std::make_shared<const OwnedParts>(elements.size(), loan.what.parts());
  ATOLL_RETURN_IF_ERROR(GetSaved(name(), loan.what.of_save(), shard, elements, parts->parts()));
  ATOLL_RETURN_IF_ERROR(SendParts(loan.to, loan.call, /*of_reply=*/true, parts));
  return true;
}

absl::StatusOr<StoredUnit> GroupMember::FetchUnit(int64_t save, const SaveOrder::Fetch& wanted) {
  const Unit& unit = wanted.unit;
  const auto parts = std::make_shared<OwnedParts>(unit.elements.size(), kAllParts);
  ATOLL_RETURN_IF_ERROR(GetSaved(wanted.from, save, unit.shard, unit.elements, parts->parts()));
  return StoredUnit{unit, wanted.elements, parts};
}

}  // namespace atl::worker
