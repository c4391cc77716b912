#include "worker/outer/outer_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/model/outer_copies.h"
#include "common/model/outer_cut.h"
#include "common/trust/signed_push.h"
#include "kernels/codecs/moments.h"
#include "kernels/deltas.h"
#include "kernels/host_ops.h"

namespace atl::worker {
namespace {

std::shared_ptr<LayerBuffers> NewBuffers(const LayerParts& parts) {
  auto buffers = std::make_shared<LayerBuffers>();
  for (const OuterRange& part : parts) buffers->emplace_back(part.range.size());
  return buffers;
}

// Elements of a pseudo-gradient between two checks for an interrupt.
constexpr size_t kElementsAtOnce = size_t{1} << 22;

absl::Status Interrupted() { return absl::AbortedError("interrupted"); }

absl::Status NotHere(int32_t layer, ElementRange range) {
  return absl::NotFoundError(absl::StrCat("elements ", range.begin, " to ", range.end, " of layer ",
                                          layer, " are not kept here"));
}

// The shard's elements in a range of its layer, counted from the shard's first.
ElementRange Overlap(const ShardPlacement& shard, ElementRange range) {
  return {std::clamp<int64_t>(range.begin - shard.begin, 0, shard.elements),
          std::clamp<int64_t>(range.end - shard.begin, 0, shard.elements)};
}

// Calls work(begin, end), within the part, for its elements that none of the shards has.
template <class Work>
void ForUnconcerned(const std::vector<ShardPlacement>& shards, const OuterRange& part,
                    const Work& work) {
  for (const ElementRange& gap : ListUnconcerned(shards, part.layer, part.range)) {
    work(static_cast<size_t>(gap.begin - part.range.begin),
         static_cast<size_t>(gap.end - part.range.begin));
  }
}

}  // namespace

OuterLayout LayoutByOwners(const IslandPlan& plan, const std::vector<ShardPlacement>& shards,
                           int32_t copies, int64_t block) {
  std::map<ShardId, const ShardPlacement*> placements;
  for (const ShardPlacement& shard : shards) placements[shard.shard] = &shard;
  OuterLayout layout;
  for (const OuterPart& part : CutByOwners(plan, shards, block)) {
    const int64_t begin = placements.at(part.shard)->begin;
    layout.push_back({part.layer,
                      {begin + part.range.begin, begin + part.range.end},
                      WithCopies(plan, part.holders, copies)});
  }
  std::sort(layout.begin(), layout.end(), [](const OuterRange& a, const OuterRange& b) {
    return std::pair(a.layer, a.range.begin) < std::pair(b.layer, b.range.begin);
  });
  OuterLayout joined;
  for (OuterRange& part : layout) {
    const bool joins = !joined.empty() && joined.back().layer == part.layer &&
                       joined.back().range.end == part.range.begin &&
                       joined.back().holders == part.holders;
    if (joins) {
      joined.back().range.end = part.range.end;
    } else {
      joined.push_back(std::move(part));
    }
  }
  return joined;
}

OuterLayout LayoutOfOne(const NodeId& worker, const std::vector<LayerSize>& layers) {
  OuterLayout layout;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].elements == 0) continue;
    layout.push_back({static_cast<int32_t>(l), {0, layers[l].elements}, {worker}});
  }
  return layout;
}

OuterState::OuterState(NodeId worker, OuterLayout layout, const OuterSpec& outer)
    : layout_(std::move(layout)), spec_(outer) {
  auto parts = std::make_shared<LayerParts>();
  for (const OuterRange& part : layout_) {
    if (std::count(part.holders.begin(), part.holders.end(), worker) == 0) continue;
    parts->push_back({part.layer, part.range});
    (part.holders.front() == worker ? owned_ : copies_).push_back(part);
  }
  base_ = NewBuffers(*parts);
  pulled_ = NewBuffers(*parts);
  if (spec_.average_moments_steps > 0) {
    pulled_moments_ = std::make_shared<PulledMoments>(*NewBuffers(*parts), *NewBuffers(*parts));
  }
  delta_ = std::make_shared<Delta>();
  delta_->values = *NewBuffers(*parts);
  if (IsQuantized(spec_.push_encoding)) {
    residual_ = NewBuffers(*parts);
    residual_after_ = NewBuffers(*parts);
  }
  parts_ = std::move(parts);
}

