#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/deltas.h"
#include "kernels/host_ops.h"
#include "tests/sim/nodes.h"
#include "worker/core/leases.h"
#include "worker/runtime/delta.h"

namespace atl::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kTransferTimeout = std::chrono::seconds(6);

ps::SharedBytes Encode(std::span<const float> values, Encoding encoding, ThreadPool& pool) {
  if (encoding == Encoding::kFloat32) {
    auto copy = std::make_shared<std::vector<float>>(values.begin(), values.end());
    return {copy, std::as_bytes(std::span(*copy))};
  }
  auto narrow = std::make_shared<std::vector<Bfloat16>>(values.size());
  ToBfloat16(values, *narrow, pool);
  return {narrow, std::as_bytes(std::span(*narrow))};
}

}  // namespace

void WorkerNode::Start() {
  BeginLife();
  ++incarnation_;
  connected_ = false;
  trainer_ = ToyTrainer();
  captured_.reset();
  since_base_.clear();
  transfers_.clear();
  pull_ = Pull();
  adopted_ = kNoVersion;
  held_.clear();
  owners_.clear();
  serving_.reset();
  plan_ = IslandPlan();
  stepping_.reset();
  late_.reset();
  waits_.reset();
  together_ = leaving_ = false;
  kept_.reset();
  take_over_from_.clear();
  resume_ = 0;
  world_.Trace(absl::StrCat(name(), " starts, incarnation ", incarnation_,
                            disk_.empty() ? "" : ", with saved states"));
  worker::Identity identity;
  identity.name = name();
  identity.incarnation = incarnation_;
  identity.devices = {{"cpu", 1 << 30, 1}};
  identity.peer_endpoint = absl::StrCat("sim://", name());
  if (world_.options.sites_declared) identity.site = name().back() % 2 == 0 ? "even" : "odd";
  if (!disk_.empty()) identity.held = {disk_.rbegin()->second.about.job};
  identity.mark = mark_;
  core_.emplace(std::move(identity));
  KeepConnecting();
}

void WorkerNode::Crash() {
  const bool lost = world_.faulty() && !disk_.empty() && world_.rng.Chance(0.1);
  if (lost) disk_.clear();
  world_.Trace(absl::StrCat(name(), " crashes", lost ? ", and its disk is lost" : ""));
  EndLife();
  core_.reset();
  CloseByDeath();
}

void WorkerNode::TellCoordinatorLost(Incarnation incarnation, int64_t connection) {
  world_.coordinator().WorkerLost(name(), incarnation, connection);
}

void WorkerNode::Deliver(const worker::Event& event) {
  if (!core_) return;
  const worker::Actions actions = core_->Step(world_.timeline.now(), event);
  const int64_t this_life = life();
  for (const worker::Action& action : actions.list) {
    std::visit([this](const auto& a) { Do(a); }, action);
    if (life() != this_life) return;
  }
  Arm(actions.deadline, [this] { Deliver(worker::Tick{}); });
}

void WorkerNode::Do(const worker::Prepare& action) {
  spec_ = action.spec;
  plan_ = IslandPlan();
  held_.clear();
  kept_.reset();
  stepping_.reset();
  After(milliseconds(50), [this, action] {
    Deliver(worker::Prepared{action.job, ToyFacts(action.spec)});
  });
}

void WorkerNode::Do(const worker::TrainStep& action) {
  const double jitter = 0.8 + 0.4 * world_.rng.Uniform();
  const Duration took = FromSeconds(0.1 * slowness_ * jitter);
  const bool faulty = world_.faulty();
  if (faulty && world_.rng.Chance(world_.options.step_fails)) {
    return After(took, [this] { Deliver(worker::CommandFailed{"simulated: the step failed"}); });
  }
  if (faulty && world_.rng.Chance(world_.options.trainer_sick)) {
    sick_until_ = world_.timeline.now() + world_.UpTo(seconds(20));
  }
  const bool sick = faulty && world_.timeline.now() < sick_until_;
  if (worker::Sequences(action.ranges) == 0)
    world_.checker.Fail(absl::StrCat(name(), " trains on nothing"));
  // One more in a row, and the worker rightly gives the job up: that is for worker/core's tests.
  const bool diverges =
      sick && diverged_ + 1 < worker::kNotFiniteTriesMax && world_.rng.Chance(0.1);
  if (diverges) ++diverged_;
  const double loss = diverges ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  StepTogether(action, took, sick ? 100 : 1, loss);
}

// Steps go on meanwhile.
void WorkerNode::MakeDelta(const worker::CaptureDelta& action) {
  After(milliseconds(2) + world_.UpTo(milliseconds(100)),
        [this, action] { Deliver(worker::DeltaReady{action.contribution}); });
}

void WorkerNode::Capture(const worker::CaptureDelta& action) {
  trainer_.CaptureDelta(action.contribution.base_version == kNoVersion);
  trainer_.encoded.clear();
  if (IsQuantized(action.encoding)) Quantize(action);
  captured_ = action.contribution;
  world_.checker.DeltaCaptured(action.contribution, trainer_.delta, since_base_);
}

