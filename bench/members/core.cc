// Counts what events cost the coordinator's core alone, however much else it has: heartbeats of the
// workers of one job beside 1,000 that run and 10,000 that have ended, and a contribution of 20,000
// shards.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

constexpr int kMembers = 10'000, kWorkersAJob = 10, kEndedJobs = 10'000, kJobsAtOnce = 10;

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void PrintFigure(const std::string& name, double value, const std::string& unit, double goal) {
  std::cout << absl::StrFormat("FIGURE %s %.4g %s goal <=%g %s", name, value, unit, goal,
                               value <= goal ? "ok" : "short")
            << std::endl;
}

std::string WorkerName(int number) { return absl::StrFormat("w%05d", number); }

// Starts the jobs with numbers from `first` on. With many members, what follows from events is
// decided later: time has to pass between commands.
void StartJobs(World& w, int first, int jobs) {
  const auto all = [&](const std::string& what, int step) {
    for (int i = first * kWorkersAJob; i < (first + jobs) * kWorkersAJob; i += step) {
      w.Do(absl::StrCat("worker ", WorkerName(i), " ", what));
    }
    w.Do("wait 1");
  };
  for (int job = first; job < first + jobs; ++job) {
    w.Do(absl::StrCat("submit min=10 max=10 tokens=100000000 number=", 1'000'000 + job));
  }
  all("attaches", 1);
  all("prepared", 1);
  w.Do("servers answer");
  all("pushes", kWorkersAJob);
  all("stages", kWorkersAJob);
  w.Do("servers answer");
  all("ready", 1);
}

// Costs of a heartbeat of a worker of the first job: microseconds, and again at once, when what
// it touches is in the caches; and how often it has looked at any job.
struct HeartbeatCost {
  double first_us = 0, again_us = 0, visits = 0;
};

HeartbeatCost MeasureHeartbeats(int jobs, int ended) {
  CoordinatorOptions options;
  options.max_jobs = kEndedJobs;
  World w(options);
  w.checks = false;
  w.Do("server ps-0 attaches memory=100000000000");
  for (int i = 0; i < ended; ++i) {
    w.Do(absl::StrCat("submit min=9 name=ended number=", i + 1));
    w.Do(absl::StrCat("cancel ended-", i + 1));
  }
  for (int job = 0; job < jobs; job += kJobsAtOnce) {
    StartJobs(w, job, std::min(kJobsAtOnce, jobs - job));
  }
  for (int i = jobs * kWorkersAJob; i < kMembers; ++i) {
    w.Do(absl::StrCat("worker ", WorkerName(i), " attaches"));
  }
  w.Do("wait 2");
  int64_t running = 0;
  for (const auto& [job, state] : w.core().JobStates()) running += state == JobState::kRunning;
  HeartbeatCost cost;
  double begun = 0;
  int64_t beats = 0, visits = 0;
  bool again = false;
  w.on_event = [&](const CoordinatorEvent&) {
    visits = w.core().JobVisits();
    begun = ThreadSeconds();
  };
  w.after_event = [&](const CoordinatorEvent& event) {
    const double us = 1e6 * (ThreadSeconds() - begun);
    const auto* from = std::get_if<FromWorker>(&event);
    if (from == nullptr || from->worker >= WorkerName(kWorkersAJob)) return;
    if (again) {
      cost.again_us += us;
      return;
    }
    cost.first_us += us;
    cost.visits += static_cast<double>(w.core().JobVisits() - visits);
    ++beats;
    again = true;
    w.HandleEvent(CoordinatorEvent(event));
    again = false;
  };
  w.Do("wait 60");
  for (double* sum : {&cost.first_us, &cost.again_us, &cost.visits}) {
    *sum /= static_cast<double>(beats);
  }
  std::cout << running << " jobs run, " << ended << " have ended: " << beats << " heartbeats, "
            << cost.first_us << " us each, " << cost.again_us << " us again at once, "
            << cost.visits << " jobs looked at" << std::endl;
  return cost;
}

// Milliseconds of the core from the request to push until the version is committed.
double MeasureContribution() {
  CoordinatorOptions options;
  options.max_shard_bytes = 4;
  World w(options);
  w.checks = false;
  w.DoLines({"server ps-0 attaches memory=100000000", "worker a attaches",
             "submit min=1 steps=4 tokens=1000000", "worker a prepared scale=250", "servers answer",
             "worker a pushes", "worker a stages", "servers answer", "worker a ready"});
  double seconds = 0, begun = 0;
  w.on_event = [&](const CoordinatorEvent&) { begun = ThreadSeconds(); };
  w.after_event = [&](const CoordinatorEvent&) { seconds += ThreadSeconds() - begun; };
  w.Contribute("a", 4);
  w.Do("servers answer");
  std::cout << w.Job().shards.size() << " shards, version " << w.Job().summary.version << std::endl;
  return 1e3 * seconds;
}

}  // namespace
}  // namespace atl::testing

int main() {
  using namespace atl::testing;
  PrintFigure("members.core.contribution_of_20000_shards", MeasureContribution(), "ms", 50);
  const HeartbeatCost alone = MeasureHeartbeats(1, 0);
  const HeartbeatCost among = MeasureHeartbeats(kMembers / kWorkersAJob, kEndedJobs);
  PrintFigure("members.core.heartbeat_among_1000_jobs_over_alone", among.first_us / alone.first_us,
              "ratio", 1.1);
  // Without what memory costs: 1,000 jobs and their workers do not fit into the caches.
  PrintFigure("members.core.heartbeat_again_among_1000_jobs_over_alone",
              among.again_us / alone.again_us, "ratio", 1.1);
  PrintFigure("members.core.jobs_looked_at_among_1000_jobs_over_alone", among.visits / alone.visits,
              "ratio", 1.1);
}
