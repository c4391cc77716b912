#include "tests/sim/cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::seconds;

World::World(const ClusterOptions& o)
    : options(o), rng(o.seed), network(&timeline, &rng), pool(1), checker(o.spec, &pool, o.lies) {}

World::~World() = default;

void World::Trace(const std::string& line) {
  const std::string stamped =
      absl::StrFormat("%10.4f %s", Seconds(timeline.now() - Instant{}), line);
  for (const char c : stamped) {
    trace_hash = (trace_hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  if (print) print(stamped);
}

ServerNode* World::FindServer(const NodeId& name) {
  for (const auto& node : servers) {
    if (node->name() == name) return node.get();
  }
  return nullptr;
}

WorkerNode* World::FindWorker(const NodeId& name) {
  for (const auto& node : workers) {
    if (node->name() == name) return node.get();
  }
  return nullptr;
}

Cluster::Cluster(const ClusterOptions& options) : world_(options) {
  world_.network.SetFaults(options.network);
  world_.coordinator_node = std::make_unique<CoordinatorNode>(&world_);
  for (int i = 0; i < options.servers + options.late_servers; ++i) {
    world_.servers.push_back(std::make_unique<ServerNode>(&world_, absl::StrCat("server-", i)));
  }
  for (const auto& [site, count] : options.site_servers) {
    for (int i = 0; i < count; ++i) {
      world_.servers.push_back(
          std::make_unique<ServerNode>(&world_, absl::StrCat(site, "-server-", i), site));
    }
  }
  for (int i = 0; i < options.workers; ++i) {
    const double slowness = 1 + 1.5 * world_.rng.Uniform();
    world_.workers.push_back(
        std::make_unique<WorkerNode>(&world_, absl::StrCat("worker-", i), slowness));
  }
}

Cluster::~Cluster() {
  for (auto& node : world_.workers) node->End();
}

// Users retry until it works, also when the coordinator is down.
void Cluster::Resume(const JobId& job) {
  if (!world_.coordinator().mistaken() &&
      !world_.coordinator().Deliver(ControlJob{2, job, JobCommand::kResume}).empty()) {
    pausing_ = false;
    return;
  }
  world_.timeline.After(seconds(1), [this, job] { Resume(job); });
}

bool Cluster::Ended() const {
  if (removing_ || world_.coordinator_node->Progress() == nullptr) return false;
  const std::vector<const ProgressRecord*> all = world_.coordinator_node->ListProgress();
  return all.size() == 1 + world_.options.others.size() &&
         std::ranges::all_of(all, [](const ProgressRecord* progress) {
           return progress->state == JobState::kDone || progress->state == JobState::kCancelled;
         });
}

void Cluster::Operate() {
  world_.timeline.After(seconds(1), [this] {
    if (!removing_) Operate();
  });
  CoordinatorNode& node = world_.coordinator();
  if (!node.alive() || node.mistaken()) return;
  std::vector<OrphanView> orphans = node.core()->Orphans();
  // State of a site's servers goes with the job above, or begins anew.
  std::erase_if(orphans, [&](const OrphanView& o) { return world_.checker.IsOfSite(o.job); });
  if (!orphans.empty()) {
    if (orphans[0].missing.empty()) {
      node.Deliver(ControlJob{4, orphans[0].job, JobCommand::kAdopt});
    }
    return;
  }
  const ProgressRecord* progress = node.Progress();
  if (!progress) return;
  if (!progress->outdated.empty()) {
    for (const Reply& reply : node.Deliver(ControlJob{4, progress->job, JobCommand::kAdopt})) {
      world_.Trace(absl::StrCat("adopt: ", reply.status.ToString()));
    }
  } else if (progress->state == JobState::kFailed ||
             (progress->state == JobState::kPaused && !pausing_)) {
    node.Deliver(ControlJob{5, progress->job, JobCommand::kResume});
  }
  std::vector<JobId> failed;
  for (const ProgressRecord* other : node.ListProgress()) {
    const bool is_other = world_.checker.IsOther(other->job);
    if (is_other && other->state == JobState::kFailed) failed.push_back(other->job);
  }
  for (const JobId& job : failed) node.Deliver(ControlJob{5, job, JobCommand::kResume});
}

void Cluster::SubmitOther(size_t index) {
  const auto& [at, spec, owner] = world_.options.others[index];
  CoordinatorNode& node = world_.coordinator();
  if (world_.checker.KnowsOther(spec.name)) return;
  std::vector<Reply> replies;
  if (!node.mistaken()) replies = node.Deliver(SubmitJob{7, spec, 1, owner});
  if (replies.empty()) {
    world_.timeline.After(seconds(1), [this, index] { SubmitOther(index); });
  } else if (!replies[0].status.ok()) {
    world_.checker.Fail("the job was not taken: " + replies[0].status.ToString());
  }
}

// Again, as a person would, if the coordinator died before it answered and without storing the job.
void Cluster::Submit() {
  if (world_.coordinator().Progress()) return;
  if (world_.coordinator().mistaken()) {
    world_.timeline.After(seconds(1), [this] { Submit(); });
    return;
  }
  const auto replies =
      world_.coordinator().Deliver(SubmitJob{7, world_.options.spec, 1, world_.options.owner});
  if (replies.empty()) {
    world_.timeline.After(seconds(1), [this] { Submit(); });
  } else if (!replies[0].status.ok()) {
    world_.checker.Fail("the job was not taken: " + replies[0].status.ToString());
  }
}

// Again, as a person would, until the coordinator answers.
void Cluster::RemoveJob(const JobId& job) {
  const auto all = world_.coordinator().ListProgress();
  if (std::ranges::none_of(all, [&](const auto* progress) { return progress->job == job; })) return;
  if (world_.coordinator().mistaken()) {
    world_.timeline.After(seconds(1), [this, job] { RemoveJob(job); });
    return;
  }
  const auto replies = world_.coordinator().Deliver(ControlJob{3, job, JobCommand::kRemove});
  if (replies.empty()) {
    world_.timeline.After(seconds(1), [this, job] { RemoveJob(job); });
  } else if (!replies[0].status.ok() && !absl::IsNotFound(replies[0].status)) {
    world_.checker.Fail("the job cannot be removed: " + replies[0].status.ToString());
  }
}

bool Cluster::HeldSomewhere() const {
  return world_.coordinator_node->StoresJobs() ||
         std::any_of(world_.servers.begin(), world_.servers.end(),
                     [](const auto& server) { return server->holds_jobs(); });
}

// Whatever fails meanwhile, nothing of the job may stay.
void Cluster::RunUntilRemoved() {
  removing_ = true;
  world_.checker.NoteRemovalRequest();
  std::vector<JobId> jobs;
  for (const ProgressRecord* progress : world_.coordinator().ListProgress()) {
    jobs.push_back(progress->job);
  }
  for (const JobId& job : jobs) RemoveJob(job);
  const Instant limit =
      std::max(world_.timeline.now(), Instant{} + world_.options.faults_until) + seconds(120);
  while (world_.checker.failure().empty() && HeldSomewhere() && !world_.timeline.empty()) {
    if (world_.timeline.now() > limit) {
      std::string who = world_.coordinator_node->StoresJobs() ? " coordinator" : "";
      for (const auto& server : world_.servers) {
        if (server->holds_jobs()) absl::StrAppend(&who, " ", server->name());
      }
      world_.checker.Fail(absl::StrCat("N8: the job's removal does not end:", who));
    }
    world_.timeline.RunOne();
  }
}

namespace {

std::string DescribeJobs(World& world) {
  std::string state;
  if (CoordinatorCore* core = world.coordinator().core()) {
    for (const JobSummary& job : core->Jobs().jobs) {
      absl::StrAppend(&state, "; ", job.job, " is ", Name(job.state), " (", job.reason,
                      "), waits for: ", job.waiting_for);
    }
  }
  for (const auto& node : world.workers) {
    absl::StrAppend(&state, "; ", node->name(), ": ", node->GetActivity());
  }
  return state;
}

}  // namespace

void Cluster::CheckEnds() {
  for (const ProgressRecord* ended : world_.coordinator().ListProgress()) {
    if (!world_.checker.failure().empty()) break;
    if (ended->state != JobState::kDone) {
      world_.checker.Fail(
          absl::StrCat("the job ended as ", Name(ended->state), ": ", ended->reason));
    }
    Checker& of_job = world_.checker.Of(ended->job);
    const JobSpec& spec = of_job.spec();
    of_job.Finished(*ended, spec.schedule.train_tokens / spec.data.sequence_length);
  }
}

Outcome Cluster::Run() {
  world_.coordinator().Start();
  const auto servers = static_cast<size_t>(world_.options.servers);
  for (size_t i = 0; i < world_.servers.size(); ++i) {
    ServerNode* node = world_.servers[i].get();
    const bool late = node->site().empty() ? i >= servers : world_.options.late_site_servers;
    if (!late) {
      node->Start();
      continue;
    }
    world_.timeline.After(seconds(2) + world_.UpTo(seconds(20)), [node] {
      if (!node->alive()) node->Start();
    });
  }
  for (auto& node : world_.workers) node->Start();
  Submit();
  for (size_t i = 0; i < world_.options.others.size(); ++i) {
    world_.timeline.After(world_.options.others[i].submitted, [this, i] { SubmitOther(i); });
  }
  ScheduleFaults();
  Operate();
  Checkers& checker = world_.checker;
  const Instant limit = Instant{} + world_.options.limit;
  while (checker.failure().empty() && !Ended() && !world_.timeline.empty()) {
    if (world_.timeline.now() > limit) {
      checker.Fail(absl::StrCat("N8: the job has not ended", DescribeJobs(world_)));
      break;
    }
    world_.timeline.RunOne();
  }
  Outcome outcome;
  const ProgressRecord* progress = world_.coordinator().Progress();
  if (CoordinatorCore* core = world_.coordinator().core(); core != nullptr && progress) {
    const std::optional<JobView> job = core->Job(world_.timeline.now(), progress->job);
    for (const IslandView& island : job ? job->islands : std::vector<IslandView>()) {
      outcome.steps_redone += island.steps_redone;
      outcome.steps_interrupted += island.steps_interrupted;
    }
  }
  CheckEnds();
  if (checker.failure().empty()) RunUntilRemoved();
  outcome.failure = checker.failure();
  outcome.trace_hash = world_.trace_hash;
  outcome.events = world_.timeline.events_run();
  outcome.crashes = crashes_;
  outcome.rounds = checker.users().rounds();
  outcome.rejected = checker.users().rejected();
  outcome.adopted = checker.adopted();
  outcome.contributed = checker.contributed();
  outcome.site_jobs = checker.site_jobs();
  outcome.preemptions = world_.preemptions;
  outcome.took = world_.timeline.now() - Instant{};
  return outcome;
}

}  // namespace atl::sim
