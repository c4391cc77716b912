#include "coordinator/prepared_plans.h"

#include <algorithm>

namespace atl {
namespace {

PlanRequest Without(const PlanRequest& all, const std::vector<size_t>& lost) {
  std::vector<size_t> left;
  for (size_t m = 0; m < all.members.size(); ++m) {
    if (std::find(lost.begin(), lost.end(), m) == lost.end()) left.push_back(m);
  }
  return OnlyMembers(all, left);
}

bool SameDevices(const PlanMember& a, const PlanMember& b) {
  return std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(), b.devices.end(),
                    [](const DeviceInfo& x, const DeviceInfo& y) {
                      return x.kind == y.kind && x.threads == y.threads &&
                             x.memory_bytes == y.memory_bytes && x.compute == y.compute &&
                             x.price_per_hour == y.price_per_hour &&
                             x.egress_price_per_gb == y.egress_price_per_gb;
                    });
}

// Returns the specification without rates, waits and numbers of islands: no plan follows from them,
// and they may change while the job runs.
JobSpec WithoutSettings(JobSpec spec) {
  const InnerSpec inner;
  const OuterSpec outer;
  spec.inner.learning_rate = inner.learning_rate;
  spec.inner.final_learning_rate_ratio = inner.final_learning_rate_ratio;
  spec.inner.warmup_fraction = inner.warmup_fraction;
  spec.inner.learning_rate_scaling = inner.learning_rate_scaling;
  spec.inner.schedule = inner.schedule;
  spec.inner.decay_fraction = inner.decay_fraction;
  spec.inner.decay_shape = inner.decay_shape;
  spec.outer.grace_seconds = outer.grace_seconds;
  spec.outer.adaptive_grace = outer.adaptive_grace;
  spec.outer.wait_for_all = outer.wait_for_all;
  spec.outer.min_islands = outer.min_islands;
  spec.outer.max_islands = outer.max_islands;
  return spec;
}

// The same workers, the first one leading.
bool SameMembers(const std::vector<PlanMember>& a, const std::vector<PlanMember>& b) {
  if (a.size() != b.size() || a.empty()) return false;
  if (!(a[0].member == b[0].member)) return false;
  return std::all_of(a.begin(), a.end(), [&](const PlanMember& member) {
    return std::any_of(b.begin(), b.end(), [&](const PlanMember& other) {
      return other.member == member.member && SameDevices(other, member);
    });
  });
}

}  // namespace

void PreparedPlans::Forget(const Island& island) {
  planned_.erase(island);
  std::erase_if(cases_, [&](const Loss& loss) { return loss.island == island; });
  for (const Prepared& prepared : plans_) {
    if (prepared.island == island) operations_ -= prepared.operations;
  }
  std::erase_if(plans_, [&](const Prepared& prepared) { return prepared.island == island; });
}

void PreparedPlans::Begin(const Island& island, std::shared_ptr<const PlanRequest> request,
                          std::vector<PlanReplica> replicas) {
  Forget(island);
  const size_t members = request->members.size();
  if (members < 2 || planned_.size() >= kIslandsMax) return;
  planned_[island] = {std::move(request), std::move(replicas)};
  size_t cases = 0;
  // The loss of a leader is prepared last of all: its successor may be another one.
  for (size_t m = members; m-- > 0 && cases < kCasesMax; ++cases) cases_.push_back({island, {m}});
  for (size_t a = members; members > 2 && a-- > 1;) {
    for (size_t b = a; b-- > 0 && cases < kCasesMax; ++cases) cases_.push_back({island, {a, b}});
  }
}

std::optional<PreparedPlans::Case> PreparedPlans::Next() {
  if (cases_.empty()) return std::nullopt;
  const Loss loss = std::move(cases_.front());
  cases_.pop_front();
  const Planned& planned = planned_.at(loss.island);
  PlanRequest request = Without(*planned.request, loss.lost);
  request.ran = planned.replicas;
  ++request.number;
  return Case{loss.island, loss.lost, std::move(request)};
}

void PreparedPlans::PutBack(const Case& interrupted) {
  if (!planned_.contains(interrupted.island)) return;
  cases_.push_front({interrupted.island, interrupted.lost});
}

void PreparedPlans::Add(const Case& made, IslandPlan plan) {
  if (!planned_.contains(made.island)) return;
  Prepared prepared{made.island, made.request.spec, made.request.facts, {}, std::move(plan)};
  for (const PlanMember& member : made.request.members) {
    prepared.members.push_back({member.member, member.site, member.devices, {}});
  }
  for (const PlanProgram& program : prepared.plan.programs) {
    prepared.operations += static_cast<int64_t>(program.ops.size());
  }
  operations_ += prepared.operations;
  plans_.push_back(std::move(prepared));
  while (operations_ > kOperationsMax) {
    operations_ -= plans_.front().operations;
    plans_.pop_front();
  }
}

std::optional<IslandPlan> PreparedPlans::Take(const Island& island, const PlanRequest& request) {
  if (!request.unreachable.empty()) return std::nullopt;
  const JobSpec wanted = WithoutSettings(request.spec);
  const auto found = std::find_if(plans_.begin(), plans_.end(), [&](const Prepared& prepared) {
    return prepared.island == island && SameMembers(prepared.members, request.members) &&
           WithoutSettings(prepared.spec) == wanted && prepared.facts == request.facts;
  });
  if (found == plans_.end()) return std::nullopt;
  IslandPlan plan = std::move(found->plan);
  operations_ -= found->operations;
  plans_.erase(found);
  plan.number = request.number;
  return plan;
}

}  // namespace atl
