#include "coordinator/planner/layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "common/check.h"
#include "common/status.h"
#include "coordinator/planner/balance.h"
#include "coordinator/planner/gradient_sync.h"
#include "coordinator/planner/replica_problem.h"
#include "coordinator/planner/together.h"

namespace atl::plan {
namespace {

double Seconds(sim::Nanos ns) { return static_cast<double>(ns) * 1e-9; }

// Operations of all replicas, up to which they are played together.
constexpr int64_t kMostTogether = 1'000'000;

// The end of each chunk's last gradient in a recorded step.
std::vector<sim::Nanos> DoneTimes(const sim::Problem& problem, const sim::Result& played) {
  std::vector<sim::Nanos> done(problem.chunks.size(), 0);
  for (const std::vector<sim::OpSpan>& spans : played.timeline) {
    for (const sim::OpSpan& span : spans) {
      if (span.op.kind == sim::OpKind::kOptimizer) continue;
      done[span.op.chunk] = std::max(done[span.op.chunk], span.end_ns);
    }
  }
  return done;
}

absl::StatusOr<ReplicaOutcome> EvaluateKind(const Cluster& cluster, const Costs& costs,
                                            const Layout& layout, const WireSharing& sharing,
                                            const Replica& replica, const std::string& name,
                                            const Evaluation& evaluation) {
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
  if (!layout.split_backward || layout.schedule == "1f1b" || layout.schedule == "gpipe") {
    kind.problem = sim::WithUnsplitBackward(std::move(kind.problem));
  }
  const int64_t operations =
      3 * int64_t{replica.micro_batches} * static_cast<int64_t>(replica.stages.size());
  const int64_t most = std::max<int64_t>(4, evaluation.operations / operations);
  sim::SearchOptions options{
      .restarts = static_cast<int>(std::min<int64_t>(evaluation.restarts, most)),
      .improve = static_cast<int>(std::min<int64_t>(evaluation.improve, most)),
      .seed = evaluation.seed};
  ATOLL_ASSIGN_OR_RETURN(kind.found, sim::ScheduleByName(kind.problem, layout.schedule, options));
  if (layout.shape == Shape::kInterleaved && layout.schedule == "best") {
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
  kind.bound = sim::MakespanBound(kind.problem);
  kind.done_ns = DoneTimes(
      kind.problem, sim::SimulateUnchecked(kind.problem, kind.found.schedule, {.record = true}));
  return kind;
}

// When each replica's stages are done with their last gradients: in the step found, and at best.
struct GradientTimes {
  StageTimes ready_s;
  StageTimes earliest_s;
};

std::vector<double> InSeconds(const sim::Nanos* ns, size_t count) {
  std::vector<double> seconds;
  for (size_t i = 0; i < count; ++i) seconds.push_back(Seconds(ns[i]));
  return seconds;
}

GradientTimes TimesAlone(const Layout& layout, const Outcome& outcome) {
  GradientTimes times{StageTimes(layout.replicas.size()), StageTimes(layout.replicas.size())};
  for (const ReplicaOutcome& kind : outcome.kinds) {
    const std::vector<sim::Nanos> earliest = sim::GradientsDone(kind.problem);
    for (const int r : kind.replicas) {
      times.ready_s[r] = InSeconds(kind.done_ns.data(), kind.done_ns.size());
      times.earliest_s[r] = InSeconds(earliest.data(), earliest.size());
    }
  }
  return times;
}

// All replicas on lines that they use in turn. The kinds get the times and the bound of their
// slowest replica in it.
GradientTimes TimesTogether(const Cluster& cluster, const Layout& layout, Outcome& outcome) {
  const Together all = PutTogether(cluster, layout, outcome);
  const sim::Result played = sim::SimulateUnchecked(all.problem, all.schedule, {.record = true});
  const std::vector<sim::Nanos> done = DoneTimes(all.problem, played);
  const std::vector<sim::Nanos> earliest = sim::GradientsDone(all.problem);
  const sim::Bound bound = sim::MakespanBound(all.problem);
  GradientTimes times{StageTimes(layout.replicas.size()), StageTimes(layout.replicas.size())};
  for (ReplicaOutcome& kind : outcome.kinds) {
    kind.bound = bound;
    kind.found.result.makespan_ns = 0;
    std::fill(kind.done_ns.begin(), kind.done_ns.end(), 0);
    for (const int r : kind.replicas) {
      const auto first = static_cast<size_t>(all.problem.pipelines[r].first_chunk);
      const size_t count = kind.done_ns.size();
      times.ready_s[r] = InSeconds(&done[first], count);
      times.earliest_s[r] = InSeconds(&earliest[first], count);
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

// The slowest replica's end, given when every stage's sums are complete: the optimizer follows.
double StepEnd(const Layout& layout, const Outcome& outcome, const StageTimes& summed_s) {
  double end_s = 0;
  for (const ReplicaOutcome& kind : outcome.kinds) {
    for (const int r : kind.replicas) {
      std::vector<double> entity_s(kind.optimizer_ns.size(), 0);
      for (size_t s = 0; s < layout.replicas[r].stages.size(); ++s) {
        double& last = entity_s[kind.problem.chunks[s].device];
        last = std::max(last, summed_s[r][s]);
      }
      for (size_t e = 0; e < entity_s.size(); ++e) {
        end_s = std::max(end_s, entity_s[e] + Seconds(kind.optimizer_ns[e]));
      }
    }
  }
  return end_s;
}

void AddSynchronisation(const Cluster& cluster, const Costs& costs, const Job& job,
                        const Layout& layout, const GradientTimes& times, Outcome& outcome) {
  const auto end_s = [&](const StageTimes& from) {
    return StepEnd(layout, outcome, SynchroniseGradients(cluster, costs, job, layout, from));
  };
  const double alone_s = outcome.step_s;
  outcome.step_s = std::max(outcome.step_s, end_s(times.ready_s));
  outcome.bound_s = std::min(outcome.step_s, std::max(outcome.bound_s, end_s(times.earliest_s)));
  // Without a synchronisation both are the same, but for rounding.
  outcome.sync_s = outcome.step_s - alone_s < 1e-9 ? 0 : outcome.step_s - alone_s;
}

absl::StatusOr<Outcome> Evaluate(const Cluster& cluster, const Costs& costs, const Job& job,
                                 const Layout& layout, const WireSharing& sharing, bool together,
                                 const Evaluation& evaluation) {
  Outcome outcome;
  outcome.together = together;
  Evaluation each = evaluation;
  if (each.known != nullptr && each.known->together != together) each.known = nullptr;
  std::map<std::string, size_t> kinds;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::string name = KindOf(cluster, layout, sharing, layout.replicas[r]);
    const auto [found, added] = kinds.try_emplace(name, outcome.kinds.size());
    if (added) {
      ATOLL_ASSIGN_OR_RETURN(ReplicaOutcome kind, EvaluateKind(cluster, costs, layout, sharing,
                                                               layout.replicas[r], name, each));
      outcome.kinds.push_back(std::move(kind));
    }
    outcome.kinds[found->second].replicas.push_back(static_cast<int>(r));
  }
  const GradientTimes times =
      together ? TimesTogether(cluster, layout, outcome) : TimesAlone(layout, outcome);
  for (const ReplicaOutcome& kind : outcome.kinds) {
    outcome.step_s = std::max(outcome.step_s, Seconds(kind.found.result.makespan_ns));
    outcome.bound_s = std::max(outcome.bound_s, Seconds(kind.bound.time_ns));
  }
  AddSynchronisation(cluster, costs, job, layout, times, outcome);
  return outcome;
}

// Whether replicas share lines, and are few enough to be played together.
bool PlayedTogether(const WireSharing& sharing, const Layout& layout) {
  int64_t operations = 0;
  for (const Replica& replica : layout.replicas) {
    operations += 3 * int64_t{replica.micro_batches} * static_cast<int64_t>(replica.stages.size());
  }
  return operations <= kMostTogether &&
         std::any_of(sharing.lines.begin(), sharing.lines.end(),
                     [](const auto& line) { return line.second.replicas > 1; });
}

}  // namespace

absl::Status Validate(const Job& job) {
  if (job.global_batch < 1 || job.global_batch > 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrCat("global_batch = ", job.global_batch, " is not in 1 .. 1048576"));
  }
  for (const int size : job.micro_batches) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat("micro-batch size ", size));
  }
  for (const int size : job.tensor_parallel) {
    if (size < 1 || size > 1024) {
      return absl::InvalidArgumentError(absl::StrCat("tensor-parallel size ", size));
    }
  }
  return absl::OkStatus();
}

std::vector<int> PlacesOf(const Replica& replica) {
  std::vector<int> places;
  std::map<int, int> index;
  for (const Stage& stage : replica.stages) {
    places.push_back(
        index.try_emplace(stage.devices[0], static_cast<int>(index.size())).first->second);
  }
  return places;
}

const ReplicaOutcome& SlowestKind(const Outcome& outcome) {
  return *std::max_element(outcome.kinds.begin(), outcome.kinds.end(),
                           [](const ReplicaOutcome& a, const ReplicaOutcome& b) {
                             return a.found.result.makespan_ns < b.found.result.makespan_ns;
                           });
}

namespace {

using CostsByType = std::map<int, StageCosts>;

CostsByType CostsOfTypes(const Cluster& cluster, const Costs& costs, int tensor_parallel,
                         int micro_batch, const Replica& replica) {
  CostsByType by_type;
  for (const Stage& stage : replica.stages) {
    const int type = cluster.devices[stage.devices[0]].type;
    if (by_type.count(type) > 0) continue;
    by_type.emplace(type, costs.For(cluster.types[type], tensor_parallel, micro_batch));
  }
  return by_type;
}

// Moves single layers across boundaries while that makes the entities' load more even: first that
// all hold their state and `in_flight` micro-batches, then the slowest one's time, then the spread.
class Evener {
 public:
  Evener(const Cluster& cluster, const Costs& costs, const CostsByType& by_type, int in_flight,
         Replica& replica)
      : in_flight_(in_flight), replica_(replica), places_(PlacesOf(replica)) {
    for (const Stage& stage : replica.stages) {
      const int type = cluster.devices[stage.devices[0]].type;
      costs_.push_back(&by_type.at(type));
      usable_.push_back(static_cast<double>(costs.UsableBytes(cluster.types[type])));
    }
  }

