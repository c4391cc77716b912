// Shards of a job that come to this server and go.

#include <algorithm>
#include <cstring>
#include <utility>

#include "paramserver/core/job_state.h"

namespace atl::ps {
namespace {

constexpr int64_t kElementBytes = sizeof(float);

int64_t BytesOf(const OwnedShard& shard) { return 2 * kElementBytes * shard.elements; }

void Copy(const SharedBytes& payload, int64_t begin, SharedTensor& tensor, ElementRanges& has) {
  const auto bytes = payload.bytes;
  std::memcpy(tensor.writable().data() + begin, bytes.data(), bytes.size());
  has.Add({begin, begin + static_cast<int64_t>(bytes.size()) / kElementBytes});
}

}  // namespace

absl::Status JobState::CheckRecord(const JoinedRecord& record) const {
  if (ended_ || !shards_.empty() || record.newest.version < 0 || record.newest.version < version_) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job_, " cannot begin at version ",
                                                      record.newest.version, " here: it is at ",
                                                      version_));
  }
  return absl::OkStatus();
}

absl::Status JobState::CheckRecord(const ReceivedRecord& record) const {
  const OwnedShard& shard = record.shard;
  const auto bytes = static_cast<int64_t>(record.payload.bytes.size());
  const int64_t elements = bytes / kElementBytes;
  if (ended_ || version_ == kNoVersion || record.version != version_ || HasShard(shard.shard)) {
    return absl::FailedPreconditionError(absl::StrCat("shard ", shard.shard, " of job ", job_,
                                                      " is not to be received at version ",
                                                      record.version));
  }
  const auto incoming = incoming_.find(shard.shard);
  if (shard.shard < 0 || shard.elements <= 0 || bytes % kElementBytes != 0 || elements == 0 ||
      record.begin < 0 || elements > shard.elements || record.begin > shard.elements - elements ||
      (incoming != incoming_.end() && incoming->second.info != shard)) {
    return absl::InvalidArgumentError(absl::StrCat(elements, " elements from ", record.begin,
                                                   " on are no part of shard ", shard.shard,
                                                   " of job ", job_));
  }
  return absl::OkStatus();
}

void JobState::ApplyRecord(LogSequence, const JoinedRecord& record) {
  if (record.newest.version != version_) DropAllIncoming();
  version_ = record.newest.version;
  newest_ = record.newest;
  placement_ = std::max(placement_, record.placement);
  for (const ContributionId& contribution : record.decided) Decide(contribution);
}

void JobState::ApplyRecord(LogSequence sequence, const ReceivedRecord& record) {
  const ShardId id = record.shard.shard;
  const bool fill = record.part == ReceivedPart::kFill;
  // A filled one has no momentum; what comes from its holder begins anew, and so does what is asked
  // for again after shards have changed their holders.
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
    incoming.velocity = std::make_shared<SharedTensor>(record.shard.elements);
    incoming_bytes_ += BytesOf(record.shard);
  }
  incoming.last = sequence;
  if (fill && !incoming.fill) {
    incoming.fill = true;
    const std::span<float> velocity = incoming.velocity->writable();
    std::fill(velocity.begin(), velocity.end(), 0.0f);
    incoming.has_velocity.Add({0, record.shard.elements});
  }
  if (record.part == ReceivedPart::kMomentum) {
    Copy(record.payload, record.begin, *incoming.velocity, incoming.has_velocity);
  } else {
    Copy(record.payload, record.begin, *incoming.theta, incoming.has_theta);
  }
}

void JobState::ChangeShards(const std::vector<OwnedShard>& shards) {
  std::map<ShardId, Shard> before = std::move(shards_);
  shards_.clear();
  for (const OwnedShard& info : shards) {
    Shard& shard = shards_[info.shard];
    if (const auto held = before.find(info.shard);
        held != before.end() && held->second.info == info) {
      shard = std::move(held->second);
    } else if (const auto incoming = incoming_.find(info.shard); incoming != incoming_.end()) {
      shard.theta = std::move(incoming->second.theta);
      shard.velocity = std::move(incoming->second.velocity);
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
  incoming_bytes_ -= BytesOf(found->second.info);
  incoming_.erase(found);
}

void JobState::DropAllIncoming() {
  incoming_.clear();
  incoming_bytes_ = 0;
}

std::vector<ElementRange> JobState::MissingOf(const OwnedShard& shard, int64_t placement,
                                              ReceivedPart part) const {
  const ElementRange all{0, shard.elements};
  const auto found = incoming_.find(shard.shard);
  if (found == incoming_.end() || found->second.placement != placement ||
      (found->second.fill && part != ReceivedPart::kFill)) {
    return {all};
  }
  return part == ReceivedPart::kMomentum ? found->second.has_velocity.Missing(all)
                                         : found->second.has_theta.Missing(all);
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