// As worker/runtime does it; the delta becomes what servers decode. Nothing may get lost on the
// way.
void WorkerNode::Quantize(const worker::CaptureDelta& action) {
  LayerValues& residual = trainer_.residual;
  residual.resize(trainer_.delta.size());
  LayerValues owed = trainer_.delta;
  for (size_t l = 0; l < owed.size(); ++l) {
    residual[l].resize(owed[l].size());
    for (size_t i = 0; i < owed[l].size(); ++i) owed[l][i] += residual[l][i];
  }
  worker::Delta delta{trainer_.delta, Encoding::kFloat32, {}};
  const absl::Status status =
      worker::Quantize(action.encoding, action.shards, &residual, world_.pool, &delta);
  if (!status.ok()) world_.checker.Fail(absl::StrCat(name(), ": ", status.message()));
  for (const ShardPlacement& shard : action.shards) {
    const std::vector<std::byte>& bytes = delta.encoded.at(shard.shard);
    DecodeDelta({bytes.data(), action.encoding, shard.elements},
                std::span(trainer_.delta[shard.layer]).subspan(shard.begin, shard.elements),
                world_.pool);
  }
  for (size_t l = 0; l < owed.size(); ++l) {
    for (size_t i = 0; i < owed[l].size(); ++i) {
      const float kept = trainer_.delta[l][i] + residual[l][i];
      if (std::abs(kept - owed[l][i]) > 1e-5f * std::max(1.0f, std::abs(owed[l][i]))) {
        world_.checker.Fail(absl::StrCat(name(), " owes ", owed[l][i], " and keeps ", kept));
      }
    }
  }
  trainer_.encoded = std::move(delta.encoded);
}

// A residual makes up for what the model has got: it goes with what the model has not. That of a
// saved state comes with it; here saves have none.
void WorkerNode::SettleResidual(const worker::AdoptPulled& action) {
  const auto captured = std::exchange(captured_, std::nullopt);
  const bool saved = action.mode == worker::AdoptMode::kKeep;
  if (!action.keep_residual || saved) return trainer_.residual.clear();
  if (captured && !world_.checker.Committed(*captured)) {
    world_.checker.Fail(absl::StrCat(
        name(), " keeps the residual of a push that was not taken: ", Describe(*captured)));
  }
}

void WorkerNode::Do(const worker::Validate& action) {
  if (action.version != adopted_) {
    world_.checker.Fail(
        absl::StrCat(name(), " validates version ", action.version, " and holds ", adopted_));
  }
  After(milliseconds(200), [this, action] {
    Deliver(worker::ValidationDone{action.version, 1.0 / (2.0 + action.version), 64});
  });
}

void WorkerNode::Do(const worker::ReleaseJob& action) {
  if (action.removed) world_.checker.Deleted(name());
  if (action.removed) {
    std::erase_if(disk_, [&](const auto& save) { return save.second.about.job == action.job; });
  }
  plan_ = IslandPlan();
  held_.clear();
  kept_.reset();
}

void WorkerNode::Do(const worker::StartPull& action) {
  const int64_t transfer = next_transfer_++;
  transfers_.insert(transfer);
  pull_ = Pull{action.pull, action.shards.size(), false};
  trainer_.pulled.assign(ToyLayers().size(), {});
  for (size_t l = 0; l < ToyLayers().size(); ++l) {
    trainer_.pulled[l].assign(ToyLayers()[l].elements, 0.0f);
  }
  for (const ShardPlacement& shard : action.shards) PullShard(action, shard, transfer);
  After(kTransferTimeout, [this, transfer, pull = action.pull] {
    EndPull(transfer,
            worker::PullFailed{pull, worker::PullFailure::kError, kNoVersion, "timed out"});
  });
}

void WorkerNode::EndPull(int64_t transfer, worker::Event event) {
  if (transfers_.erase(transfer) > 0) Deliver(event);
}

