// Shards of a job that come to this server and go.

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/protocol/outer_optimizer.h"
#include "paramserver/core/job_state.h"

namespace atl::ps {
namespace {

constexpr int64_t kElementBytes = sizeof(float);

void Copy(const SharedBytes& payload, int64_t begin, SharedTensor& tensor, ElementRanges& has) {
  const auto bytes = payload.bytes;
  std::memcpy(tensor.writable().data() + begin, bytes.data(), bytes.size());
  has.Add({begin, begin + static_cast<int64_t>(bytes.size()) / kElementBytes});
}

}  // namespace

int64_t JobState::CountBytes(const OwnedShard& shard) const {
  return static_cast<int64_t>(1 + slots_) * kElementBytes * shard.elements;
}

absl::Status JobState::CheckRecord(const JoinedRecord& record) const {
  if (record.slots < 0 || record.slots > kMaxOuterSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", job_, ": no outer optimizer has ", record.slots, " slots"));
  }
  if (ended_ || !shards_.empty() || record.newest.version < 0 || record.newest.version < version_) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job_, " cannot begin at version ",
                                                      record.newest.version, " here: it is at ",
                                                      version_));
  }
  return absl::OkStatus();
}

absl::Status JobState::CheckRecord(const ReceivedRecord& record) const {
  if (record.part == ReceivedPart::kAdopted) return CheckAdopted(record);
  const OwnedShard& shard = record.shard;
  if (ended_ || version_ == kNoVersion || record.version != version_ || HasShard(shard.shard)) {
    return absl::FailedPreconditionError(absl::StrCat("shard ", shard.shard, " of job ", job_,
                                                      " is not to be received at version ",
                                                      record.version));
  }
  const bool is_slot = record.part == ReceivedPart::kSlot;
  const auto incoming = incoming_.find(shard.shard);
  if (shard.shard < 0 || (is_slot && static_cast<size_t>(record.slot) >= slots_) ||
      (incoming != incoming_.end() && incoming->second.info != shard)) {
    return absl::InvalidArgumentError(absl::StrCat("slot ", record.slot, " of shard ", shard.shard,
                                                   " of job ", job_, " is not received here"));
  }
  return CheckPart(record);
}

absl::Status JobState::CheckPart(const ReceivedRecord& record) const {
  const auto bytes = static_cast<int64_t>(record.payload.bytes.size());
  const int64_t elements = bytes / kElementBytes, size = record.shard.elements;
  if (bytes % kElementBytes == 0 && elements > 0 && record.begin >= 0 && elements <= size &&
      record.begin <= size - elements) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(elements, " elements from ", record.begin,
                                                 " on are no part of shard ", record.shard.shard,
                                                 " of job ", job_));
}

void JobState::ApplyRecord(LogSequence, const JoinedRecord& record) {
  if (record.newest.version != version_) DropAllIncoming();
  slots_ = static_cast<size_t>(record.slots);
  version_ = record.newest.version;
  newest_ = record.newest;
  placement_ = std::max(placement_, record.placement);
  for (const ContributionId& contribution : record.decided) Decide(contribution);
}

