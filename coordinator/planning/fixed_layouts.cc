#include "coordinator/planning/fixed_layouts.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "coordinator/planner/candidates.h"

namespace atl {
namespace {

constexpr int kPlayed = 8;     // layouts that are simulated
constexpr int kRestarts = 32;  // simulations of each
constexpr int kMoves = 2;      // rounds over all boundaries of the winner
constexpr int kMaxBoundaries = 64;

// A tensor-parallel set of devices that acts as one.
struct Entity {
  std::vector<int> devices;
  double power = 0;  // sequences a second, of the whole model
  bool leads = false;
};

struct Candidate {
  plan::Layout layout;
  double estimate_s = 0;
};

// Sites together, within a site weak ones first: their stages hold the most activations for the
// fewest layers.
std::vector<Entity> EntitiesOf(const PlanningInput& input, int tensor_parallel, int micro_batch,
                               const NodeId& leader) {
  std::vector<Entity> entities;
  for (const plan::EntityPool& pool :
       plan::PoolsOf(input.cluster, input.costs, tensor_parallel, micro_batch)) {
    for (const std::vector<int>& devices : pool.entities) {
      entities.push_back({devices, pool.power, input.cluster.devices[devices[0]].node == leader});
    }
  }
  const auto site = [&](const Entity& e) { return input.cluster.devices[e.devices[0]].site; };
  std::stable_sort(entities.begin(), entities.end(), [&](const Entity& a, const Entity& b) {
    return std::pair(site(a), a.power) < std::pair(site(b), b.power);
  });
  return entities;
}

// The fastest `count`, one of the leader's among them, in their order.
std::vector<Entity> Fastest(const std::vector<Entity>& entities, size_t count) {
  std::vector<size_t> order(entities.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto leader =
      std::max_element(entities.begin(), entities.end(), [](const Entity& a, const Entity& b) {
        return std::pair(a.leads, a.power) < std::pair(b.leads, b.power);
      });
  const size_t first = static_cast<size_t>(leader - entities.begin());
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(a == first, entities[a].power) > std::pair(b == first, entities[b].power);
  });
  order.resize(count);
  std::sort(order.begin(), order.end());
  std::vector<Entity> chosen;
  for (const size_t i : order) chosen.push_back(entities[i]);
  return chosen;
}

// Cuts in proportion to power, every stage with at least one layer: for where balancing would leave
// stages empty. REQUIRES: no fewer layers than stages.
void CutAll(const plan::StageCosts& costs, const std::vector<double>& powers,
            plan::Replica& replica) {
  const int layers = costs.layers();
  const int stages = static_cast<int>(replica.stages.size());
  double power = 0;
  for (const double p : powers) power += p;
  const double total_s = costs.TotalSeconds(0, layers);
  double target_s = 0;
  int next = 0;
  for (int s = 0; s < stages; ++s) {
    target_s += total_s * powers[s] / power;
    const int most = layers - (stages - 1 - s);  // one for each stage behind
    int last = next + 1;
    while (last < most && (s + 1 == stages || costs.TotalSeconds(0, last + 1) <= target_s)) ++last;
    if (s + 1 == stages) last = layers;
    replica.stages[s].first_layer = next;
    replica.stages[s].last_layer = next = last;
  }
}

// One micro-batch to each replica, however slow: the job may have asked for so many. The others are
// dealt one by one to the replica that would be done with one more first.
void DealMicroBatches(const std::vector<double>& beat_s, int total,
                      std::vector<plan::Replica>& replicas) {
  for (plan::Replica& replica : replicas) replica.micro_batches = 1;
  for (int i = static_cast<int>(replicas.size()); i < total; ++i) {
    size_t best = 0;
    for (size_t r = 1; r < replicas.size(); ++r) {
      if ((replicas[r].micro_batches + 1) * beat_s[r] <
          (replicas[best].micro_batches + 1) * beat_s[best]) {
        best = r;
      }
    }
    ++replicas[best].micro_batches;
  }
}

double BeatSeconds(const PlanningInput& input, const plan::Layout& layout,
                   const plan::Replica& replica) {
  double slowest = 0;
  for (const plan::Stage& stage : replica.stages) {
    const plan::DeviceType& type =
        input.cluster.types[input.cluster.devices[stage.devices[0]].type];
    slowest =
        std::max(slowest, input.costs.For(type, layout.tensor_parallel, layout.micro_batch)
                              .TotalSeconds(stage.first_layer, stage.last_layer, stage.saving));
  }
  return slowest;
}

// Layers and micro-batches shared by speed.
absl::Status Share(const PlanningInput& input, const std::vector<std::vector<double>>& powers,
                   int total, int stages, plan::Layout& layout) {
  std::vector<double> beats;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    plan::Replica& replica = layout.replicas[r];
    replica.micro_batches = std::max(1, total / static_cast<int>(layout.replicas.size()));
    plan::Replica balanced = replica;
    const absl::Status cut = plan::CutReplica(input.cluster, input.costs, layout.tensor_parallel,
                                              layout.micro_batch, balanced);
    if (cut.ok() && static_cast<int>(balanced.stages.size()) == stages) {
      replica = std::move(balanced);
    } else {
      const plan::Stage& first = replica.stages[0];
      const plan::StageCosts costs =
          input.costs.For(input.cluster.types[input.cluster.devices[first.devices[0]].type],
                          layout.tensor_parallel, layout.micro_batch);
      CutAll(costs, powers[r], replica);
      plan::SaveMemory(input.cluster, input.costs, layout.tensor_parallel, layout.micro_batch,
                       stages, replica);
    }
    beats.push_back(BeatSeconds(input, layout, replica));
  }
  DealMicroBatches(beats, total, layout.replicas);
  return absl::OkStatus();
}

