#include "coordinator/planner/evaluation.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/check.h"
#include "common/status.h"
#include "coordinator/planner/replica_problem.h"

namespace atl::plan {
namespace {

double Seconds(sim::Nanos ns) { return static_cast<double>(ns) * 1e-9; }

// Simulated operations per kind: large pipelines get fewer restarts, but at least 4.
constexpr int64_t kOperations = 1'000'000;
// Operations of all replicas, up to which they are simulated together.
constexpr int64_t kMostTogether = 1'000'000;
// The same where they share nodes' cards alone.
constexpr int64_t kMostTogetherOnCards = 100'000;

// A layout whose estimate, less this for what the estimate may be too long, is longer than
// another's step is not simulated.
constexpr double kSurelyWorse = 0.85;

// Per chunk: when its first operation starts, and when its last gradient is there. Messages that
// become ready after the first of these.
struct ChunkTimes {
  std::vector<sim::Nanos> begun_ns, done_ns;
  std::vector<ReplicaOutcome::Send> last_sends;  // of chunks
  sim::Result played;
};

ChunkTimes SimulateChunkTimes(const sim::Problem& problem, const sim::Schedule& schedule) {
  const size_t chunks = problem.chunks.size();
  ChunkTimes times{std::vector<sim::Nanos>(chunks, sim::kForever),
                   std::vector<sim::Nanos>(chunks, 0),
                   {},
                   sim::SimulateUnchecked(problem, schedule, {.timeline = true})};
  for (const std::vector<sim::OpSpan>& spans : times.played.timeline) {
    for (const sim::OpSpan& span : spans) {
      if (span.op.kind == sim::OpKind::kOptimizer) continue;
      sim::Nanos& begun = times.begun_ns[span.op.chunk];
      sim::Nanos& done = times.done_ns[span.op.chunk];
      begun = std::min(begun, span.start_ns);
      done = std::max(done, span.end_ns);
    }
  }
  const sim::Nanos first_ns = *std::min_element(times.done_ns.begin(), times.done_ns.end());
  for (const std::vector<sim::OpSpan>& spans : times.played.timeline) {
    for (const sim::OpSpan& span : spans) {
      const bool backward = span.op.kind == sim::OpKind::kBackward;
      if (span.end_ns < first_ns || (!backward && span.op.kind != sim::OpKind::kForward)) continue;
      times.last_sends.push_back({span.op.chunk, backward, span.end_ns});
    }
  }
  return times;
}

// `sends`: of chunks of the replica, whose first one is `first_chunk` of the problem.
void AppendMessages(const Replica& replica, const sim::Problem& problem, size_t first_chunk,
                    const std::vector<ReplicaOutcome::Send>& sends,
                    std::vector<StageMessage>& messages) {
  for (const ReplicaOutcome::Send& send : sends) {
    const int next = send.stage + (send.backward ? -1 : 1);
    if (next < 0 || next >= std::ssize(replica.stages)) continue;
    const sim::Chunk& chunk =
        problem.chunks[first_chunk + static_cast<size_t>(std::min(send.stage, next))];
    if (chunk.forward_link == sim::kNoLink) continue;
    messages.push_back({replica.stages[send.stage].devices[0], replica.stages[next].devices[0],
                        Seconds(send.ready_ns), static_cast<double>(chunk.forward_bytes)});
  }
}

// Replicas that differ in it are not of one kind.
void AppendOrder(const ReplicaOrder& order, std::string& key) {
  for (const std::vector<sim::Op>& ops : order.schedule.device_ops) {
    absl::StrAppend(&key, ";");
    for (const sim::Op& op : ops) absl::StrAppend(&key, sim::ToString(op), " ");
  }
}

absl::Status PlayOrder(const ReplicaOrder& order, ReplicaOutcome& kind) {
  kind.found.schedule = order.schedule;
  for (std::vector<sim::Op>& ops : kind.found.schedule.device_ops) {
    std::erase_if(ops, [&](const sim::Op& op) {  // where W takes no time, B does both
      return op.kind == sim::OpKind::kWeight && op.chunk >= 0 &&
             op.chunk < std::ssize(kind.problem.chunks) &&
             !sim::IsSplit(kind.problem.chunks[op.chunk]);
    });
  }
  ATOLL_ASSIGN_OR_RETURN(kind.found.result, sim::Simulate(kind.problem, kind.found.schedule, {}));
  kind.found.how = "as the plan orders it";
  if (kind.found.result.verdict != sim::Verdict::kStuck) return absl::OkStatus();
  return absl::FailedPreconditionError(kind.found.result.reason);
}

// A kind's problem and its bound; its schedule, too, where it is known.
absl::StatusOr<ReplicaOutcome> BuildKind(const Cluster& cluster, const Costs& costs,
                                         const Layout& layout, const LinkSharing& sharing,
                                         int number, const std::string& name, bool together,
                                         const Evaluation& evaluation) {
  const Replica& replica = layout.replicas[number];
  if (evaluation.known != nullptr) {
    for (const ReplicaOutcome& known : evaluation.known->kinds) {
      if (known.kind != name) continue;
      ReplicaOutcome kind = known;
      kind.replicas.clear();
      return kind;
    }
  }
  ATOLL_ASSIGN_OR_RETURN(ReplicaOutcome kind,
                         BuildReplica(cluster, costs, layout, sharing, replica));
  kind.kind = name;
  if (evaluation.orders != nullptr) {
    for (const int32_t stage : (*evaluation.orders)[number].unsplit) {
      sim::UniteBackward(kind.problem.chunks[stage]);
    }
  } else if (!layout.split_backward || layout.schedule == "1f1b" || layout.schedule == "gpipe") {
    kind.problem = sim::WithUnsplitBackward(std::move(kind.problem));
  }
  // Simulated with others on the same links, a replica may get more than its even part of them.
  if (together) return kind;
  kind.bound = sim::MakespanBound(kind.problem);
  if (Seconds(kind.bound.time_ns) >= evaluation.limit_s) {
    return absl::CancelledError("no schedule of it is as fast");
  }
  return kind;
}

absl::Status FindSchedule(const Layout& layout, const Replica& replica,
                          const Evaluation& evaluation, ReplicaOutcome& kind) {
  const int64_t operations =
      3 * int64_t{replica.micro_batches} * static_cast<int64_t>(replica.stages.size());
  const int64_t most = std::max<int64_t>(4, kOperations / operations);
  sim::SearchOptions options{
      .restarts = static_cast<int>(std::min<int64_t>(evaluation.restarts, most)),
      .seed = evaluation.seed};
  if (evaluation.orders != nullptr) {
    ATOLL_RETURN_IF_ERROR(PlayOrder((*evaluation.orders)[kind.replicas[0]], kind));
  } else {
    ATOLL_ASSIGN_OR_RETURN(kind.found, sim::ScheduleByName(kind.problem, layout.schedule, options));
  }
  if (layout.shape == Shape::kInterleaved && layout.schedule == "best" &&
      evaluation.orders == nullptr) {
    // Megatron's rule competes with what the search found.
    auto rule = sim::ScheduleByName(kind.problem, "interleaved", options);
    if (rule.ok() && rule->result.verdict == sim::Verdict::kFits &&
        rule->result.makespan_ns < kind.found.result.makespan_ns) {
      kind.found = *std::move(rule);
    }
  }
  if (kind.found.result.verdict != sim::Verdict::kFits) {
    return absl::ResourceExhaustedError(kind.found.result.reason);
  }
  ChunkTimes times = SimulateChunkTimes(kind.problem, kind.found.schedule);
  kind.begun_ns = std::move(times.begun_ns);
  kind.done_ns = std::move(times.done_ns);
  kind.last_sends = std::move(times.last_sends);
  return absl::OkStatus();
}

// When each replica's stages begin in the step found, and when they are done with their last
// gradients; what they still send from then on.
struct GradientTimes {
  explicit GradientTimes(size_t replicas) : begun_s(replicas), ready_s(replicas) {}
  StageTimes begun_s, ready_s;
  std::vector<StageMessage> messages;
};

std::vector<double> InSeconds(const sim::Nanos* ns, size_t count) {
  std::vector<double> seconds;
  for (size_t i = 0; i < count; ++i) seconds.push_back(Seconds(ns[i]));
  return seconds;
}

GradientTimes TimesAlone(const Layout& layout, const Outcome& outcome) {
  GradientTimes times(layout.replicas.size());
  for (const ReplicaOutcome& kind : outcome.kinds) {
    for (const int r : kind.replicas) {
      times.begun_s[r] = InSeconds(kind.begun_ns.data(), kind.begun_ns.size());
      times.ready_s[r] = InSeconds(kind.done_ns.data(), kind.done_ns.size());
      AppendMessages(layout.replicas[r], kind.problem, 0, kind.last_sends, times.messages);
    }
  }
  return times;
}

// When the gradients can be done at best. Where replicas are simulated together, the kinds get the
// bound of all.
StageTimes EarliestGradients(const Cluster& cluster, const Layout& layout, Outcome& outcome) {
  StageTimes earliest_s(layout.replicas.size());
  if (!outcome.together) {
    for (const ReplicaOutcome& kind : outcome.kinds) {
      const std::vector<sim::Nanos> earliest = sim::GradientsDone(kind.problem);
      for (const int r : kind.replicas) {
        earliest_s[r] = InSeconds(earliest.data(), earliest.size());
      }
    }
    return earliest_s;
  }
  const Together all = PutTogether(cluster, layout, outcome);
  const std::vector<sim::Nanos> earliest = sim::GradientsDone(all.problem);
  for (ReplicaOutcome& kind : outcome.kinds) kind.bound = sim::MakespanBound(all.problem);
  for (size_t r = 0; r < earliest_s.size(); ++r) {
    const sim::Pipeline& pipeline = all.problem.pipelines[r];
    earliest_s[r] = InSeconds(&earliest[static_cast<size_t>(pipeline.first_chunk)],
                              static_cast<size_t>(pipeline.chunk_count));
  }
  return earliest_s;
}

// All replicas on links that they use in send order. The kinds get the times of their slowest
// replica.
GradientTimes TimesTogether(const Cluster& cluster, const Layout& layout, Outcome& outcome) {
  const Together all = PutTogether(cluster, layout, outcome);
  const auto [begun, done, sends, played] = SimulateChunkTimes(all.problem, all.schedule);
  GradientTimes times(layout.replicas.size());
  for (ReplicaOutcome& kind : outcome.kinds) {
    kind.found.result.makespan_ns = 0;
    std::fill(kind.done_ns.begin(), kind.done_ns.end(), 0);
    for (const int r : kind.replicas) {
      const auto first = static_cast<size_t>(all.problem.pipelines[r].first_chunk);
      const size_t count = kind.done_ns.size();
      std::vector<ReplicaOutcome::Send> own;
      for (ReplicaOutcome::Send send : sends) {
        send.stage -= static_cast<int>(first);
        if (send.stage >= 0 && send.stage < std::ssize(kind.done_ns)) own.push_back(send);
      }
      AppendMessages(layout.replicas[r], all.problem, first, own, times.messages);
      times.begun_s[r] = InSeconds(&begun[first], count);
      times.ready_s[r] = InSeconds(&done[first], count);
      for (size_t s = 0; s < count; ++s) {
        const int device = all.problem.chunks[first + s].device;
        kind.done_ns[s] = std::max(kind.done_ns[s], done[first + s]);
        kind.found.result.makespan_ns =
            std::max(kind.found.result.makespan_ns, played.devices[device].last_ns);
      }
    }
  }
  return times;
}

// The slowest replica's end, given when every stage's all-reduce is complete: the optimizer
// follows.
double StepEnd(const Layout& layout, const Outcome& outcome, const StageTimes& synced_s) {
  double end_s = 0;
  for (const ReplicaOutcome& kind : outcome.kinds) {
    for (const int r : kind.replicas) {
      std::vector<double> entity_s(kind.optimizer_ns.size(), 0);
      for (size_t s = 0; s < layout.replicas[r].stages.size(); ++s) {
        double& last = entity_s[kind.problem.chunks[s].device];
        last = std::max(last, synced_s[r][s]);
      }
      for (size_t e = 0; e < entity_s.size(); ++e) {
        end_s = std::max(end_s, entity_s[e] + Seconds(kind.optimizer_ns[e]));
      }
    }
  }
  return end_s;
}

StageTimes OptimizerSeconds(const Layout& layout, const Outcome& outcome) {
  StageTimes optimizer_s(layout.replicas.size());
  for (const ReplicaOutcome& kind : outcome.kinds) {
    for (const int r : kind.replicas) {
      optimizer_s[r] = InSeconds(kind.optimizer_ns.data(), kind.optimizer_ns.size());
    }
  }
  return optimizer_s;
}

// No step of this layout is shorter, whatever the kinds' schedules. They have their bounds then.
double BoundSeconds(const Cluster& cluster, const Costs& costs, const Layout& layout,
                    Outcome& outcome) {
  const StageTimes earliest_s =
      SynchroniseGradients(cluster, costs, layout, EarliestGradients(cluster, layout, outcome));
  StageTimes unknown_s;
  for (const Replica& replica : layout.replicas) {
    unknown_s.emplace_back(replica.stages.size(), INFINITY);
  }
  double bound_s = std::max(StepEnd(layout, outcome, earliest_s),
                            CommittedSeconds(cluster, layout,
                                             {earliest_s, KnownSeconds(cluster, layout, earliest_s),
                                              OptimizerSeconds(layout, outcome)},
                                             unknown_s));
  for (const ReplicaOutcome& kind : outcome.kinds) {
    bound_s = std::max(bound_s, Seconds(kind.bound.time_ns));
  }
  return bound_s;
}

// Adds what follows the last operation: all-reduces over replicas, the optimizer, the commit votes.
void AddEnd(const Cluster& cluster, const Costs& costs, const Layout& layout,
            const GradientTimes& times, Outcome& outcome) {
  // Nothing to add is nothing, whatever the rounding.
  const auto raise = [&](double to_s) {
    const double by_s = to_s - outcome.step_s < 1e-9 ? 0 : to_s - outcome.step_s;
    outcome.step_s += by_s;
    return by_s;
  };
  StepEnds& ends = outcome.ends;
  ends.synced_s = SynchroniseGradients(cluster, costs, layout, times.ready_s, times.messages);
  ends.known_s = KnownSeconds(cluster, layout, ends.synced_s);
  ends.optimizer_s = OptimizerSeconds(layout, outcome);
  outcome.sync_s = raise(StepEnd(layout, outcome, ends.synced_s));
  outcome.commit_s = raise(CommittedSeconds(cluster, layout, ends, times.begun_s));
  outcome.bound_s = std::min(outcome.step_s, outcome.bound_s);
}

absl::StatusOr<Outcome> Evaluate(const Cluster& cluster, const Costs& costs, const Layout& layout,
                                 const LinkSharing& sharing, bool together,
                                 const Evaluation& evaluation) {
  Outcome outcome;
  outcome.together = together;
  Evaluation each = evaluation;
  if (each.known != nullptr && each.known->together != together) each.known = nullptr;
  std::map<std::string, size_t> kinds;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    std::string name = MakeReplicaKey(cluster, layout, sharing, layout.replicas[r]);
    if (each.orders != nullptr) AppendOrder((*each.orders)[r], name);
    const auto [found, added] = kinds.try_emplace(name, outcome.kinds.size());
    if (added) {
      ATOLL_ASSIGN_OR_RETURN(
          ReplicaOutcome kind,
          BuildKind(cluster, costs, layout, sharing, static_cast<int>(r), name, together, each));
      outcome.kinds.push_back(std::move(kind));
    }
    outcome.kinds[found->second].replicas.push_back(static_cast<int>(r));
  }
  outcome.bound_s = BoundSeconds(cluster, costs, layout, outcome);
  if (outcome.bound_s >= evaluation.step_limit_s) {
    return absl::CancelledError("no schedule of it is as fast");
  }
  for (ReplicaOutcome& kind : outcome.kinds) {
    if (!kind.found.schedule.device_ops.empty()) continue;  // known
    ATOLL_RETURN_IF_ERROR(FindSchedule(layout, layout.replicas[kind.replicas[0]], each, kind));
  }
  const GradientTimes times =
      together ? TimesTogether(cluster, layout, outcome) : TimesAlone(layout, outcome);
  for (const ReplicaOutcome& kind : outcome.kinds) {
    outcome.step_s = std::max(outcome.step_s, Seconds(kind.found.result.makespan_ns));
  }
  AddEnd(cluster, costs, layout, times, outcome);
  return outcome;
}

// Returns whether replicas share links, and are few enough to be simulated together.
bool PlayedTogether(const LinkSharing& sharing, const Layout& layout) {
  int64_t operations = 0;
  for (const Replica& replica : layout.replicas) {
    operations += 3 * int64_t{replica.micro_batches} * static_cast<int64_t>(replica.stages.size());
  }
  bool links = false, cards = false;
  for (int i = 0; i < std::ssize(sharing.links()); ++i) {
    if (sharing.links()[i].replicas > 1) (sharing.IsCard(i) ? cards : links) = true;
  }
  return (links && operations <= kMostTogether) || (cards && operations <= kMostTogetherOnCards);
}

}  // namespace

