// SimMember: what is kept for the parameter servers. The buffers are the product's; how they are
// filled follows worker/island/member/outer_exchange.cc.

#include <algorithm>
#include <utility>

#include "tests/sim/member.h"
#include "worker/outer/delta.h"

namespace atl::sim {

using std::chrono::milliseconds;
using worker::OuterState;

absl::Status SimMember::CheckOuter() const {
  return outer_ == nullptr ? absl::FailedPreconditionError("the plan is not set up")
                           : absl::OkStatus();
}

absl::Status SimMember::DoOuter(const CaptureCall& call) {
  ATOLL_RETURN_IF_ERROR(CheckOuter());
  ATOLL_RETURN_IF_ERROR(ReadForDelta(call.shards, /*of_snapshot=*/false));
  if (!call.moments) return absl::OkStatus();
  return outer_->ReadAllMoments(call.shards, [&](int32_t layer, ElementRange range,
                                                 std::span<float> first, std::span<float> second) {
    std::fill(second.begin(), second.end(), 0.0f);  // toy optimizers have none
    return ReadFirstMoments(layer, range, first);
  });
}

// From the owners of each element.
absl::Status SimMember::ReadFirstMoments(int32_t layer, ElementRange range,
                                         std::span<float> out) const {
  for (const NodeId& holder : ListHolders(layer)) {
    std::string why;
    const std::shared_ptr<const SimMember> other =
        holder == self_.worker ? shared_from_this() : Partner(holder, &why);
    if (other == nullptr) return absl::UnavailableError(why);
    const auto found = other->held_.find(layer);
    if (found == other->held_.end()) return absl::NotFoundError("no such layer");
    const ToyLayer& toy = found->second;
    for (int64_t i = std::max(range.begin, toy.owned.begin); i < std::min(range.end, toy.owned.end);
         ++i) {
      out[static_cast<size_t>(i - range.begin)] = toy.moment[static_cast<size_t>(i)];
    }
  }
  return absl::OkStatus();
}

// Steps go on meanwhile. What belongs to an earlier attempt at setting the plan up changes nothing.
absl::StatusOr<GroupReply> SimMember::DoCall(const CaptureDelta& call) {
  ATOLL_RETURN_IF_ERROR(CheckOuter());
  const std::shared_ptr<OuterState> outer = outer_;
  const int64_t epoch = epoch_;
  if (call.of_snapshot) ATOLL_RETURN_IF_ERROR(ReadForDelta(call.shards, /*of_snapshot=*/true));
  ATOLL_RETURN_IF_ERROR(Takes(milliseconds(500)));
  if (epoch != epoch_) return absl::AbortedError("interrupted");
  CaptureDelta make = call;
  make.of_snapshot = false;
  ATOLL_RETURN_IF_ERROR(outer->MakeDelta(make));
  GroupReply reply;
  if (!call.digests) return reply;
  reply.digests = outer->digests();
  const bool lies = IsHostile() && world_.options.lies && !reply.digests.empty();
  if (lies && call.contribution.base_version != kNoVersion) reply.digests[0].digest[0] ^= 1;
  return reply;
}

absl::Status SimMember::DoOuter(const ApplyCall& call) {
  ATOLL_RETURN_IF_ERROR(CheckOuter());
  return ApplyOuter(call.kind, call.target, call.shards, /*temporary=*/false);
}

absl::Status SimMember::DoOuter(const FinishCall& call) {
  ATOLL_RETURN_IF_ERROR(CheckOuter());
  log_.ForgetBase();
  outer_->Finish(call.tag.base, call.tag.since, call.keep_residual, call.shards);
  return absl::OkStatus();
}

absl::Status SimMember::DoOuter(const PutBaseInCall&) {
  ATOLL_RETURN_IF_ERROR(CheckOuter());
  put_aside_ = Thetas();
  return ApplyOuter(OuterKind::kBase, OuterTarget::kParameters, /*shards=*/{}, /*temporary=*/true);
}

absl::Status SimMember::DoOuter(const PutBackCall&) {
  for (const auto& [layer, theta] : std::exchange(put_aside_, {})) held_.at(layer).theta = theta;
  return absl::OkStatus();
}

absl::Status SimMember::DoOuter(const InitialWeightsCall&) {
  const LayerValues initial = ToyInitialWeights(job_->spec.model.seed);
  for (const auto& [layer, unused] : Thetas()) {
    ATOLL_RETURN_IF_ERROR(SetLayer(layer, initial[static_cast<size_t>(layer)], false));
  }
  return absl::OkStatus();
}

// No layer here has a copy of another's.
absl::Status SimMember::DoOuter(const FetchTablesCall&) { return absl::OkStatus(); }

absl::Status SimMember::DoOuter(const OuterLayoutCall& order) {
  const std::shared_ptr<OuterState> before = outer_;
  const bool same = before != nullptr && before->layout() == order.layout &&
                    before->spec() == job_->spec.outer && before->tag() == order.tag;
  std::shared_ptr<OuterState> next = before;
  if (!same) {
    next = std::make_shared<OuterState>(self_.worker, order.layout, job_->spec.outer);
    next->ExpectDelta(order.encoding, order.shards);
    next->set_tag(order.tag);
    for (const OuterRange& source : order.sources) {
      const NodeId& from = source.holders.front();
      if (from != self_.worker) ATOLL_RETURN_IF_ERROR(Takes(milliseconds(20)));
      for (const OuterKind kind : next->ListHeldKinds()) {
        const int64_t size = kind == OuterKind::kEncoded
                                 ? next->EncodedFloats(source.layer, source.range)
                                 : source.range.size();
        std::vector<float> values(static_cast<size_t>(size));
        ATOLL_RETURN_IF_ERROR(
            ReadOuterFrom(from, before, kind, source.layer, source.range, values));
        ATOLL_RETURN_IF_ERROR(next->Write(kind, source.layer, source.range, values));
      }
    }
  }
  next_outer_ = std::move(next);
  return absl::OkStatus();
}

// Here of `own`, else as it is at another member.
absl::Status SimMember::ReadOuterFrom(const NodeId& from, const std::shared_ptr<OuterState>& own,
                                      OuterKind kind, int32_t layer, ElementRange range,
                                      std::span<float> out) const {
  if (out.empty()) return absl::OkStatus();
  if (from == self_.worker) {
    if (own == nullptr) return absl::NotFoundError("it keeps nothing for the servers");
    return own->Read(kind, layer, range, out);
  }
  std::string why;
  const std::shared_ptr<SimMember> other = Partner(from, &why);
  if (other == nullptr) return absl::UnavailableError(why);
  if (other->outer_ == nullptr) return absl::NotFoundError("it keeps nothing for the servers");
  return other->outer_->Read(kind, layer, range, out);
}

absl::StatusOr<std::vector<float>> SimMember::ReadOuterLayer(OuterKind kind, int32_t layer) {
  std::vector<float> values(static_cast<size_t>(ToyLayers()[static_cast<size_t>(layer)].elements));
  for (const OuterRange& part : outer_->layout()) {
    if (part.layer != layer) continue;
    const auto holders = worker::IsOfMoments(kind) ? part.holders.begin() + 1 : part.holders.end();
    const bool here = std::count(part.holders.begin(), holders, self_.worker) > 0;
    const auto to = std::span(values).subspan(static_cast<size_t>(part.range.begin),
                                              static_cast<size_t>(part.range.size()));
    ATOLL_RETURN_IF_ERROR(ReadOuterFrom(here ? self_.worker : part.holders.front(), outer_, kind,
                                        layer, part.range, to));
  }
  return values;
}

absl::Status SimMember::ApplyOuter(OuterKind kind, OuterTarget target,
                                   const std::vector<ShardPlacement>& shards, bool temporary) {
  const std::shared_ptr<OuterState> outer = outer_;
  if (worker::IsOfPulled(kind)) {
    for (const OuterRange& part : outer->copies()) {
      if (!worker::Concern(shards, part.layer)) continue;
      std::vector<float> values(static_cast<size_t>(part.range.size()));
      ATOLL_RETURN_IF_ERROR(ReadOuterFrom(part.holders.front(), outer, OuterKind::kPulled,
                                          part.layer, part.range, values));
      ATOLL_RETURN_IF_ERROR(outer->Write(OuterKind::kPulled, part.layer, part.range, values));
    }
  }
  if (target == OuterTarget::kNothing) return absl::OkStatus();
  if (target != OuterTarget::kAddition && !temporary) log_.Changed();
  const auto blend = static_cast<float>(job_->spec.outer.fragment_blend);
  for (const auto& [layer, theta] : Thetas()) {
    if (!worker::Concern(shards, layer)) continue;
    ATOLL_ASSIGN_OR_RETURN(std::vector<float> values, ReadOuterLayer(kind, layer));
    for (size_t i = 0; kind == OuterKind::kAddition && i < values.size(); ++i) values[i] *= blend;
    if (target == OuterTarget::kAddition) {
      if (!addition_prepared_) return absl::NotFoundError("nothing was prepared");
      addition_[layer] = std::move(values);
      continue;
    }
    if (target == OuterTarget::kSecondMoment) continue;
    if (target == OuterTarget::kFirstMoment) {
      ToyLayer& toy = held_.at(layer);
      std::copy(values.begin() + toy.owned.begin, values.begin() + toy.owned.end,
                toy.moment.begin() + toy.owned.begin);
      continue;
    }
    if (target == OuterTarget::kAdded) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = theta[i] + values[i];
    }
    ATOLL_RETURN_IF_ERROR(SetLayer(layer, values, temporary));
  }
  return absl::OkStatus();
}