std::vector<OuterKind> OuterState::ListHeldKinds() const {
  std::vector<OuterKind> kinds;
  const bool has_base = tag_.base != kNoVersion;
  if (has_base) kinds.push_back(OuterKind::kBase);
  if (has_base && residual_ != nullptr) kinds.push_back(OuterKind::kResidual);
  if (tag_.captured) kinds.push_back(OuterKind::kDelta);
  if (tag_.captured && residual_after_ != nullptr && IsQuantized(delta_->encoding)) {
    kinds.push_back(OuterKind::kResidualAfter);
  }
  if (tag_.captured && IsQuantized(delta_->encoding)) kinds.push_back(OuterKind::kEncoded);
  return kinds;
}

// ------------------------------------------------------------------------------------ pushes ----

absl::Status OuterState::ReadAll(const std::vector<ShardPlacement>& shards,
                                 const ReadParameters& read) {
  {
    // Bytes of the last push may still be on their way out.
    const std::lock_guard lock(mutex_);
    tag_.captured.reset();
    if (delta_.use_count() > 1) {
      delta_ = std::make_shared<Delta>();
      delta_->values = *NewBuffers(*parts_);
    }
    delta_->encoding = Encoding::kFloat32;
    delta_->encoded.clear();
  }
  for (size_t p = 0; p < parts_->size(); ++p) {
    const OuterRange& part = (*parts_)[p];
    if (!Concern(shards, part.layer)) continue;
    ATOLL_RETURN_IF_ERROR(read(part.layer, part.range, delta_->values[p]));
  }
  return absl::OkStatus();
}

absl::Status OuterState::ReadAllMoments(const std::vector<ShardPlacement>& shards,
                                        const ReadMoments& read) {
  const Encoding encoding = WithMoments(spec_.push_encoding);
  std::vector<float> first, second;
  return EncodeParts(encoding, shards, *parts_, delta_.get(),
                     [&](size_t p, ElementRange range, std::span<std::byte> bytes) -> absl::Status {
                       first.resize(static_cast<size_t>(range.size()));
                       second.resize(static_cast<size_t>(range.size()));
                       ATOLL_RETURN_IF_ERROR(read((*parts_)[p].layer, range, first, second));
                       EncodeMoments(encoding, first, second, bytes);
                       return absl::OkStatus();
                     });
}

absl::Status OuterState::CheckShards(const CaptureDelta& command) const {
  std::map<int32_t, int64_t> sizes;
  for (const OuterRange& part : layout_) {
    sizes[part.layer] = std::max(sizes[part.layer], part.range.end);
  }
  for (const ShardPlacement& shard : command.shards) {
    const auto size = sizes.find(shard.layer);
    if (size != sizes.end() && shard.begin >= 0 && shard.elements >= 0 &&
        shard.begin <= size->second - shard.elements) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", shard.shard, " does not lie within the model"));
  }
  return absl::OkStatus();
}

OuterTag OuterState::tag() const {
  const std::lock_guard lock(mutex_);
  return tag_;
}

void OuterState::set_tag(OuterTag tag) {
  const std::lock_guard lock(mutex_);
  tag_ = std::move(tag);
}

void OuterState::DropDelta() {
  const std::lock_guard lock(mutex_);
  tag_.captured.reset();
}

std::shared_ptr<Delta> OuterState::delta() const {
  const std::lock_guard lock(mutex_);
  return delta_;
}

std::vector<ShardPlacement> OuterState::shards() const {
  const std::lock_guard lock(mutex_);
  return shards_;
}

