#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/protocol/mark_file.h"
#include "common/protocol/wire.h"
#include "common/testing/files_simulated.h"
#include "proto/control.pb.h"
#include "tests/fuzz/cores/cores.h"
#include "tests/fuzz/cores/extremes.h"
#include "worker/core/core.h"

namespace atl::fuzz {
namespace {

using worker::Actions;
using worker::Event;
using worker::WorkerCore;

constexpr char kName[] = "w1";
constexpr char kCluster[] = "0123456789abcdef";
constexpr int64_t kMessagesOfProcess = 100;

IslandOrder MakeOrder() {
  IslandOrder order;
  order.job = "job-1";
  order.spec.name = "job";
  order.spec.inner.batch_sequences = 2;
  order.spec.data.sequence_length = 10;
  order.spec.schedule.train_tokens = 100000;
  order.spec.schedule.checkpoint_every_steps = 4;
  order.spec.outer.steps_per_round = 4;
  order.generation = 1;
  order.sequence = 1;
  order.layers = {{"a", 100}, {"b", 50}};
  order.shards = {{0, 0, 0, 100, "ps1", "tcp://ps1"}, {1, 1, 0, 50, "ps2", "tcp://ps2"}};
  order.pull_order = {1, 0};
  order.steps_this_round = 4;
  order.committed_version = 0;
  return order;
}

IslandPlan MakePlan() {
  IslandPlan plan;
  plan.number = 1;
  plan.members = {{kName, 5, "tcp://127.0.0.1:1", "", "", ""},
                  {"w2", 1, "tcp://127.0.0.1:2", "", "", ""}};
  plan.replicas = {{{{0, 2, {"w1/0"}, {}}}, 1, 2}, {{{0, 2, {"w2/0"}, {}}}, 1, 2}};
  return plan;
}

std::vector<v1::ToWorker> MakeMessages() {
  IslandOrder order = MakeOrder(), stop = MakeOrder(), pause = MakeOrder(), later = MakeOrder(),
              planned = MakeOrder();
  stop.run = RunState::kStop;
  pause.run = RunState::kPause;
  later.committed_version = 1;
  later.outcome = ContributionOutcome{{0, 1, 5, 0}, 1, true, false, "it is in"};
  later.validate_version = 1;
  planned.plan = MakePlan();
  planned.shared = true;
  MemberOrder member{"job-1", order.spec, 0, 1, 1, RunState::kRun, "", MakePlan(), true};
  std::swap(member.plan.members[0], member.plan.members[1]);
  const ContributionId contribution{0, 1, 5, 0};
  std::vector<ToWorkerMessage> kinds = {
      Welcome{},
      Refused{"busy", false},
      PrepareJob{"job-1", order.spec, 1},
      order,
      stop,
      pause,
      later,
      planned,
      member,
      LeaseGrant{"job-1", 0, 1, 1, {{0, 40}}, false},
      LeaseGrant{"job-1", 0, 1, 2, {{40, 80}}, true},
      PushGrant{"job-1", contribution, {{0, 0, 0, ""}, {1, 0, 0, ""}}},
      MeasureLinks{"job-1", 1, MakePlan().members, kName, {"w2"}, false, false},
      TraceNextStep{"job-1", 0, 1, 1},
      ForgetJob{"job-1"},
      FillShards{"job-1", 0, 1, 0, order.shards}};
  std::vector<v1::ToWorker> messages;
  for (ToWorkerMessage& kind : kinds) {
    const ToWorker message{kName, 5, 1, std::move(kind), kCluster, 0};
    const absl::Status status = Encode(message, &messages.emplace_back());
    ATOLL_CHECK(status.ok(), status.message());
  }
  return messages;
}

// Answers of the trainer and the transfers.
struct Answers {
  std::deque<Event>& to;

  template <class Action>
  void operator()(const Action&) {}
  void operator()(const worker::Prepare& a) {
    to.push_back(worker::Prepared{a.job, {{{"a", 100}, {"b", 50}}, 1000, 100, 7}});
  }
  void operator()(const worker::Reconfigure& a) {
    to.push_back(worker::Reconfigured{a.plan.number, true});
  }
  void operator()(const worker::MakeInitialWeights&) { to.push_back(worker::InitialWeightsMade{}); }
  void operator()(const worker::TrainStep& a) {
    int64_t sequences = 0;
    for (const PositionRange& range : a.ranges) sequences += range.size();
    to.push_back(worker::StepDone{sequences * 10, 2, 0.1, false});
  }
  void operator()(const CaptureDelta& a) {
    to.push_back(worker::DeltaCaptured{a.contribution});
    to.push_back(worker::DeltaReady{a.contribution});
  }
  void operator()(const worker::AdoptPulled& a) { to.push_back(worker::Adopted{a.version}); }
  void operator()(const worker::Validate& a) {
    to.push_back(worker::ValidationDone{a.version, 2, 100});
  }
  void operator()(const worker::Handover&) { to.push_back(worker::HandedOver{}); }
  void operator()(const worker::SaveState&) { to.push_back(worker::StateCopied{}); }
  void operator()(const StartPull& a) { to.push_back(PullDone{a.pull, 600}); }
  void operator()(const PushShards& a) {
    for (const ShardPart& part : a.shards) {
      to.push_back(
          PushShardDone{worker::MakePushId(a, part), ShardPushStatus::kStaged, "", part.elements});
    }
  }
};

// A worker's process, and what it keeps over its end: the mark of its cluster.
class Process {
 public:
  explicit Process(Rng* rng) : rng_(*rng) {
    ATOLL_CHECK(files_.MakeFolder("/state").ok());
    Start();
  }