// Moves entities into `replicas` pipelines of `stages`: side by side, stage s of all replicas comes
// before stage s + 1 of any; else one replica after the other.
Candidate Arrange(const std::vector<Entity>& entities, int replicas, int stages, bool side_by_side,
                  int tensor_parallel, int micro_batch, std::vector<std::vector<double>>* powers) {
  Candidate candidate;
  candidate.layout.tensor_parallel = tensor_parallel;
  candidate.layout.micro_batch = micro_batch;
  candidate.layout.replicas.resize(replicas);
  powers->assign(replicas, {});
  for (int r = 0; r < replicas; ++r) {
    for (int s = 0; s < stages; ++s) {
      const Entity& entity = entities[side_by_side ? s * replicas + r : r * stages + s];
      candidate.layout.replicas[r].stages.push_back({entity.devices, 0, 0});
      (*powers)[r].push_back(entity.power);
    }
  }
  return candidate;
}

std::vector<int> Choices(int64_t fixed, int most) {
  if (fixed > 0) return fixed <= most ? std::vector{static_cast<int>(fixed)} : std::vector<int>{};
  std::vector<int> all;
  for (int i = 1; i <= most; i = i < 16 ? i + 1 : i + i / 4) all.push_back(i);
  return all;
}

absl::Status NothingFits(const PlanningInput& input, const LayoutSpec& layout, int most_entities) {
  std::string asked;
  int64_t devices = 1;
  const auto ask = [&](const char* key, int64_t value) {
    if (value == 0) return;
    absl::StrAppend(&asked, asked.empty() ? "" : ", ", "layout.", key, " = ", value);
    devices *= value;
  };
  ask("stages", layout.stages);
  ask("replicas", layout.replicas);
  ask("tensor_parallel", layout.tensor_parallel);
  if (asked.empty()) asked = "one stage";
  const auto count = [](int64_t devices) {
    return absl::StrCat(devices, devices == 1 ? " device" : " devices");
  };
  std::string text = absl::StrCat(
      asked, asked.find(',') == std::string::npos ? " takes " : " take ", count(devices),
      ", the island has ", count(static_cast<int64_t>(input.cluster.devices.size())));
  if (layout.tensor_parallel > 1) {
    absl::StrAppend(&text, " (", most_entities, " times ", layout.tensor_parallel,
                    " alike on one worker)");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      text, "; its model has ", input.costs.model().layers.size(), " layers, its batch ",
      input.job.global_batch,
      " sequences: stages must not be more than the layers, replicas not more than the "
      "micro-batches. Add workers, use less, or leave a key out to let the planner choose"));
}

// Schedules that are made for a placement, or for an unsplit backward, get it.
absl::Status SetSchedule(const PlanningInput& input, const std::string& schedule,
                         plan::Layout& layout) {
  if (schedule.empty()) return absl::OkStatus();
  layout.schedule = schedule;
  layout.split_backward = schedule != "1f1b" && schedule != "gpipe" && schedule != "interleaved";
  const bool v = schedule == "zb-v" || schedule == "v-half" || schedule == "v-min";
  if (!v && schedule != "interleaved") return absl::OkStatus();
  const plan::Shape shape = v ? plan::Shape::kVShaped : plan::Shape::kInterleaved;
  if (plan::Reshape(input.cluster, input.costs, shape, layout)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("layout.schedule = \"", schedule,
                                                   "\" needs two stages on every device: pipelines "
                                                   "of at least two devices, twice as many layers "
                                                   "as devices, and the memory for it"));
}

