// `atoll plan` and `atoll simulate`: need no coordinator, but `plan` for --live and running jobs.
// Exit code as in commands.h.

#ifndef ATOLL_CLI_PLAN_H_
#define ATOLL_CLI_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace atl::cli {

struct PlanFlags {
  std::string job;       // job file; or:
  std::string model;     // name in the planner's catalogue, or a config.json
  int64_t batch = 0;     // sequences (images) of one step; 0: the job's
  int64_t sequence = 0;  // tokens, or the side of an image; 0: the job's or the model's own
  std::string cluster;   // cluster file; or:
  std::string profile;   // file of what was measured; or:
  bool live = false;     // the coordinator plans
  std::string trace;     // where to write; empty: not
  std::string svg;
  std::vector<int> micro_batches;    // sizes to try; empty: the planner's
  std::vector<int> tensor_parallel;  // sizes to try; empty: the planner's
  uint64_t seed = 1;
  double seconds = 0;  // to go on improving for, from the start on; 0: a fixed number of tries
  double efficiency = 0.45;
  double state_bytes = 18;  // per parameter
  std::string objective;    // time, cost; empty: the job's
  // plan
  std::string islands;          // auto, one, per-site, per-worker; empty: the job's, or auto
  double island_cost = 0.03;    // of a doubling of the islands
  int64_t steps_per_round = 0;  // 0: the job's
  bool overlap = true;          // islands train on during an exchange
  // simulate
  std::string layout;    // file, as `plan --json` prints it; empty: what is planned
  std::string schedule;  // empty: the layout's own
};

// `App` is CLI::App.
template <class App>
void AddPlanFlags(App& app, bool simulate, PlanFlags* flags) {
  app.add_option("JOB", flags->job,
                 simulate ? "job file, TOML; or give --model and --batch"
                          : "job file, TOML, or a running job; or give --model and --batch");
  app.add_option("--cluster", flags->cluster, "cluster file, TOML; with --profile, or alone");
  app.add_option("--profile", flags->profile,
                 "measured devices and links, JSON as `atoll profile --json` prints them");
  if (!simulate) {
    app.add_flag("--live", flags->live, "the plans that the coordinator would give this job now");
  }
  app.add_option("--model", flags->model,
                 "a model of the catalogue, such as llama-7b, or a config.json");
  app.add_option("--batch", flags->batch, "sequences (or images) of one step");
  app.add_option("--sequence", flags->sequence, "tokens of a sequence, or the side of an image");
  app.add_option("--micro-batch", flags->micro_batches, "sizes to try, such as 1,2,4")
      ->delimiter(',');
  app.add_option("--tensor-parallel", flags->tensor_parallel, "sizes to try, such as 1,2")
      ->delimiter(',');
  app.add_option("--efficiency", flags->efficiency,
                 "share of the datasheet's speed where nothing was measured")
      ->capture_default_str();
  app.add_option("--state-bytes", flags->state_bytes,
                 "weights, gradients and optimizer state per parameter")
      ->capture_default_str();
  app.add_option("--objective", flags->objective,
                 "time: the shortest step; cost: the cheapest; default: the job's");
  app.add_option("--seed", flags->seed, "seed of the search")->capture_default_str();
  app.add_option("--seconds", flags->seconds,
                 "seconds to go on improving for, beyond the search; more is never worse");
  app.add_option("--trace", flags->trace, "write the step for Perfetto, JSON");
  app.add_option("--svg", flags->svg, "write the step as a picture");
  if (simulate) {
    app.add_option("--layout", flags->layout,
                   "a file with stages, devices and micro-batches as `plan --json` prints them; "
                   "without it, what is planned");
    app.add_option("--schedule", flags->schedule,
                   "best, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-1p, zb-2p, zb-v, v-half, "
                   "v-min, jeeves, jeeves-search or compact-zb; without it, the layout's own");
    return;
  }
  app.add_option("--islands", flags->islands,
                 "one plan over all sites, an island per-site or per-worker with outer rounds, or "
                 "auto: the best of them; default: the job's layout.island, or auto");
  app.add_option("--island-cost", flags->island_cost,
                 "more samples for the same loss with each doubling of the islands, as a share")
      ->capture_default_str();
  app.add_option("--steps-per-round", flags->steps_per_round,
                 "inner steps between exchanges of islands; the job's, or as the links allow");
  app.add_flag("--overlap,!--no-overlap", flags->overlap,
               "islands train during an exchange (the default of jobs)");
}

// Prints the best known layout, why, and the alternatives.
int PlanCommand(const Global& global, const PlanFlags& flags);

// Plays one layout under one schedule.
int SimulateCommand(const Global& global, const PlanFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_PLAN_H_
