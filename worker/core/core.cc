#include "worker/core/core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/protocol/fragments.h"
#include "common/protocol/mark_file.h"
#include "worker/core/impl.h"

namespace atl::worker {
namespace {

constexpr Duration kPrepareRetry = std::chrono::seconds(10);
constexpr Duration kAnswerAgain = std::chrono::seconds(1);
constexpr Duration kShutdownLimit = std::chrono::seconds(20);
// Of a command that reads files of the job: they may be on a disk that does not answer.
constexpr Duration kShutdownLimitReading = std::chrono::seconds(4);
constexpr size_t kSeenJobs = 64;
constexpr size_t kSeenLinks = 4096;
constexpr size_t kNamedMax = 16;
constexpr Duration kTellMeasuringAfter = std::chrono::milliseconds(500);

}  // namespace

WorkerCore::WorkerCore(Identity identity) : impl_(std::make_unique<Impl>(std::move(identity))) {}
WorkerCore::~WorkerCore() = default;
WorkerCore::WorkerCore(WorkerCore&&) noexcept = default;

Actions WorkerCore::Step(Instant now, const Event& event) { return impl_->Step(now, event); }
const std::string& WorkerCore::doing() const { return impl_->doing_; }
int64_t WorkerCore::inner_step() const { return impl_->inner_step(); }
bool WorkerCore::paused() const { return impl_->paused(); }

WorkerCore::Impl::Impl(Identity identity)
    : identity_(std::move(identity)), mark_(identity_.mark), remembered_(identity_.mark) {
  held_.insert(identity_.held.begin(), identity_.held.end());
}

Actions WorkerCore::Impl::Step(Instant now, const Event& event) {
  now_ = now;
  out_ = Actions();
  if (stopped_) return {};
  std::visit([this](const auto& e) { On(e); }, event);
  if (remember_at_ != kNever && Due(remember_at_)) RememberCoordinator();
  if (!stopped_) Plan();
  return std::move(out_);
}

// ------------------------------------------------------------------------------------- link ----

void WorkerCore::Impl::On(const Connected&) {
  connected_ = true;
  welcomed_ = false;
  hello_at_ = now_;
}

void WorkerCore::Impl::On(const ConnectionLost&) {
  connected_ = false;
  welcomed_ = false;
}

void WorkerCore::Impl::On(const Received& event) {
  const ToWorker& m = event.message;
  if (m.worker != identity_.name || m.incarnation != identity_.incarnation) return;
  if (!Obeys(m)) return;
  std::visit([this](const auto& message) { OnMessage(message); }, m.message);
}

bool WorkerCore::Impl::Obeys(const ToWorker& m) {
  if (!mark_.cluster.empty() && m.cluster != mark_.cluster) {
    if (welcomed_) return false;  // late, from before
    const std::string text = ForeignClusterText(mark_.cluster, m.cluster);
    if (refused_ != text) Emit(Note{text});
    refused_ = text;
    return false;
  }
  if (m.epoch < mark_.epoch) return false;
  if (std::holds_alternative<Refused>(m.message)) return true;  // no order
  mark_.epoch = m.epoch;
  mark_.sequence = std::max(mark_.sequence, m.sequence);
  const bool welcome = std::holds_alternative<Welcome>(m.message);
  if (welcome) mark_.cluster = m.cluster;
  if (!mark_.cluster.empty() && mark_ != remembered_) {
    if (welcome) {
      RememberCoordinator();
    } else if (remember_at_ == kNever) {
      remember_at_ = now_ + kRememberInterval;
    }
  }
  return true;
}

void WorkerCore::Impl::RememberCoordinator() {
  remember_at_ = kNever;
  if (mark_ != remembered_) Emit(RememberCluster{remembered_ = mark_});
}

void WorkerCore::Impl::On(const ShutdownRequested& event) {
  if (stopping_) return;
  stopping_ = true;
  stop_reason_ = event.reason;
  if (event.within) gone_at_ = now_ + *event.within;
  const bool reading = command_ == Command::kPrepare || command_ == Command::kInitialWeights;
  stop_by_ = now_ + (reading ? kShutdownLimitReading : kShutdownLimit);
  if (command_ == Command::kPrepare) GiveUpPreparing(stop_reason_);
  if (command_ == Command::kInitialWeights) Emit(InterruptStep{stop_reason_});
}

void WorkerCore::Impl::OnMessage(const Welcome& welcome) {
  refused_.clear();
  heartbeat_interval_ = std::clamp<Duration>(welcome.heartbeat_interval,
                                             std::chrono::milliseconds(1), std::chrono::minutes(1));
  if (welcomed_) return;
  welcomed_ = true;
  // Unanswered requests are repeated at once: this may be another coordinator.
  heartbeat_at_ = lease_at_ = validation_at_ = now_;
  if (in_flight_) in_flight_->request_at = now_;
  tell_saved_ = !saved_states_.empty();
  // And what was measured is said again.
  if (prepared_) Emit(Send{*prepared_});
  if (links_.empty()) return;
  LinksMeasured again;
  for (const auto& [to, link] : links_) again.links.push_back(link);
  Emit(Send{std::move(again)});
}

void WorkerCore::Impl::OnMessage(const Refused& refused) {
  welcomed_ = false;
  refused_ = refused.reason;
  hello_at_ = now_ + kRetryInterval;
  if (!refused.final) return;
  Emit(Stop{1, absl::StrCat("the coordinator refuses this worker: ", refused.reason)});
  stopped_ = true;
}

// ---------------------------------------------------------------------------------- prepare ----

void WorkerCore::Impl::OnMessage(const PrepareJob& prepare) {
  if (prepared_ && prepared_->job == prepare.job) {
    Emit(Send{*prepared_});
    return;
  }
  // Said again to a question that has crossed the answer; one that comes later may find it mended.
  if (failed_ && failed_->job == prepare.job &&
      now_ < prepare_again_at_ - kPrepareRetry + kAnswerAgain) {
    Emit(Send{*failed_});
    return;
  }
  // A worker that runs an island gets an order to stop first; until then the coordinator repeats
  // this.
  if (order_ || follow_ || preparing_ == prepare.job) return;
  if (command_ == Command::kPrepare) GiveUpPreparing("another job is to be opened");
  asked_ = prepare;
}

// Links are measured before an island is planned: a worker that is in one has no time for it, but
// for what leaves its links to the others as they are.
void WorkerCore::Impl::OnMessage(const MeasureLinks& request) {
  if (!request.probe && !request.beside && (follow_ || (order_ && order_->plan.number > 0))) return;
  Emit(request);
}

void WorkerCore::Impl::On(const LinksMeasured& event) {
  for (const LinkProfile& link : event.links) {
    if (links_.size() < kSeenLinks || links_.contains(link.to)) links_[link.to] = link;
  }
  if (welcomed_) Emit(Send{event});
}

// Sent at once, or nearly: there are many of these a second where layers are small.
void WorkerCore::Impl::On(const Measuring& event) {
  if (measuring_ == event.what) return;
  measuring_ = event.what;
  heartbeat_at_ = std::min(heartbeat_at_, heartbeat_sent_ + kTellMeasuringAfter);
}

// A step comes as soon as the island trains; until then the coordinator waits as long as it likes.
void WorkerCore::Impl::OnMessage(const TraceNextStep& request) {
  if (order_ && order_->job == request.job && order_->island == request.island &&
      order_->generation == request.generation) {
    return Emit(request);
  }
  Emit(Send{StepTraced{request.job,
                       request.request,
                       absl::StrCat("worker ", identity_.name, " does not lead island ",
                                    request.island, " in generation ", request.generation),
                       {}}});
}

void WorkerCore::Impl::On(const StepTraced& event) {
  if (welcomed_) Emit(Send{event});
}

void WorkerCore::Impl::On(const Prepared& event) {
  if (Finish() != Command::kPrepare) return;
  preparing_.clear();
  failed_.reset();
  configured_ = PlanName();
  prepared_ = JobPrepared{event.job, event.facts, event.profiles};
  if (welcomed_) Emit(Send{*prepared_});
}

void WorkerCore::Impl::On(const PrepareFailed& event) {
  if (Finish() != Command::kPrepare) return;
  preparing_.clear();
  failed_ = JobRefused{event.job, event.reason};
  prepare_again_at_ = now_ + kPrepareRetry;
  if (welcomed_) Emit(Send{*failed_});
}

// ------------------------------------------------------------------------------------ orders ----

// An order is new if it is newer than the newest one of its job: by generation (of one island),
// then by the coordinator's epoch, then by sequence. One that would take the worker to another job
// must be newer than the one it follows, too: a late copy from before would cost it that job's
// leases.
template <typename Order>
bool WorkerCore::Impl::IsNews(const Order& order) {
  const auto seen_of = [&](const JobId& job) {
    return std::find_if(seen_orders_.begin(), seen_orders_.end(),
                        [&](const SeenOrder& s) { return s.job == job; });
  };
  const JobId* current_job = order_ ? &order_->job : follow_ ? &follow_->job : nullptr;
  if (current_job != nullptr && *current_job != order.job && order.run != RunState::kStop) {
    const auto current = seen_of(*current_job);
    const bool late =
        current != seen_orders_.end() && std::make_tuple(mark_.epoch, order.sequence) <
                                             std::make_tuple(current->epoch, current->sequence);
    if (late) return false;
  }
  auto seen = seen_of(order.job);
  if (seen != seen_orders_.end()) {
    const auto rank = [&](const auto& o, int64_t epoch) {
      return std::make_tuple(order.island == seen->island ? o.generation : 0, epoch, o.sequence);
    };
    if (rank(order, mark_.epoch) <= rank(*seen, seen->epoch)) return false;
    seen_orders_.erase(seen);
  }
  seen_orders_.push_back({order.job, order.island, order.generation, mark_.epoch, order.sequence});
  if (seen_orders_.size() > kSeenJobs) seen_orders_.pop_front();
  return true;
}
template bool WorkerCore::Impl::IsNews(const MemberOrder&);

void WorkerCore::Impl::OnMessage(const IslandOrder& order) {
  if (!IsNews(order)) return;
  const bool same_job = order_ && order_->job == order.job;
  if (order.run == RunState::kStop) {
    if (same_job || !order_) EndJob(order.job);
    return;
  }
  if (follow_) StopFollowing("it is to lead an island itself");
  const bool same_island =
      same_job && order_->island == order.island && order_->generation == order.generation;
  if (!same_island) {
    ForgetIsland();
  } else {
    if (order.shards != order_->shards) RestartTransfers();
    if (order.plan.number < order_->plan.number) return;  // an old layout
    const bool larger = order.plan.number > order_->plan.number;
    // Or it waited for a step's end that will not come any more.
    const bool waited = order_->at_step_end && !SetUp() && SettingUp() == 0;
    // Between two plans no step is lost. The other members may not have the plan before, and will
    // not get it any more: setting it up would only time out.
    const bool between = command_ == Command::kReconfigure && settled_ == configuring_;
    if ((larger && between) || (!order.at_step_end && (larger || waited))) {
      Interrupt(absl::StrCat("plan ", order.plan.number, " is there"));
    }
    if (larger) trainer_trouble_.clear();
    if (larger) LeaveLater();
  }
  if (!same_job) {
    told_.clear();
    ForgetCounts();
  }
  // What could not be pulled yet may be there now.
  if (!order_ || order.committed_version != order_->committed_version) pull_at_ = now_;
  order_ = order;
  asked_.reset();
  heartbeat_at_ = now_;
}

// Shards have moved to other servers: the old addresses do not answer.
void WorkerCore::Impl::RestartTransfers() {
  Emit(CancelTransfers{});
  ++pull_;
  pulling_ = false;
  pull_at_ = now_;
  if (!in_flight_) return;
  in_flight_->trouble.reset();
  in_flight_->moved = true;
  in_flight_->request_at = now_;  // what was staged of a shard that has moved is granted again
  for (InFlight::Push& push : in_flight_->pushes) {
    push.retry_at = now_;
    if (push.state == InFlight::Shard::kStaged) continue;
    push.state = InFlight::Shard::kWanted;
    push.retry_at = now_;
  }
}

void WorkerCore::Impl::EndJob(const JobId& job) {
  if (follow_ && follow_->job != job) return;
  if (follow_) StopFollowing("the coordinator says so");
  ForgetIsland();
  not_finite_tries_ = 0;
  order_.reset();
  if (prepared_ && prepared_->job == job) prepared_.reset();
  if (asked_ && asked_->job == job) asked_.reset();
  if (command_ == Command::kPrepare && preparing_ == job) GiveUpPreparing("the job has ended");
  ForgetCounts();
  Emit(ReleaseJob{job, false});
}

void WorkerCore::Impl::OnMessage(const ForgetJob& message) {
  if ((order_ && order_->job == message.job) || (follow_ && follow_->job == message.job)) {
    EndJob(message.job);
  }
  if (held_.erase(message.job) > 0) Emit(ReleaseJob{message.job, true});
}

// What is being opened is not wanted any more. It may wait for a slow disk, or read a large file.
void WorkerCore::Impl::GiveUpPreparing(const std::string& reason) {
  if (discard_) return;
  discard_ = true;
  preparing_.clear();
  Emit(InterruptStep{reason});
}

// Counters that are shown for one job do not count for another.
void WorkerCore::Impl::ForgetCounts() {
  inner_step_ = tokens_ = steps_redone_ = steps_interrupted_ = 0;
  pushed_bytes_ = pulled_bytes_ = 0;
  learning_rate_ = 0;
  loss_ = tokens_per_s_ = idle_link_seconds_ = overlap_seconds_ = RecentMean();
  save_cost_ = SaveCost();
  stage_link_log_.Clear();
}

// Another generation, island or job: leases, contribution and local steps belong to the past.
void WorkerCore::Impl::ForgetIsland() {
  if (pulling_ || (in_flight_ && !in_flight_->pushes.empty())) Emit(CancelTransfers{});
  Interrupt("the island begins anew");
  memory_.clear();
  if (order_) {
    steps_redone_ += local_.steps;
    if (command_ == Command::kStep || step_failed_) ++steps_interrupted_;
  }
  hand_over_.reset();
  taken_over_ = 0;
  save_due_ = resume_tried_ = tell_saved_ = false;
  saving_tiers_.clear();
  save_cost_.Drop();
  saved_at_.clear();
  saved_states_.clear();
  resumed_.reset();
  unsaved_ = kept_by_owners_ = PlanName();
  step_failed_ = false;
  settled_ = PlanName();
  if (command_ != Command::kNone && command_ != Command::kPrepare) discard_ = true;
  adopted_ = initial_made_ = reset_moments_ = diverged_ = false;
  base_version_ = kNoVersion;
  tokens_at_base_ = 0;
  local_ = Work();
  share_ = 0;
  in_flight_.reset();
  last_pushed_.reset();
  stepping_.clear();
  leases_.Clear();
  exhausted_ = false;
  lease_at_ = now_;
  ++pull_;
  pulling_ = pulled_ = false;
  pull_at_ = now_;
  pull_trouble_.clear();
  validation_.reset();
  trainer_trouble_.clear();
  trainer_again_at_ = now_;
  trainer_failures_ = 0;
  given_up_.reset();
}

// ----------------------------------------------------------------------------------- helpers ----

void WorkerCore::Impl::Log(const std::string& text) {
  if (welcomed_) Emit(Send{WorkerLog{order_ ? order_->job : JobId(), text}});
}

// A recurring failure or recovery is logged once, until steps succeed again.
void WorkerCore::Impl::LogOnce(const std::string& text) {
  if (!welcomed_ || std::find(told_.begin(), told_.end(), text) != told_.end()) return;
  if (told_.size() == kNamedMax) told_.pop_front();
  told_.push_back(text);
  told_at_ = now_;
  Log(text);
}

void WorkerCore::Impl::Start(Command command, Action action) {
  ATOLL_CHECK(command_ == Command::kNone, "the trainer is busy");
  command_ = command;
  discard_ = false;
  Emit(std::move(action));
}

bool WorkerCore::Impl::Due(Instant at) {
  if (now_ >= at) return true;
  out_.deadline = std::min(out_.deadline, at);
  return false;
}

int64_t WorkerCore::Impl::round_steps() const {
  return std::max<int64_t>(
      order_->steps_this_round > 0 ? order_->steps_this_round : StepsBetweenPushes(spec().outer),
      1);
}

int64_t WorkerCore::Impl::round_sequences() const {
  return round_steps() * spec().inner.batch_sequences;
}

ContributionId WorkerCore::Impl::NextContribution() const {
  const Incarnation author = order_->author != 0 ? order_->author : identity_.incarnation;
  return {order_->island, order_->generation, author, base_version_};
}

}  // namespace atl::worker