std::vector<Candidate> Enumerate(const PlanningInput& input, const LayoutSpec& fixed,
                                 const NodeId& leader, absl::Status* why_not) {
  std::vector<Candidate> candidates;
  const int layers = static_cast<int>(input.costs.model().layers.size());
  int most_entities = 0;
  for (const int tp : input.job.tensor_parallel) {
    for (const int micro_batch : input.job.micro_batches) {
      const std::vector<Entity> entities = EntitiesOf(input, tp, micro_batch, leader);
      const int count = static_cast<int>(entities.size());
      most_entities = std::max(most_entities, count);
      const int total = input.job.global_batch / micro_batch;
      for (const int replicas : Choices(fixed.replicas, std::min(count, total))) {
        for (const int stages : Choices(fixed.stages, std::min(count / replicas, layers))) {
          const std::vector<Entity> used =
              Fastest(entities, static_cast<size_t>(replicas) * stages);
          for (const bool side_by_side : {false, true}) {
            if (side_by_side && (replicas == 1 || stages == 1)) continue;
            std::vector<std::vector<double>> powers;
            Candidate candidate =
                Arrange(used, replicas, stages, side_by_side, tp, micro_batch, &powers);
            absl::Status made = Share(input, powers, total, stages, candidate.layout);
            if (made.ok()) made = SetSchedule(input, fixed.schedule, candidate.layout);
            if (!made.ok()) {
              *why_not = made;
              continue;
            }
            candidate.estimate_s =
                plan::EstimateSeconds(input.cluster, input.costs, input.job, candidate.layout);
            candidates.push_back(std::move(candidate));
          }
        }
      }
    }
  }
  if (candidates.empty() && why_not->ok()) *why_not = NothingFits(input, fixed, most_entities);
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.estimate_s < b.estimate_s; });
  return candidates;
}

// One layer across each boundary in turn, kept where it helps.
void MoveBoundaries(const PlanningInput& input, const plan::Options& options, plan::Plan& plan) {
  for (int round = 0; round < kMoves; ++round) {
    bool better = false;
    int boundaries = 0;
    for (size_t r = 0; r < plan.layout.replicas.size(); ++r) {
      for (size_t s = 0; s + 1 < plan.layout.replicas[r].stages.size(); ++s) {
        for (const int by : {-1, 1}) {
          if (++boundaries > kMaxBoundaries || (options.stop && options.stop())) return;
          plan::Layout layout = plan.layout;
          plan::Stage& before = layout.replicas[r].stages[s];
          plan::Stage& after = layout.replicas[r].stages[s + 1];
          before.last_layer = after.first_layer = after.first_layer + by;
          if (before.first_layer >= before.last_layer || after.first_layer >= after.last_layer) {
            continue;
          }
          auto outcome =
              plan::EvaluateSaving(input.cluster, input.costs, input.job,
                                   {.restarts = kRestarts, .seed = options.seed}, layout);
          ++plan.simulated;
          if (!outcome.ok() || outcome->step_s >= plan.outcome.step_s) continue;
          plan.layout = std::move(layout);
          plan.outcome = *std::move(outcome);
          better = true;
        }
      }
    }
    if (!better) return;
  }
}

absl::Status CheckSchedule(const std::string& schedule) {
  const std::vector<std::string> names = sim::ScheduleNames();
  if (schedule.empty() || std::find(names.begin(), names.end(), schedule) != names.end()) {
    return absl::OkStatus();
  }
  std::string known;
  for (const std::string& name : names) absl::StrAppend(&known, known.empty() ? "" : ", ", name);
  return absl::InvalidArgumentError(absl::StrCat(
      "layout.schedule = \"", schedule, "\": there is no such schedule; there are: ", known));
}

}  // namespace

bool IsFixed(const LayoutSpec& layout) {
  return layout.stages > 0 || layout.replicas > 0 || layout.tensor_parallel > 0 ||
         !layout.schedule.empty();
}

absl::StatusOr<plan::Plan> PlanFixed(const PlanningInput& input, const LayoutSpec& layout,
                                     const NodeId& leader, const plan::Options& options) {
  ATOLL_RETURN_IF_ERROR(CheckSchedule(layout.schedule));
  absl::Status why_not = absl::OkStatus();
  const std::vector<Candidate> candidates = Enumerate(input, layout, leader, &why_not);
  plan::Plan plan;
  plan.candidates = static_cast<int>(candidates.size());
  plan.memory_binds =
      std::any_of(candidates.begin(), candidates.end(),
                  [](const Candidate& candidate) { return plan::SavesMemory(candidate.layout); });
  plan.seed = options.seed;
  plan.outcome.step_s = INFINITY;
  for (const Candidate& candidate : candidates) {
    const bool enough = plan.simulated >= kPlayed || (options.stop && options.stop());
    if (enough && !plan.layout.replicas.empty()) break;
    plan::Layout layout = candidate.layout;
    auto outcome = plan::EvaluateSaving(input.cluster, input.costs, input.job,
                                        {.restarts = kRestarts, .seed = options.seed}, layout);
    ++plan.simulated;
    if (!outcome.ok()) {
      why_not = outcome.status();
      continue;
    }
    if (outcome->step_s >= plan.outcome.step_s) continue;
    plan.layout = std::move(layout);
    plan.outcome = *std::move(outcome);
  }
  if (plan.layout.replicas.empty()) return Annotate(why_not, "no layout fits");
  MoveBoundaries(input, options, plan);
  plan.reason = absl::StrFormat("shape fixed by the job; %d layouts of it compared, %d simulated",
                                plan.candidates, plan.simulated);
  return plan;
}

}  // namespace atl