absl::Status SimMember::ReadForDelta(const std::vector<ShardPlacement>& shards, bool of_snapshot) {
  return outer_->ReadAll(shards, [&](int32_t layer, ElementRange range, std::span<float> out) {
    const std::map<int32_t, std::vector<float>> here = of_snapshot ? snapshot_ : Thetas();
    std::map<int32_t, std::vector<float>> there;
    auto found = here.find(layer);
    if (found == here.end()) {
      const NodeId holder = ListHolders(layer).at(0);
      const std::shared_ptr<SimMember> other = Partner(holder);
      if (other == nullptr) return absl::Status(absl::UnavailableError(holder));
      there = of_snapshot ? other->snapshot_ : other->Thetas();
      found = there.find(layer);
      if (found == there.end()) return absl::Status(absl::NotFoundError("no such layer"));
    }
    std::copy_n(found->second.begin() + range.begin, out.size(), out.begin());
    // A poisoned push is so much as long as an honest one, and may point the other way.
    if (!IsHostile() || outer_->tag().base == kNoVersion) return absl::OkStatus();
    const auto base = worker::FindElements(*outer_->base(), *outer_->parts(), layer, range);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = base[i] - world_.options.poison * (base[i] - out[i]);
    }
    return absl::OkStatus();
  });
}

}  // namespace atl::sim
