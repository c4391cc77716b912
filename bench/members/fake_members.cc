#include "bench/members/fake_members.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/protocol/round_limit.h"
#include "common/version.h"

namespace atl::bench {
namespace {

constexpr int64_t kMemory = int64_t{1} << 36;
constexpr int64_t kBlockNs = 2'000'000;  // F of a block with a sequence; B and W alike

LayerCost Cost(LayerKind kind, int64_t ns, int64_t elements) {
  LayerCost cost;
  cost.kind = kind;
  cost.forward_ns = cost.input_gradient_ns = cost.weight_gradient_ns = ns;
  cost.optimizer_ns = ns / 4;
  cost.parameter_bytes = 16 * elements;
  cost.stash_bytes = cost.output_bytes = 1 << 14;
  return cost;
}

}  // namespace

FakeWorker::FakeWorker(const FakeTimings* timings, int number, Staged staged)
    : timings_(timings),
      staged_(std::move(staged)),
      name_(absl::StrFormat("w%05d", number)),
      site_(absl::StrFormat("site%04d", number / timings->workers_a_site)) {}

WorkerHello FakeWorker::Hello() const {
  WorkerHello hello;
  hello.software_version = kSoftwareVersion;
  hello.devices = {{.kind = "cpu", .memory_bytes = kMemory, .threads = 1, .compute = "fp32"}};
  hello.peer_endpoint = "tcp://127.0.0.1:9";
  hello.site = site_;
  return hello;
}

WorkerHeartbeat FakeWorker::Heartbeat() const {
  WorkerHeartbeat beat;
  if (order_) {
    IslandProgress p;
    p.job = order_->job;
    p.island = order_->island;
    p.generation = order_->generation;
    p.seen_sequence = order_->sequence;
    p.base_version = base_;
    p.ready = base_ >= 0;
    p.activity = "training";
    p.inner_step = steps_;
    p.tokens = tokens_;
    p.train_loss = 3;
    p.learning_rate = 1e-3;
    p.tokens_per_s = 1000;
    p.step_seconds_idle_link = Seconds(timings_->step);
    p.plan_number = order_->plan.number;
    beat.progress = std::move(p);
  }
  if (follows_) {
    MemberProgress p;
    p.job = follows_->job;
    p.island = follows_->island;
    p.generation = follows_->generation;
    p.plan_number = follows_->plan.number;
    p.seen_sequence = follows_->sequence;
    p.activity = "training";
    p.holds_layers = true;
    beat.member = std::move(p);
  }
  return beat;
}

JobFacts FakeWorker::Facts(const JobSpec& spec) const {
  JobFacts facts;
  facts.model = spec.model;
  const int64_t width = spec.model.hidden;
  facts.layers.push_back({"embedding", spec.model.vocabulary * width});
  for (int64_t i = 0; i < spec.model.layers; ++i) {
    facts.layers.push_back({absl::StrCat("block", i), 12 * width * width});
  }
  facts.layers.push_back({"head", spec.model.vocabulary * width});
  facts.train_sequences = facts.validation_sequences = 1 << 20;
  return facts;
}

std::vector<WorkerMessage> FakeWorker::On(Instant now, const ToWorkerMessage& message) {
  if (const auto* prepare = std::get_if<PrepareJob>(&message)) {
    const JobFacts facts = Facts(prepare->spec);
    DeviceProfile profile;
    profile.device = name_ + "/0";
    profile.kind = "cpu";
    profile.software_version = kSoftwareVersion;
    profile.model_digest =
        ComputeModelDigest(prepare->spec.model, prepare->spec.data.sequence_length);
    for (int32_t sequences = 1; sequences <= prepare->spec.inner.batch_sequences; sequences *= 2) {
      for (const int32_t tensor_parallel : {1, 2, 4, 8}) {
        for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead}) {
          const bool block = kind == LayerKind::kBlock;
          profile.layers.push_back(
              Cost(kind, (block ? kBlockNs : kBlockNs / 4) * sequences / tensor_parallel,
                   facts.layers[block ? 1 : 0].elements / tensor_parallel));
          profile.layers.back().micro_batch_sequences = sequences;
          profile.layers.back().tensor_parallel = tensor_parallel;
        }
      }
    }
    return {JobPrepared{prepare->job, facts, {profile}}};
  }
  if (const auto* requested = std::get_if<MeasureLinks>(&message)) {
    if (requested->measurer != name_) return {};
    LinksMeasured links{requested->job, requested->request, {}, "", {}, {}, requested->probe, {}};
    for (const IslandMember& member : requested->members) {
      if (member.worker == name_) continue;
      if (requested->probe) links.reached.push_back(member.worker);
      if (!requested->probe)
        links.links.push_back({name_, member.worker, 50'000, 1.25e9, 0.01, 50});
    }
    return {links};
  }
  if (const auto* order = std::get_if<MemberOrder>(&message)) {
    if (order->run == RunState::kStop) {
      follows_.reset();
    } else {
      follows_ = *order;
      order_.reset();
    }
    return {Heartbeat()};
  }
  if (const auto* order = std::get_if<IslandOrder>(&message)) return OnOrder(*order);
  if (const auto* grant = std::get_if<LeaseGrant>(&message)) {
    if (!order_ || grant->request != request_ || pushes_at_ || pushing_) return {};
    lease_requested_ = false;
    leased_ = grant->ranges;
    if (!leased_.empty()) pushes_at_ = now + timings_->step * order_->steps_this_round;
    return {};
  }
  if (const auto* grant = std::get_if<PushGrant>(&message)) {
    if (pushed_at_) return {};
    granted_ = grant->order;
    pushed_at_ = now + timings_->push;
  }
  return {};
}

std::vector<WorkerMessage> FakeWorker::OnOrder(const IslandOrder& order) {
  if (order.run == RunState::kStop) {
    order_.reset();
    return {Heartbeat()};
  }
  const bool anew = !order_ || order_->generation != order.generation;
  order_ = order;
  follows_.reset();
  if (anew) {
    pushing_ = lease_requested_ = false;
    pushes_at_.reset();
    pushed_at_.reset();
    base_ = kNoVersion;
  }
  std::vector<WorkerMessage> says;
  if (order.initialize && !pushing_) {
    pushing_ = true;
    says.push_back(Push(kNoVersion));
  }
  const bool decided = order.outcome && order.outcome->contribution.base_version == base_;
  if (order.committed_version > base_ && (!pushing_ || decided || base_ == kNoVersion)) {
    base_ = order.committed_version;
    pushing_ = false;
    pushed_at_.reset();
    leased_.clear();
  }
  if (order.validate_version != kNoVersion && order.validate_version == base_) {
    says.push_back(ValidationResult{order.job, base_, 3, 1000});
  }
  says.push_back(Heartbeat());
  return says;
}

WorkerMessage FakeWorker::Push(Version base) const {
  PushRequest push;
  push.job = order_->job;
  push.contribution = {order_->island, order_->generation, order_->author, base};
  if (base == kNoVersion) return push;
  push.inner_steps = order_->steps_this_round;
  push.train_loss = 3;
  push.consumed = leased_;
  for (const PositionRange& range : leased_) {
    push.tokens += range.size() * order_->spec.data.sequence_length;
  }
  return push;
}

std::vector<WorkerMessage> FakeWorker::Turn(Instant now) {
  if (!order_) return {};
  if (pushed_at_ && now >= *pushed_at_) {
    pushed_at_.reset();
    for (const GrantedPush& push : granted_) {
      for (const ShardPlacement& placed : order_->shards) {
        if (placed.shard != push.shard) continue;
        staged_(placed,
                {order_->job, order_->island, order_->generation, order_->author, base_, push.shard,
                 push.begin, push.elements},
                base_ == kNoVersion ? Encoding::kFloat32 : order_->spec.outer.push_encoding);
      }
    }
    granted_.clear();
  }
  if (pushes_at_ && now >= *pushes_at_) {
    pushes_at_.reset();
    pushing_ = true;
    steps_ += order_->steps_this_round;
    for (const PositionRange& range : leased_) {
      tokens_ += range.size() * order_->spec.data.sequence_length;
    }
    return {Push(base_)};
  }
  if (base_ < 0 || pushing_ || pushes_at_ || lease_requested_ || order_->run != RunState::kRun)
    return {};
  lease_requested_ = true;
  const int64_t wanted = order_->steps_this_round * order_->spec.inner.batch_sequences;
  return {LeaseRequest{order_->job, order_->island, order_->generation, ++request_, wanted}};
}

FakeServer::FakeServer(int number) : name_(absl::StrCat("ps", number)) {}

ServerHello FakeServer::Hello() const {
  ServerHello hello;
  hello.software_version = kSoftwareVersion;
  hello.endpoint = "tcp://127.0.0.1:9";
  hello.memory_bytes = int64_t{1} << 40;
  return hello;
}

ServerHeartbeat FakeServer::Heartbeat() const {
  ServerHeartbeat beat;
  for (const auto& [job, held] : jobs_) {
    beat.jobs.push_back({job, held.version, held.version, {}, 0, held.ended});
  }
  return beat;
}

std::vector<ServerMessage> FakeServer::On(const ToServerMessage& message) {
  if (const auto* assign = std::get_if<AssignShards>(&message)) {
    jobs_[assign->job].assignment = *assign;
    return {ShardsAssigned{assign->job, assign->definition.placement}};
  }
  if (const auto* requested = std::get_if<CollectStatistics>(&message)) {
    Statistics statistics{requested->job, requested->version, requested->contributions, {}};
    std::set<int32_t> layers;
    for (const OwnedShard& shard : jobs_[requested->job].assignment.shards)
      layers.insert(shard.layer);
    const size_t k = requested->contributions.size();
    if (!HasStatisticsByLayer(k)) layers = {0};
    for (const int32_t layer : layers) {
      LayerGram gram{layer, std::vector<double>(k * k, 0.5)};
      for (size_t i = 0; i < k; ++i) gram.values[i * k + i] = 1;
      statistics.layers.push_back(std::move(gram));
    }
    return {statistics};
  }
  if (const auto* commit = std::get_if<CommitRound>(&message)) {
    Held& held = jobs_[commit->job];
    if (commit->version == held.version + 1) held.version = commit->version;
    return {RoundApplied{commit->job, held.version}};
  }
  if (const auto* end = std::get_if<EndJob>(&message)) jobs_[end->job].ended = true;
  if (const auto* remove = std::get_if<RemoveJob>(&message)) {
    jobs_.erase(remove->job);
    return {JobRemoved{remove->job}};
  }
  return {};
}

}  // namespace atl::bench