  bool stopped() const { return stopped_; }

  void Start() {
    const auto mark = ReadClusterMark(files_, "/state");
    ATOLL_CHECK(mark.ok(), mark.status().message());
    worker::Identity identity{kName, 5};
    identity.hello.software_version = "test";
    identity.hello.devices = {{"cpu", 1 << 30, 1}};
    identity.hello.held = {"job-1"};
    identity.hello.mark = *mark;
    core_ = std::make_unique<WorkerCore>(std::move(identity));
    stopped_ = false;
    answers_.clear();
    Do(worker::Connected{});
  }

  void Do(const Event& event) {
    Actions actions = core_->Step(now_, event);
    deadline_ = actions.deadline;
    for (const worker::Action& action : actions.list) {
      if (const auto* send = std::get_if<worker::Send>(&action)) CheckSent(*send);
      if (const auto* remember = std::get_if<worker::RememberCluster>(&action)) {
        ATOLL_CHECK(WriteClusterMark(files_, "/state", remember->mark).ok());
        const auto read = ReadClusterMark(files_, "/state");
        ATOLL_CHECK(read.ok() && *read == remember->mark, "the mark is not read as it was");
      }
      if (std::holds_alternative<worker::Stop>(action)) stopped_ = true;
      std::visit(Answers{answers_}, action);
    }
  }

  // Time passes, and what was begun ends.
  void GoOn() {
    for (int turn = 0; turn < 20 && !stopped_; ++turn) {
      if (!answers_.empty()) {
        const Event event = std::move(answers_.front());
        answers_.pop_front();
        Do(rng_.Chance(0.05) ? Event(worker::CommandFailed{"it failed"}) : event);
      } else if (deadline_ != kNever) {
        now_ = std::max(now_, deadline_);
        Do(worker::Tick{});
      }
    }
  }

 private:
  static void CheckSent(const worker::Send& send) {
    const FromWorker message{kName, 5, send.message};
    v1::FromWorker wire;
    const absl::Status status = Encode(message, &wire);
    ATOLL_CHECK(status.ok(), status.message());
    const auto read = Decode(&wire);
    ATOLL_CHECK(read.ok(), read.status().message());
  }

  Rng& rng_;
  SimulatedFiles files_{1};
  std::unique_ptr<WorkerCore> core_;
  std::deque<Event> answers_;
  Instant now_{};
  Instant deadline_ = kNever;
  bool stopped_ = false;
};

}  // namespace

Tried TryWorker(uint64_t seed, int64_t messages) {
  Tried tried;
  Extremes extremes(seed);
  Rng& rng = extremes.rng();
  const std::vector<v1::ToWorker> kinds = MakeMessages();
  for (const v1::ToWorker& kind : kinds) extremes.Learn(kind);
  while (tried.messages < messages) {
    Process process(&rng);
    for (size_t kind = 0; kind < 4; ++kind) {  // welcomed, and perhaps at work
      v1::ToWorker wire = kinds[rng.Chance(0.7) ? kind : 0];
      process.Do(worker::Received{*Decode(&wire)});
      process.GoOn();
    }
    const int64_t most = std::min(messages, tried.messages + kMessagesOfProcess);
    while (tried.messages < most) {
      ++tried.messages;
      v1::ToWorker wire = kinds[rng.Below(kinds.size())];
      extremes.Change(&wire);
      if (rng.Chance(0.9)) wire.set_worker(kName), wire.set_incarnation(5);
      if (rng.Chance(0.9)) wire.set_cluster(kCluster);
      const auto message = Decode(&wire);
      if (!message.ok()) continue;
      ++tried.taken;
      process.Do(worker::Received{*message});
      process.GoOn();
      if (process.stopped() || rng.Chance(0.02)) process.Start();
    }
  }
  return tried;
}

}  // namespace atl::fuzz
