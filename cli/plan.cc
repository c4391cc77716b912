#include "cli/plan.h"

#include <algorithm>
#include <fstream>
#include <iostream>

#include "absl/strings/str_format.h"
#include "cli/job_file.h"
#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/plan_io/render.h"
#include "coordinator/planner/islands.h"
#include "worker/runtime/model_config.h"

namespace atl::cli {
namespace {

// What there is to plan.
struct Task {
  plan::Cluster cluster;
  plan::Model model;
  plan::Job job;
  int64_t tokens_per_sample = 1;
};

absl::StatusOr<plan::Model> ModelOfJob(const JobSpec& spec, int64_t sequence) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, worker::ModelConfigOfJob(spec));
  const bool llama = config.family == ModelFamily::kLlama;
  return plan::MakeTransformer({.name = spec.name,
                                .layers = config.layers,
                                .hidden = config.d_model,
                                .heads = config.heads,
                                .kv_heads = config.kv_heads,
                                .ffn = config.ffn,
                                .vocabulary = config.vocab,
                                .sequence = sequence,
                                .gated = llama,
                                .tied_head = config.tied_head,
                                .positions = !llama});
}

absl::StatusOr<Task> ReadTask(const PlanFlags& flags) {
  Task task;
  int64_t batch = flags.batch;
  if (flags.job.empty() == flags.model.empty()) {
    return absl::InvalidArgumentError("give either a job file or --model, not both");
  }
  if (!flags.job.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const JobSpec spec, ReadJobFile(flags.job));
    task.tokens_per_sample = flags.sequence > 0 ? flags.sequence : spec.data.sequence_length;
    ATOLL_ASSIGN_OR_RETURN(task.model, ModelOfJob(spec, task.tokens_per_sample));
    if (batch == 0) batch = spec.inner.batch_sequences;
  } else {
    ATOLL_ASSIGN_OR_RETURN(task.model, plan::FindModel(flags.model, flags.sequence));
    task.tokens_per_sample = std::max<int64_t>(1, flags.sequence);
  }
  if (batch < 1 || batch > 1 << 20) {
    return absl::InvalidArgumentError(absl::StrCat("--batch ", batch, " is not in 1 .. 1048576"));
  }
  task.job.global_batch = static_cast<int>(batch);
  ATOLL_ASSIGN_OR_RETURN(task.cluster, LoadClusterFile(flags.cluster));
  return task;
}

absl::Status Write(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

absl::Status Show(const Global& global, const PlanFlags& flags, const Task& task,
                  const plan::Costs& costs, const plan::Plan& plan) {
  if (global.json) {
    std::cout << ToJson(ToMessage(task.cluster, costs, plan, task.tokens_per_sample));
  } else {
    std::cout << RenderTable(task.cluster, plan);
  }
  if (!flags.trace.empty()) {
    ATOLL_RETURN_IF_ERROR(Write(flags.trace, RenderTrace(task.cluster, plan)));
  }
  if (flags.svg.empty()) return absl::OkStatus();
  return Write(flags.svg, RenderSvg(task.cluster, plan));
}

absl::Status Compare(const Task& task, const plan::Costs& costs, const plan::Plan& plan) {
  std::cout << "\nwhat others would do:\n";
  for (const std::string& name : plan::BaselineNames()) {
    const auto layout = plan::Baseline(task.cluster, costs, task.job, name);
    if (!layout.ok()) {
      std::cout << absl::StrFormat("  %-14s %s\n", name, std::string(layout.status().message()));
      continue;
    }
    ATOLL_ASSIGN_OR_RETURN(const plan::Outcome outcome,
                           plan::EvaluateLayout(task.cluster, costs, task.job, *layout, {}));
    std::cout << absl::StrFormat("  %-14s takes %.2f times as long: %s\n", name,
                                 outcome.step_s / plan.outcome.step_s, plan::Describe(*layout));
  }
  return absl::OkStatus();
}

absl::Status RunPlan(const Global& global, const PlanFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const Task task, ReadTask(flags));
  const plan::Costs costs(task.model, {}, {.efficiency = flags.efficiency});
  plan::Options options;
  options.seed = flags.seed;
  ATOLL_ASSIGN_OR_RETURN(const plan::Plan plan,
                         plan::PlanJob(task.cluster, costs, task.job, options));
  ATOLL_RETURN_IF_ERROR(Show(global, flags, task, costs, plan));
  if (global.json) return absl::OkStatus();
  if (flags.compare) ATOLL_RETURN_IF_ERROR(Compare(task, costs, plan));
  if (flags.islands) {
    ATOLL_ASSIGN_OR_RETURN(const plan::IslandChoice choice,
                           plan::ChooseIslands(task.cluster, costs, task.job, options, {}));
    std::cout << "\n"
              << (choice.use_islands ? "islands with outer rounds: " : "one plan over all sites: ")
              << choice.reason << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunSimulate(const Global& global, const PlanFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const Task task, ReadTask(flags));
  const plan::Costs costs(task.model, {}, {.efficiency = flags.efficiency});
  plan::Plan plan;
  if (flags.layout == "plan") {
    plan::Options options;
    options.seed = flags.seed;
    ATOLL_ASSIGN_OR_RETURN(plan, plan::PlanJob(task.cluster, costs, task.job, options));
  } else {
    ATOLL_ASSIGN_OR_RETURN(plan.layout,
                           plan::Baseline(task.cluster, costs, task.job, flags.layout));
  }
  plan.layout.schedule = flags.schedule;
  ATOLL_ASSIGN_OR_RETURN(plan.outcome,
                         plan::EvaluateLayout(task.cluster, costs, task.job, plan.layout,
                                              {.restarts = 64, .seed = flags.seed}));
  plan.alternatives.clear();
  plan.seed = flags.seed;
  plan.times_from = absl::StrFormat("roofline at %.0f%% of the datasheet", 100 * flags.efficiency);
  plan.cluster_bound_s = plan::ClusterBoundSeconds(task.cluster, costs, task.job);
  plan.reason = absl::StrCat("layout ", flags.layout, ", schedule ", flags.schedule, ", as asked");
  return Show(global, flags, task, costs, plan);
}

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "atoll: " << status.message() << "\n";
  return 1;
}

int Run(const Global& global, const PlanFlags& flags,
        absl::Status (*command)(const Global&, const PlanFlags&)) {
  if (!(flags.efficiency > 0) || flags.efficiency > 1) {
    std::cerr << "atoll: --efficiency is above 0 and at most 1\n";
    return 2;
  }
  return Report(command(global, flags));
}

}  // namespace

int PlanCommand(const Global& global, const PlanFlags& flags) {
  return Run(global, flags, RunPlan);
}

int SimulateCommand(const Global& global, const PlanFlags& flags) {
  return Run(global, flags, RunSimulate);
}

}  // namespace atl::cli