const ReplicaOutcome& SlowestKind(const Outcome& outcome) {
  return *std::ranges::max_element(
      outcome.kinds, {}, [](const ReplicaOutcome& kind) { return kind.found.result.makespan_ns; });
}

absl::StatusOr<Outcome> EvaluateLayout(const Cluster& cluster, const Costs& all_costs,
                                       const Layout& layout, const Evaluation& evaluation) {
  ATOLL_CHECK(!layout.replicas.empty());
  const Costs& costs = all_costs.ForReplicas(layout.replicas.size());
  const LinkSharing sharing(cluster, layout);
  // Messages that block are work of their devices, at their replica's part of what they share.
  const bool together =
      !costs.options().runtime.blocking_messages && PlayedTogether(sharing, layout);
  return Evaluate(cluster, costs, layout, sharing, together, evaluation);
}

absl::StatusOr<Outcome> EvaluateSaving(const Cluster& cluster, const Costs& all_costs,
                                       const Evaluation& evaluation, Layout& layout) {
  const Costs& costs = all_costs.ForReplicas(layout.replicas.size());
  if (costs.options().recompute != Recompute::kAuto) {
    return EvaluateLayout(cluster, costs, layout, evaluation);
  }
  size_t stages = 0;
  for (const Replica& replica : layout.replicas) stages = std::max(stages, replica.stages.size());
  const int most = static_cast<int>(stages);
  std::vector<std::vector<Saving>> tried;
  absl::StatusOr<Outcome> best = absl::ResourceExhaustedError("no layout fits");
  Layout saving = layout;
  for (const int in_flight : {1, (most + 1) / 2, most}) {
    std::vector<Saving>& savings = tried.emplace_back();
    for (Replica& replica : saving.replicas) {
      SaveMemory(cluster, costs, layout.micro_batch, in_flight, replica,
                 layout.tensor_split_ratios);
      for (const Stage& stage : replica.stages) savings.push_back(stage.saving);
    }
    if (std::count(tried.begin(), tried.end(), savings) > 1) continue;
    // More savings may cost more than more micro-batches in flight can bring.
    if (best.ok() && kSurelyWorse * EstimateSeconds(cluster, costs, saving) >= best->step_s) {
      break;
    }
    auto outcome = EvaluateLayout(cluster, costs, saving, evaluation);
    const bool better = outcome.ok() && (!best.ok() || outcome->step_s < best->step_s);
    if (!better && (best.ok() || outcome.ok())) continue;
    best = std::move(outcome);
    if (better) layout = saving;
  }
  return best;
}

}  // namespace atl::plan
