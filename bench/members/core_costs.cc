// What an event costs the coordinator's core by itself, whatever else it keeps: heartbeats of
// members with one job, with many, and with many that have ended; and the decision about one
// contribution of many shards. Times are simulated, CPU is the process's.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/members/fake_members.h"
#include "common/check.h"
#include "coordinator/core/core.h"

namespace atl::bench {
namespace {

constexpr int kRepeats = 7;
constexpr int64_t kEndlessTokens = int64_t{1} << 44;
constexpr Duration kTurn = std::chrono::milliseconds(200);

int64_t CpuNs() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A core and its members; what it stores is not kept.
class Cluster {
 public:
  Cluster(CoordinatorOptions options, FakeTimings timings)
      : timings_(timings), core_(std::move(options), "00000000000000aa", 1), server_(0) {
    ATOLL_CHECK(core_.Recover(now_, {}).ok());
    events_.push_back(FromServer{server_.name(), 1, server_.Hello()});
    Drain();
  }

  void AddWorkers(int64_t count) {
    for (const int64_t end = std::ssize(workers_) + count; std::ssize(workers_) < end;) {
      auto worker = std::make_unique<FakeWorker>(
          &timings_, static_cast<int>(workers_.size()),
          [this](const ShardPlacement& at, const PushId& push, Encoding) {
            events_.push_back(FromServer{at.server, 1, PushStaged{push}});
          });
      events_.push_back(FromWorker{worker->name(), 1, worker->Hello()});
      by_name_[worker->name()] = worker.get();
      workers_.push_back(std::move(worker));
    }
    Drain();
  }

  JobId Submit(int64_t islands, int64_t layers = 1) {
    JobSpec spec;
    spec.name = "load";
    spec.model.vocabulary = 32;
    spec.model.hidden = 8;
    spec.model.layers = layers;
    spec.model.heads = 2;
    spec.data.path = "text";
    spec.data.sequence_length = 10;
    spec.inner.batch_sequences = 1;
    spec.layout.island = IslandScope::kWorker;
    spec.outer.min_islands = spec.outer.max_islands = islands;
    spec.outer.steps_per_round = 4;
    spec.schedule.train_tokens = kEndlessTokens;
    events_.push_back(SubmitJob{1, spec, ++submitted_});
    Drain();
    ATOLL_CHECK(reply_.status.ok(), reply_.status.message());
    return reply_.job;
  }
  void Cancel(const JobId& job) {
    events_.push_back(ControlJob{1, job, JobCommand::kCancel});
    Drain();
  }
  bool Runs(const JobId& job) const { return core_.FindState(job) == JobState::kRunning; }
  // Takes turns until they all run.
  void AwaitRunning(const std::vector<JobId>& jobs) {
    const auto run = [&] {
      return std::all_of(jobs.begin(), jobs.end(), [&](const JobId& job) { return Runs(job); });
    };
    for (int turns = 0; !run(); ++turns) {
      ATOLL_CHECK(turns < 1000, "the jobs do not run");
      Turn();
    }
  }

  void Turn() {
    now_ += kTurn;
    if (++turns_ % 10 == 0) Beat();
    for (const auto& worker : workers_) {
      for (WorkerMessage& message : worker->Turn(now_)) {
        events_.push_back(FromWorker{worker->name(), 1, std::move(message)});
      }
    }
    Drain();
  }

  // CPU of one heartbeat of a worker, and of what is due meanwhile: they come evenly over two
  // seconds.
  double MeasureBeatNs() {
    std::vector<double> measured;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const Duration apart = std::chrono::seconds(2) / std::ssize(workers_);
      core_ns_ = 0;
      for (const auto& worker : workers_) {
        now_ += apart;
        events_.push_back(FromWorker{worker->name(), 1, worker->Heartbeat()});
        Drain();
      }
      events_.push_back(FromServer{server_.name(), 1, server_.Heartbeat()});
      Drain();
      measured.push_back(static_cast<double>(core_ns_) / static_cast<double>(workers_.size()));
    }
    std::nth_element(measured.begin(), measured.begin() + kRepeats / 2, measured.end());
    return measured[kRepeats / 2];
  }

  // CPU from the first report of a staged shard on until the round is decided.
  double MeasureDecisionMs(const JobId& job) {
    const int64_t decided = core_.Summary(job)->version;
    while (events_.empty() || !IsStaged(events_.front())) {
      now_ += kTurn;
      for (const auto& worker : workers_) {
        for (WorkerMessage& message : worker->Turn(now_)) {
          events_.push_back(FromWorker{worker->name(), 1, std::move(message)});
        }
      }
      while (!events_.empty() && !IsStaged(events_.front())) Next();
      Tick();
    }
    core_ns_ = 0;
    commits_ = 0;
    while (commits_ == 0 && !events_.empty()) Next();
    ATOLL_CHECK(commits_ > 0, "nothing was decided");
    const double ms = static_cast<double>(core_ns_) / 1e6;
    Drain();
    ATOLL_CHECK(core_.Summary(job)->version == decided + 1);
    return ms;
  }

