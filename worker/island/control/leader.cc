#include "worker/island/control/leader.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/model/outer_copies.h"
#include "common/protocol/host_copies.h"
#include "worker/core/leases.h"

namespace atl::worker {
namespace {

constexpr int kDeviceCopies = 4;  // theta, its gradient, two moments
constexpr int64_t kElementBytes = sizeof(float);

// Returns whether reading the initial weights failed by what the files hold.
bool IsAboutFiles(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsPermissionDenied(status) || absl::IsDataLoss(status) || absl::IsOutOfRange(status);
}

// Makes the event that ends a failed command. Nothing but reading training data loses any.
template <typename Command>
Event MakeFailure(const Command& command, const absl::Status& status) {
  std::string reason(status.message());
  if constexpr (std::is_same_v<Command, Prepare>) {
    return PrepareFailed{command.job, std::move(reason)};
  } else if constexpr (std::is_same_v<Command, MakeInitialWeights>) {
    return CommandFailed{std::move(reason), IsAboutFiles(status)};
  } else {
    constexpr bool kReads = std::is_same_v<Command, TrainStep> || std::is_same_v<Command, Validate>;
    return CommandFailed{std::move(reason), kReads && absl::IsDataLoss(status)};
  }
}

}  // namespace

IslandLeader::IslandLeader(IslandPort* port, LeaderOptions options, Hooks hooks)
    : port_(port),
      options_(options),
      hooks_(std::move(hooks)),
      tracer_([this](StepTraced traced) { hooks_.post(std::move(traced)); }) {
  capture_.lane = port_->NewLane();
  stage_.lane = port_->NewLane();
  commands_ = port_->NewLane();
}

IslandLeader::~IslandLeader() {
  Interrupt("the worker ends");
  commands_.reset();
  for (Beside* beside : {&capture_, &stage_}) beside->lane.reset();
  port_->StopLeading();
}

// ---------------------------------------------------------------------------------- the queue ----

void IslandLeader::Enqueue(Action command) {
  {
    const std::lock_guard lock(mutex_);
    Push(std::move(command));
  }
  commands_->Add([this] { DoNext(); });
}

void IslandLeader::Stage(const PullDone& pulled) {
  {
    const std::lock_guard lock(mutex_);
    Push(Staging{pulled, stagings_cancelled_});
  }
  commands_->Add([this] { DoNext(); });
}

void IslandLeader::Push(std::variant<Action, Staging> task) {
  ATOLL_CHECK(queue_.size() < kQueueMax, "the core requests more than it waits for");
  queue_.push_back({std::move(task), std::nullopt});
}

size_t IslandLeader::queued() const {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

void IslandLeader::Interrupt(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (Queued& queued : queue_) queued.interrupted = reason;
  for (Beside* beside : {&capture_, &stage_}) beside->cancelled = true;
  interrupted_ = true;
  port_->Interrupt(reason);
}

void IslandLeader::DoNext() {
  Queued next;
  {
    const std::lock_guard lock(mutex_);
    next = std::move(queue_.front());
    queue_.pop_front();
    // The next interrupt concerns this command. What goes on beside stays cancelled.
    for (Beside* beside : {&capture_, &stage_}) {
      if (!beside->going) beside->cancelled = false;
    }
    interrupted_ = false;
  }
  if (const Staging* staging = std::get_if<Staging>(&next.task)) return StagePulled(*staging);
  std::visit(
      [&]<typename Command>(const Command& c) {
        if constexpr (requires { this->Do(c); }) {
          constexpr bool kAlways =
              std::is_same_v<Command, ReleaseJob> || std::is_same_v<Command, Handover>;
          if (next.interrupted && !kAlways) {
            return hooks_.post(MakeFailure(c, absl::AbortedError(*next.interrupted)));
          }
          if constexpr (!std::is_same_v<Command, TrainStep>) AwaitBeside();
          if constexpr (std::is_same_v<decltype(this->Do(c)), absl::Status>) {
            if (const absl::Status done = Do(c); !done.ok()) hooks_.post(MakeFailure(c, done));
          } else {
            absl::StatusOr<Event> done = Do(c);
            hooks_.post(done.ok() ? *std::move(done) : MakeFailure(c, done.status()));
          }
        } else {
          ATOLL_CHECK(false, "not a command for the leader");
        }
      },
      std::get<Action>(next.task));
}

void IslandLeader::AwaitBeside() {
  for (const Beside* beside : {&capture_, &stage_}) beside->lane->AwaitIdle();
}

// ------------------------------------------------------------------------------------ the job ----

absl::StatusOr<Event> IslandLeader::Do(const Prepare& command) {
  Release();
  absl::StatusOr<Prepared> prepared = Open(command);
  if (prepared.ok()) return *std::move(prepared);
  Release();
  job_.clear();
  return prepared.status();
}

absl::StatusOr<Prepared> IslandLeader::Open(const Prepare& command) {
  job_ = command.job;
  spec_ = command.spec;
  fits_ = stepped_ = false;
  if (hooks_.await_free) ATOLL_RETURN_IF_ERROR(hooks_.await_free());
  const auto cancelled = [this] { return interrupted_.load(); };
  ATOLL_ASSIGN_OR_RETURN(facts_, port_->Open(spec_, cancelled));
  std::string lacks;
  // Where islands have plans, this worker may hold a part of the model, and follow.
  if (spec_.layout.island == IslandScope::kWorker) {
    ATOLL_ASSIGN_OR_RETURN(lacks, OpenAlone());
    ATOLL_RETURN_IF_ERROR(CheckMemory(nullptr));
    fits_ = true;
  }
  std::vector<DeviceProfile> profiles;
  if (hooks_.profiles) profiles = hooks_.profiles(spec_, facts_, !lacks.empty(), interrupted_);
  // No plan can say that it fits without measurements.
  if (!lacks.empty() && profiles.empty()) return absl::ResourceExhaustedError(lacks);
  return Prepared{job_, facts_, std::move(profiles)};
}

absl::StatusOr<std::string> IslandLeader::OpenAlone() {
  const absl::Status alone = ConfigureAlone();
  if (alone.ok()) return "";
  const bool may_fit = absl::IsResourceExhausted(alone) && PlanMayNeedLess();
  Release();
  if (!may_fit) return alone;
  // Without the layers that it has taken: the measuring of devices needs the room.
  ATOLL_RETURN_IF_ERROR(port_->Open(spec_, [this] { return interrupted_.load(); }).status());
  return std::string(alone.message());
}

// Returns whether a plan may need less of a device than everything on one.
bool IslandLeader::PlanMayNeedLess() const {
  const InnerSpec& inner = spec_.inner;
  return spec_.layout.recompute != Recompute::kNone || port_->devices() > 1 ||
         (inner.micro_batch_sequences == 0 && inner.batch_sequences > 1);
}

// `plan`: of an island that this worker leads; null: it holds the whole model.
absl::Status IslandLeader::CheckMemory(const IslandPlan* plan) const {
  if (options_.host_bytes == 0) return absl::OkStatus();
  int64_t elements = 0;
  for (const LayerSize& layer : facts_.layers) elements += layer.elements;
  // Each of several workers has a part of the model on its devices, for which the plan has seen to
  // it.
  const bool alone = plan == nullptr || plan->members.size() <= 1;
  int64_t bytes = 0;
  if (plan == nullptr) {
    bytes = elements * (OuterCopies(spec_) + SaveCopies(spec_)) * kElementBytes;
  } else {
    bytes = MakeHostCopies(spec_, *plan, facts_, plan->members.front().worker).needed_bytes();
  }
  if (options_.devices_on_host && alone) {
    bytes += elements * kDeviceCopies * kElementBytes + port_->island_job()->frozen_bytes;
  }
  if (bytes <= options_.host_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the model's ", elements, " parameters need ", bytes, " bytes ",
      options_.devices_on_host ? "on this worker" : "of this worker's host, beside its devices",
      ", which has ", options_.host_bytes,
      options_.devices_on_host ? " for it (--memory-bytes)" : "",
      ": use a smaller model or a larger ", options_.devices_on_host ? "worker" : "host"));
}

absl::Status IslandLeader::Do(const ReleaseJob& command) {
  if (job_ == command.job) {
    Release();
    job_.clear();
  }
  if (command.removed && hooks_.remove) hooks_.remove(command.job);
  return absl::OkStatus();
}

void IslandLeader::Release() {
  if (hooks_.await_free) (void)hooks_.await_free();  // Close interrupts what is still there
  port_->Close();
  tracer_.Answer(absl::AbortedError("the worker has let the job go"));
  stage_links_.clear();
  memory_.clear();
  alone_ = true;
  plan_ = IslandPlan();
  holdings_.clear();
  pending_.clear();
  configured_ = failed_ = false;
  known_ = {};
  replacing_ = false;
  steps_ = 0;
  staged_ = false;
  ForgetSaving();
  saves_.clear();
  bad_saves_.clear();
  replay_.reset();
  resume_save_ = 0;
  shards_.clear();
  outer_held_.clear();
}

// -------------------------------------------------------------------------------------- steps ----

absl::StatusOr<Event> IslandLeader::Do(const TrainStep& command) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<double> references,
                         FindReferences({.ranges = command.ranges}, command.ahead));
  const auto count = [](const auto& hook) { return hook ? hook() : int64_t{0}; };
  const Instant begun = port_->Now();  // only the first epoch has references to find
  const int64_t started_before = count(hooks_.transfers_started);
  const bool running_before = capture_.going || stage_.going || count(hooks_.transfers_running) > 0;
  const bool trace = tracer_.wanted();
  stepped_ = true;
  known_.known_steps = steps_;
  known_.step_tried = true;
  const absl::StatusOr<GroupReply> made =
      Together({.body = StepCall{++number_, command.ranges, command.learning_rate, trace,
                                 command.norm_limit, references}});
  if (!made.ok()) {
    tracer_.Answer(Annotate(made.status(), "the island abandoned a step"));
    return made.status();
  }
  known_.step_tried = false;
  known_.known_steps = ++steps_;
  NoteReply(name(), *made);
  if (trace) tracer_.Answer(CollectTrace(begun, Sequences(command.ranges)));
  ReportStageLinks();
  ReportMemory();
  const LossSum loss = port_->newest_loss();
  const Duration computed = port_->Now() - begun;
  if (options_.emulate_step > computed) {
    std::this_thread::sleep_for(options_.emulate_step - computed);
  }
  const bool overlapped = running_before || count(hooks_.transfers_started) != started_before;
  const int64_t tokens = Sequences(command.ranges) * spec_.data.sequence_length;
  std::vector<double> router_losses;
  std::vector<int64_t> expert_tokens;
  for (const RouterSum& router : loss.routers) {
    router_losses.insert(router_losses.end(), {router.balance, router.z});
    expert_tokens.insert(expert_tokens.end(), router.tokens.begin(), router.tokens.end());
  }
  return StepDone{tokens,
                  loss.mean(),
                  Seconds(port_->Now() - begun),
                  overlapped,
                  tokens - loss.tokens,
                  port_->newest_gradient_norm(),
                  port_->newest_skipped(),
                  loss.balance(),
                  loss.router_z(),
                  router_losses,
                  expert_tokens};
}

