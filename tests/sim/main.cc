// Plays one seed of the simulation, or a range of them: how a failing seed is looked at.

#include <CLI/CLI.hpp>
#include <iostream>

#include "tests/sim/cluster.h"

int main(int argc, char** argv) {
  CLI::App app("Seeded simulation of Atoll's control plane");
  uint64_t seed = 1;
  uint64_t count = 1;
  bool trace = false;
  app.add_option("--seed", seed, "first seed")->capture_default_str();
  app.add_option("--count", count, "how many seeds")->capture_default_str();
  app.add_flag("--trace", trace, "print what happens");
  bool moves = false;
  app.add_flag("--moves", moves, "shards move and disks are lost");
  bool copies = false;
  app.add_flag("--copies", copies, "the same, with two servers for each shard");
  bool sites = false;
  app.add_flag("--sites", sites, "sites have parameter servers, and jobs, of their own");
  bool jobs = false;
  app.add_flag("--jobs", jobs, "several jobs share the workers");
  bool hostile = false;
  app.add_flag("--hostile", hostile, "a worker of several sends what would spoil the model");
  CLI11_PARSE(app, argc, argv);

  for (uint64_t s = seed; s < seed + count; ++s) {
    const atl::sim::ClusterOptions options = hostile  ? atl::sim::HostileOptions(s)
                                             : jobs   ? atl::sim::JobsOptions(s)
                                             : sites  ? atl::sim::SitesOptions(s)
                                             : copies ? atl::sim::CopiesOptions(s)
                                             : moves  ? atl::sim::MovingOptions(s)
                                                      : atl::sim::RandomOptions(s);
    atl::sim::Cluster cluster(options);
    if (trace) {
      cluster.world().print = [](const std::string& line) { std::cout << line << "\n"; };
    }
    const atl::sim::Outcome outcome = cluster.Run();
    std::cout << "seed " << s << ": " << Describe(options) << "\n  "
              << (outcome.failure.empty() ? "ok" : "FAILED: " + outcome.failure) << "; "
              << outcome.rounds << " rounds, " << outcome.site_jobs << " jobs of sites, "
              << outcome.adopted << " adoptions, " << outcome.contributed << " contributions, "
              << outcome.preemptions << " preemptions, " << outcome.crashes << " crashes, "
              << outcome.events << " events, " << atl::Seconds(outcome.took) << " virtual seconds"
              << std::endl;
    if (!outcome.failure.empty()) return 1;
  }
  return 0;
}
