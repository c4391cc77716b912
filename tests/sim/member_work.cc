// SimMember: what a call asks a member for.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/ownership.h"
#include "tests/sim/member.h"
#include "tests/sim/nodes.h"
#include "worker/core/leases.h"
#include "worker/island/save_wire.h"

namespace atl::sim {

using std::chrono::milliseconds;
using worker::HeldLayer;
using worker::LayerShard;
using worker::StepSums;

namespace {

constexpr Duration kLateMax = std::chrono::milliseconds(60);  // less than any step takes
constexpr size_t kRoomsMax = 64;

absl::StatusOr<v1::GroupReply> ReplyOf(const absl::Status& status) {
  if (status.ok()) return v1::GroupReply();
  return status;
}

}  // namespace

void SimMember::Open(const JobId& job, const JobSpec& spec) {
  Close();
  job_name_ = job;
  job_ = worker::IslandJob{spec, ToyLayers(), {}};
}

void SimMember::Close() {
  Interrupt("the job is closed");
  ++keeper_;
  job_.reset();
  held_.clear();
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

absl::StatusOr<v1::GroupReply> SimMember::Do(const v1::GroupFrame& call,
                                             const std::atomic<bool>* interrupted) {
  v1::GroupReply reply;
  if (dead_) return absl::AbortedError("the process is gone");
  if (!job_) return absl::FailedPreconditionError("no job is open");
  for (auto& [layer, toy] : held_) {
    if (!toy.surplus && !call.has_fetch()) Stamp(call, toy);
  }
  switch (call.body_case()) {
    case v1::GroupFrame::kSettle: {
      ATOLL_RETURN_IF_ERROR(Takes(milliseconds(2)));
      if (call.settle().has_take()) {
        ATOLL_RETURN_IF_ERROR(TakeStep(worker::FromWire(call.settle().take())));
      }
      return Committed();
    }
    case v1::GroupFrame::kConfigure: {
      ATOLL_RETURN_IF_ERROR(Takes(milliseconds(40)));
      if (!work_broken_.empty()) return absl::AbortedError(work_broken_);
      if (interrupted != nullptr && *interrupted) return absl::AbortedError("interrupted");
      Configure(&reply);
      return reply;
    }
    case v1::GroupFrame::kFetch:
      return ReplyOf(Fetch(call));
    case v1::GroupFrame::kDropSurplus:
      std::erase_if(held_, [](const auto& layer) { return layer.second.surplus; });
      if (next_outer_ != nullptr) outer_ = std::exchange(next_outer_, nullptr);
      return reply;
    case v1::GroupFrame::kStep:
      return ReplyOf(Step(call.step()));
    case v1::GroupFrame::kEvaluate:
      last_number_ = std::max<int64_t>(last_number_, call.evaluate().number());
      ATOLL_RETURN_IF_ERROR(Takes(milliseconds(100)));
      return reply;
    case v1::GroupFrame::kTakeOver:
      if (!kept_ || kept_->leadership().generation() != fence_.generation) {
        return absl::NotFoundError("it has not led this island in this generation");
      }
      *reply.mutable_inheritance() = *kept_;
      return reply;
    case v1::GroupFrame::kOuter:
      ATOLL_RETURN_IF_ERROR(Takes(milliseconds(5)));
      ATOLL_RETURN_IF_ERROR(DoOuter(call.outer()));
      return reply;
    case v1::GroupFrame::kSnapshot:
      snapshot_.clear();
      reply.set_copies_taken(world_.rng.Chance(0.7));
      if (reply.copies_taken()) snapshot_ = Thetas();
      return reply;
    case v1::GroupFrame::kAddition:
      if (!call.addition().add()) {
        addition_.clear();
        addition_prepared_ = world_.rng.Chance(0.7);
        reply.set_copies_taken(addition_prepared_);
        return reply;
      }
      return ReplyOf(AddPrepared());
    case v1::GroupFrame::kSave:
      return ReplyOf(Save(worker::KeeperTaskOf(call.save())));
    case v1::GroupFrame::kSetSteps:
      SetSteps(call.set_steps().optimizer_steps());
      return reply;
    default:
      return absl::InvalidArgumentError("not a call");
  }
}

// -------------------------------------------------------------------------------- the plan ----

std::map<int32_t, NodeId> SimMember::HoldersOf(const IslandPlan& plan) const {
  std::map<int32_t, NodeId> holders;
  for (const PlanStage& stage : plan.replicas.at(0).stages) {
    for (int32_t l = 0; l < stage.layers; ++l) {
      holders[stage.first_layer + l] = WorkerOfDevice(stage.devices[0]);
    }
  }
  return holders;
}

void SimMember::Configure(v1::GroupReply* reply) {
  for (auto& [layer, theta] : put_aside_) held_[layer].theta = theta;
  put_aside_.clear();
  snapshot_.clear();
  addition_.clear();
  waits_ = StepSums();
  for (auto& [layer, toy] : held_) toy.surplus = true;
  std::erase_if(held_, [](const auto& layer) { return !layer.second.written; });
  for (const auto& [layer, holder] : HoldersOf(plan_)) {
    if (holder != self_.worker) continue;
    ToyLayer& toy = held_[layer];
    toy.surplus = false;
    if (toy.written) continue;
    const auto size = static_cast<size_t>(ToyLayers()[static_cast<size_t>(layer)].elements);
    toy.theta.assign(size, 0.0f);
    toy.moment.assign(size, 0.0f);
  }
  const Ownership ownership = OwnershipOf(plan_);
  for (const auto& [layer, toy] : held_) {
    HeldLayer held;
    held.shard = {layer, 0, {1}};
    held.device = absl::StrCat(self_.worker, "/0");
    held.elements = std::ssize(toy.theta);
    held.optimizer_step = toy.optimizer_step;
    held.written = held.whole = toy.written;
    held.surplus = toy.surplus;
    held.owned = ownership.Owned(0, held.elements);
    held.parameters_since = toy.parameters_since;
    held.moments_since = toy.moments_since;
    worker::ToWire(held, reply->add_held());
  }
  std::vector<worker::HeldSave> saves = units_.Held();
  const std::vector<worker::HeldSave> disk = *SavesIn(Tier::kDisk);
  saves.insert(saves.end(), disk.begin(), disk.end());
  for (const worker::HeldSave& save : saves) worker::ToWire(save, reply->add_saves());
  worker::OuterHoldings kept;
  if (outer_ != nullptr) {
    kept = {outer_->tag(), *outer_->parts(), outer_->delta()->encoding, outer_->shards()};
  }
  worker::ToWire(kept, reply->mutable_outer());
  reply->set_last_number(last_number_);
}

// ------------------------------------------------------------------------------- the steps ----

v1::GroupReply SimMember::Committed() const {
  v1::GroupReply reply;
  const bool of_now = stepped_.job == fence_.job && stepped_.generation == fence_.generation;
  worker::ToWire(of_now ? taken_ : StepSums(), reply.mutable_taken());
  worker::ToWire(of_now ? waits_ : StepSums(), reply.mutable_waits());
  return reply;
}

absl::Status SimMember::TakeStep(const StepSums& step) {
  if (waits_.Names(step)) Take(step);
  return absl::OkStatus();
}

void SimMember::Take(const StepSums& step) {
  worker::LoggedStep logged = stepping_;
  for (auto& [layer, toy] : held_) {
    if (toy.surplus) continue;
    ToyTrainer::StepLayer(layer, toy.theta, stepping_.ranges, stepping_.learning_rate, 1);
    ToyTrainer::StepLayer(layer, toy.moment, stepping_.ranges, stepping_.learning_rate, 1);
    logged.optimizer_step = ++toy.optimizer_step;
  }
  taken_ = step;
  waits_ = StepSums();
  if (stepping_number_ == step.number) log_.Stepped(std::move(logged));
}

absl::Status SimMember::Step(const v1::StepCall& step) {
  last_number_ = std::max<int64_t>(last_number_, step.number());
  if (!work_broken_.empty()) return absl::FailedPreconditionError(work_broken_);
  for (const auto& [layer, toy] : held_) {
    if (toy.surplus || toy.written) continue;
    return absl::FailedPreconditionError(absl::StrCat("layer ", layer, " is not written"));
  }
  const std::map<int32_t, NodeId> holders = HoldersOf(plan_);
  const bool takes_part = std::any_of(holders.begin(), holders.end(),
                                      [&](const auto& h) { return h.second == self_.worker; });
  if (!takes_part) return absl::OkStatus();  // it lends what it holds
  stepped_ = fence_;
  stepping_ = {0, worker::RangesOf(step), step.learning_rate()};
  stepping_number_ = step.number();
  const double jitter = 0.8 + 0.4 * world_.rng.Uniform();
  const Instant ready = world_.timeline.now() + FromSeconds(0.1 * slowness_ * jitter);
  const PeerFence fence = fence_;
  const int64_t epoch = epoch_;
  const auto broken = [&] { return !work_broken_.empty() || fence_ != fence || epoch_ != epoch; };
  ATOLL_RETURN_IF_ERROR(WaitUntil(
      StepTimeout(), [&] { return broken() || world_.timeline.now() >= ready - milliseconds(1); }));
  if (broken()) return absl::AbortedError(work_broken_);
  // The word is given.
  const std::shared_ptr<StepRoom> room = world_.RoomOf(absl::StrCat(
      fence.job, "/", fence.generation, "/", fence.plan, "/", epoch, "/", step.number(), "/",
      plan_.members.front().worker, "/", plan_.members.front().incarnation));
  room->words.insert(self_.worker);
  waits_ = {fence.plan, step.number(), {}};
  std::set<NodeId> all;
  for (const auto& [layer, holder] : holders) all.insert(holder);
  if (room->words == all) world_.Commit(*room, {fence.plan, step.number(), {1.0}}, kLateMax);
  for (const NodeId& worker : all) {
    if (worker == self_.worker || !room->committed) continue;
    if (const std::shared_ptr<SimMember> other = Partner(worker)) other->Wake();
  }
  const auto heard = [&] {
    return room->committed && !room->deaf.contains(self_.worker) &&
           world_.timeline.now() >= room->hear.at(self_.worker);
  };
  while (!broken() && !heard()) {
    if (dead_) return absl::AbortedError("the process is gone");
    if (room->committed && room->deaf.contains(self_.worker)) {
      work_broken_ = "simulated: a link broke";
      break;
    }
    Block(room->committed ? room->hear.at(self_.worker) - world_.timeline.now()
                          : Duration(milliseconds(100)));
    LookForLost();
  }
  if (dead_ || broken() || !waits_.Names({fence.plan, step.number(), {}})) {
    return absl::AbortedError(work_broken_.empty() ? "interrupted" : work_broken_);
  }
  Take(room->sums);
  return absl::OkStatus();
}

std::shared_ptr<StepRoom> World::RoomOf(const std::string& key) {
  for (const auto& [known, room] : rooms) {
    if (known == key) return room;
  }
  if (rooms.size() >= kRoomsMax) rooms.pop_front();
  return rooms.emplace_back(key, std::make_shared<StepRoom>()).second;
}

void World::Commit(StepRoom& room, worker::StepSums sums, Duration late_max) {
  room.committed = true;
  room.sums = std::move(sums);
  const bool breaks = room.words.size() > 1 && faulty() && rng.Chance(options.link_breaks);
  for (const NodeId& worker : room.words) {
    room.hear[worker] = timeline.now() + UpTo(room.words.size() > 1 ? late_max : Duration(0));
    if (breaks && rng.Chance(0.5)) room.deaf.insert(worker);
  }
}

// ------------------------------------------------------------------------------ the layers ----

void SimMember::Stamp(const v1::GroupFrame& call, ToyLayer& toy) const {
  if (call.has_parameters_since()) {
    toy.parameters_since = worker::FromWire(call.parameters_since());
  }
  if (call.has_moments_since()) toy.moments_since = worker::FromWire(call.moments_since());
}

absl::Status SimMember::Fetch(const v1::GroupFrame& call) {
  const v1::FetchCall& fetch = call.fetch();
  for (const v1::FetchCall::Item& item : fetch.items()) {
    const int32_t layer = item.shard().layer();
    ToyLayer fetched;
    const auto size = static_cast<size_t>(ToyLayers()[static_cast<size_t>(layer)].elements);
    fetched.theta.resize(size);
    fetched.moment.resize(size);
    for (const v1::FetchCall::Source& source : item.sources()) {
      ATOLL_RETURN_IF_ERROR(FetchPart(source, &fetched));
    }
    if (world_.faulty() && world_.rng.Chance(world_.options.lost_writes)) {
      return absl::InternalError("simulated: a layer could not be written");
    }
    fetched.optimizer_step = fetch.optimizer_step();
    fetched.written = true;
    Stamp(call, fetched);
    held_[layer] = std::move(fetched);
  }
  SetSteps(fetch.optimizer_step());
  for (auto& [layer, toy] : held_) {
    if (!toy.surplus) Stamp(call, toy);
  }
  if (fetch.save() == 0) return absl::OkStatus();
  log_.Clear();
  log_.Saved(fetch.save());
  return absl::OkStatus();
}

absl::Status SimMember::FetchPart(const v1::FetchCall::Source& source, ToyLayer* into) {
  const int32_t layer = source.shard().layer();
  const Range range{source.begin(), source.end()};
  const auto slice = [&](std::vector<float>& values) {
    return std::span(values).subspan(static_cast<size_t>(range.begin),
                                     static_cast<size_t>(range.size()));
  };
  if (source.save() != 0) {
    std::vector<float> third(into->theta.size());
    const worker::ShardParts to{slice(into->theta), slice(into->moment), slice(third)};
    return GetSaved(source.from(), source.save(), worker::FromWire(source.shard()), range, to);
  }
  const SimMember* from = this;
  std::shared_ptr<SimMember> other;
  if (source.from() != self_.worker) {
    ATOLL_RETURN_IF_ERROR(Takes(milliseconds(30)));
    std::string why;
    other = Partner(source.from(), &why);
    if (other == nullptr) return absl::UnavailableError(why);
    if (other->epoch_ != epoch_) return absl::UnavailableError("it is in another attempt");
    from = other.get();
  }
  const auto found = from->held_.find(layer);
  if (found == from->held_.end() || !found->second.written) {
    return absl::NotFoundError(absl::StrCat("layer ", layer, " is not at ", source.from()));
  }
  ToyLayer copy = found->second;
  const auto put = [&](std::vector<float>& values, std::vector<float>& to) {
    std::copy(slice(values).begin(), slice(values).end(), slice(to).begin());
  };
  put(copy.theta, into->theta);
  put(copy.moment, into->moment);
  return absl::OkStatus();
}

absl::Status SimMember::SetLayer(int32_t layer, const std::vector<float>& theta, bool borrowed) {
  if (!borrowed) log_.Changed();
  if (world_.faulty() && world_.rng.Chance(world_.options.lost_writes)) {
    return absl::InternalError("simulated: a layer could not be written");
  }
  ToyLayer& toy = held_.at(layer);
  toy.theta = theta;
  toy.written = true;
  return absl::OkStatus();
}

absl::Status SimMember::AddPrepared() {
  for (const auto& [layer, values] : Thetas()) {
    const auto added = addition_.find(layer);
    if (added == addition_.end()) return absl::FailedPreconditionError("nothing to add");
    std::vector<float> sum = values;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added->second[i];
    ATOLL_RETURN_IF_ERROR(SetLayer(layer, sum, /*borrowed=*/false));
  }
  return absl::OkStatus();
}

void SimMember::SetSteps(int64_t steps) {
  if (steps == 0) log_.Changed();
  for (auto& [layer, toy] : held_) {
    if (toy.surplus) continue;
    toy.optimizer_step = steps;
    if (steps == 0) std::fill(toy.moment.begin(), toy.moment.end(), 0.0f);
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
