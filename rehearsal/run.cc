#include "rehearsal/run.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rehearsal/players.h"

namespace atl::rehearsal {
namespace {

constexpr Duration kSupervisor = std::chrono::seconds(1);  // starts a process that has ended
// A failure is charged for so long after its end.
constexpr Duration kBlamedAfter = std::chrono::minutes(30);
// An operator decides after so long, and again if the command is refused.
constexpr Duration kOperator = std::chrono::minutes(10);
constexpr int kRefillTries = 6;
constexpr size_t kCosts = 5;  // kept of a run

// Makes the failures happen, and ends them. What several of them take down is back when the last
// one is over.
class Fate {
 public:
  Fate(World* world, const std::vector<Failure>* failures) : world_(*world), failures_(*failures) {}

  void Schedule() {
    for (size_t i = 0; i < failures_.size(); ++i) {
      const Failure& failure = failures_[i];
      world_.timeline.At(Instant{} + failure.at, [this, i] { Happen(i); });
      if (failure.kind != FailureKind::kPreemption || failure.notice <= Duration(0)) continue;
      const Duration at = std::max(Duration(0), failure.at - failure.notice);
      world_.timeline.At(Instant{} + at, [this, i] { Notify(i); });
    }
  }

 private:
  // One that is down, or suffers from an earlier failure still, is not this one's victim.
  void BlameOne(size_t number, Worker& worker) {
    if (!worker.alive() || world_.accounts.blamed(worker.index()) >= 0) return;
    world_.accounts.Blame(world_.timeline.now(), worker.index(), static_cast<int64_t>(number));
  }

  // The worker itself is down by this failure alone, or was before.
  void BlameWithIsland(size_t number, const std::string& name) {
    Worker* const victim = world_.FindWorker(name);
    if (!victim->alive()) return;
    world_.accounts.Blame(world_.timeline.now(), victim->index(), static_cast<int64_t>(number));
    for (const auto& leader : world_.workers) {
      if (!leader->alive() || !leader->Leads(name)) continue;
      BlameOne(number, *leader);
      for (const NodeId& member : leader->ListMembers()) {
        BlameOne(number, *world_.FindWorker(member));
      }
    }
  }

  void BlameAll(size_t number) {
    for (const auto& worker : world_.workers) BlameOne(number, *worker);
  }

  // Ends what workers that are up owe to this failure.
  void Expire(size_t number) {
    const auto failure = static_cast<int64_t>(number);
    for (const auto& worker : world_.workers) {
      if (!worker->alive() || world_.accounts.blamed(worker->index()) != failure) continue;
      world_.accounts.Blame(world_.timeline.now(), worker->index(), -1);
    }
  }

  void Notify(size_t number) {
    for (const std::string& name : failures_[number].workers) {
      BlameWithIsland(number, name);
      world_.FindWorker(name)->Leave(failures_[number].notice);
    }
  }

  void Happen(size_t number) {
    const Failure& failure = failures_[number];
    const Instant back = ComputeBack(failure);
    const Instant over = (back == kNever ? world_.timeline.now() : back) + kBlamedAfter;
    if (over < world_.horizon) world_.timeline.At(over, [this, number] { Expire(number); });
    switch (failure.kind) {
      case FailureKind::kLink:
        return BreakLink(number);
      case FailureKind::kServer:
        BlameAll(number);
        return EndServer(failure, world_.FindServer(failure.subject));
      case FailureKind::kCoordinator:
        BlameAll(number);
        return EndCoordinator(failure);
      case FailureKind::kSite:
        EndSite(number);
        break;
      case FailureKind::kDisk:
        return LoseDisk(number);
      default:
        for (const std::string& name : failure.workers) BlameWithIsland(number, name);
        break;
    }
    for (const std::string& name : failure.workers) EndWorker(failure, name);
  }

  // A process whose end is no machine's is started again at once, unless the failure says when.
  Instant ComputeBack(const Failure& failure) const {
    const bool process =
        failure.kind == FailureKind::kWorker || failure.kind == FailureKind::kServer ||
        failure.kind == FailureKind::kCoordinator || failure.kind == FailureKind::kDisk;
    if (failure.lasts < Duration::max()) return world_.timeline.now() + failure.lasts;
    return process ? world_.timeline.now() + kSupervisor : kNever;
  }

