#include "bench/sharing/played.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "coordinator/core/testing/world.h"

namespace atl::bench {
namespace {

constexpr int64_t kSequenceTokens = 10;  // of the World's jobs
constexpr int64_t kLeaseSequences = 4;   // that a worker is ahead with
constexpr int64_t kSnapshotEvery = 5;    // seconds
constexpr int64_t kLongest = 100'000;    // seconds

class PlayedWorker {
 public:
  PlayedWorker(testing::World* world, NodeId name, const PlayOptions* options)
      : world_(*world), name_(std::move(name)), options_(*options) {}

  // One second of its work; `trained` counts sequences by job.
  void Turn(int64_t now, std::map<JobId, int64_t>& trained) {
    Open(now);
    const IslandOrder& order = world_.Order(name_);
    if (order.job != job_ || order.generation != generation_) {
      job_ = order.job;
      generation_ = order.generation;
      base_ = validated_ = kNoVersion;
      initialized_ = pushed_ = false;
      done_ = 0;
    }
    if (job_.empty()) return;
    if (order.validate_version != kNoVersion && order.validate_version != validated_) {
      validated_ = order.validate_version;
      Do("validates loss=1");
    }
    if (order.run != RunState::kRun) return;
    if (order.committed_version == kNoVersion) return Initialize(order);
    if ((pushed_ ? IsDecided(order) : done_ == 0) && base_ != order.committed_version) {
      base_ = order.committed_version;
      pushed_ = false;
      done_ = 0;
      Do(absl::StrCat("ready speed=", kSequenceTokens));
    }
    if (!pushed_) Train(trained);
  }
  const JobId& job() const { return job_; }

 private:
  void Do(const std::string& what) { world_.Do(absl::StrCat("worker ", name_, " ", what)); }

  void Open(int64_t now) {
    const int64_t preparation = world_.Preparation(name_);
    if (preparation == prepared_) return;
    if (preparation != opening_) open_at_ = now + options_.open_seconds;
    opening_ = preparation;
    if (now < open_at_) return;
    prepared_ = preparation;
    Do("prepared");
  }

  void Initialize(const IslandOrder& order) {
    if (!order.initialize || initialized_) return;
    initialized_ = true;
    Do("pushes");
    Do("stages");
  }

  // Returns whether it is decided what becomes of its newest push.
  bool IsDecided(const IslandOrder& order) const {
    return order.outcome && order.outcome->contribution.generation == generation_ &&
           order.outcome->contribution.base_version == base_;
  }

  int64_t CountLeased() {
    int64_t leased = 0;
    for (const PositionRange& range : world_.Leases(name_)) leased += range.size();
    return leased;
  }

  void Train(std::map<JobId, int64_t>& trained) {
    const int64_t steps = world_.Order(name_).steps_this_round;
    if (done_ == CountLeased() && done_ < steps) {
      Do(absl::StrCat("leases wanted=", std::min(kLeaseSequences, steps - done_)));
    }
    if (done_ < CountLeased()) {
      ++done_;
      ++trained[job_];
      if (done_ < CountLeased() || done_ < steps) return;  // there may be more data
    }
    if (done_ == 0) return;
    Do(absl::StrCat("pushes base=", base_, " steps=", done_));
    Do("stages");
    pushed_ = true;
  }

  testing::World& world_;
  const NodeId name_;
  const PlayOptions& options_;
  int64_t opening_ = 0, prepared_ = 0, open_at_ = 0;
  JobId job_;
  Generation generation_ = 0;
  Version base_ = kNoVersion, validated_ = kNoVersion;
  bool initialized_ = false, pushed_ = false;
  int64_t done_ = 0;  // sequences since the base
};

std::string SubmitLine(const SharedJob& job, int64_t priority, const PlayOptions& options) {
  return absl::StrCat("submit name=job min=", job.needed, " max=", job.most,
                      " tokens=", std::llround(job.work) * kSequenceTokens,
                      " steps=", options.steps_per_round, " weight=", std::llround(job.weight),
                      " priority=", priority, " no-overlap keep-outliers");
}

}  // namespace

Played Play(const SharedCase& c, const PlayOptions& options) {
  testing::World world;
  world.checks = false;
  world.Do("server ps-0 attaches memory=1000000000");
  std::vector<PlayedWorker> workers;
  for (int64_t i = 0; i < c.workers; ++i) {
    const NodeId name = absl::StrFormat("w%03d", i);
    world.Do(absl::StrCat("worker ", name, " attaches"));
    workers.emplace_back(&world, name, &options);
  }
  Played played{.ends = Ends(c.jobs.size(), 0)};
  std::map<JobId, int64_t> trained;
  size_t submitted = 0, ended = 0;
  for (int64_t now = 0; ended < c.jobs.size(); ++now) {
    ATOLL_CHECK(now < kLongest, "the jobs do not end: ", world.Do("show"));
    for (; submitted < c.jobs.size() && c.jobs[submitted].arrives <= static_cast<double>(now);
         ++submitted) {
      const int64_t place = std::ssize(c.jobs) - static_cast<int64_t>(submitted);
      world.Do(SubmitLine(c.jobs[submitted], options.first_come ? place : 0, options));
      ATOLL_CHECK(world.reply().ok(), world.reply().message());
    }
    std::vector<JobId> before;
    for (PlayedWorker& worker : workers) {
      before.push_back(worker.job());
      worker.Turn(now, trained);
    }
    world.Do("servers answer");
    if (now % kSnapshotEvery == 0) world.Do("servers snapshot");
    world.Do("wait 1");
    std::map<JobId, JobState> states;
    for (const auto& [job, state] : world.core().JobStates()) states[job] = state;
    for (size_t i = 0; i < workers.size(); ++i) {
      const bool left = !before[i].empty() && workers[i].job() != before[i];
      if (left && states[before[i]] != JobState::kDone) ++played.interruptions;
    }
    for (size_t job = 0; job < submitted; ++job) {
      const JobId id = absl::StrCat("job-", job + 1);
      ATOLL_CHECK(states[id] != JobState::kFailed, id, " has failed");
      if (played.ends[job] > 0 || states[id] != JobState::kDone) continue;
      played.ends[job] = static_cast<double>(now + 1);
      played.lost_steps += trained[id] - world.Job(id).summary.tokens_committed / kSequenceTokens;
      ++ended;
    }
  }
  return played;
}

}  // namespace atl::bench