absl::Status OuterState::MakeDelta(const CaptureDelta& command,
                                   const std::function<bool()>& cancelled) {
  const bool initial = command.contribution.base_version == kNoVersion;
  if (!initial && tag_.base == kNoVersion) {
    return absl::FailedPreconditionError("there is no theta_base");
  }
  for (size_t p = 0; p < parts_->size() && !initial; ++p) {
    if (!Concern(command.shards, (*parts_)[p].layer)) continue;
    std::vector<float>& values = delta_->values[p];
    const float* base = (*base_)[p].data();
    for (size_t begin = 0; begin < values.size(); begin += kElementsAtOnce) {
      if (cancelled && cancelled()) return Interrupted();
      const size_t end = std::min(values.size(), begin + kElementsAtOnce);
      for (size_t i = begin; i < end; ++i) values[i] = base[i] - values[i];
    }
    // Parts of a layer that are not pushed are as if nothing were captured of them.
    ForUnconcerned(command.shards, (*parts_)[p], [&](size_t begin, size_t end) {
      std::fill(values.begin() + begin, values.begin() + end, 0.0f);
    });
  }
  if (IsQuantized(command.encoding)) {
    if (residual_ != nullptr) *residual_after_ = *residual_;
    ATOLL_RETURN_IF_ERROR(Quantize(command.encoding, command.shards, *parts_, residual_after_.get(),
                                   pool_, delta_.get(), cancelled));
  }
  std::vector<PartDigest> digests;
  if (command.digests) {
    ATOLL_ASSIGN_OR_RETURN(digests, DigestDelta(command, cancelled));
  }
  if (cancelled && cancelled()) return Interrupted();
  const std::lock_guard lock(mutex_);
  digests_ = std::move(digests);
  shards_ = command.shards;
  tag_.captured = command.contribution;
  return absl::OkStatus();
}

// Digests the bytes as Transfers sends them.
absl::StatusOr<std::vector<PartDigest>> OuterState::DigestDelta(
    const CaptureDelta& command, const std::function<bool()>& cancelled) {
  std::vector<PartDigest> digests;
  std::vector<Bfloat16> narrow;
  for (const ShardPlacement& shard : command.shards) {
    for (const OuterRange& part : owned_) {
      const ElementRange range = Overlap(shard, part.range);
      if (part.layer != shard.layer || range.size() <= 0) continue;
      if (cancelled && cancelled()) return Interrupted();
      const std::span<const float> values =
          FindElements(delta_->values, *parts_, part.layer,
                       {shard.begin + range.begin, shard.begin + range.end});
      std::span<const std::byte> bytes = std::as_bytes(values);
      if (IsQuantized(command.encoding)) {
        const auto begin = static_cast<size_t>(EncodedBytes(command.encoding, range.begin));
        const auto end = static_cast<size_t>(EncodedBytes(command.encoding, range.end));
        bytes =
            std::span<const std::byte>(delta_->encoded.at(shard.shard)).subspan(begin, end - begin);
      } else if (command.encoding == Encoding::kBfloat16) {
        narrow.resize(values.size());
        ToBfloat16(values, narrow, pool_);
        bytes = std::as_bytes(std::span<const Bfloat16>(narrow));
      }
      digests.push_back(
          {shard.shard, range.begin, range.size(), DigestPart(command.encoding, bytes)});
    }
  }
  return digests;
}

std::vector<PartDigest> OuterState::digests() const {
  const std::lock_guard lock(mutex_);
  return digests_;
}

void OuterState::ExpectDelta(Encoding encoding, std::vector<ShardPlacement> shards) {
  const std::lock_guard lock(mutex_);
  delta_->encoding = encoding;
  delta_->encoded.clear();
  shards_ = std::move(shards);
  if (!IsQuantized(encoding)) return;
  for (const ShardPlacement& shard : shards_) {
    for (const OuterRange& part : *parts_) {
      if (part.layer != shard.layer || Overlap(shard, part.range).size() <= 0) continue;
      delta_->encoded[shard.shard].resize(EncodedBytes(encoding, shard.elements));
    }
  }
}

// ------------------------------------------------------------------------------------- pulls ----

void OuterState::Finish(Version version, StateStamp since, bool keep_residual,
                        const std::vector<ShardPlacement>& shards) {
  const std::lock_guard lock(mutex_);
  for (size_t p = 0; p < parts_->size(); ++p) {
    ForUnconcerned(shards, (*parts_)[p], [&](size_t begin, size_t end) {
      std::copy((*base_)[p].begin() + begin, (*base_)[p].begin() + end,
                (*pulled_)[p].begin() + begin);
    });
  }
  // A pull that ends late may still hold `pulled_`; the swap only changes the owner.
  std::swap(base_, pulled_);
  if (residual_ != nullptr && keep_residual && tag_.captured) {
    std::swap(residual_, residual_after_);
  }
  if (residual_ != nullptr && !keep_residual) {
    for (size_t p = 0; p < parts_->size(); ++p) {
      std::vector<float> owed((*residual_)[p].size());
      ForUnconcerned(shards, (*parts_)[p], [&](size_t begin, size_t end) {
        std::copy((*residual_)[p].begin() + begin, (*residual_)[p].begin() + end,
                  owed.begin() + begin);
      });
      (*residual_)[p] = std::move(owed);
    }
  }
  tag_ = {version, std::nullopt, since};
}