// A later leader may find them again. A reference that is not the base takes the parameters' place:
// it finds those of the next steps, too.
absl::StatusOr<std::vector<double>> IslandLeader::FindReferences(
    const ReferenceCall& call, const std::vector<PositionRange>& ahead) {
  if (spec_.data.documents != Documents::kPairs) return std::vector<double>();
  std::vector<double> known = port_->GetReferences(call);
  if (!known.empty()) return known;
  if (spec_.adapter.kind == AdapterKind::kLora) {
    ATOLL_RETURN_IF_ERROR(CallForReferences(call));
    return port_->GetReferences(call);
  }
  std::vector<ReferenceCall> calls = {call};
  for (const PositionRange& range : ahead) {
    const int64_t batch = spec_.inner.batch_sequences;
    for (int64_t first = range.begin; first < range.end; first += batch) {
      const ReferenceCall next{.ranges = {{first, std::min(first + batch, range.end)}},
                               .validation = call.validation};
      if (port_->GetReferences(next).empty()) calls.push_back(next);
    }
  }
  ATOLL_RETURN_IF_ERROR(EvaluateWith({.reference = true}, [&]() -> absl::Status {
    for (const ReferenceCall& each : calls) ATOLL_RETURN_IF_ERROR(CallForReferences(each));
    return absl::OkStatus();
  }));
  return port_->GetReferences(call);
}