  // Starts it when the last of its failures is over.
  void StartLater(const Failure& failure, const std::string& name, Timeline::Action start) {
    Instant& until = down_until_[name];
    until = std::max(until, ComputeBack(failure));
    if (until >= world_.horizon) return;
    world_.timeline.At(until, [this, name, start = std::move(start)] {
      if (world_.timeline.now() >= down_until_[name]) start();
    });
  }

  void LoseDisk(size_t number) {
    const Failure& failure = failures_[number];
    if (failure.workers.empty()) {
      BlameAll(number);
      EndServer(failure, world_.FindServer(failure.subject));
      world_.FindServer(failure.subject)->LoseDisk();
      return Refill(failure.subject, kRefillTries);
    }
    BlameWithIsland(number, failure.subject);
    EndWorker(failure, failure.subject);
    world_.FindWorker(failure.subject)->LoseDisk();
  }

  // An operator's `atoll refill`: what no other server has a copy of comes from an island. It is
  // refused while the server is down, and when nothing is lost.
  void Refill(const std::string& server, int tries) {
    if (tries == 0 || world_.timeline.now() + kOperator >= world_.horizon) return;
    world_.timeline.After(kOperator, [this, server, tries] {
      const ProgressRecord* const progress = world_.coordinator->progress();
      if (progress != nullptr && world_.coordinator->alive()) {
        const std::vector<Reply> replies = world_.coordinator->Deliver(
            ControlJob{1, progress->job, JobCommand::kRefill, false, server});
        const bool done = std::any_of(replies.begin(), replies.end(),
                                      [](const Reply& reply) { return reply.status.ok(); });
        if (done) return;
      }
      Refill(server, tries - 1);
    });
  }

  void EndSite(size_t number) {
    const Failure& failure = failures_[number];
    const bool serves = world_.coordinator->site() == failure.subject ||
                        std::any_of(world_.servers.begin(), world_.servers.end(),
                                    [&](const auto& s) { return s->site() == failure.subject; });
    for (const std::string& name : failure.workers) BlameWithIsland(number, name);
    if (serves) BlameAll(number);
    for (const auto& server : world_.servers) {
      if (server->site() == failure.subject) EndServer(failure, server.get());
    }
    if (world_.coordinator->site() == failure.subject) EndCoordinator(failure);
  }

  void EndCoordinator(const Failure& failure) {
    world_.coordinator->Crash();
    StartLater(failure, "/coordinator", [this] {
      if (!world_.coordinator->alive()) world_.coordinator->Start();
    });
  }

  void EndWorker(const Failure& failure, const std::string& name) {
    Worker* const worker = world_.FindWorker(name);
    const bool machine = failure.kind == FailureKind::kNode || failure.kind == FailureKind::kSite;
    worker->Crash(machine);
    if (failure.kind != FailureKind::kWorker) {
      world_.accounts.SetDown(world_.timeline.now(), worker->index(), true);
    }
    StartLater(failure, name, [worker] { worker->Start(); });
  }

  void EndServer(const Failure& failure, Server* server) {
    server->Crash(failure.kind == FailureKind::kSite);
    StartLater(failure, "/" + server->name(), [server] {
      if (!server->alive()) server->Start();
    });
  }

  void BreakLink(size_t number) {
    const Failure& failure = failures_[number];
    const size_t arrow = failure.subject.find('>');
    const Links::Ends ends{failure.subject.substr(0, arrow), failure.subject.substr(arrow + 1)};
    for (const auto& worker : world_.workers) worker->NoteProgress();
    world_.links.Change(ends, failure.factor);
    ++world_.reach;
    for (const auto& worker : world_.workers) {
      const bool at_end = worker->site() == ends.first || worker->site() == ends.second;
      if (at_end) BlameOne(number, *worker);
    }
    if (failure.factor == 0) {
      for (const auto& worker : world_.workers) {
        if (worker->alive()) worker->LinkDown(ends);
      }
      world_.timeline.After(world_.scene.times.detect, [this, ends] { LoseConnections(ends); });
    }
    const Instant back = ComputeBack(failure);
    if (back >= world_.horizon) return;
    world_.timeline.At(back, [this, ends, factor = failure.factor] {
      world_.links.Restore(ends, factor);
      ++world_.reach;
      for (const auto& worker : world_.workers) {
        if (worker->alive()) worker->MembersBack();
      }
    });
  }