  // False if some entity still cannot hold its part.
  bool Run() {
    Load best = LoadOf();
    // Every move improves; the bound only guards against cycles of rounding.
    for (int moves = 0; moves < 1000; ++moves) {
      size_t boundary = 0;
      int direction = 0;
      for (size_t s = 0; s + 1 < replica_.stages.size(); ++s) {
        for (const int by : {-1, 1}) {
          if (!Move(s, by)) continue;
          const Load load = LoadOf();
          if (load < best) {
            best = load;
            boundary = s;
            direction = by;
          }
          Move(s, -by);
        }
      }
      if (direction == 0) break;
      Move(boundary, direction);
    }
    return std::get<0>(best) <= 0;
  }

 private:
  using Load = std::tuple<double, double, double>;  // lack of memory, slowest, sum of squares

  bool Move(size_t s, int by) {
    Stage& before = replica_.stages[s];
    Stage& after = replica_.stages[s + 1];
    if (before.last_layer + by <= before.first_layer ||
        after.first_layer + by >= after.last_layer) {
      return false;
    }
    before.last_layer += by;
    after.first_layer += by;
    return true;
  }

  Load LoadOf() const {
    std::vector<double> seconds(replica_.stages.size(), 0);
    std::vector<double> bytes(replica_.stages.size(), 0);
    double lacks = 0;
    double slowest = 0;
    for (size_t s = 0; s < replica_.stages.size(); ++s) {
      const Stage& stage = replica_.stages[s];
      const int place = places_[s];
      seconds[place] += costs_[s]->TotalSeconds(stage.first_layer, stage.last_layer);
      bytes[place] += static_cast<double>(
          costs_[s]->StateBytes(stage.first_layer, stage.last_layer) +
          in_flight_ * costs_[s]->StashBytes(stage.first_layer, stage.last_layer));
      slowest = std::max(slowest, seconds[place]);
      lacks = std::max(lacks, bytes[place] - usable_[s]);
    }
    double squares = 0;
    for (const double t : seconds) squares += t * t;
    return {std::max(0.0, lacks), slowest, squares};
  }

