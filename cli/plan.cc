#include "cli/plan.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/job_file.h"
#include "cli/model/named_model.h"
#include "cli/pictures/plan_tables.h"
#include "cli/preview.h"
#include "cli/text/output.h"
#include "cli/write_file.h"
#include "common/model/job_model.h"
#include "common/number_text.h"
#include "common/protocol/device_profile.h"
#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/plan_io/profile_file.h"
#include "coordinator/plan_io/read_text.h"
#include "coordinator/planning/island_scope.h"
#include "coordinator/planning/objective.h"

namespace atl::cli {
namespace {

using Clock = std::chrono::steady_clock;

// The planning that the flags request.
struct Task {
  PlanningInput input;
  PlanRequest request;  // the job's specification
  plan::IslandOptions islands;
  IslandScope island_scope = IslandScope::kAuto;

  int64_t tokens_per_sample() const { return request.spec.data.sequence_length; }
};

// The job's, or one that trains the model of the flags.
absl::StatusOr<JobSpec> ReadSpec(const PlanFlags& flags) {
  if (!flags.job.empty()) {
    ATOLL_ASSIGN_OR_RETURN(JobSpec spec, ReadJobFile(flags.job));
    if (flags.batch > 0) spec.inner.batch_sequences = flags.batch;
    if (flags.sequence > 0) spec.data.sequence_length = flags.sequence;
    return spec;
  }
  JobSpec spec;
  if (absl::EndsWith(flags.model, ".json")) {
    spec.name = flags.model;
    spec.model.config_path = flags.model;
    spec.data.sequence_length = flags.sequence;
  } else {
    ATOLL_ASSIGN_OR_RETURN(spec, NamedModelJob(flags.model, flags.sequence));
  }
  spec.inner.batch_sequences = flags.batch;
  spec.layout.island = IslandScope::kAuto;
  return spec;
}

// Degrees to try, by the same rules as the job's own.
absl::Status SetTensorParallel(const std::vector<int>& degrees, const ModelSpec& shape,
                               JobSpec spec, plan::Job* job) {
  for (const int degree : degrees) {
    spec.layout.tensor_parallel = degree;
    ATOLL_RETURN_IF_ERROR(
        Annotate(ToPlanJob(spec, shape).status(), absl::StrCat("--tensor-parallel ", degree)));
  }
  job->tensor_parallel = degrees;
  return absl::OkStatus();
}

absl::StatusOr<PlanningInput> ReadModelAndJob(const PlanFlags& flags, const JobSpec& spec,
                                              const ModelConfig& config) {
  ATOLL_ASSIGN_OR_RETURN(PlanningInput input, MakeJobInput(spec, config));
  if (!flags.micro_batches.empty()) input.job.micro_batches = flags.micro_batches;
  if (!flags.tensor_parallel.empty()) {
    ATOLL_RETURN_IF_ERROR(
        SetTensorParallel(flags.tensor_parallel, ToSpec(config), spec, &input.job));
  }
  if (!flags.objective.empty()) input.job.objective.cheapest = flags.objective == "cost";
  plan::CostOptions options = input.costs.options();
  options.sharded_bytes_per_parameter *= flags.state_bytes / options.state_bytes_per_parameter;
  options.state_bytes_per_parameter = flags.state_bytes;
  options.efficiency = flags.efficiency;
  input.costs = input.costs.With(options);
  return input;
}

constexpr int64_t kMaxFileBytes = 64 << 20;  // of profiles and plans

// Devices, links and times that were measured; with --cluster, devices and links as described.
// `model_digest`: of the job's model.
absl::StatusOr<plan::Cluster> ReadProfile(const PlanFlags& flags, const std::string& model_digest,
                                          plan::Costs* costs) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(flags.profile, kMaxFileBytes));
  ATOLL_ASSIGN_OR_RETURN(const v1::ClusterProfile profile, ParseProfileJson(text, flags.profile));
  const std::string& where = flags.profile;
  if (!profile.model_digest().empty() && profile.model_digest() != model_digest) {
    return absl::FailedPreconditionError(absl::StrCat(
        where, ": the times are of the model of ", profile.job(),
        ", not of this one; submit this job so that workers measure it, or plan without times"));
  }
  plan::Model model = costs->model();
  plan::CostOptions options = costs->options();
  absl::StatusOr<Profiled> profiled = absl::UnknownError("");
  if (flags.cluster.empty()) {
    profiled = ToProfiled(profile, &model, &options);
  } else {
    ATOLL_ASSIGN_OR_RETURN(const v1::ClusterSpec described, LoadClusterSpec(flags.cluster));
    profiled = ToProfiled(described, profile, &model, &options);
  }
  if (!profiled.ok()) {
    return Annotate(profiled.status(),
                    flags.cluster.empty() ? where : absl::StrCat(flags.cluster, ", ", where));
  }
  *costs = plan::Costs(model, std::move(profiled->table), options, std::move(profiled->memory));
  return std::move(profiled->cluster);
}

