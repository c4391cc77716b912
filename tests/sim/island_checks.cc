// Compares what an island's devices and owners really hold with what its leader believes: a state
// is whole, or it is reported as lost.

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/codecs/moments.h"
#include "kernels/deltas.h"
#include "tests/sim/nodes.h"

namespace atl::sim {
namespace {

uint64_t ComputeFingerprint(const LayerValues& moment, int64_t optimizer_step) {
  uint64_t hash = 1469598103934665603u ^ static_cast<uint64_t>(optimizer_step);
  for (const std::vector<float>& layer : moment) {
    for (const std::byte b : std::as_bytes(std::span(layer))) {
      hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
    }
  }
  return hash;
}

}  // namespace

void WorkerNode::Remember(const IslandState& state) {
  world_.moments.insert(ComputeFingerprint(state.moment, state.optimizer_step));
}

// One replica's copy of a layer into what is known of the others'.
bool WorkerNode::GatherLayer(const WorkerNode& node, int32_t layer, std::optional<int64_t>* step,
                             IslandState* state) {
  const auto fail = [&](const std::string& what) {
    world_.checker.Fail(absl::StrCat("N3: layer ", layer, " of ", name(), "'s island ", what));
    return false;
  };
  const auto held = node.member()->held().find(layer);
  if (held == node.member()->held().end() || !held->second.written || !held->second.whole ||
      held->second.surplus) {
    return fail(absl::StrCat("is not at ", node.name()));
  }
  const ToyLayer& toy = held->second;
  if (*step && **step != toy.optimizer_step) {
    return fail(absl::StrCat("is at step ", toy.optimizer_step, ", others at ", **step));
  }
  *step = toy.optimizer_step;
  std::vector<float>& theta = state->theta[static_cast<size_t>(layer)];
  std::vector<float>& moment = state->moment[static_cast<size_t>(layer)];
  // Replicas may differ only while parameters are about to be replaced: what differs is equal to
  // nothing.
  if (theta.empty()) theta = toy.theta;
  for (size_t i = 0; i < theta.size(); ++i) {
    if (theta[i] != toy.theta[i]) theta[i] = std::numeric_limits<float>::quiet_NaN();
  }
  moment.resize(theta.size(), std::numeric_limits<float>::quiet_NaN());
  for (auto i = static_cast<size_t>(toy.owned.begin); i < static_cast<size_t>(toy.owned.end); ++i) {
    if (!std::isnan(moment[i]) && moment[i] != toy.moment[i]) {
      return fail(absl::StrCat("has other moments at ", node.name()));
    }
    moment[i] = toy.moment[i];
  }
  return true;
}

// All layers of the plan from where they are. None: one is missing, or they are at different steps,
// or replicas differ, which is a failure.
std::optional<IslandState> WorkerNode::Gather() {
  IslandState state;
  state.theta.resize(ToyLayers().size());
  state.moment.resize(ToyLayers().size());
  std::optional<int64_t> step;
  for (const PlanReplica& replica : leader_->plan().replicas) {
    for (const PlanStage& stage : replica.stages) {
      const WorkerNode* const node = world_.FindWorker(WorkerFromDevice(stage.devices[0]));
      // Who has just died is noticed soon enough.
      if (!node->alive() || node->member()->fence() != member_->fence()) return std::nullopt;
      for (int32_t layer = stage.first_layer; layer < stage.first_layer + stage.layers; ++layer) {
        if (!GatherLayer(*node, layer, &step, &state)) return std::nullopt;
      }
    }
  }
  state.optimizer_step = step.value_or(0);
  return state;
}

void WorkerNode::CheckWhole(const char* when) {
  const std::optional<IslandState> here = Gather();
  if (!here || member_->dead()) return;
  const auto fail = [&](const std::string& what) {
    world_.checker.Fail(absl::StrCat("N3: ", name(), " ", when, ", and ", what));
  };
  if (!known_.state) {
    // The state is of an earlier leader, whose parameters are about to be replaced.
    const bool seen = here->optimizer_step == 0 || world_.moments.contains(ComputeFingerprint(
                                                       here->moment, here->optimizer_step));
    if (!seen) return fail("its moments were never the island's");
    known_.state = here;
    known_.state->theta.clear();
    return;
  }
  const IslandState& known = *known_.state;
  if (known.optimizer_step != here->optimizer_step) {
    return fail(
        absl::StrCat("it is at step ", here->optimizer_step, " instead of ", known.optimizer_step));
  }
  if (known.moment != here->moment) return fail("its moments are others");
  for (size_t l = 0; l < known.theta.size(); ++l) {
    if (known.theta[l] == here->theta[l]) continue;
    return fail(absl::StrCat("its parameters are others: of layer ", l, " ", here->theta[l][0],
                             " instead of ", known.theta[l][0], "; theta_base is ",
                             OfOwners(OuterKind::kBase)[l][0]));
  }
  Remember(known);
}

// Compares all owners, where copies are the same.
LayerValues WorkerNode::OfOwners(OuterKind kind) {
  LayerValues values;
  for (const LayerSize& layer : ToyLayers()) values.emplace_back(layer.elements, 0.0f);
  const std::shared_ptr<worker::OuterState> own = member_->outer();
  if (own == nullptr) return values;
  for (const OuterRange& part : own->layout()) {
    // A layer that was not captured has an earlier pseudo-gradient, or none.
    if (kind == OuterKind::kDelta && !worker::Concern(own->shards(), part.layer)) continue;
    std::vector<float> first;
    for (const NodeId& holder : part.holders) {
      if (worker::IsOfMoments(kind) && holder != part.holders.front()) continue;
      const WorkerNode* const node = world_.FindWorker(holder);
      if (!node->alive() || node->member()->outer() == nullptr) continue;
      std::vector<float> here(static_cast<size_t>(part.range.size()));
      if (!node->member()->outer()->Read(kind, part.layer, part.range, here).ok()) continue;
      // A range that its first holder pulled is with the others, too, only when it is adopted.
      if (!first.empty() && !worker::IsOfPulled(kind) && first != here) {
        world_.checker.Fail(absl::StrCat("N3: copies of kind ", static_cast<int>(kind),
                                         " of layer ", part.layer, " are different at ", holder));
      }
      if (first.empty()) first = here;
    }
    if (first.empty()) continue;
    std::copy(first.begin(), first.end(),
              values[static_cast<size_t>(part.layer)].begin() + part.range.begin);
  }
  return values;
}

// The pseudo-gradient is theta_base minus the parameters that were captured; the rounding error of
// quantising is owed. `theta`: at the capture.
void WorkerNode::CheckDelta(const CaptureDelta& action, const JobId& job,
                            const LayerValues& theta) {
  LayerValues delta = OfOwners(OuterKind::kDelta);
  const bool poisoned = world_.options.poison != 1 && name() == kHostileWorker;
  const bool initial = action.contribution.base_version == kNoVersion;
  const LayerValues base = OfOwners(OuterKind::kBase);
  for (size_t l = 0; l < theta.size(); ++l) {
    if (!worker::Concern(action.shards, static_cast<int32_t>(l))) {
      std::fill(delta[l].begin(), delta[l].end(), 0.0f);  // of an earlier one, and not pushed
      continue;
    }
    for (size_t i = 0; i < theta[l].size() && !poisoned; ++i) {
      const float expected = initial ? theta[l][i] : base[l][i] - theta[l][i];
      if (delta[l][i] == expected) continue;
      return world_.checker.Fail(
          absl::StrCat("N2: ", name(), " pushes ", delta[l][i], " instead of ", expected));
    }
  }
  if (!IsQuantized(action.encoding)) {
    return world_.checker.Of(job).DeltaCaptured(action.contribution, delta, known_.captured_on);
  }
  const LayerValues before = OfOwners(OuterKind::kResidual);
  const LayerValues after = OfOwners(OuterKind::kResidualAfter);
  LayerValues decoded = delta, ratios, second;
  for (const std::vector<float>& layer : delta) {
    ratios.emplace_back(layer.size());
    second.emplace_back(layer.size());
  }
  for (const ShardPlacement& shard : action.shards) {
    for (const OuterRange& part : member_->outer()->layout()) {
      const ElementRange in{std::max(part.range.begin, shard.begin),
                            std::min(part.range.end, shard.begin + shard.elements)};
      if (part.layer != shard.layer || in.size() <= 0) continue;
      const std::shared_ptr<worker::OuterState> outer =
          world_.FindWorker(part.holders.front())->member()->outer();
      if (outer == nullptr || !outer->delta()->encoded.contains(shard.shard)) continue;
      const std::vector<std::byte>& bytes = outer->delta()->encoded.at(shard.shard);
      const int64_t begin = EncodedBytes(action.encoding, in.begin - shard.begin);
      DecodeDelta({bytes.data() + begin, action.encoding, in.size()},
                  std::span(decoded[static_cast<size_t>(shard.layer)]).subspan(in.begin, in.size()),
                  world_.pool);
      if (!HasMoments(action.encoding) || captured_moment_.empty()) continue;
      const auto at = [&](LayerValues& values) {
        return std::span(values[static_cast<size_t>(shard.layer)])
            .subspan(static_cast<size_t>(in.begin), static_cast<size_t>(in.size()));
      };
      DecodeRatios(action.encoding, std::span(bytes).subspan(static_cast<size_t>(begin)),
                   at(ratios), at(second));
      std::vector<float> first(at(ratios).begin(), at(ratios).end());
      FirstFromRatios(first, at(second));
      CheckMoments(first, at(captured_moment_));
    }
  }
  for (size_t l = 0; l < delta.size(); ++l) {
    if (!worker::Concern(action.shards, static_cast<int32_t>(l))) continue;
    for (size_t i = 0; i < delta[l].size(); ++i) {
      const float owed = delta[l][i] + before[l][i];
      const float kept = decoded[l][i] + after[l][i];
      const float error = IsQuantized(member_->island_job()->spec.outer.push_encoding)
                              ? 1e-5f * std::max(1.0f, std::abs(owed))
                              : std::abs(owed) / 256;  // bfloat16 keeps no residual
      if (std::abs(kept - owed) <= error) continue;
      return world_.checker.Fail(absl::StrCat("N2: ", name(), " owes ", owed, " and keeps ", kept));
    }
  }
  if (!HasMoments(action.encoding)) ratios.clear();
  world_.checker.Of(job).DeltaCaptured(action.contribution, decoded, known_.captured_on, ratios,
                                       second);
}

// Checks the moments of one block.
void WorkerNode::CheckMoments(std::span<const float> pushed, std::span<const float> captured) {
  float largest = 0;
  for (const float x : captured) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < captured.size(); ++i) {
    if (std::abs(pushed[i] - captured[i]) <= largest / 250) continue;
    return world_.checker.Fail(absl::StrCat("N2: ", name(), " pushes the moment ", pushed[i],
                                            " instead of ", captured[i]));
  }
}

}  // namespace atl::sim