void JobState::ApplyRecord(LogSequence sequence, const ReceivedRecord& record) {
  if (record.part == ReceivedPart::kAdopted) return ReceiveBase(sequence, record);
  const ShardId id = record.shard.shard;
  const bool fill = record.part == ReceivedPart::kFill;
  // A filled one has no momentum; what comes from its holder begins anew, and so does what is
  // requested again after shards have changed their holders.
  if (const auto found = incoming_.find(id);
      found != incoming_.end() &&
      ((found->second.fill && !fill) || found->second.placement != record.placement)) {
    DropIncoming(id);
  }
  const auto [entry, added] = incoming_.try_emplace(id);
  Incoming& incoming = entry->second;
  if (added) {
    incoming.info = record.shard;
    incoming.placement = record.placement;
    incoming.first = sequence;
    incoming.theta = std::make_shared<SharedTensor>(record.shard.elements);
    for (size_t i = 0; i < slots_; ++i) {
      incoming.slots.push_back(std::make_shared<SharedTensor>(record.shard.elements));
    }
    incoming.has_slots.resize(slots_);
    incoming_bytes_ += CountBytes(record.shard);
  }
  incoming.last = sequence;
  if (fill && !incoming.fill) {
    incoming.fill = true;
    for (size_t i = 0; i < incoming.slots.size(); ++i) {
      const std::span<float> slot = incoming.slots[i]->writable();
      std::fill(slot.begin(), slot.end(), 0.0f);
      incoming.has_slots[i].Add({0, record.shard.elements});
    }
  }
  if (record.part == ReceivedPart::kParameters || fill) {
    return Copy(record.payload, record.begin, *incoming.theta, incoming.has_theta);
  }
  const auto slot = static_cast<size_t>(record.slot);
  Copy(record.payload, record.begin, *incoming.slots[slot], incoming.has_slots[slot]);
}

void JobState::ChangeShards(const std::vector<OwnedShard>& shards) {
  DropBase();  // it is fetched again for those that are held then
  std::map<ShardId, Shard> before = std::move(shards_);
  shards_.clear();
  for (const OwnedShard& info : shards) {
    Shard& shard = shards_[info.shard];
    if (const auto held = before.find(info.shard);
        held != before.end() && held->second.info == info) {
      shard = std::move(held->second);
    } else if (const auto incoming = incoming_.find(info.shard); incoming != incoming_.end()) {
      shard.theta = std::move(incoming->second.theta);
      shard.slots = std::move(incoming->second.slots);
      // The islands' parameters are all that is left of it.
      if (incoming->second.fill && serves_apart()) {
        const std::span<const float> theta = shard.theta->values();
        std::copy(theta.begin(), theta.end(), shard.slots.back()->writable().begin());
      }
      if (incoming->second.fill) StepAverage(shard, /*keep=*/0);
      DropIncoming(info.shard);
    }
    shard.info = info;
  }
  std::erase_if(staged_, [&](const auto& entry) {
    if (HasShard(entry.first.second)) return false;
    staged_bytes_ -= static_cast<int64_t>(entry.second.payload.bytes.size());
    return true;
  });
}

void JobState::DropIncoming(ShardId shard) {
  const auto found = incoming_.find(shard);
  if (found == incoming_.end()) return;
  incoming_bytes_ -= CountBytes(found->second.info);
  incoming_.erase(found);
}

void JobState::DropAllIncoming() {
  incoming_.clear();
  incoming_bytes_ = 0;
}

std::vector<ElementRange> JobState::ListMissingRanges(const OwnedShard& shard, int64_t placement,
                                                      ReceivedPart part, int32_t slot) const {
  const ElementRange all{0, shard.elements};
  const auto found = incoming_.find(shard.shard);
  if (found == incoming_.end() || found->second.placement != placement ||
      (found->second.fill && part != ReceivedPart::kFill)) {
    return {all};
  }
  if (part == ReceivedPart::kParameters || part == ReceivedPart::kFill) {
    return found->second.has_theta.Missing(all);
  }
  return found->second.has_slots[static_cast<size_t>(slot)].Missing(all);
}

std::vector<ShardId> JobState::ShardsHere(bool filled) const {
  std::vector<ShardId> here;
  for (const auto& [id, shard] : shards_) {
    if (!filled) here.push_back(id);
  }
  for (const auto& [id, incoming] : incoming_) {
    if (incoming.fill == filled && incoming.whole()) here.push_back(id);
  }
  return here;
}

std::optional<LogSequence> JobState::ReceivedWhole(ShardId shard, int64_t placement,
                                                   bool fill) const {
  const auto found = incoming_.find(shard);
  if (found == incoming_.end() || found->second.placement != placement ||
      found->second.fill != fill || !found->second.whole()) {
    return std::nullopt;
  }
  return found->second.last;
}

}  // namespace atl::ps
