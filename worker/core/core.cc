#include "worker/core/core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/net/relay/places.h"
#include "common/protocol/fragments.h"
#include "common/protocol/learning_rate.h"
#include "common/protocol/limits.h"
#include "common/protocol/mark_file.h"
#include "worker/core/impl.h"

namespace atl::worker {
namespace {

constexpr Duration kPrepareRetry = std::chrono::seconds(10);
constexpr Duration kAnswerAgain = std::chrono::seconds(1);
constexpr Duration kShutdownLimit = std::chrono::seconds(20);
// The limit of a command that reads files of the job: they may be on a disk that does not answer.
constexpr Duration kShutdownLimitReading = std::chrono::seconds(4);
constexpr size_t kSeenJobs = 64;
constexpr int64_t kStepsMax = int64_t{1} << 30;  // of a round
constexpr size_t kSeenLinks = 4096;
constexpr size_t kNamedMax = 16;
constexpr Duration kReportMeasuringAfter = std::chrono::milliseconds(500);

}  // namespace

WorkerCore::WorkerCore(Identity identity) : impl_(std::make_unique<Impl>(std::move(identity))) {}
WorkerCore::~WorkerCore() = default;
WorkerCore::WorkerCore(WorkerCore&&) noexcept = default;
WorkerCore::WorkerCore(const WorkerCore& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}

Actions WorkerCore::Step(Instant now, const Event& event) { return impl_->Step(now, event); }
const std::string& WorkerCore::activity() const { return impl_->activity_; }
int64_t WorkerCore::inner_step() const { return impl_->inner_step(); }
bool WorkerCore::paused() const { return impl_->paused(); }

WorkerCore::Impl::Impl(Identity identity) : identity_(std::move(identity)) {
  session_.mark = session_.remembered = identity_.hello.mark;
  held_.insert(identity_.hello.held.begin(), identity_.hello.held.end());
}

Actions WorkerCore::Impl::Step(Instant now, const Event& event) {
  now_ = now;
  out_ = Actions();
  if (shutdown_.state == Shutdown::State::kStopped) return {};
  std::visit([this](const auto& e) { On(e); }, event);
  if (session_.remember_at != kNever && Due(session_.remember_at)) RememberCoordinator();
  if (shutdown_.state != Shutdown::State::kStopped) Plan();
  return std::move(out_);
}

// ------------------------------------------------------------------------------------- link ----

void WorkerCore::Impl::On(const Connected&) {
  session_.state = Session::State::kConnected;
  session_.hello_at = now_;
}

void WorkerCore::Impl::On(const ConnectionLost&) { session_.state = Session::State::kDisconnected; }

void WorkerCore::Impl::On(const Received& event) {
  const ToWorker& m = event.message;
  if (m.worker != identity_.name || m.incarnation != identity_.incarnation) return;
  if (!Accepts(m)) return;
  std::visit([this](const auto& message) { OnMessage(message); }, m.message);
}

bool WorkerCore::Impl::Accepts(const ToWorker& m) {
  if (!session_.mark.cluster.empty() && m.cluster != session_.mark.cluster) {
    if (session_.welcomed()) return false;  // late, from before
    const std::string text = ForeignClusterText(session_.mark.cluster, m.cluster);
    if (session_.refused != text) Emit(Note{text});
    session_.refused = text;
    return false;
  }
  if (m.epoch < session_.mark.epoch) return false;
  if (std::holds_alternative<Refused>(m.message)) return true;  // no order
  session_.mark.epoch = m.epoch;
  session_.mark.sequence = std::max(session_.mark.sequence, m.sequence);
  const bool welcome = std::holds_alternative<Welcome>(m.message);
  if (welcome) session_.mark.cluster = m.cluster;
  if (!session_.mark.cluster.empty() && session_.mark != session_.remembered) {
    if (welcome) {
      RememberCoordinator();
    } else if (session_.remember_at == kNever) {
      session_.remember_at = now_ + kRememberInterval;
    }
  }
  return true;
}

void WorkerCore::Impl::RememberCoordinator() {
  session_.remember_at = kNever;
  if (session_.mark != session_.remembered) {
    Emit(RememberCluster{session_.remembered = session_.mark});
  }
}

void WorkerCore::Impl::On(const ShutdownRequested& event) {
  if (shutdown_.state != Shutdown::State::kNone) return;
  shutdown_.state = Shutdown::State::kRequested;
  shutdown_.reason = event.reason;
  if (event.within) following_.ends_at = now_ + *event.within;
  const bool reading = command_ == Command::kPrepare || command_ == Command::kInitialWeights;
  shutdown_.by = now_ + (reading ? kShutdownLimitReading : kShutdownLimit);
  if (command_ == Command::kPrepare) GiveUpPreparing(shutdown_.reason);
  if (command_ == Command::kInitialWeights) Emit(InterruptStep{shutdown_.reason});
}

void WorkerCore::Impl::OnMessage(const Welcome& welcome) {
  session_.refused.clear();
  session_.heartbeat_interval = std::clamp<Duration>(
      welcome.heartbeat_interval, std::chrono::milliseconds(1), identity_.heartbeat_interval_max);
  // A hello says again what others are to know of it.
  const bool first = session_.state != Session::State::kWelcomed;
  if (TakeRelays(welcome.relays, first, &session_.relays)) {
    Emit(UseRelays{session_.relays});
    if (session_.state != Session::State::kDisconnected) {
      session_.state = Session::State::kConnected;
      session_.hello_at = now_;
    }
    return;
  }
  // It has been welcomed before, or this is of a connection that is lost.
  if (session_.state != Session::State::kConnected) {
    session_.heartbeat_at =
        std::min(session_.heartbeat_at, session_.heartbeat_sent + session_.heartbeat_interval);
    return;
  }
  session_.state = Session::State::kWelcomed;
  // Unanswered requests are repeated at once: this may be another coordinator.
  session_.heartbeat_at = leased_.request_at = validation_at_ = now_;
  if (in_flight_) in_flight_->request_at = now_;
  saving_.report_due = !saving_.states.empty();
  // And what was measured is said again.
  if (preparation_.done) Emit(Send{*preparation_.done});
  if (links_.empty()) return;
  LinksMeasured again;
  for (const auto& [to, link] : links_) again.links.push_back(link);
  Emit(Send{std::move(again)});
}

void WorkerCore::Impl::OnMessage(const Refused& refused) {
  if (session_.welcomed()) session_.state = Session::State::kConnected;
  session_.refused = refused.reason;
  session_.hello_at = now_ + kRetryInterval;
  if (!refused.final) return;
  Emit(Stop{1, absl::StrCat("the coordinator refuses this worker: ", refused.reason)});
  shutdown_.state = Shutdown::State::kStopped;
}

// ---------------------------------------------------------------------------------- prepare ----

void WorkerCore::Impl::OnMessage(const PrepareJob& prepare) {
  if (preparation_.done && preparation_.done->job == prepare.job) {
    Emit(Send{*preparation_.done});
    return;
  }
  // A request that has crossed its answer; a new one may find the cause mended.
  if (preparation_.failed && preparation_.failed->job == prepare.job &&
      preparation_.failed->request == prepare.request &&
      now_ < preparation_.again_at - kPrepareRetry + kAnswerAgain) {
    Emit(Send{*preparation_.failed});
    return;
  }
  // A worker that runs an island gets an order to stop first; until then the coordinator repeats
  // this.
  if (order_ || following_.order || preparation_.opening == prepare.job) return;
  if (command_ == Command::kPrepare) GiveUpPreparing("another job is to be opened");
  preparation_.requested = prepare;
}

// Links are measured before an island is planned: a worker that is in one has no time for it, but
// for what leaves its links to the others as they are.
void WorkerCore::Impl::OnMessage(const MeasureLinks& request) {
  if (!request.probe && !request.during_steps &&
      (following_.order || (order_ && order_->plan.number > 0))) {
    return;
  }
  Emit(request);
}

void WorkerCore::Impl::On(const LinksMeasured& event) {
  for (const LinkProfile& link : event.links) {
    if (links_.size() < kSeenLinks || links_.contains(link.to)) links_[link.to] = link;
  }
  if (session_.welcomed()) Emit(Send{event});
}

// Sent at once, or nearly: there are many of these a second where layers are small.
void WorkerCore::Impl::On(const Measuring& event) {
  if (measuring_ == event.what) return;
  measuring_ = event.what;
  session_.heartbeat_at =
      std::min(session_.heartbeat_at, session_.heartbeat_sent + kReportMeasuringAfter);
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
  if (session_.welcomed()) Emit(Send{event});
}

void WorkerCore::Impl::On(const Prepared& event) {
  if (Finish() != Command::kPrepare) return;
  preparation_.opening.clear();
  preparation_.failed.reset();
  configured_ = PlanName();
  preparation_.done = JobPrepared{event.job, event.facts, event.profiles};
  if (session_.welcomed()) Emit(Send{*preparation_.done});
}

void WorkerCore::Impl::On(const PrepareFailed& event) {
  if (Finish() != Command::kPrepare) return;
  preparation_.opening.clear();
  preparation_.failed = JobRefused{event.job, event.reason, preparation_.request};
  preparation_.again_at = now_ + kPrepareRetry;
  if (session_.welcomed()) Emit(Send{*preparation_.failed});
}

// ------------------------------------------------------------------------------------ orders ----

// An order is new if it is newer than the newest one of its job: by generation (of one island),
// then by the coordinator's epoch, then by sequence. One that would take the worker to another job
// must be newer than the one it follows, too: a late copy from before would cost it that job's
// leases.
template <typename Order>
bool WorkerCore::Impl::IsNewer(const Order& order) {
  if (const absl::Status counts = ValidateCounts(order.spec);
      order.run != RunState::kStop && !counts.ok()) {
    Emit(Note{absl::StrCat("an order of job ", order.job, " is ignored: ", counts.message())});
    return false;
  }
  const auto find_seen = [&](const JobId& job) {
    return std::find_if(seen_orders_.begin(), seen_orders_.end(),
                        [&](const SeenOrder& s) { return s.job == job; });
  };
  const JobId* current_job = order_             ? &order_->job
                             : following_.order ? &following_.order->job
                                                : nullptr;
  if (current_job != nullptr && *current_job != order.job && order.run != RunState::kStop) {
    const auto current = find_seen(*current_job);
    const bool late =
        current != seen_orders_.end() && std::make_tuple(session_.mark.epoch, order.sequence) <
                                             std::make_tuple(current->epoch, current->sequence);
    if (late) return false;
  }
  auto seen = find_seen(order.job);
  if (seen != seen_orders_.end()) {
    const auto rank = [&](const auto& o, int64_t epoch) {
      return std::make_tuple(order.island == seen->island ? o.generation : 0, epoch, o.sequence);
    };
    if (rank(order, session_.mark.epoch) <= rank(*seen, seen->epoch)) return false;
    seen_orders_.erase(seen);
  }
  seen_orders_.push_back(
      {order.job, order.island, order.generation, session_.mark.epoch, order.sequence});
  if (seen_orders_.size() > kSeenJobs) seen_orders_.pop_front();
  return true;
}
template bool WorkerCore::Impl::IsNewer(const MemberOrder&);

void WorkerCore::Impl::OnMessage(const IslandOrder& order) {
  if (order.steps_this_round > kStepsMax || order.active_islands > kMaxIsland || !IsNewer(order)) {
    return;
  }
  const bool same_job = order_ && order_->job == order.job;
  if (order.run == RunState::kStop) {
    if (same_job || !order_) EndJob(order.job);
    return;
  }
  if (following_.order) StopFollowing("it is to lead an island itself");
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
    const bool between = command_ == Command::kReconfigure && drained_ == configuring_;
    if ((larger && between) || (!order.at_step_end && (larger || waited))) {
      Interrupt(absl::StrCat("plan ", order.plan.number, " is there"));
    }
    if (larger) trainer_trouble_.clear();
    if (larger) LeaveLater();
  }
  if (!same_job) {
    logged_.clear();
    ForgetCounts();
  }
  // A pull that failed may succeed now.
  if (!order_ || order.committed_version != order_->committed_version) pull_.retry_at = now_;
  order_ = std::make_shared<const IslandOrder>(order);
  preparation_.requested.reset();
  session_.heartbeat_at = now_;
}