absl::Status IslandLeader::CallForReferences(ReferenceCall call) {
  call.number = ++number_;
  return Together({.body = std::move(call)}).status();
}

absl::Status IslandLeader::FindValidationReferences() {
  for (int set = 0; set <= static_cast<int>(spec_.data.validation.size()); ++set) {
    const PositionRange all =
        port_->SelectValidationPositions(set, spec_.schedule.validation_sequences);
    // Finds those of each batch: where a former attempt broke off, the first ones alone are known.
    for (int64_t first = all.begin; first < all.end; first += spec_.inner.batch_sequences) {
      const int64_t end = std::min(all.end, first + spec_.inner.batch_sequences);
      ATOLL_RETURN_IF_ERROR(
          FindReferences({.ranges = {{first, end}}, .validation = true}, {{end, all.end}})
              .status());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LossSum> IslandLeader::Evaluate(int set, int64_t sequences) {
  const PositionRange positions = port_->SelectValidationPositions(set, sequences);
  const int64_t batch = spec_.inner.batch_sequences;
  LossSum sum;
  for (int64_t first = positions.begin; first < positions.end; first += batch) {
    const int64_t count = std::min(batch, positions.end - first);
    ATOLL_ASSIGN_OR_RETURN(
        std::vector<double> references,
        FindReferences({.ranges = {{first, first + count}}, .validation = true}, {}));
    ATOLL_ASSIGN_OR_RETURN(const LossSum loss, EvaluateAt(first, count, std::move(references)));
    sum.nats += loss.nats;
    sum.tokens += loss.tokens;
    sum.hits += loss.hits;
  }
  return sum;
}

absl::StatusOr<LossSum> IslandLeader::EvaluateAt(int64_t first, int64_t count,
                                                 std::vector<double> references) {
  ATOLL_RETURN_IF_ERROR(
      Together({.body = EvaluateCall{++number_, first, count, std::move(references)}}).status());
  return port_->newest_loss();
}

absl::StatusOr<ValidationDone> IslandLeader::ScoreTask(const Validate& command) {
  const auto task = static_cast<size_t>(*command.evaluation);
  // A row at a time: each has a loss of its own.
  ATOLL_ASSIGN_OR_RETURN(TaskScore score, port_->ScoreTask(task, [this](int64_t position) {
    return EvaluateAt(position, /*count=*/1, /*references=*/{});
  }));
  score.name = spec_.evaluation[task].name;
  score.version = command.version;
  return ValidationDone{.version = command.version, .score = std::move(score)};
}

absl::StatusOr<ValidationDone> IslandLeader::EvaluateAll(const Validate& command) {
  if (command.evaluation) return ScoreTask(command);
  const int64_t sequences = spec_.schedule.validation_sequences;
  ATOLL_ASSIGN_OR_RETURN(const LossSum held_out, Evaluate(/*set=*/0, sequences));
  ValidationDone done{command.version, held_out.mean(), held_out.tokens, held_out.accuracy()};
  for (const ValidationSet& set : spec_.data.validation) {
    ATOLL_ASSIGN_OR_RETURN(const LossSum loss,
                           Evaluate(static_cast<int>(done.sets.size()) + 1, sequences));
    done.sets.push_back({set.name, command.version, loss.mean(), loss.tokens, loss.accuracy()});
  }
  return done;
}

absl::StatusOr<Event> IslandLeader::Do(const Validate& command) {
  ValidationDone done;
  if (!command.evaluation) ATOLL_RETURN_IF_ERROR(FindValidationReferences());
  ATOLL_RETURN_IF_ERROR(EvaluateWith({}, [&]() -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(done, EvaluateAll(command));
    return absl::OkStatus();
  }));
  return done;
}

}  // namespace atl::worker