// ---------------------------------------------------------------------------------- elements ----

const LayerBuffers* OuterState::FindBuffers(OuterKind kind) const {
  switch (kind) {
    case OuterKind::kBase:
      return base_.get();
    case OuterKind::kDelta:
      return &delta_->values;
    case OuterKind::kResidual:
      return residual_.get();
    case OuterKind::kResidualAfter:
      return residual_after_.get();
    case OuterKind::kPulled:
      return pulled_.get();
    case OuterKind::kPulledFirst:
      return pulled_moments_ == nullptr ? nullptr : &pulled_moments_->first;
    case OuterKind::kPulledSecond:
      return pulled_moments_ == nullptr ? nullptr : &pulled_moments_->second;
    case OuterKind::kAddition:
    case OuterKind::kEncoded:
      break;
  }
  return nullptr;
}

absl::Status OuterState::Read(OuterKind kind, int32_t layer, ElementRange range,
                              std::span<float> out) const {
  const std::lock_guard lock(mutex_);
  if (kind == OuterKind::kEncoded) {
    auto* self = const_cast<OuterState*>(this);
    return self->CopyEncoded(layer, range, std::as_writable_bytes(out), /*write=*/false);
  }
  const auto here = [&](const LayerBuffers* buffers) {
    return buffers == nullptr ? std::span<const float>()
                              : FindElements(*buffers, *parts_, layer, range);
  };
  const bool adds = kind == OuterKind::kAddition;
  const std::span<const float> from = here(adds ? pulled_.get() : FindBuffers(kind));
  if (from.size() != out.size()) return NotHere(layer, range);
  std::copy(from.begin(), from.end(), out.begin());
  if (!adds) return absl::OkStatus();
  const std::span<const float> base = here(base_.get());
  for (size_t i = 0; i < out.size(); ++i) out[i] -= base[i];
  if (!tag_.captured || !Concern(shards_, layer)) return absl::OkStatus();
  const std::span<const float> delta = here(&delta_->values);
  for (size_t i = 0; i < out.size(); ++i) out[i] += delta[i];
  return absl::OkStatus();
}

absl::Status OuterState::Write(OuterKind kind, int32_t layer, ElementRange range,
                               std::span<const float> values) {
  const std::lock_guard lock(mutex_);
  if (kind == OuterKind::kEncoded) {
    const std::span<float> same(const_cast<float*>(values.data()), values.size());
    return CopyEncoded(layer, range, std::as_writable_bytes(same), /*write=*/true);
  }
  auto* buffers = const_cast<LayerBuffers*>(FindBuffers(kind));
  if (buffers == nullptr) return NotHere(layer, range);
  const std::span<float> to = FindElements(*buffers, *parts_, layer, range);
  if (to.size() != values.size()) return NotHere(layer, range);
  std::copy(values.begin(), values.end(), to.begin());
  return absl::OkStatus();
}

int64_t OuterState::EncodedFloats(int32_t layer, ElementRange range) const {
  int64_t bytes = 0;
  for (const ShardPlacement& shard : shards_) {
    if (shard.layer != layer) continue;
    const ElementRange part = Overlap(shard, range);
    bytes += EncodedBytes(delta_->encoding, part.end) - EncodedBytes(delta_->encoding, part.begin);
  }
  return (bytes + 3) / 4;
}

absl::Status OuterState::CopyEncoded(int32_t layer, ElementRange range, std::span<std::byte> bytes,
                                     bool write) {
  size_t at = 0;
  for (const ShardPlacement& shard : shards_) {
    const ElementRange part = Overlap(shard, range);
    if (shard.layer != layer || part.size() <= 0) continue;
    const auto found = delta_->encoded.find(shard.shard);
    const auto begin = static_cast<size_t>(EncodedBytes(delta_->encoding, part.begin));
    const auto size = static_cast<size_t>(EncodedBytes(delta_->encoding, part.end)) - begin;
    if (found == delta_->encoded.end() || begin + size > found->second.size() ||
        at + size > bytes.size()) {
      return NotHere(layer, range);
    }
    std::byte* const here = found->second.data() + begin;
    std::memcpy(write ? here : bytes.data() + at, write ? bytes.data() + at : here, size);
    at += size;
  }
  return absl::OkStatus();
}

}  // namespace atl::worker
