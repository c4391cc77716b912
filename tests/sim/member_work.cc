// SimMember: what a call requests of a member.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/ownership.h"
#include "tests/sim/member.h"
#include "tests/sim/nodes.h"
#include "worker/core/leases.h"

namespace atl::sim {

using std::chrono::milliseconds;

namespace {

constexpr Duration kLateMax = std::chrono::milliseconds(60);  // less than any step takes
constexpr size_t kStepAttemptsMax = 64;

worker::StampTable::Stamps StampsIn(const GroupFrame& call) {
  return {call.parameters_since, call.moments_since};
}

absl::StatusOr<GroupReply> ToGroupReply(const absl::Status& status) {
  if (status.ok()) return GroupReply();
  return status;
}

}  // namespace

absl::StatusOr<JobFacts> SimMember::Open(const JobSpec& spec, std::function<bool()> cancelled) {
  Pause(milliseconds(50));
  if (cancelled()) return absl::AbortedError("interrupted");
  Close();
  job_ = worker::IslandJob{spec, ToyLayers(), {}};
  return ToyFacts(spec);
}

void SimMember::Close() {
  Interrupt("the job is closed");
  ++save_epoch_;
  job_.reset();
  held_.clear();
  stamps_.Clear();
  snapshot_.clear();
  addition_.clear();
  put_aside_.clear();
  kept_.reset();
  outer_.reset();
  next_outer_.reset();
  log_.Clear();
  DropCopies();
  taken_ = waits_ = StepSums();
}

absl::StatusOr<GroupReply> SimMember::Do(const GroupFrame& call,
                                         const std::atomic<bool>* interrupted) {
  GroupReply reply;
  if (dead_) return absl::AbortedError("the process has ended");
  if (!job_) return absl::FailedPreconditionError("no job is open");
  if (watch_) watch_(call);
  if (worker::BodyIf<FetchCall>(call) != nullptr) return ToGroupReply(Fetch(call));
  stamps_.Set(Held(), StampsIn(call));
  if (worker::BodyIf<ConfigureCall>(call) != nullptr) {
    ATOLL_RETURN_IF_ERROR(Takes(milliseconds(40)));
    if (!work_broken_.empty()) return absl::AbortedError(work_broken_);
    if (interrupted != nullptr && *interrupted) return absl::AbortedError("interrupted");
    Configure(&reply);
    return reply;
  }
  return std::visit(
      [&]<class Body>(const Body& body) -> absl::StatusOr<GroupReply> {
        if constexpr (requires { this->DoCall(body); }) {
          return DoCall(body);
        } else if constexpr (requires { this->DoOuter(body); }) {
          ATOLL_RETURN_IF_ERROR(Takes(milliseconds(5)));
          return ToGroupReply(DoOuter(body));
        } else {
          return absl::InvalidArgumentError("not a call");
        }
      },
      call.body);
}

absl::StatusOr<GroupReply> SimMember::DoCall(const DrainCall& call) {
  ATOLL_RETURN_IF_ERROR(Takes(milliseconds(2)));
  if (call.take) ATOLL_RETURN_IF_ERROR(TakeStep(*call.take));
  GroupReply reply;
  reply.commit = Committed();
  return reply;
}

absl::StatusOr<GroupReply> SimMember::DoCall(const DropSurplusCall&) {
  std::erase_if(held_, [](const auto& layer) { return layer.second.surplus; });
  for (auto& [layer, toy] : held_) toy.before.clear();
  if (next_outer_ != nullptr) outer_ = std::exchange(next_outer_, nullptr);
  return GroupReply();
}

absl::StatusOr<GroupReply> SimMember::DoCall(const StepCall& call) {
  const int64_t tokens = worker::Sequences(call.ranges) * job_->spec.data.sequence_length;
  newest_loss_ = {step_loss_ * static_cast<double>(tokens), tokens};
  return ToGroupReply(Step(call));
}

absl::StatusOr<GroupReply> SimMember::DoCall(const EvaluateCall& call) {
  last_number_ = std::max(last_number_, call.number);
  const int64_t tokens = 8 * call.count;
  const auto version = static_cast<double>(outer_ == nullptr ? 0 : outer_->tag().base);
  newest_loss_ = {static_cast<double>(tokens) / (2.0 + version), tokens};
  return ToGroupReply(Takes(milliseconds(100)));
}

absl::StatusOr<GroupReply> SimMember::DoCall(const TakeOverCall&) {
  if (!kept_ || kept_->leadership.generation != fence_.generation) {
    return absl::NotFoundError("it has not led this island in this generation");
  }
  GroupReply reply;
  reply.handover = kept_;
  return reply;
}

absl::StatusOr<GroupReply> SimMember::DoCall(const SnapshotCall&) {
  snapshot_.clear();
  GroupReply reply;
  reply.copies_taken = world_.rng.Chance(0.7);
  if (reply.copies_taken) snapshot_ = Thetas();
  return reply;
}

absl::StatusOr<GroupReply> SimMember::DoCall(const AdditionCall& call) {
  if (call.add) return ToGroupReply(AddPrepared());
  addition_.clear();
  addition_prepared_ = world_.rng.Chance(0.7);
  GroupReply reply;
  reply.copies_taken = addition_prepared_;
  return reply;
}

absl::StatusOr<GroupReply> SimMember::DoCall(const SaveCall& call) {
  return ToGroupReply(Save(worker::SaveTask{call}));
}

absl::StatusOr<GroupReply> SimMember::DoCall(const SetStepsCall& call) {
  SetSteps(call.optimizer_steps);
  return GroupReply();
}

// -------------------------------------------------------------------------------- the plan ----

std::vector<NodeId> SimMember::ListHolders(int32_t layer) const {
  std::vector<NodeId> holders;
  for (const PlanReplica& replica : plan_.replicas) {
    for (const PlanStage& stage : replica.stages) {
      const bool here = stage.first_layer <= layer && layer < stage.first_layer + stage.layers;
      if (here) holders.push_back(WorkerFromDevice(stage.devices[0]));
    }
  }
  return holders;
}

std::vector<HeldLayer> SimMember::Held() const {
  std::vector<HeldLayer> all;
  for (const auto& [layer, toy] : held_) {
    for (HeldLayer& held : toy.Held(layer, absl::StrCat(self_.worker, "/0"))) {
      all.push_back(std::move(held));
    }
  }
  stamps_.Note(&all);
  return all;
}

void SimMember::Configure(GroupReply* reply) {
  for (auto& [layer, theta] : put_aside_) held_[layer].theta = theta;
  put_aside_.clear();
  snapshot_.clear();
  addition_.clear();
  waits_ = StepSums();
  for (auto& [layer, toy] : held_) toy.surplus = true;
  const Ownership ownership = OwnershipFromPlan(plan_);
  for (size_t r = 0; r < plan_.replicas.size(); ++r) {
    for (const PlanStage& stage : plan_.replicas[r].stages) {
      if (WorkerFromDevice(stage.devices[0]) != self_.worker) continue;
      for (int32_t l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
        const int64_t elements = ToyLayers()[static_cast<size_t>(l)].elements;
        const Range owned = ownership.Owned(static_cast<int>(r), elements);
        const auto [found, made] = held_.try_emplace(l, elements, owned);
        if (!made) found->second.Own(owned);
        found->second.surplus = false;
      }
    }
  }
  std::erase_if(held_, [](const auto& layer) {
    return layer.second.surplus && !layer.second.written && layer.second.before.empty();
  });
  reply->held = Held();
  reply->saves = units_.Held();
  const std::vector<HeldSave> disk = *SavesIn(Tier::kDisk);
  reply->saves.insert(reply->saves.end(), disk.begin(), disk.end());
  reply->outer.emplace();
  if (outer_ != nullptr) {
    reply->outer = {outer_->tag(), *outer_->parts(), outer_->delta()->encoding, outer_->shards()};
  }
  reply->last_number = last_number_;
}

// ------------------------------------------------------------------------------- the steps ----

CommitState SimMember::Committed() const {
  const bool of_now = stepped_.job == fence_.job && stepped_.generation == fence_.generation;
  return of_now ? CommitState{taken_, waits_} : CommitState();
}

absl::Status SimMember::TakeStep(const StepSums& step) {
  if (worker::IsSameStep(waits_, step)) Take(step);
  return absl::OkStatus();
}

void SimMember::Take(const StepSums& step) {
  LoggedStep logged = stepping_;
  for (auto& [layer, toy] : held_) {
    if (toy.surplus) continue;
    toy.Step(layer, stepping_.ranges, stepping_.learning_rate);
    logged.optimizer_step = toy.optimizer_step;
  }
  taken_ = step;
  waits_ = StepSums();
  if (stepping_number_ == step.number) log_.Stepped(std::move(logged));
}

absl::Status SimMember::Step(const StepCall& step) {
  last_number_ = std::max<int64_t>(last_number_, step.number);
  if (!work_broken_.empty()) return absl::FailedPreconditionError(work_broken_);
  for (const auto& [layer, toy] : held_) {
    if (toy.surplus || (toy.written && toy.whole)) continue;
    return absl::FailedPreconditionError(absl::StrCat("layer ", layer, " is not whole"));
  }
  std::set<NodeId> all;
  for (size_t l = 0; l < ToyLayers().size(); ++l) {
    for (const NodeId& holder : ListHolders(static_cast<int32_t>(l))) all.insert(holder);
  }
  if (!all.contains(self_.worker)) return absl::OkStatus();  // it is only a source
  stepped_ = fence_;
  stepping_ = {0, step.ranges, step.learning_rate};
  stepping_number_ = step.number;
  // By epoch: after an interruption no vote is taken any more.
  const std::shared_ptr<StepAttempt> attempt = world_.FindOrAddStepAttempt(absl::StrCat(
      fence_.job, "/", fence_.generation, "/", fence_.plan, "/", epoch_, "/", step.number, "/",
      plan_.members.front().worker, "/", plan_.members.front().incarnation));
  ATOLL_RETURN_IF_ERROR(Commit(*attempt, step, all));
  Take(attempt->sums);
  return AllGatherParameters(*attempt, all);
}

absl::Status SimMember::Commit(StepAttempt& attempt, const StepCall& step,
                               const std::set<NodeId>& all) {
  const double jitter = 0.8 + 0.4 * world_.rng.Uniform();
  const Instant ready = world_.timeline.now() + FromSeconds(0.1 * slowness_ * jitter);
  const PeerFence fence = fence_;
  const int64_t epoch = epoch_;
  const auto broken = [&] { return !work_broken_.empty() || fence_ != fence || epoch_ != epoch; };
  ATOLL_RETURN_IF_ERROR(WaitUntil(
      StepTimeout(), [&] { return broken() || world_.timeline.now() >= ready - milliseconds(1); }));
  if (broken()) return absl::AbortedError(work_broken_);
  // The word is given.
  attempt.votes.insert(self_.worker);
  waits_ = {fence.plan, step.number, {}};
  if (attempt.votes == all) world_.Commit(attempt, {fence.plan, step.number, {1.0}}, kLateMax);
  for (const NodeId& worker : all) {
    if (worker == self_.worker || !attempt.committed) continue;
    if (const std::shared_ptr<SimMember> other = Partner(worker)) other->Wake();
  }
  const auto received = [&] {
    return attempt.committed && !attempt.missed.contains(self_.worker) &&
           world_.timeline.now() >= attempt.received_at.at(self_.worker);
  };
  while (!broken() && !received()) {
    if (dead_) return absl::AbortedError("the process has ended");
    if (attempt.committed && attempt.missed.contains(self_.worker)) {
      work_broken_ = "simulated: a link broke";
      break;
    }
    Block(attempt.committed ? attempt.received_at.at(self_.worker) - world_.timeline.now()
                            : Duration(milliseconds(100)));
    LookForLost();
  }
  if (dead_ || broken() || !worker::IsSameStep(waits_, {fence.plan, step.number, {}})) {
    return absl::AbortedError(work_broken_.empty() ? "interrupted" : work_broken_);
  }
  return absl::OkStatus();
}

absl::Status SimMember::AllGatherParameters(StepAttempt& attempt, const std::set<NodeId>& all) {
  attempt.took.insert(self_.worker);
  if (all.size() == 1 || !OwnershipFromPlan(plan_).sharded()) return absl::OkStatus();
  for (const NodeId& worker : all) {
    const std::shared_ptr<SimMember> other = worker == self_.worker ? nullptr : Partner(worker);
    if (other != nullptr) other->Wake();
  }
  if (world_.faulty() && world_.rng.Chance(world_.options.link_breaks)) {
    work_broken_ = "simulated: a link broke behind a step";
  }
  const PeerFence fence = fence_;
  const int64_t epoch = epoch_;
  const auto broken = [&] { return !work_broken_.empty() || fence_ != fence || epoch_ != epoch; };
  ATOLL_RETURN_IF_ERROR(WaitUntil(StepTimeout(), [&] { return broken() || attempt.took == all; }));
  if (broken()) return absl::AbortedError(work_broken_);
  for (auto& [layer, toy] : held_) {
    if (!toy.surplus) toy.AllGatherParameters();
  }
  return absl::OkStatus();
}

std::shared_ptr<StepAttempt> World::FindOrAddStepAttempt(const std::string& key) {
  for (const auto& [known, attempt] : step_attempts) {
    if (known == key) return attempt;
  }
  if (step_attempts.size() >= kStepAttemptsMax) step_attempts.pop_front();
  return step_attempts.emplace_back(key, std::make_shared<StepAttempt>()).second;
}

void World::Commit(StepAttempt& attempt, StepSums sums, Duration late_max) {
  attempt.committed = true;
  attempt.sums = std::move(sums);
  const bool breaks = attempt.votes.size() > 1 && faulty() && rng.Chance(options.link_breaks);
  for (const NodeId& worker : attempt.votes) {
    attempt.received_at[worker] =
        timeline.now() + UpTo(attempt.votes.size() > 1 ? late_max : Duration(0));
    if (breaks && rng.Chance(0.5)) attempt.missed.insert(worker);
  }
}

// ------------------------------------------------------------------------------ the layers ----

absl::Status SimMember::Fetch(const GroupFrame& call) {
  const FetchCall& fetch = std::get<FetchCall>(call.body);
  for (const StateTransfer& item : fetch.transfers) {
    const LayerShard& shard = item.shard;
    // There are no other cuts; a layer that no source has is not a number.
    ToyLayer fetched(ToyLayers()[static_cast<size_t>(shard.layer)].elements, {});
    std::vector<float> third(fetched.theta.size());
    for (const StateSource& source : item.sources) {
      const Range range = source.elements;
      const worker::ShardParts into{fetched.theta, fetched.moment, third};
      ATOLL_RETURN_IF_ERROR(FetchPart(source, worker::SliceParts(into, source.parts, range)));
    }
    if (world_.faulty() && world_.rng.Chance(world_.options.lost_writes)) {
      return absl::InternalError("simulated: a layer could not be written");
    }
    const auto planned = held_.find(shard.layer);
    if (planned == held_.end() || planned->second.surplus) {
      return absl::NotFoundError(absl::StrCat("the plan gives it no layer ", shard.layer));
    }
    planned->second.Replace(std::move(fetched.theta), std::move(fetched.moment),
                            fetch.optimizer_step);
    stamps_.Set(Held(), shard, StampsIn(call));
  }
  SetSteps(fetch.optimizer_step);
  stamps_.Set(Held(), StampsIn(call));
  if (fetch.save == 0) return absl::OkStatus();
  log_.Clear();
  log_.Saved(fetch.save, fetch.optimizer_step);
  return absl::OkStatus();
}

absl::Status SimMember::FetchPart(const StateSource& source, const worker::ShardParts& into) {
  const Range range = source.elements;
  if (range.size() == 0) return absl::OkStatus();
  if (source.save != 0) {
    return GetSaved(source.from, source.save, source.shard, range, into);
  }
  const SimMember* from = this;
  std::shared_ptr<SimMember> other;
  if (source.from != self_.worker) {
    ATOLL_RETURN_IF_ERROR(Takes(milliseconds(30)));
    std::string why;
    other = Partner(source.from, &why);
    if (other == nullptr) return absl::UnavailableError(why);
    if (other->epoch_ != epoch_) return absl::UnavailableError("it is in another attempt");
    from = other.get();
  }
  const int32_t layer = source.shard.layer;
  const auto found = from->held_.find(layer);
  for (const auto& [part, to] : worker::ToPartMap(into)) {
    const std::vector<float>* values = nullptr;
    if (found != from->held_.end()) {
      values = part == 0 ? found->second.Parameters(range) : found->second.Moments(range);
    }
    if (values == nullptr) {
      return absl::NotFoundError(absl::StrCat("layer ", layer, " is not at ", source.from));
    }
    std::copy_n(values->begin() + range.begin, range.size(), to.begin());
  }
  return absl::OkStatus();
}

absl::Status SimMember::SetLayer(int32_t layer, const std::vector<float>& theta, bool temporary) {
  if (!temporary) log_.Changed();
  if (world_.faulty() && world_.rng.Chance(world_.options.lost_writes)) {
    return absl::InternalError("simulated: a layer could not be written");
  }
  ToyLayer& toy = held_.at(layer);
  toy.theta = theta;
  toy.written = toy.whole = true;
  return absl::OkStatus();
}

absl::Status SimMember::AddPrepared() {
  for (const auto& [layer, values] : Thetas()) {
    const auto added = addition_.find(layer);
    if (added == addition_.end()) return absl::FailedPreconditionError("nothing to add");
    std::vector<float> sum = values;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added->second[i];
    ATOLL_RETURN_IF_ERROR(SetLayer(layer, sum, /*temporary=*/false));
  }
  return absl::OkStatus();
}

void SimMember::SetSteps(int64_t steps) {
  if (steps == 0) log_.Changed();
  for (auto& [layer, toy] : held_) {
    if (toy.surplus) continue;
    toy.optimizer_step = steps;
    if (steps > 0) continue;
    std::fill(toy.moment.begin() + toy.owned.begin, toy.moment.begin() + toy.owned.end, 0.0f);
  }
}

std::map<int32_t, std::vector<float>> SimMember::Thetas() const {
  std::map<int32_t, std::vector<float>> thetas;
  for (const auto& [layer, toy] : held_) {
    if (!toy.surplus) thetas[layer] = toy.theta;
  }
  return thetas;
}

}  // namespace atl::sim
