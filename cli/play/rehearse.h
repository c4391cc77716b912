// `atoll rehearse`: how a job's run will go under failures, before it starts. Needs no coordinator.
// Exit code as in commands.h.

#ifndef ATOLL_CLI_PLAY_REHEARSE_H_
#define ATOLL_CLI_PLAY_REHEARSE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/commands.h"
#include "common/protocol/job_spec.h"

namespace atl::cli {

struct RehearseFlags {
  std::string job;       // file
  std::string cluster;   // file
  std::string failures;  // file
  int64_t seeds = 20;
  uint64_t seed = 1;  // the first one
  double days = 30;   // that are played at most
  double efficiency = 0.45;
  std::string compare;  // KEY=V1,V2,...; empty: nothing
  std::string svg;      // file; empty: none
};

// `App` is CLI::App.
template <class App>
void AddRehearseFlags(App& app, RehearseFlags* flags) {
  app.add_option("JOB", flags->job, "job file, TOML")->required();
  app.add_option("--cluster", flags->cluster, "cluster file, TOML")->required();
  app.add_option("--failures", flags->failures, "what fails, TOML; see docs/rehearsal.md")
      ->required();
  app.add_option("--seeds", flags->seeds, "runs to play, each with failures of its own")
      ->capture_default_str();
  app.add_option("--seed", flags->seed, "of the first run")->capture_default_str();
  app.add_option("--days", flags->days, "days of a run to play at most")->capture_default_str();
  app.add_option("--efficiency", flags->efficiency, "share of the datasheet's speed")
      ->capture_default_str();
  app.add_option("--compare", flags->compare,
                 "play the job with each of these values of a key of its file, KEY=V1,V2,...");
  app.add_option("--svg", flags->svg, "write where time went, and when runs finish, as a picture");
}

int Rehearse(const Global& global, const RehearseFlags& flags);

// Reads what `atoll rehearse --json` printed for this job into spec.rehearsed. An error: it is
// another job's.
absl::Status ReadRehearsed(const std::string& path, JobSpec& spec);

}  // namespace atl::cli

#endif  // ATOLL_CLI_PLAY_REHEARSE_H_