// Island scopes by their names in --islands.
const std::map<std::string, IslandScope> kIslandScopes = {{"auto", IslandScope::kAuto},
                                                          {"one", IslandScope::kAll},
                                                          {"per-site", IslandScope::kSite},
                                                          {"per-worker", IslandScope::kWorker}};

absl::StatusOr<Task> ReadTask(const PlanFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(JobSpec spec, ReadSpec(flags));
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOfJob(spec));
  ATOLL_ASSIGN_OR_RETURN(PlanningInput input, ReadModelAndJob(flags, spec, config));
  if (flags.objective == "cost") spec.layout.objective = PlanObjective::kCost;
  if (flags.objective == "time") spec.layout.objective = PlanObjective::kTime;
  absl::StatusOr<plan::Cluster> cluster = absl::UnknownError("");
  if (!flags.profile.empty()) {
    const uint64_t digest = ComputeModelDigest(ToSpec(config), spec);
    cluster = ReadProfile(flags, absl::StrCat(absl::Hex(digest, absl::kZeroPad16)), &input.costs);
  } else {
    cluster = LoadClusterFile(flags.cluster);
  }
  if (!cluster.ok()) return cluster.status();
  const absl::Status set = SetCluster(spec, *std::move(cluster), input);
  if (!set.ok()) return flags.job.empty() ? set : Annotate(set, flags.job);
  Task task{std::move(input)};
  task.request.spec = std::move(spec);
  task.island_scope = task.request.spec.layout.island;
  task.islands = ToIslandOptions(task.request.spec);
  task.islands.cost_per_doubling = flags.island_cost;
  if (flags.steps_per_round > 0) {
    task.islands.steps_per_round = static_cast<int>(flags.steps_per_round);
  }
  task.islands.overlap = task.islands.overlap && flags.overlap;
  if (const auto island_scope = kIslandScopes.find(flags.islands);
      island_scope != kIslandScopes.end()) {
    task.island_scope = island_scope->second;
  } else if (flags.job.empty() && task.input.cluster.ListSites().size() == 1) {
    task.island_scope = IslandScope::kAll;
  }
  return task;
}

absl::Status WritePictures(const PlanFlags& flags, const std::vector<plan::IslandOfSite>& plans) {
  if (!flags.trace.empty()) ATOLL_RETURN_IF_ERROR(WriteFile(flags.trace, RenderTrace(plans)));
  if (flags.svg.empty()) return absl::OkStatus();
  return WriteFile(flags.svg, RenderSvg(plans));
}

// The job's request, and with --seconds until when each of its plans is improved.
struct Search {
  PlanRequest request;
  EnoughFunction make_enough;
};

// With --seconds plans are improved after their search; they share what is left of the time evenly.
Search MakeSearch(const PlanFlags& flags, const Task& task) {
  Search search{task.request, nullptr};
  search.request.seed = flags.seed;
  search.request.threads = SearchThreads();
  if (flags.seconds <= 0) return search;
  const auto end = Clock::now() + std::chrono::duration<double>(flags.seconds);
  search.make_enough = [end](size_t plans_left) {
    const auto now = Clock::now();
    const auto part = (end - now) / static_cast<double>(plans_left);
    return [own_end = now + part] { return Clock::now() >= own_end; };
  };
  return search;
}

absl::StatusOr<ScopePlans> PlanTask(const PlanFlags& flags, const Task& task,
                                    IslandScope island_scope) {
  const Search search = MakeSearch(flags, task);
  return PlanScope(search.request, task.input, island_scope, task.islands, search.make_enough);
}

constexpr int kPreviewSeconds = 60;

bool IsFile(const std::string& job) {
  std::error_code error;  // such as a name that is too long for a file
  return job == "-" || absl::EndsWith(job, ".toml") || std::filesystem::exists(job, error);
}

// A job that runs.
bool NamesJob(const PlanFlags& flags) {
  return !flags.job.empty() && flags.cluster.empty() && flags.profile.empty() && !IsFile(flags.job);
}

