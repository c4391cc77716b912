// Leases, pushes and pulls.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/experts.h"
#include "common/protocol/fragments.h"
#include "worker/core/impl.h"

namespace atl::worker {
namespace {

// A part that is staged is said to be missing for so long: it is pushed again.
constexpr Duration kStagedIsLostAfter = std::chrono::seconds(10);
// A granted request is repeated in case the coordinator misses what was staged; a shard that has
// moved, and a new connection, do not wait for that.
constexpr Duration kGrantedRepeatMax = 8 * kRetryInterval;
// In a portion at least; each costs the coordinator a durable write.
constexpr int64_t kLeasedSteps = 6;

}  // namespace

// ------------------------------------------------------------------------------------ leases ----

void WorkerCore::Impl::OnMessage(const LeaseGrant& grant) {
  if (!order_ || grant.job != order_->job || grant.island != order_->island ||
      grant.generation != order_->generation || grant.request != leased_.request) {
    return;
  }
  leased_.exhausted = grant.exhausted;
  if (Sequences(grant.ranges) > 0) {
    leased_.ranges.Add(grant.ranges);
    ++leased_.request;
    leased_.request_at = now_;
  }
}

// Requests portions of half a round, or of a few steps where rounds are shorter. An empty answer
// leaves the request open under its number: an answer to an earlier copy of it may still come with
// sequences, which must not get lost.
void WorkerCore::Impl::PlanLeases() {
  // Before version 0 nothing is leased: to ask would only delay the question that is answered.
  if (order_->run != RunState::kRun || order_->committed_version == kNoVersion ||
      !preparation_.done || !session_.welcomed()) {
    return;
  }
  const int64_t ahead = kLeasedRoundsAhead * round_sequences();
  if (leased_.ranges.size() >= ahead || !Due(leased_.request_at)) return;
  const int64_t portion = std::max((round_sequences() + 1) / 2, kLeasedSteps * batch());
  Emit(Send{LeaseRequest{order_->job, order_->island, order_->generation, leased_.request,
                         ahead + portion - leased_.ranges.size()}});
  leased_.request_at = now_ + kRetryInterval;
  Due(leased_.request_at);
}

// ------------------------------------------------------------------------------------ pushes ----

void WorkerCore::Impl::OnMessage(const PushGrant& grant) {
  if (!order_ || grant.job != order_->job || !in_flight_ || !in_flight_->captured ||
      grant.contribution != in_flight_->id || in_flight_->withdrawn) {
    return;
  }
  // The grant names all that is not staged: what it does not name any more is staged, or was cut
  // for members of another plan.
  std::vector<InFlight::Push> pushes;
  std::vector<InFlight::Push>& before = in_flight_->pushes;
  bool has_changed = false;
  for (const GrantedPush& part : grant.order) {
    if (FindPlacement(part) == nullptr) continue;
    auto push = std::find_if(before.begin(), before.end(),
                             [&](const InFlight::Push& p) { return p.part == part; });
    if (push == before.end()) {
      has_changed = true;
      pushes.push_back({part, InFlight::Shard::kWanted, now_});
      continue;
    }
    pushes.push_back(*push);
    before.erase(push);
    const bool ended = pushes.back().state == InFlight::Shard::kStaged ||
                       pushes.back().state == InFlight::Shard::kRefused;
    has_changed = has_changed || ended;
    // The coordinator still expects it: perhaps the server was behind, the shard has moved, or its
    // server has lost what it staged.
    const Duration patience = in_flight_->moved ? Duration::zero() : kStagedIsLostAfter;
    const bool lost = pushes.back().state == InFlight::Shard::kStaged &&
                      now_ >= pushes.back().retry_at + patience;
    if (pushes.back().state != InFlight::Shard::kRefused && !lost) continue;
    pushes.back().state = InFlight::Shard::kWanted;
    pushes.back().retry_at = now_;
  }
  for (const InFlight::Push& push : before) {
    const bool ends =
        push.state == InFlight::Shard::kPushing || push.state == InFlight::Shard::kStaged;
    if (ends) pushes.push_back(push);
  }
  in_flight_->pushes = std::move(pushes);
  in_flight_->repeat_after =
      has_changed ? kRetryInterval : std::min(2 * in_flight_->repeat_after, kGrantedRepeatMax);
}

// Where it goes; null: the order has no such part of a shard.
const ShardPlacement* WorkerCore::Impl::FindPlacement(const GrantedPush& part) const {
  for (const ShardPlacement& placement : order_->shards) {
    if (placement.shard != part.shard) continue;
    const bool fits = part.begin >= 0 && part.elements >= 0 &&
                      part.elements <= placement.elements &&
                      part.begin <= placement.elements - part.elements;
    return fits ? &placement : nullptr;
  }
  return nullptr;
}

void WorkerCore::Impl::On(const PushShardDone& done) {
  if (!order_ || !in_flight_ || done.push.job != order_->job ||
      ToContributionId(done.push) != in_flight_->id) {
    return;
  }
  for (InFlight::Push& push : in_flight_->pushes) {
    const GrantedPush& part = push.part;
    if (part.shard != done.push.shard || part.begin != done.push.begin ||
        part.elements != done.push.elements || push.state != InFlight::Shard::kPushing) {
      continue;
    }
    const bool failed = done.status == ShardPushStatus::kFailed;
    if (!failed && in_flight_->trouble && in_flight_->trouble->shard == part.shard) {
      in_flight_->trouble.reset();
    }
    switch (done.status) {
      case ShardPushStatus::kStaged:
        push.state = InFlight::Shard::kStaged;
        push.retry_at = now_ + kRetryInterval;
        in_flight_->staged_at = now_;
        counters_.pushed_bytes += done.bytes;
        break;
      case ShardPushStatus::kRefused:
        push.state = InFlight::Shard::kRefused;  // until it is granted again
        in_flight_->request_at = std::min(in_flight_->request_at, now_ + kRetryInterval);
        LogOnce(absl::StrCat("push of shard ", part.shard, " was refused: ", done.reason));
        break;
      case ShardPushStatus::kFailed:
        push.state = InFlight::Shard::kWanted;
        push.retry_at = now_ + kRetryInterval;
        PushFailed(part.shard, done.reason);
        break;
    }
  }
}

void WorkerCore::Impl::PushFailed(ShardId shard, const std::string& reason) {
  std::optional<InFlight::Trouble>& trouble = in_flight_->trouble;
  if (trouble && trouble->shard != shard) return;
  trouble = {shard, reason};
  LogOnce(absl::StrCat("push of ", reason));
}

// The trouble of the contribution in flight, to append to the worker's status; empty: none.
std::string WorkerCore::Impl::PushTrouble() const {
  if (!in_flight_ || !in_flight_->trouble || Decided()) return "";
  return absl::StrCat(": push of ", in_flight_->trouble->reason);
}

void WorkerCore::Impl::PlanPushes() {
  if (!in_flight_ || !in_flight_->captured) return;
  InFlight& flight = *in_flight_;
  if (session_.welcomed() && !Decided() && Due(flight.request_at)) {
    PushRequest request{order_->job, flight.id};
    if (!flight.withdrawn) {
      request = {order_->job,
                 flight.id,
                 flight.work.steps,
                 flight.work.tokens,
                 LossPerToken(flight.work),
                 flight.work.consumed,
                 flight.work.masked_tokens,
                 counters_.learning_rate,
                 counters_.gradient_norm.Get(),
                 flight.work.skipped,
                 flight.moments,
                 flight.parts};
      // An expert that has missed its turn counts as one that had it.
      const int64_t most = flight.work.tokens * spec().outer.expert_fragments;
      request.expert_tokens = flight.work.expert_tokens;
      for (int64_t& tokens : request.expert_tokens) tokens = std::min(tokens, most);
      if (!flight.parts.empty()) {
        request.signature = PushSignature{.plan_number = order_->plan.number,
                                          .build = identity_.hello.software_version};
      }
    }
    Emit(Send{std::move(request)});
    flight.request_at = now_ + flight.repeat_after;
    Due(flight.request_at);
  }
  if (!SetUp() || command_ == Command::kReconfigure) return;  // its owners are being found
  PushShards shards{order_->job, flight.id, SelectEncoding(flight), {}};
  for (InFlight::Push& push : flight.pushes) {
    if (push.state != InFlight::Shard::kWanted || Decided() || !Due(push.retry_at)) continue;
    const ShardPlacement* placement = FindPlacement(push.part);
    if (placement == nullptr) continue;
    shards.shards.push_back({*placement, push.part.begin, push.part.elements, push.part.sender});
    push.state = InFlight::Shard::kPushing;
  }
  if (!shards.shards.empty()) Emit(std::move(shards));
}

Encoding WorkerCore::Impl::SelectEncoding(const InFlight& flight) const {
  // Initial weights are never rounded.
  if (flight.id.base_version == kNoVersion) return Encoding::kFloat32;
  const Encoding encoding = spec().outer.push_encoding;
  return flight.moments ? WithMoments(encoding) : encoding;
}

// Returns whether the order has the outcome of the contribution in flight.
bool WorkerCore::Impl::Decided() const {
  if (in_flight_ && in_flight_->id.base_version == kNoVersion) {
    return order_->committed_version != kNoVersion;
  }
  return in_flight_ && order_->outcome && order_->outcome->contribution == in_flight_->id &&
         order_->committed_version >= order_->outcome->version;
}

// Lists the shards of the fragment whose round makes the version, that have seen tokens.
std::vector<ShardPlacement> WorkerCore::Impl::SelectPushed(
    Version version, const std::vector<int64_t>& expert_tokens) const {
  std::vector<ShardPlacement> shards;
  for (const ShardPlacement& shard : order_->shards) {
    if (!IsInTurn(version, shard, FragmentsFrom(spec().outer))) continue;
    if (IsSeen(expert_tokens, shard)) shards.push_back(shard);
  }
  return shards;
}

// ------------------------------------------------------------------------------------- pulls ----

void WorkerCore::Impl::On(const PullDone& done) {
  if (done.pull != pull_.number || !pull_.pulling()) return;
  pull_.state = Pull::State::kPulled;
  pull_.took = now_ - pull_.began_at;
  counters_.pulled_bytes += done.bytes;
  pull_.trouble.clear();
}

void WorkerCore::Impl::On(const PullFailed& failed) {
  if (failed.pull != pull_.number || !pull_.pulling()) return;
  pull_.state = Pull::State::kNone;
  pull_.trouble = failed.reason;
  // Superseded: the order with the newer version may be here already.
  pull_.retry_at = order_->committed_version > pull_.version ? now_ : now_ + kRetryInterval;
}

// The version to pull now, if any; README.md has the reasons.
std::optional<Version> WorkerCore::Impl::PullTarget() const {
  const Version committed = order_->committed_version;
  if (committed == kNoVersion) return std::nullopt;
  if (in_flight_) {
    if (!Decided()) return std::nullopt;
    return committed;
  }
  if (!adopted_) {
    if (order_->initialize) return std::nullopt;
    return committed;
  }
  if (committed <= base_version_) return std::nullopt;
  // Nothing to lose here and nothing to do, or this very version is to be evaluated.
  const bool idle = leased_.ranges.size() == 0 && command_ == Command::kNone;
  if (local_.steps == 0 && (idle || order_->validate_version == committed)) return committed;
  // The base cannot be pushed from again: its contribution was rejected and no round followed.
  if (last_pushed_ == NextContribution()) return committed;
  return std::nullopt;
}

// The coordinator has said that the island's moments and steps are of no use.
bool WorkerCore::Impl::IsWarmingUpAgain() const {
  return in_flight_ && order_->outcome && order_->outcome->warm_up_again &&
         order_->outcome->contribution == in_flight_->id;
}

// Otherwise the layers that have had no turn since base_version_ stay as they are.
bool WorkerCore::Impl::NeedsAllLayers() const {
  return FragmentsFrom(spec().outer).count() == 1 || !adopted_ || diverged_ || IsWarmingUpAgain();
}

// The version has an average of moments that is none of those here. A state that is resumed has its
// own.
bool WorkerCore::Impl::NeedsMoments(Version version) const {
  const Version averaged = order_->averaged_version;
  if (averaged == kNoVersion || (saving_.resumed && saving_.resumed->base_version == version)) {
    return false;
  }
  return !adopted_ || averaged > base_version_ || reset_moments_ || IsWarmingUpAgain();
}

void WorkerCore::Impl::PlanPull() {
  if (pull_.pulling() || pull_.pulled() || command_ == Command::kAdopt || !preparation_.done) {
    return;
  }
  if (!SetUp() || command_ == Command::kReconfigure) return;  // no device owns anything yet
  const std::optional<Version> target = PullTarget();
  if (!target || order_->pull_order.empty() || !Due(pull_.retry_at)) return;
  // Whatever is still being pushed belongs to a contribution that has been decided.
  if (in_flight_) {
    const bool pushing =
        std::any_of(in_flight_->pushes.begin(), in_flight_->pushes.end(),
                    [](const InFlight::Push& p) { return p.state == InFlight::Shard::kPushing; });
    if (pushing) Emit(CancelTransfers{});
    for (InFlight::Push& push : in_flight_->pushes) push.state = InFlight::Shard::kStaged;
  }
  const Fragments fragments = FragmentsFrom(spec().outer);
  const bool all = NeedsAllLayers() || *target == base_version_;
  pull_.moments = NeedsMoments(*target);
  StartPull pull{order_->job,      ++pull_.number, *target,          {}, spec().outer.pull_encoding,
                 fragments.layers,
                 /*batch=*/0,      pull_.moments,  fragments.experts};
  pull_.shards.clear();
  for (ShardId shard : order_->pull_order) {
    for (const ShardPlacement& placement : order_->shards) {
      if (placement.shard != shard) continue;
      if (!all && !HasTurnSince(base_version_, *target, placement, fragments)) continue;
      pull.shards.push_back({placement});
      if (!all) pull_.shards.push_back(placement);
    }
  }
  pull_.state = Pull::State::kPulling;
  pull_.began_at = now_;
  pull_.version = *target;
  pull_.tokens = order_->tokens_committed;
  Emit(std::move(pull));
}

}  // namespace atl::worker