  const int in_flight_;
  Replica& replica_;
  const std::vector<int> places_;
  std::vector<const StageCosts*> costs_;  // per stage
  std::vector<double> usable_;
};

}  // namespace

absl::Status CutReplica(const Cluster& cluster, const Costs& costs, int tensor_parallel,
                        int micro_batch, Replica& replica) {
  const CostsByType by_type = CostsOfTypes(cluster, costs, tensor_parallel, micro_batch, replica);
  const int stages = static_cast<int>(replica.stages.size());
  int in_flight = std::min(replica.micro_batches, stages);
  const auto balance = [&] {
    std::vector<StageSlot> slots;
    for (int s = 0; s < stages; ++s) {
      const int type = cluster.devices[replica.stages[s].devices[0]].type;
      slots.push_back({&by_type.at(type), costs.UsableBytes(cluster.types[type]),
                       std::min(in_flight, stages - s)});
    }
    return BalanceLayers(slots);
  };
  auto cuts = balance();
  while (!cuts.ok() && in_flight > 1) {
    in_flight = (in_flight + 1) / 2;
    cuts = balance();
  }
  if (!cuts.ok()) return cuts.status();
  std::vector<Stage> kept;
  for (int s = 0; s < stages; ++s) {
    Stage stage = replica.stages[s];
    stage.first_layer = (*cuts)[s];
    stage.last_layer = (*cuts)[s + 1];
    if (stage.first_layer < stage.last_layer) kept.push_back(std::move(stage));
  }
  replica.stages = std::move(kept);  // a stage without layers is an idle device
  return absl::OkStatus();
}

bool Reshape(const Cluster& cluster, const Costs& costs, Shape shape, Layout& layout) {
  ATOLL_CHECK(layout.shape == Shape::kPlain && shape != Shape::kPlain);
  layout.shape = shape;
  std::map<std::pair<std::vector<int>, int>, std::vector<int>> known;  // equal replicas, once
  for (Replica& replica : layout.replicas) {
    const int entities = static_cast<int>(replica.stages.size());
    if (entities < 2) return false;
    std::vector<int> key;
    std::vector<int> layers;  // of each entity
    for (const Stage& stage : replica.stages) {
      key.push_back(cluster.devices[stage.devices[0]].type);
      key.push_back(stage.last_layer);
      layers.push_back(stage.last_layer - stage.first_layer);
    }
    const int all = replica.stages.back().last_layer;
    if (all < 2 * entities) return false;
    // Cuts for one stage per device may leave a device too little for two: then begin evenly.
    if (*std::min_element(layers.begin(), layers.end()) < 2) {
      for (int i = 0; i < entities; ++i) layers[i] = all * (i + 1) / entities - all * i / entities;
    }
    // The second half of the model comes back to the entities, in the other or the same order.
    for (int i = 0; i < entities; ++i) {
      const int again = shape == Shape::kVShaped ? entities - 1 - i : i;
      replica.stages.push_back({replica.stages[again].devices, 0, 0});
      layers.push_back(layers[again] / 2);
    }
    for (int i = 0; i < entities; ++i) layers[i] -= layers[i] / 2;
    int next = 0;
    for (int s = 0; s < 2 * entities; ++s) {
      replica.stages[s].first_layer = next;
      replica.stages[s].last_layer = next += layers[s];
    }
    auto [cuts, added] = known.try_emplace({key, replica.micro_batches});
    if (added) {
      const CostsByType by_type =
          CostsOfTypes(cluster, costs, layout.tensor_parallel, layout.micro_batch, replica);
      if (!Evener(cluster, costs, by_type, 1, replica).Run()) return false;
      for (const Stage& stage : replica.stages) cuts->second.push_back(stage.last_layer);
    }
    for (int s = 0; s < 2 * entities; ++s) {
      replica.stages[s].first_layer = s == 0 ? 0 : cuts->second[s - 1];
      replica.stages[s].last_layer = cuts->second[s];
    }
  }
  return true;
}

double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                       const Layout& layout) {
  const WireSharing sharing = SharingOf(cluster, layout);
  std::map<int, StageCosts> by_type;
  std::set<std::string> seen;
  double slowest = 0;
  for (const Replica& replica : layout.replicas) {
    if (layout.replicas.size() > 1 &&
        !seen.insert(KindOf(cluster, layout, sharing, replica)).second) {
      continue;
    }
    const std::vector<int> places = PlacesOf(replica);
    std::vector<double> work(places.size(), 0);
    double fill = 0;
    double beat = 0;
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const Stage& stage = replica.stages[s];
      const int type = cluster.devices[stage.devices[0]].type;
      if (by_type.find(type) == by_type.end()) {
        by_type.emplace(type,
                        costs.For(cluster.types[type], layout.tensor_parallel, layout.micro_batch));
      }
      const LayerTimes times = by_type.at(type).Of(stage.first_layer, stage.last_layer);
      work[places[s]] += times.forward_s + times.backward_s + times.weight_s;
      beat = std::max(beat, work[places[s]]);
      if (s + 1 == replica.stages.size()) break;
      fill += times.forward_s + times.backward_s;
      if (places[s] == places[s + 1]) continue;
      const Wire wire = StageWire(cluster, sharing, stage, replica.stages[s + 1]);
      const double bytes = static_cast<double>(BoundaryBytes(costs, stage, layout.micro_batch));
      fill += 2 * wire.Seconds(bytes);
      // All boundaries' messages pass a line with each micro-batch.
      const WireSharing::Line* line = LineBetween(cluster, sharing, stage, replica.stages[s + 1]);
      const double each = line == nullptr ? 1 : 1.0 * line->boundaries / line->replicas;
      beat = std::max(beat, each * bytes / wire.bytes_per_s);
    }
    slowest = std::max(slowest, fill + replica.micro_batches * beat);
  }
  return slowest + SyncSeconds(cluster, costs, job, layout);
}

absl::StatusOr<Outcome> EvaluateLayout(const Cluster& cluster, const Costs& costs, const Job& job,
                                       const Layout& layout, const Evaluation& evaluation) {
  ATOLL_CHECK(!layout.replicas.empty());
  WireSharing sharing = SharingOf(cluster, layout);
  const bool together = PlayedTogether(sharing, layout);
  auto outcome = Evaluate(cluster, costs, job, layout, sharing, together, evaluation);
  if (!together || !outcome.ok()) return outcome;
  // Where lines have bandwidth to spare, the order of a replica that has them to itself is better.
  for (auto& [sites, line] : sharing.lines) line.replicas = 1;
  auto other = Evaluate(cluster, costs, job, layout, sharing, together, evaluation);
  return other.ok() && other->step_s < outcome->step_s ? std::move(other) : std::move(outcome);
}

}  // namespace atl::plan