// Shards have moved to other servers: the old addresses do not answer.
void WorkerCore::Impl::RestartTransfers() {
  Emit(CancelTransfers{});
  ++pull_.number;
  if (pull_.pulling()) pull_.state = Pull::State::kNone;
  pull_.retry_at = now_;
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
  if (following_.order && following_.order->job != job) return;
  if (following_.order) StopFollowing("the coordinator says so");
  ForgetIsland();
  not_finite_tries_ = 0;
  norms_.Clear();
  skipped_in_a_row_ = 0;
  newest_skipped_ = false;
  skipped_steps_ = 0;
  not_finite_.clear();
  order_.reset();
  if (preparation_.done && preparation_.done->job == job) preparation_.done.reset();
  if (preparation_.requested && preparation_.requested->job == job) preparation_.requested.reset();
  if (command_ == Command::kPrepare && preparation_.opening == job) {
    GiveUpPreparing("the job has ended");
  }
  ForgetCounts();
  Emit(ReleaseJob{job, false});
}

void WorkerCore::Impl::OnMessage(const ForgetJob& message) {
  if ((order_ && order_->job == message.job) ||
      (following_.order && following_.order->job == message.job)) {
    EndJob(message.job);
  }
  if (held_.erase(message.job) > 0) Emit(ReleaseJob{message.job, true});
}