// The coordinator plans, for a running job or one that could be submitted.
bool IsPreview(const PlanFlags& flags) {
  return NamesJob(flags) || (flags.live && !flags.job.empty());
}

absl::Status RunPreview(const Global& global, const PlanFlags& flags) {
  if (NamesJob(flags)) return PreviewJob(global, flags.job, kPreviewSeconds);
  ATOLL_ASSIGN_OR_RETURN(const JobSpec spec, ReadJobFile(flags.job));
  return PreviewSpec(global, spec, kPreviewSeconds);
}

absl::Status RunPlan(const Global& global, const PlanFlags& flags) {
  if (IsPreview(flags)) return RunPreview(global, flags);
  ATOLL_ASSIGN_OR_RETURN(const Task task, ReadTask(flags));
  const auto start = Clock::now();
  const absl::StatusOr<ScopePlans> found = PlanTask(flags, task, task.island_scope);
  if (!found.ok()) {
    return flags.job.empty() ? found.status() : Annotate(found.status(), flags.job);
  }
  const ScopePlans& plans = *found;
  const plan::IslandChoice& choice = plans.choice;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const TrainingRate rate{1 / choice.samples_per_s, choice.price_per_sample};
  if (global.structured) {
    std::cout << Document(
        ToMessage(plans.cluster, task.input.costs, choice, task.tokens_per_sample()));
  } else {
    const std::string totals = flags.job.empty() ? "" : TotalsText(task.request.spec, rate);
    std::cout << RenderRun(plans.cluster, choice, task.tokens_per_sample(), totals)
              << RenderIslands(choice.islands);
    std::cerr << "planned in " << SecondsText(seconds) << "\n";
  }
  ATOLL_RETURN_IF_ERROR(WritePictures(flags, choice.islands));
  // A plan that misses a limit is shown all the same.
  return flags.job.empty() ? absl::OkStatus() : CheckLimits(task.request.spec, rate);
}

// Plans, or reads each island of the layout's file, checked and played as islands play a plan that
// their job brings along.
absl::StatusOr<std::vector<plan::IslandOfSite>> PlansToPlay(const PlanFlags& flags,
                                                            const Task& task) {
  Task own = task;
  LayoutSpec& layout = own.request.spec.layout;
  layout.workers_per_island = 0;  // one layout, of all devices
  if (!flags.schedule.empty()) layout.schedule = own.input.job.fixed.schedule = flags.schedule;
  if (flags.layout.empty()) {
    ATOLL_ASSIGN_OR_RETURN(ScopePlans found, PlanTask(flags, own, IslandScope::kAll));
    return std::move(found.choice.islands);
  }
  std::vector<plan::IslandOfSite> plans;
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(flags.layout, kMaxFileBytes));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> islands, IslandsJson(text, flags.layout));
  for (const std::string& island : islands) {
    layout.plan = island;
    own.request.plan_name = flags.layout;
    ATOLL_ASSIGN_OR_RETURN(ScopePlans played, PlanTask(flags, own, IslandScope::kAll));
    plans.push_back(std::move(played.choice.islands[0]));
    if (islands.size() > 1) plans.back().site = absl::StrCat("island ", plans.size() - 1);
  }
  return plans;
}

absl::Status RunSimulate(const Global& global, const PlanFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const Task task, ReadTask(flags));
  ATOLL_ASSIGN_OR_RETURN(std::vector<plan::IslandOfSite> plans, PlansToPlay(flags, task));
  const std::string reason =
      absl::StrCat("layout ", flags.layout.empty() ? "planned" : flags.layout, ", schedule ",
                   flags.schedule.empty() ? "its own" : flags.schedule, ", as requested");
  for (plan::IslandOfSite& island : plans) {
    island.plan.alternatives.clear();
    island.plan.reason = reason;
  }
  if (global.structured) {
    std::cout << Document(
        ToMessage(task.input.cluster, task.input.costs, plans, task.tokens_per_sample()));
  } else {
    std::cout << RenderIslands(plans);
    for (const auto& [name, cluster, plan] : plans) {
      std::cout << "\n" << name << (name.empty() ? "" : ":\n") << RenderTimes(cluster, plan);
    }
  }
  return WritePictures(flags, plans);
}