  // Ends those that do not reach the coordinator, or that it does not reach.
  void LoseConnections(const Links::Ends& ends) {
    if (world_.links.IsUp(ends)) return;
    const std::string& there = world_.coordinator->site();
    if (ends.first != there && ends.second != there) return;
    const std::string& far = ends.first == there ? ends.second : ends.first;
    const auto lose = [&](Member* member) {
      if (member->site() != far || !member->connected()) return;
      member->Disconnect();
      member->ReportLost(Duration(0));
    };
    for (const auto& worker : world_.workers) lose(worker.get());
    for (const auto& server : world_.servers) lose(server.get());
  }

  World& world_;
  const std::vector<Failure>& failures_;
  std::map<std::string, Instant> down_until_;  // workers, "/coordinator", "/server-0", ...
};

bool HasEnded(const ProgressRecord* progress) {
  return progress != nullptr &&
         (progress->state == JobState::kDone || progress->state == JobState::kFailed ||
          progress->state == JobState::kCancelled);
}

std::vector<FailureCost> ListCosts(const World& world, const std::vector<Failure>& failures,
                                   uint64_t seed) {
  std::vector<FailureCost> costs;
  for (const auto& [number, uses] : world.accounts.by_failure()) {
    costs.push_back({failures[static_cast<size_t>(number)], seed, uses});
  }
  std::stable_sort(costs.begin(), costs.end(), [](const FailureCost& a, const FailureCost& b) {
    return a.total() > b.total();
  });
  if (costs.size() > kCosts) costs.resize(kCosts);
  return costs;
}

}  // namespace

double FailureCost::total() const { return std::accumulate(uses.begin(), uses.end(), 0.0); }

double RunResult::device_seconds() const { return std::accumulate(uses.begin(), uses.end(), 0.0); }

double RunResult::goodput() const {
  const double all = device_seconds();
  return all > 0 ? uses[static_cast<size_t>(Use::kComputing)] / all : 0;
}

double RunResult::tokens_per_s() const {
  return took > Duration(0) ? static_cast<double>(tokens) / Seconds(took) : 0;
}

absl::StatusOr<RunResult> Play(const Scene& scene, Searches& searches,
                               const std::vector<Failure>& failures, Duration until,
                               uint64_t seed) {
  World world(&scene, &searches);
  world.horizon = Instant{} + until;
  Fate fate(&world, &failures);
  world.coordinator->Start();
  for (const auto& server : world.servers) server->Start();
  for (const auto& worker : world.workers) worker->Start();
  for (const Reply& reply : world.coordinator->Deliver(SubmitJob{1, world.spec, 1})) {
    if (!reply.status.ok()) return reply.status;
  }
  fate.Schedule();
  while (!world.timeline.empty() && world.trouble.empty() &&
         !HasEnded(world.coordinator->progress())) {
    if (world.timeline.next() > world.horizon) break;
    world.timeline.RunOne();
  }
  if (!world.trouble.empty()) {
    return absl::InternalError(absl::StrCat("the rehearsal failed after ",
                                            Seconds(world.timeline.now() - Instant{}),
                                            " s: ", world.trouble));
  }
  RunResult result;
  result.seed = seed;
  const ProgressRecord* const progress = world.coordinator->progress();
  const bool ended = HasEnded(progress);
  const Instant end = ended ? world.timeline.now() : world.horizon;
  result.took = end - Instant{};
  if (progress != nullptr) {
    result.finished = progress->state == JobState::kDone;
    result.failed = progress->state == JobState::kFailed;
    result.state = absl::StrCat(Name(progress->state), ": ", progress->reason);
    result.tokens = progress->tokens_committed;
    result.rounds = progress->round;
  }
  for (const auto& worker : world.workers) worker->BringTo(end);
  const double share =
      world.trained_tokens == 0
          ? 0
          : 1 - static_cast<double>(result.tokens) / static_cast<double>(world.trained_tokens);
  world.accounts.End(end, std::clamp(share, 0.0, 1.0));
  result.uses = world.accounts.sums();
  result.price = world.accounts.price();
  result.failures = std::count_if(failures.begin(), failures.end(), [&](const Failure& failure) {
    return failure.at <= result.took;
  });
  result.costs = ListCosts(world, failures, seed);
  result.steps = world.steps;
  result.leaps = world.leaps;
  result.events = world.timeline.events_run();
  result.plans = world.coordinator->plans();
  result.decisions = world.hash;
  return result;
}

}  // namespace atl::rehearsal
