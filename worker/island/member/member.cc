#include "worker/island/member/member.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "common/model/tensor_layout.h"
#include "common/net/security.h"
#include "common/protocol/peer_collectives.h"
#include "worker/core/leases.h"

namespace atl::worker {
namespace {

// Waiting for members to accept a plan is interrupted this often, to look for an interruption.
constexpr Duration kMeetSlice = std::chrono::milliseconds(200);

// How long a trace waits for messages that its step has received, but whose receipts are missing.
constexpr Duration kArrivalTimeout = std::chrono::seconds(2);

// The host of "tcp://host:port", without the brackets of an IPv6 address.
std::string HostOf(const std::string& endpoint) {
  const size_t begin = endpoint.find("://") + 3;
  std::string host = endpoint.substr(begin, endpoint.rfind(':') - begin);
  if (!host.empty() && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GroupMember>> GroupMember::Create(GroupOptions options) {
  std::unique_ptr<GroupMember> member(new GroupMember(std::move(options)));
  for (std::unique_ptr<Keeper>& keeper : member->keepers_) {
    keeper = std::make_unique<Keeper>(
        [m = member.get()](const KeeperTask& task, const Cancelled& cancelled) {
          return task.tier == Tier::kMemory
                     ? m->KeepCopies(task, cancelled)
                     : m->saved_.Write(m->JobOfFence(), m->name(), task, cancelled);
        });
  }
  ATOLL_ASSIGN_OR_RETURN(member->link_, PeerLink::Create(member->options_.link, member.get()));
  member->transport_.Use(member->link_.get());
  return member;
}

GroupMember::GroupMember(GroupOptions options)
    : options_(std::move(options)),
      transport_(options_.link.name, options_.transport_bytes_max,
                 [this](const NodeId& to, const LineCall& call) {
                   v1::GroupFrame frame;
                   ToWire(call, frame.mutable_line());
                   Tell(to, std::move(frame));
                 }),
      rendezvous_([this](const std::string& key, const std::string& value) {
        v1::GroupFrame frame;
        frame.mutable_rendezvous()->set_key(key);
        frame.mutable_rendezvous()->set_value(value);
        return TellAll(std::move(frame));
      }),
      blocks_(options_.link.name, SumsOver(&link_)),
      saved_(options_.saves_folder) {}

GroupMember::~GroupMember() {
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->Cancel();
  Interrupt("the worker ends");
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->Stop();
  transfers_.Stop();
  outer_work_.Stop();
  if (device_side_ != nullptr) device_side_->Close();
  std::shared_ptr<Engine> engine;
  {
    const std::lock_guard lock(state_mutex_);
    engine.swap(engine_);
  }
  engine.reset();
  device_side_.reset();
  transport_.Stop();
  // link_ is destroyed next, and not here: its thread may be about to answer a call through the
  // pointer.
}

// ------------------------------------------------------------------------------------- job ----

absl::StatusOr<JobFacts> GroupMember::Open(const JobSpec& spec, std::function<bool()> cancelled) {
  Close();
  if (options_.check_job) ATOLL_RETURN_IF_ERROR(options_.check_job(spec));
  DataOptions data = options_.data;
  data.watch.cancelled = std::move(cancelled);
  ATOLL_ASSIGN_OR_RETURN(GroupJob job, GroupJob::Open(spec, options_.compute, data));
  ATOLL_ASSIGN_OR_RETURN(std::vector<LocalDevice> devices, options_.make_devices());
  job_ = std::make_unique<GroupJob>(std::move(job));
  island_job_ = {job_->spec, job_->facts.layers, job_->undivided};
  saved_.SetRemote(spec.checkpoint.remote);
  device_side_ = DeviceSide::Of(name(), devices, &transport_, &transport_.log(),
                                options_.engine.message_timeout);
  const std::lock_guard lock(state_mutex_);
  engine_ = std::make_shared<Engine>(name(), std::move(devices), options_.engine);
  return job_->facts;
}

void GroupMember::Close() {
  Interrupt("the job is closed");
  outer_work_.Drain();
  const std::lock_guard work(engine_mutex_);
  std::shared_ptr<Engine> engine;
  {
    const std::lock_guard lock(state_mutex_);
    engine.swap(engine_);
    kept_.reset();
    outer_.reset();
    next_outer_.reset();
    stamps_.Clear();
  }
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->Cancel();
  DropCopies();
  log_.Change([](ReplayLog& log) { log.Clear(); });
  put_aside_.clear();
  if (device_side_ != nullptr) device_side_->Close();
  engine.reset();
  device_side_.reset();
  communicators_.reset();
  job_.reset();
}

const IslandJob* GroupMember::island_job() const {
  return job_ == nullptr ? nullptr : &island_job_;
}

IslandMember GroupMember::Self() const {
  return {name(), options_.link.incarnation, endpoint(), ""};
}

int64_t GroupMember::NowUs() const {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

std::shared_ptr<Engine> GroupMember::engine() const {
  const std::lock_guard lock(state_mutex_);
  return engine_;
}

// ------------------------------------------------------------------------------------ plan ----

absl::Status GroupMember::Join(const PeerFence& fence, const IslandPlan& plan) {
  if (fence.plan == 0) {
    JoinAlone(fence, plan);
    return absl::OkStatus();
  }
  const std::lock_guard meeting(meeting_mutex_);
  {
    const std::lock_guard lock(state_mutex_);
    if (fence != fence_) {
      epoch_ = 0;
      interrupted_epoch_ = -1;
    }
    if (fence != fence_) ForgetSeen();
    fence_ = fence;
    plan_ = plan;
  }
  return link_->SetPeers(fence, plan.members);
}

absl::Status GroupMember::Meet(const std::vector<NodeId>& workers,
                               const std::atomic<bool>& interrupted) {
  const Instant deadline = SteadyNow() + options_.meet_timeout;
  for (;;) {
    if (interrupted) return absl::AbortedError("interrupted");
    const Instant now = SteadyNow();
    const absl::Status met = link_->AwaitPeers(std::min(deadline, now + kMeetSlice), workers);
    if (met.ok() || !absl::IsDeadlineExceeded(met) || now >= deadline) return met;
  }
}

absl::Status GroupMember::MeetToMeasure(const PeerFence& fence,
                                        const std::vector<IslandMember>& members) {
  const std::lock_guard meeting(meeting_mutex_);
  {
    const std::lock_guard lock(state_mutex_);
    if (fence_.plan > 0 && plan_.number > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("worker ", name(), " works in an island of ", fence_.job));
    }
  }
  return link_->SetPeers(fence, members);
}

void GroupMember::JoinAlone(const PeerFence& fence, const IslandPlan& plan) {
  Leave();
  const std::lock_guard lock(state_mutex_);
  if (fence != fence_) {
    epoch_ = 0;
    interrupted_epoch_ = -1;
  }
  fence_ = fence;
  plan_ = plan;
  ForgetSeen();
}

void GroupMember::Leave() {
  PeerFence fence;
  {
    const std::lock_guard lock(state_mutex_);
    fence = fence_;
    plan_ = IslandPlan();
    ForgetSeen();
  }
  if (!fence.job.empty()) (void)link_->SetPeers(fence, {});  // no peers: cannot be refused
}

void GroupMember::BeginEpoch(int64_t epoch) {
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->Cancel();
  epoch_ = epoch;
  inbox_.BeginEpoch(epoch);
  rendezvous_.BeginEpoch(epoch);
  if (interrupted_epoch_ >= epoch) rendezvous_.Abort(absl::AbortedError("aborted before it began"));
  transport_.BeginEpoch(epoch);
}

absl::Status GroupMember::Configure(const std::atomic<bool>* cancelled) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  CommunicatorsOptions options;
  options.worker = name();
  options.address = HostOf(endpoint());
  options.allow_plaintext_beyond_loopback = options_.link.allow_plaintext_beyond_loopback;
  options.timeout = StepTimeout();
  IslandPlan plan;
  {
    const std::lock_guard lock(state_mutex_);
    plan = plan_;
    options.scope =
        absl::StrCat(fence_.job, "/", fence_.generation, "/", fence_.plan, "/", epoch());
  }
  ATOLL_RETURN_IF_ERROR(PutBack());
  blocks_.BeginScope(options.scope + "/");
  if (CollectivesUsePeerLinks(plan.members)) options.peer_blocks = &blocks_;
  for (const IslandMember& member : plan.members) options.sites[member.worker] = member.site;
  NcclCommunicatorsOptions nccl;
  nccl.worker = options.worker;
  nccl.scope = absl::StrCat(options.scope, "/nccl");
  nccl.timeout = options.timeout;
  nccl.reaches_other_workers = options.allow_plaintext_beyond_loopback || IsLoopback(endpoint());
  nccl.nccl = options_.nccl_functions;
  for (IslandMember& member : plan.members) {
    // The maker of a plan for this worker alone did not know NCCL's version.
    if (plan.members.size() == 1) member.nccl = options_.nccl;
  }
  std::shared_ptr<CommunicatorFactory> communicators =
      std::make_shared<Communicators>(std::move(options), &rendezvous_);
  const std::lock_guard work(engine_mutex_);
  // What is left of an interrupted step must not meet the new plan's order of messages.
  if (device_side_ != nullptr) device_side_->Close();
  transport_.SetPlan(plan);
  Transport* transport = &transport_;
  if (device_side_ != nullptr) {
    communicators = device_side_->Communicators(plan, std::move(nccl), &rendezvous_, communicators);
    transport = device_side_->transport();
    ATOLL_RETURN_IF_ERROR(device_side_->Prepare(plan, job_->engine));
  }
  const absl::Status status =
      engine->Configure(job_->engine, plan, transport, communicators.get(), cancelled);
  if (status.ok()) older_.reset();
  if (!status.ok() && older_ == nullptr) older_ = communicators_;
  communicators_ = std::move(communicators);
  return status;
}

std::vector<StageLinkCounters> GroupMember::StageLinks() const {
  return device_side_ == nullptr ? transport_.counters() : device_side_->transport()->counters();
}

std::vector<HeldLayer> GroupMember::Held() {
  const std::shared_ptr<Engine> engine = this->engine();
  std::vector<HeldLayer> held;
  {
    const std::lock_guard work(engine_mutex_);
    if (engine != nullptr) held = engine->Held();
  }
  const std::lock_guard lock(state_mutex_);
  stamps_.Note(&held);
  return held;
}

void GroupMember::Stamp(const StampBook::Stamps& stamps) {
  const std::vector<HeldLayer> held = Held();
  const std::lock_guard lock(state_mutex_);
  stamps_.Set(held, stamps);
}

void GroupMember::DropSurplus() {
  const std::shared_ptr<Engine> engine = this->engine();
  const std::lock_guard work(engine_mutex_);
  if (engine != nullptr) engine->DropSurplus();
}

absl::Status GroupMember::Fetch(const std::vector<ShardMove>& moves, int64_t optimizer_step,
                                int64_t save, const StampBook::Stamps& stamps) {
  for (const ShardMove& move : moves) {
    ATOLL_RETURN_IF_ERROR(Annotate(FetchOne(move, optimizer_step), ToString(move.shard)));
    const std::vector<HeldLayer> held = Held();
    const std::lock_guard lock(state_mutex_);
    stamps_.Set(held, move.shard, stamps);
  }
  ATOLL_RETURN_IF_ERROR(SetOptimizerSteps(optimizer_step));
  Stamp(stamps);
  if (save == 0) return absl::OkStatus();
  log_.Change([&](ReplayLog& log) {
    log.Clear();
    log.Saved(save, optimizer_step);
  });
  return absl::OkStatus();
}

absl::Status GroupMember::FetchOne(const ShardMove& move, int64_t optimizer_step) {
  // Of each shard that is a source: one, or all ranks of another cut.
  std::map<int32_t, std::unique_ptr<OwnedParts>> shards;
  for (const ShardSource& source : move.sources) {
    std::unique_ptr<OwnedParts>& parts = shards[source.shard.rank];
    if (parts == nullptr) {
      ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job_->LayoutOf(source.shard));
      parts = std::make_unique<OwnedParts>(layout.size, kAllParts);
    }
    const int64_t size = std::ssize(parts->parts().parameters);
    if (source.elements.end > size) {
      return absl::InvalidArgumentError(
          absl::StrCat("elements up to ", source.elements.end, " of a shard that has ", size));
    }
    const ShardParts to = SliceOf(parts->parts(), source.parts, source.elements);
    ATOLL_RETURN_IF_ERROR(
        source.save == 0 ? GetShard(source.from, source.shard, source.elements, to)
                         : GetSaved(source.from, source.save, source.shard, source.elements, to));
  }
  if (move.sources[0].shard == move.shard) {
    return SetState(move.shard, optimizer_step, shards.begin()->second->parts());
  }
  // Another cut: through the whole layer.
  ATOLL_ASSIGN_OR_RETURN(const LayerLayout own, job_->LayoutOf(move.shard));
  const LayerLayout& whole = job_->layouts[static_cast<size_t>(move.shard.layer)];
  const OwnedParts joined(whole.size, kAllParts);
  const PartMap all = PartsOf(joined.parts());
  for (const auto& [rank, parts] : shards) {
    LayerShard shard = move.sources[0].shard;
    shard.rank = rank;
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job_->LayoutOf(shard));
    for (const auto& [part, values] : PartsOf(parts->parts())) {
      JoinLayer(whole, layout, values, all.at(part));
    }
  }
  const OwnedParts cut(own.size, kAllParts);
  for (const auto& [part, values] : PartsOf(cut.parts())) {
    CutLayer(whole, own, all.at(part), values);
  }
  return SetState(move.shard, optimizer_step, cut.parts());
}

// As long as chunks come, however slowly: two receivers of one source may need minutes for a layer,
// and a timeout would only restart it.
absl::Status GroupMember::AwaitChunks(const StateInbox::Key& key, const ShardParts& parts) {
  int64_t bytes = 0;
  for (const auto& [part, values] : PartsOf(parts)) bytes += std::ssize(values) * 4;
  return inbox_.Await(key, options_.call_timeout,
                      SteadyNow() + options_.call_timeout + MoveLimit(bytes));
}

Duration GroupMember::StepTimeout() const {
  const std::lock_guard lock(state_mutex_);
  return StepLimit(plan_, options_.call_timeout);
}

void GroupMember::Keep(v1::Handover kept) {
  const std::lock_guard lock(state_mutex_);
  kept_ = std::move(kept);
}

void GroupMember::DropKept() {
  const std::lock_guard lock(state_mutex_);
  kept_.reset();
}

std::optional<v1::Handover> GroupMember::kept() const {
  const std::lock_guard lock(state_mutex_);
  return kept_;
}

// ------------------------------------------------------------------------------------ work ----

std::shared_ptr<Engine> GroupMember::Begin(int64_t number) {
  last_number_ = std::max<int64_t>(last_number_, number);
  return engine();
}

absl::StatusOr<StepOutcome> GroupMember::Step(int64_t number,
                                              const std::vector<PositionRange>& ranges,
                                              double learning_rate, bool trace) {
  const Cancelled cancelled = [this, before = interrupts_.load()] { return interrupts_ != before; };
  const auto read = [&](int64_t first_row, std::span<int32_t> tokens) -> absl::Status {
    const int64_t row = job_->row();
    int64_t before = 0;  // rows of earlier ranges
    for (const PositionRange& range : ranges) {
      const int64_t begin = std::max<int64_t>(first_row - before, 0);
      before += range.size();
      if (begin >= range.size() || tokens.empty()) continue;
      const int64_t rows =
          std::min<int64_t>(range.size() - begin, static_cast<int64_t>(tokens.size()) / row);
      ATOLL_RETURN_IF_ERROR(job_->data.ReadTrain(
          range.begin + begin, tokens.first(static_cast<size_t>(rows * row)), cancelled));
      tokens = tokens.subspan(static_cast<size_t>(rows * row));
      first_row += rows;
    }
    return tokens.empty() ? absl::OkStatus()
                          : absl::InvalidArgumentError("the step has fewer sequences than that");
  };
  const std::shared_ptr<Engine> engine = Begin(number);
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  const std::lock_guard work(engine_mutex_);
  ATOLL_ASSIGN_OR_RETURN(const int64_t masked, job_->data.CountMasked(ranges, cancelled));
  {
    const std::lock_guard lock(state_mutex_);
    stepped_ = fence_;
  }
  log_.Begin(number, ranges, learning_rate);
  if (trace) transport_.log().Record(number);
  ATOLL_ASSIGN_OR_RETURN(
      StepOutcome outcome,
      engine->Step({number, Sequences(ranges), learning_rate, trace, masked}, read));
  log_.Taken(number, engine->optimizer_steps(), outcome.loss.nats);
  const std::lock_guard lock(state_mutex_);
  if (fence_.plan == 0) return outcome;  // without a plan there is nothing to compare it with
  for (DeviceWork& device : outcome.work) device.model_digest = job_->digest;
  work_ = outcome.work;
  sums_ = outcome.sums;
  return outcome;
}

CommitState GroupMember::Committed() {
  const std::shared_ptr<Engine> engine = this->engine();
  {
    const std::lock_guard lock(state_mutex_);
    if (stepped_.job != fence_.job || stepped_.generation != fence_.generation) return {};
  }
  const std::lock_guard work(engine_mutex_);
  return engine == nullptr ? CommitState() : engine->Committed();
}

absl::Status GroupMember::TakeStep(const StepSums& step) {
  if (!Committed().waits.Names(step)) return absl::OkStatus();
  const std::shared_ptr<Engine> engine = this->engine();
  const std::lock_guard work(engine_mutex_);
  ATOLL_RETURN_IF_ERROR(engine->TakeStep(step));
  log_.Taken(step.number, engine->optimizer_steps(), std::nullopt);
  return absl::OkStatus();
}

std::vector<DeviceWork> GroupMember::Work() const {
  const std::lock_guard lock(state_mutex_);
  return work_;
}

void GroupMember::ForgetSeen() {
  work_.clear();
  sums_.clear();
}

std::vector<GroupSums> GroupMember::Sums() const {
  const std::lock_guard lock(state_mutex_);
  return sums_;
}

std::array<int64_t, kPeerEndpointsMax> GroupMember::EdgeBytesSent() const {
  std::array<int64_t, kPeerEndpointsMax> sent = {};
  for (const PeerCounters& peer : link_->counters()) {
    for (size_t edge = 0; edge < sent.size(); ++edge) sent[edge] += peer.edge_bytes_sent[edge];
  }
  return sent;
}

std::vector<RoundTrip> GroupMember::RoundTrips() const {
  std::vector<IslandMember> members;
  {
    const std::lock_guard lock(state_mutex_);
    if (fence_.plan == 0) return {};
    members = plan_.members;
  }
  std::vector<RoundTrip> trips;
  for (const PeerCounters& seen : link_->counters()) {
    const bool member = std::any_of(members.begin(), members.end(),
                                    [&](const IslandMember& m) { return m.worker == seen.peer; });
    if (!member || seen.round_trip == Duration(0) || link_->IsLost(seen.peer)) continue;
    trips.push_back({seen.peer, Seconds(seen.round_trip)});
  }
  return trips;
}

std::vector<LinkFailure> GroupMember::Unreachable() const {
  {
    const std::lock_guard lock(state_mutex_);
    if (fence_.plan == 0 || plan_.number == 0) return {};
  }
  std::vector<LinkFailure> failures;
  for (const auto& [worker, trouble] : link_->Unconnected(options_.unreachable_after)) {
    failures.push_back(
        {worker, absl::StrCat("no connection within ", Seconds(options_.unreachable_after), " s (",
                              trouble, ")")});
  }
  return failures;
}

MemberTrace GroupMember::TraceOf(const StepOutcome& outcome) {
  return TraceOfMember(outcome, transport_.log().Take(SteadyNow() + kArrivalTimeout));
}

absl::StatusOr<LossSum> GroupMember::Evaluate(int64_t number, int64_t first, int64_t count) {
  if (job_ == nullptr || first + count > job_->data.validation_sequences()) {
    return absl::InvalidArgumentError("there are fewer validation sequences");
  }
  const Cancelled cancelled = [this, before = interrupts_.load()] { return interrupts_ != before; };
  const auto read = [&](int64_t first_row, std::span<int32_t> tokens) {
    return job_->data.ReadValidation(first + first_row, tokens, cancelled);
  };
  const std::shared_ptr<Engine> engine = Begin(number);
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  const std::lock_guard work(engine_mutex_);
  ATOLL_ASSIGN_OR_RETURN(const int64_t masked,
                         job_->data.CountMaskedValidation(first, count, cancelled));
  return engine->Evaluate({.number = number, .sequences = count, .masked_tokens = masked}, read);
}

void GroupMember::InterruptWork(const std::string& reason) {
  if (const std::shared_ptr<Engine> engine = this->engine()) engine->Interrupt(reason);
  rendezvous_.Abort(absl::AbortedError(reason));
}

void GroupMember::Interrupt(const std::string& reason) {
  const absl::Status why = absl::AbortedError(reason);
  ++interrupts_;
  InterruptWork(reason);
  calls_.Fail(why);
  inbox_.Fail(why);
}

}  // namespace atl::worker