bool IsOneOf(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns what is wrong with the flags themselves; empty: nothing. What the coordinator plans
// follows from the job alone.
std::string BadPreviewFlag(const PlanFlags& flags) {
  const PlanFlags none;
  const std::pair<const char*, bool> given[] = {
      {"--batch", flags.batch != none.batch},
      {"--sequence", flags.sequence != none.sequence},
      {"--micro-batch", !flags.micro_batches.empty()},
      {"--tensor-parallel", !flags.tensor_parallel.empty()},
      {"--efficiency", flags.efficiency != none.efficiency},
      {"--state-bytes", flags.state_bytes != none.state_bytes},
      {"--seed", flags.seed != none.seed},
      {"--objective", !flags.objective.empty()},
      {"--seconds", flags.seconds != none.seconds},
      {"--trace", !flags.trace.empty()},
      {"--svg", !flags.svg.empty()},
      {"--islands", flags.islands != none.islands},
      {"--island-cost", flags.island_cost != none.island_cost},
      {"--steps-per-round", flags.steps_per_round != none.steps_per_round}};
  for (const auto& [name, is_given] : given) {
    if (!is_given) continue;
    return absl::StrCat(name, ": the coordinator plans by the job file; ", name,
                        " goes with --cluster or --profile");
  }
  return "";
}

std::string BadFlag(const PlanFlags& flags, bool simulate) {
  if (flags.job.empty() && flags.model.empty()) return "give a job file, or --model";
  if (!flags.job.empty() && !flags.model.empty()) return "give a job file or --model, not both";
  const bool described = !flags.cluster.empty() || !flags.profile.empty();
  if (flags.live && described) return "give --cluster, --profile, both of them, or --live";
  if (flags.live && flags.job.empty()) {
    return "--live: the coordinator plans jobs; give a job file, or in place of --live a "
           "--profile, "
           "as `atoll profile --json` prints it";
  }
  if (!simulate && IsPreview(flags)) return BadPreviewFlag(flags);
  if (!described) {
    return simulate ? "give --cluster, --profile, or both of them"
                    : "give --cluster, --profile, both of them, or --live";
  }
  if (flags.job.empty() && flags.batch == 0) return "--model needs --batch";
  if (flags.batch < 0 || flags.batch > 1 << 20) return "--batch is at least 1, at most 1048576";
  if (flags.sequence < 0 || flags.sequence > 1 << 24) return "--sequence is at least 1";
  if (absl::EndsWith(flags.model, ".json") && flags.sequence == 0) {
    return "--model with a config.json needs --sequence";
  }
  if (!(flags.efficiency > 0) || flags.efficiency > 1) {
    return "--efficiency is above 0 and at most 1";
  }
  if (!(flags.state_bytes > 0) || flags.state_bytes > 1000) {
    return "--state-bytes is above 0 and at most 1000";
  }
  if (!(flags.seconds >= 0) || flags.seconds > 86'400) return "--seconds is 0 to 86400";
  if (!(flags.island_cost >= 0)) return "--island-cost is at least 0";
  if (flags.steps_per_round < 0 || flags.steps_per_round > 1 << 20) {
    return "--steps-per-round is at least 1, at most 1048576";
  }
  for (const int size : flags.micro_batches) {
    if (size < 1) return absl::StrCat("--micro-batch ", size, ": a size is at least 1");
  }
  for (const int size : flags.tensor_parallel) {
    if (size < 1 || size > 1024) {
      return absl::StrCat("--tensor-parallel ", size, ": a size is 1 to 1024");
    }
  }
  if (!flags.objective.empty() && !IsOneOf({"time", "cost"}, flags.objective)) {
    return absl::StrCat("--objective ", flags.objective, ": there are time, cost");
  }
  if (!flags.islands.empty() && !kIslandScopes.contains(flags.islands)) {
    return absl::StrCat("--islands ", flags.islands, ": there are auto, one, per-site, per-worker");
  }
  if (!flags.schedule.empty() && !IsOneOf(sim::ScheduleNames(), flags.schedule)) {
    return absl::StrCat("--schedule ", flags.schedule, ": there are ",
                        absl::StrJoin(sim::ScheduleNames(), ", "));
  }
  return "";
}

int Run(const Global& global, const PlanFlags& flags,
        absl::Status (*command)(const Global&, const PlanFlags&), bool simulate) {
  const std::string bad = BadFlag(flags, simulate);
  return bad.empty() ? ExitCode(command(global, flags)) : FailUsage(bad);
}

}  // namespace

int PlanCommand(const Global& global, const PlanFlags& flags) {
  return Run(global, flags, RunPlan, false);
}

int SimulateCommand(const Global& global, const PlanFlags& flags) {
  return Run(global, flags, RunSimulate, true);
}

}  // namespace atl::cli
