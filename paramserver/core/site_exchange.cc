// The exchange of the job of a site's servers with the job above: versions that it adopts, and its
// contributions (RoundStep).

#include <algorithm>
#include <cstring>

#include "kernels/host_ops.h"
#include "paramserver/core/job_state.h"

namespace atl::ps {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kAdoptBlock = 1 << 16;

}  // namespace

absl::Status JobState::CheckExchange(const CommittedRecord& record) const {
  const RoundStep& step = record.step;
  if (step.adopts == kNoVersion && !step.contributes) return absl::OkStatus();
  const auto bad = [&](auto... args) {
    return absl::InvalidArgumentError(
        absl::StrCat("round ", record.version, " of job ", job_, ": ", args...));
  };
  if (step.contributes ? !IsOfSite() : GetAdoptedJob().empty()) {
    return bad("it takes part in an exchange, and the job has none");
  }
  if (step.adopts == kNoVersion) {
    if (exchange_.base != kNoVersion) return absl::OkStatus();
    return bad("it contributes, and no version of the job above was adopted before");
  }
  if (!record.terms.empty()) {
    return bad("it adopts version ", step.adopts, " and has contributions");
  }
  if (step.adopts < 0 || step.adopts < exchange_.base) {
    return bad("it adopts version ", step.adopts, " after version ", exchange_.base);
  }
  if (HasBase(step.adopts)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("round ", record.version, " of job ", job_,
                                                    " adopts version ", step.adopts, " of job ",
                                                    GetAdoptedJob(), ", which was not fetched"));
}

JobId JobState::GetAdoptedJob() const {
  const JobSpec& spec = assignment_.definition.spec;
  if (IsOfSite()) return spec.outer.contributes_to;
  if (version_ != kNoVersion) return "";
  const auto initial = ParseInitialJob(spec.model.initial_job);
  return initial.ok() ? initial->job : "";
}

absl::Status JobState::CheckAdopted(const ReceivedRecord& record) const {
  const OwnedShard& shard = record.shard;
  const auto held = shards_.find(shard.shard);
  if (ended_ || GetAdoptedJob().empty() || held == shards_.end() || held->second.info != shard ||
      record.version <= exchange_.base || record.version < base_version_) {
    return absl::FailedPreconditionError(absl::StrCat("shard ", shard.shard, " of job ", job_,
                                                      " is not to be fetched at version ",
                                                      record.version, " of the job above"));
  }
  return CheckPart(record);
}

void JobState::ReceiveBase(LogSequence sequence, const ReceivedRecord& record) {
  if (record.version != base_version_) DropBase();
  base_version_ = record.version;
  const auto [entry, added] = base_.try_emplace(record.shard.shard);
  IncomingBase& base = entry->second;
  if (added) {
    base.first = sequence;
    base.theta = std::make_shared<SharedTensor>(record.shard.elements);
    base_bytes_ += base.theta->bytes();
  }
  base.last = sequence;
  const std::span<const std::byte> bytes = record.payload.bytes;
  std::memcpy(base.theta->writable().data() + record.begin, bytes.data(), bytes.size());
  base.has.Add({record.begin, record.begin + std::ssize(bytes) / kFloatBytes});
}

void JobState::DropBase() {
  base_.clear();
  base_bytes_ = 0;
  base_version_ = kNoVersion;
}

std::vector<ElementRange> JobState::MissingBase(ShardId shard, Version version) const {
  if (version == exchange_.base) return {};
  const ElementRange all{0, shards_.at(shard).info.elements};
  const auto base = base_.find(shard);
  if (version != base_version_ || base == base_.end()) return {all};
  return base->second.has.Missing(all);
}

std::optional<LogSequence> JobState::HasBase(Version version) const {
  if (version == kNoVersion || ended_) return std::nullopt;
  LogSequence last = 0;
  for (const auto& [id, shard] : shards_) {
    if (!MissingBase(id, version).empty()) return std::nullopt;
    if (version != exchange_.base) last = std::max(last, base_.at(id).last);
  }
  return last;
}

int64_t JobState::BytesToFetchBase(Version version) const {
  if (version == exchange_.base) return 0;
  int64_t bytes = -base_bytes_;
  for (const auto& [id, shard] : shards_) bytes += shard.info.elements * kFloatBytes;
  return bytes;
}

void JobState::ExchangeShard(Shard& shard, const CommittedRecord& round) {
  if (round.step.adopts != kNoVersion) AdoptBase(shard, round.step.adopts);
  if (!round.step.contributes) return;
  MakeWritable(GetContributed(shard));
  const std::span<const float> theta = shard.theta->values();
  std::copy(theta.begin(), theta.end(), GetContributed(shard)->writable().begin());
}

void JobState::AdoptBase(Shard& shard, Version version) {
  const std::shared_ptr<SharedTensor> adopted =
      version == exchange_.base ? GetBase(shard) : base_.at(shard.info.shard).theta;
  if (!IsOfSite()) {  // it begins with that, and adopts no more
    shard.theta = adopted;
    return;
  }
  const std::span<const float> to = adopted->values();
  const bool first = exchange_.base == kNoVersion;
  const std::span<const float> from =
      (exchange_.contributes() ? GetContributed(shard) : GetBase(shard))->values();
  MakeWritable(shard.theta);
  const std::span<float> theta = shard.theta->writable();
  const auto size = static_cast<int64_t>(theta.size());
  pool_->For((size + kAdoptBlock - 1) / kAdoptBlock, [&](int64_t block, int) {
    const auto begin = static_cast<size_t>(block * kAdoptBlock);
    const size_t end = std::min(begin + kAdoptBlock, theta.size());
    for (size_t i = begin; i < end; ++i) {
      // A parameter that has not changed since becomes the adopted number itself, without a
      // rounding error.
      theta[i] = first || theta[i] == from[i] ? to[i] : theta[i] + (to[i] - from[i]);
    }
  });
  if (GetBase(shard) == adopted) return;
  if (GetBase(shard)->leased()) replaced_.push_back(GetBase(shard));
  GetBase(shard) = adopted;
}

std::optional<SharedBytes> JobState::Contribution(ShardId id, const ElementRange& range,
                                                  Encoding encoding) const {
  const auto found = shards_.find(id);
  if (found == shards_.end() || range.begin < 0 || range.size() <= 0 ||
      range.end > found->second.info.elements) {
    return std::nullopt;
  }
  const auto part = [&](size_t slot) {
    return found->second.slots[slot]->values().subspan(static_cast<size_t>(range.begin),
                                                       static_cast<size_t>(range.size()));
  };
  const std::span<const float> base = part(slots_ - 2), contributed = part(slots_ - 1);
  const auto difference = std::make_shared<std::vector<float>>(base.begin(), base.end());
  const WeightedDelta delta{{contributed.data(), Encoding::kFloat32, range.size()}, 1};
  OuterSgd(*difference, std::span(&delta, 1), /*eta=*/1, *pool_);
  if (encoding == Encoding::kFloat32) {
    return SharedBytes{difference, std::as_bytes(std::span(*difference))};
  }
  const auto encoded = std::make_shared<std::vector<Bfloat16>>(difference->size());
  ToBfloat16(*difference, *encoded, *pool_);
  return SharedBytes{encoded, std::as_bytes(std::span(*encoded))};
}

}  // namespace atl::ps