void WorkerNode::PullShard(const worker::StartPull& action, const ShardPlacement& shard,
                           int64_t transfer) {
  const int64_t pull = action.pull;
  // Runs here, with what the server answered, when the answer has crossed the network.
  const auto once =
      std::make_shared<bool>(false);  // the answer counts once, however often it comes
  const auto arrived = [this, shard, transfer, pull, once](std::vector<float> values) {
    if (!transfers_.contains(transfer) || std::exchange(*once, true)) return;
    std::copy(values.begin(), values.end(), trainer_.pulled[shard.layer].begin() + shard.begin);
    if (--pull_.missing == 0) EndPull(transfer, worker::PullDone{pull, shard.elements * 4});
  };
  const auto refused = [this, transfer, pull](ps::RefusePull refusal) {
    const auto failure = refusal.refusal == PullRefusal::kNotYet ? worker::PullFailure::kNotYet
                         : refusal.refusal == PullRefusal::kSuperseded
                             ? worker::PullFailure::kSuperseded
                             : worker::PullFailure::kError;
    EndPull(transfer, worker::PullFailed{pull, failure, refusal.current, refusal.reason});
  };
  const auto answer = [this, shard, arrived, refused, at = life()](const ps::ReplyPull* reply,
                                                                   const ps::RefusePull* refusal) {
    const auto alive_then = [this, at](Timeline::Action action) {
      return [this, at, action] {
        if (alive() && life() == at) action();
      };
    };
    if (reply != nullptr) {
      world_.checker.Served(shard.server, reply->version, shard, reply->values);
      std::vector<float> values(reply->values.begin(), reply->values.end());
      world_.network.Send(shard.server, name(), alive_then([arrived, values] { arrived(values); }));
    } else {
      world_.network.Send(shard.server, name(),
                          alive_then([refused, copy = *refusal] { refused(copy); }));
    }
  };
  const ps::PullAsked asked{action.job, action.version, shard.shard, 0};
  world_.network.Send(name(), shard.server, [this, shard, asked, answer] {
    if (ServerNode* node = world_.FindServer(shard.server)) node->Pull(asked, answer);
  });
}

void WorkerNode::Do(const worker::PushShards& action) {
  for (const worker::ShardPart& shard : action.shards) PushShard(action, shard);
}

void WorkerNode::PushShard(const worker::PushShards& action, const worker::ShardPart& shard) {
  const int64_t transfer = next_transfer_++;
  transfers_.insert(transfer);
  const PushId id = PushIdOf(action, shard);
  const ElementRange part = shard.part();
  const auto finish = [this, transfer, id](worker::PushStatus status, std::string reason) {
    if (transfers_.erase(transfer) > 0) Deliver(worker::PushShardDone{id, status, reason, 4});
  };
  // By way of the member that has pushed it.
  const NodeId through = shard.sender.empty() ? name() : shard.sender;
  const auto answer = [this, shard, finish, through, at = life()](PushStatus status,
                                                                  std::string reason) {
    const auto mapped =
        status == PushStatus::kRefused ? worker::PushStatus::kRefused : worker::PushStatus::kStaged;
    const auto told = [this, at, finish, mapped, reason] {
      if (alive() && life() == at) finish(mapped, reason);
    };
    world_.network.Send(shard.server, through, [this, through, told] {
      if (through == name()) return told();
      world_.network.Send(through, name(), told);
    });
  };
  const bool fill = IsFill(action.contribution.base_version);
  const std::vector<float>& layer = (fill ? trainer_.theta_base : trainer_.delta)[shard.layer];
  ps::PushArrived event;
  event.id = id;
  event.encoding = action.encoding;
  event.elements = part.size();
  if (IsQuantized(action.encoding)) {
    const std::vector<std::byte>& all = trainer_.encoded.at(shard.shard);
    auto bytes = std::make_shared<std::vector<std::byte>>(
        all.begin() + EncodedBytes(action.encoding, part.begin),
        all.begin() + EncodedBytes(action.encoding, part.end));
    event.payload = {bytes, *bytes};
  } else {
    event.payload = Encode(std::span(layer).subspan(shard.begin + part.begin, part.size()),
                           action.encoding, world_.pool);
  }
  const NodeId sender = shard.sender.empty() ? name() : shard.sender;
  WorkerNode* const owner = world_.FindWorker(sender);
  const bool there =
      owner != nullptr && owner->alive() &&
      (sender == name() || (owners_.contains(sender) && owners_.at(sender) == owner->life() &&
                            world_.network.Reachable(name(), sender)));
  if (!there) {
    return After(milliseconds(1), [finish, sender] {
      finish(worker::PushStatus::kFailed, absl::StrCat(sender, " cannot be reached"));
    });
  }
  const auto deliver = [this, shard, event, answer] {
    if (ServerNode* node = world_.FindServer(shard.server)) node->Push(event, answer);
  };
  if (world_.faulty() && world_.rng.Chance(world_.options.ghost)) {
    world_.timeline.After(world_.UpTo(seconds(30)), deliver);
  }
  world_.network.Send(sender, shard.server, deliver);
  After(kTransferTimeout, [finish] { finish(worker::PushStatus::kFailed, "timed out"); });
}

void WorkerNode::Do(const worker::CancelTransfers&) { transfers_.clear(); }

void WorkerNode::Leave() {
  if (!alive()) return;
  world_.Trace(absl::StrCat(name(), " is told to end"));
  leaving_ = true;
  Deliver(worker::ShutdownRequested{"SIGTERM"});
}

void WorkerNode::Do(const worker::Stop& action) {
  if (!leaving_) {
    return world_.checker.Fail(absl::StrCat(name(), " stops: ", action.reason));
  }
  world_.Trace(absl::StrCat(name(), " ends"));
  CrashAndRestart();
}

void WorkerNode::CrashAndRestart() {
  world_.timeline.After(world_.UpTo(seconds(5)), [this] {
    if (!alive()) Start();
  });
  Crash();
}

}  // namespace atl::sim