// Gives no more time to what is being opened. It may wait for a slow disk, or read a large file.
void WorkerCore::Impl::GiveUpPreparing(const std::string& reason) {
  if (discard_) return;
  discard_ = true;
  preparation_.opening.clear();
  Emit(InterruptStep{reason});
}

// Counters that are shown for one job do not count for another.
void WorkerCore::Impl::ForgetCounts() {
  counters_.inner_step = counters_.tokens = counters_.steps_redone = counters_.steps_interrupted =
      0;
  counters_.pushed_bytes = counters_.pulled_bytes = 0;
  counters_.learning_rate = 0;
  counters_.router_balance = counters_.router_z = RecentMean();
  counters_.router_losses.clear();
  counters_.expert_tokens.clear();
  counters_.expert_tokens_since.clear();
  counters_.loss = counters_.gradient_norm = counters_.tokens_per_s = counters_.idle_link_seconds =
      counters_.overlap_seconds = RecentMean();
  saving_.cost = SaveCost();
  stage_link_log_.Clear();
}

// Another generation, island or job: leases, contribution and local steps belong to the past.
void WorkerCore::Impl::ForgetIsland() {
  if (pull_.pulling() || (in_flight_ && !in_flight_->pushes.empty())) Emit(CancelTransfers{});
  Interrupt("the island begins anew");
  memory_.clear();
  if (order_) {
    counters_.steps_redone += local_.steps;
    if (command_ == Command::kStep || step_failed_) ++counters_.steps_interrupted;
  }
  handover_.reset();
  taken_over_ = 0;
  saving_.due = saving_.resume_tried = saving_.report_due = false;
  saving_.under_way.clear();
  saving_.cost.Drop();
  saving_.newest_at.clear();
  saving_.states.clear();
  saving_.resumed.reset();
  saving_.no_copies = saving_.kept_by_owners = PlanName();
  step_failed_ = false;
  drained_ = PlanName();
  if (command_ != Command::kNone && command_ != Command::kPrepare) discard_ = true;
  adopted_ = initial_made_ = reset_moments_ = diverged_ = false;
  base_version_ = kNoVersion;
  tokens_at_base_ = 0;
  local_ = Work();
  in_flight_.reset();
  last_pushed_.reset();
  stepping_.clear();
  leased_.ranges.Clear();
  leased_.exhausted = false;
  leased_.request_at = now_;
  ++pull_.number;
  pull_.state = Pull::State::kNone;
  pull_.retry_at = now_;
  pull_.trouble.clear();
  validation_.reset();
  trainer_trouble_.clear();
  trainer_again_at_ = now_;
  trainer_failures_ = 0;
  given_up_.reset();
}

// ----------------------------------------------------------------------------------- helpers ----

void WorkerCore::Impl::Log(const std::string& text) {
  if (session_.welcomed()) Emit(Send{WorkerLog{order_ ? order_->job : JobId(), text}});
}

// A recurring failure or recovery is logged once, until steps succeed again.
void WorkerCore::Impl::LogOnce(const std::string& text) {
  if (!session_.welcomed() || std::find(logged_.begin(), logged_.end(), text) != logged_.end())
    return;
  if (logged_.size() == kNamedMax) logged_.pop_front();
  logged_.push_back(text);
  logged_at_ = now_;
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

int64_t WorkerCore::Impl::batch() const { return BatchSequences(spec().inner, tokens_at_base_); }

int64_t WorkerCore::Impl::round_sequences() const { return round_steps() * batch(); }

ContributionId WorkerCore::Impl::NextContribution() const {
  const Incarnation author = order_->author != 0 ? order_->author : identity_.incarnation;
  return {order_->island, order_->generation, author, base_version_};
}

}  // namespace atl::worker
