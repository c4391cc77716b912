// `atoll plan` and `atoll simulate`: need no coordinator. Exit code as in commands.h.

#ifndef ATOLL_CLI_PLAN_H_
#define ATOLL_CLI_PLAN_H_

#include <cstdint>
#include <string>

#include "cli/commands.h"

namespace atl::cli {

struct PlanFlags {
  std::string job;       // job file; or:
  std::string model;     // name in the planner's catalogue
  int64_t batch = 0;     // sequences (images) of one step; 0: the job's
  int64_t sequence = 0;  // tokens; 0: the job's or the model's own
  std::string cluster;   // cluster file
  std::string trace;     // where to write; empty: not
  std::string svg;
  bool compare = false;  // with baselines
  bool islands = false;  // also islands per site with outer rounds
  uint64_t seed = 1;
  double efficiency = 0.45;
  std::string layout = "plan";    // simulate: plan or a baseline
  std::string schedule = "best";  // simulate
};

// `App` is CLI::App.
template <class App>
void AddPlanFlags(App& app, bool simulate, PlanFlags* flags) {
  app.add_option("JOB", flags->job, "job file, TOML; or give --model and --batch");
  app.add_option("--cluster", flags->cluster, "cluster file, TOML")->required();
  app.add_option("--model", flags->model, "a model of the catalogue, such as llama-7b");
  app.add_option("--batch", flags->batch, "sequences (or images) of one step");
  app.add_option("--sequence", flags->sequence, "tokens of a sequence");
  app.add_option("--efficiency", flags->efficiency,
                 "share of the datasheet's speed where nothing was measured")
      ->capture_default_str();
  app.add_option("--seed", flags->seed, "of the search")->capture_default_str();
  app.add_option("--trace", flags->trace, "write the step for Perfetto, JSON");
  app.add_option("--svg", flags->svg, "write the step as a picture");
  if (simulate) {
    app.add_option("--layout", flags->layout, "plan, megatron, whale or data-parallel")
        ->capture_default_str();
    app.add_option("--schedule", flags->schedule, "best, 1f1b, gpipe, zb-h1, zb-h2, zb-1p, ...")
        ->capture_default_str();
  } else {
    app.add_flag("--compare", flags->compare, "also what others would do");
    app.add_flag("--islands", flags->islands, "also an island per site with outer rounds");
  }
}

// Prints the best known layout, why, and what lost.
int PlanCommand(const Global& global, const PlanFlags& flags);

// Plays one layout under one schedule.
int SimulateCommand(const Global& global, const PlanFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_PLAN_H_