 private:
  static bool IsStaged(const CoordinatorEvent& event) {
    const auto* server = std::get_if<FromServer>(&event);
    return server != nullptr && std::holds_alternative<PushStaged>(server->message);
  }

  void Beat() {
    for (const auto& worker : workers_) {
      events_.push_back(FromWorker{worker->name(), 1, worker->Heartbeat()});
    }
    events_.push_back(FromServer{server_.name(), 1, server_.Heartbeat()});
  }
  void Tick() {
    if (now_ >= deadline_) Step(atl::Tick{});
  }
  void Next() {
    const CoordinatorEvent event = std::move(events_.front());
    events_.pop_front();
    Step(event);
  }
  void Drain() {
    do {
      Tick();
      while (!events_.empty()) Next();
    } while (now_ >= deadline_);
  }

  void Step(const CoordinatorEvent& event) {
    const int64_t begin = CpuNs();
    const CoordinatorActions actions = core_.Step(now_, event);
    core_ns_ += CpuNs() - begin;
    deadline_ = actions.next_deadline;
    if (!actions.replies.empty()) reply_ = actions.replies.back();
    for (const ToWorker& to : actions.to_workers) {
      for (WorkerMessage& message : by_name_.at(to.worker)->On(now_, to.message)) {
        events_.push_back(FromWorker{to.worker, 1, std::move(message)});
      }
    }
    for (const ToServer& to : actions.to_servers) {
      commits_ += std::holds_alternative<CommitRound>(to.message);
      for (ServerMessage& message : server_.On(to.message)) {
        events_.push_back(FromServer{to.server, 1, std::move(message)});
      }
    }
  }

  const FakeTimings timings_;
  CoordinatorCore core_;
  Instant now_{std::chrono::hours(1)};
  Instant deadline_ = kNever;
  FakeServer server_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::map<NodeId, FakeWorker*> by_name_;
  std::deque<CoordinatorEvent> events_;
  Reply reply_;
  int64_t submitted_ = 0, turns_ = 0, core_ns_ = 0, commits_ = 0;
};

// A step takes longer than anything here: workers train and say so.
FakeTimings Training() {
  FakeTimings timings;
  timings.step = std::chrono::hours(1);
  timings.push = Duration(0);
  return timings;
}

struct Load {
  int64_t members = 0, jobs = 0, ended = 0;
};

double MeasureBeat(const Load& load) {
  Cluster cluster({}, Training());
  if (load.ended > 0) cluster.AddWorkers(1);
  for (int64_t i = 0; i < load.ended; ++i) {
    const JobId job = cluster.Submit(1);
    cluster.AwaitRunning({job});
    cluster.Cancel(job);
    while (cluster.Runs(job)) cluster.Turn();
  }
  cluster.AddWorkers(load.members - (load.ended > 0 ? 1 : 0));
  std::vector<JobId> jobs;
  for (int64_t i = 0; i < load.jobs; ++i) jobs.push_back(cluster.Submit(load.members / load.jobs));
  cluster.AwaitRunning(jobs);
  return cluster.MeasureBeatNs();
}

double MeasureDecision(int64_t shards) {
  FakeTimings timings;
  timings.step = timings.push = Duration(0);
  Cluster cluster({}, timings);
  cluster.AddWorkers(1);
  const JobId job = cluster.Submit(1, shards - 2);
  cluster.AwaitRunning({job});
  std::vector<double> measured;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    measured.push_back(cluster.MeasureDecisionMs(job));
  }
  return *std::min_element(measured.begin(), measured.end());
}

void PrintFigure(const std::string& name, double value, const char* unit, double goal) {
  std::printf("FIGURE members.core.%s %.4g %s goal <=%g %s\n", name.c_str(), value, unit, goal,
              value <= goal ? "ok" : "short");
  std::fflush(stdout);
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  using atl::bench::MeasureBeat;
  using atl::bench::PrintFigure;
  CLI::App app("What heartbeats and decisions cost the coordinator's core.");
  int64_t members = 10'000, jobs = 1000, ended = 10'000, shards = 20'000;
  app.add_option("--members", members);
  app.add_option("--jobs", jobs, "that run, with as many workers each");
  app.add_option("--ended", ended, "jobs that have ended");
  app.add_option("--shards", shards, "of the contribution that is decided");
  CLI11_PARSE(app, argc, argv);
  const double one = MeasureBeat({members, 1, 0});
  const double many = MeasureBeat({members, jobs, 0});
  const double archived = MeasureBeat({members, jobs, ended});
  std::printf(
      "a heartbeat of %lld members: %.0f ns with one job, %.0f ns with %lld, %.0f ns with "
      "%lld ended ones besides\n",
      static_cast<long long>(members), one, many, static_cast<long long>(jobs), archived,
      static_cast<long long>(ended));
  PrintFigure(absl::StrCat("heartbeat_", jobs, "_jobs"), many / one, "of that with one job", 1.1);
  PrintFigure(absl::StrCat("heartbeat_", ended, "_ended"), archived / one, "of that with one job",
              1.1);
  PrintFigure(absl::StrCat("decide_", shards, "_shards"), atl::bench::MeasureDecision(shards), "ms",
              50);
  return 0;
}
