// The whole control plane under seeded faults: see cluster.h for what happens to it and checker.h
// for what must hold.

#include <catch2/catch.hpp>
#include <iostream>
#include <map>
#include <span>
#include <string>

#include "tests/sim/cluster.h"

namespace atl::sim {
namespace {

constexpr double kSlowestStepSeconds = 0.1 * 2.5 * 1.2;  // see WorkerNode: slowness and jitter

// Words of the job's log that the histories must contain, or they prove nothing about it.
const char* const kWanted[] = {"goes on from the state saved at inner step",
                               ", from a save",
                               ", further than its save",
                               ", from copies",
                               "is not whole any more",
                               "its disk is lost",
                               "is evicted",
                               "is dropped",
                               "the loss is not finite",
                               "warms up again",
                               "the grace time of",
                               "goes on without worker",
                               ", by steps,",
                               "leads in generation",
                               "has joined): plan",
                               "keeps plan",
                               "no new plan",
                               "one step ahead",
                               "is lost",
                               "it leaves: SIGTERM",
                               "has taken over from",
                               "ended before it had handed over",
                               "belongs to cluster 00000000000000aa and refuses",
                               "it is an older copy, or has lost changes",
                               "the coordinator gets an older copy of its store",
                               "the coordinator gets a restored backup",
                               "the coordinator gets an empty store",
                               "its folder is back",
                               "came back without the job",
                               "running: adopted from",
                               "running: rebuilt from",
                               "failed: ",
                               "running: resumed by a user"};

struct Totals {
  int64_t rounds = 0, crashes = 0, events = 0, rejected = 0;
  int64_t site_jobs = 0, adopted = 0, contributed = 0, preemptions = 0;
  std::map<std::string, int64_t> seen;  // how many lines have these words
};

// Plays the histories of these seeds; all must keep every promise, and `wanted` must occur in at
// least one of a hundred.
Totals Play(uint64_t first, uint64_t seeds, ClusterOptions (*options_of)(uint64_t),
            const std::string& mode, std::span<const char* const> wanted) {
  Totals totals;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const ClusterOptions options = options_of(seed);
    Cluster cluster(options);
    cluster.world().print = [&](const std::string& line) {
      for (const char* words : wanted) {
        totals.seen[words] += line.find(words) != std::string::npos;
      }
    };
    const Outcome outcome = cluster.Run();
    totals.rounds += outcome.rounds;
    totals.crashes += outcome.crashes;
    totals.events += outcome.events;
    totals.rejected += outcome.rejected;
    totals.site_jobs += outcome.site_jobs;
    totals.adopted += outcome.adopted;
    totals.contributed += outcome.contributed;
    totals.preemptions += outcome.preemptions;
    INFO("seed " << seed << ": " << Describe(options));
    INFO("repeat with: bazel run //tests/sim:run -- " << mode << "--seed=" << seed << " --trace");
    REQUIRE(outcome.failure == "");
  }
  std::cout << seeds << " seeds, " << totals.crashes << " crashes, " << totals.rounds << " rounds, "
            << totals.rejected << " rejections, " << totals.events << " events\n";
  for (const auto& [words, count] : totals.seen) {
    std::cout << "  " << count << " x \"" << words << "\"\n";
  }
  for (const char* words : wanted) {
    INFO(words);
    REQUIRE(totals.seen[words] >= static_cast<int64_t>(seeds / 100));
  }
  return totals;
}

void PlayRandom(uint64_t first, uint64_t seeds) {
  const Totals totals = Play(first, seeds, RandomOptions, "", kWanted);
  REQUIRE(totals.crashes > static_cast<int64_t>(seeds));
  REQUIRE(totals.rounds > 5 * static_cast<int64_t>(seeds));
}

void PlayMoves(uint64_t first, uint64_t seeds) {
  const char* const wanted[] = {"have moved at version", "is to hold none",
                                "are filled from theta_base", "their update of version"};
  Play(first, seeds, MovingOptions, "--moves ", wanted);
}

void PlayCopies(uint64_t first, uint64_t seeds) {
  const char* const wanted[] = {"failover from parameter server", "there are copies of all that",
                                "loses its disk"};
  Play(first, seeds, CopiesOptions, "--copies ", wanted);
}

void PlaySites(uint64_t first, uint64_t seeds) {
  const char* const wanted[] = {"loses its disk for good", "trains as job", "the job of site"};
  const Totals totals = Play(first, seeds, SitesOptions, "--sites ", wanted);
  std::cout << totals.site_jobs << " jobs of sites, " << totals.adopted << " adoptions, "
            << totals.contributed << " contributions\n";
  REQUIRE(totals.site_jobs > static_cast<int64_t>(seeds));
  REQUIRE(totals.adopted > 5 * static_cast<int64_t>(seeds));
  REQUIRE(totals.contributed > 5 * static_cast<int64_t>(seeds));
}

void PlayHostile(uint64_t first, uint64_t seeds) {
  Play(first, seeds, HostileOptions, "--hostile ", {});
}

void PlayJobs(uint64_t first, uint64_t seeds) {
  const char* const wanted[] = {"its workers are taken", "stays: no job needs it now"};
  const Totals totals = Play(first, seeds, JobsOptions, "--jobs ", wanted);
  std::cout << totals.preemptions << " islands called for other jobs\n";
  REQUIRE(totals.preemptions > static_cast<int64_t>(seeds));
}

// Histories that once broke a promise, which few others do in that way.
TEST_CASE("a_push_lost_by_a_set_up_that_failed_later_is_withdrawn_after_the_next_one") {
  Play(706, 1, MovingOptions, "--moves ", {});
}
TEST_CASE("a_job_without_islands_does_not_wait_an_hour_for_scores_of_its_last_version") {
  Play(337, 1, RandomOptions, "", {});
}
TEST_CASE("a_removed_job_whose_servers_hello_comes_twice_is_deleted_there") {
  Play(604, 1, SitesOptions, "--sites ", {});
}
TEST_CASE("a_called_island_whose_round_waits_for_paused_ones_leaves") {
  Play(119, 1, JobsOptions, "--jobs ", {});
  Play(388, 1, JobsOptions, "--jobs ", {});
}

// 520 histories in all. The slow target more_seeds_test plays 3,640 others.
TEST_CASE("160_seeded_histories_keep_every_promise") { PlayRandom(1, 160); }

TEST_CASE("shards_move_and_are_filled_in_80_seeded_histories", "[servers]") { PlayMoves(1, 80); }

TEST_CASE("with_two_copies_of_each_shard_lost_disks_cost_nothing_in_80_seeded_histories",
          "[servers]") {
  PlayCopies(1, 80);
}

TEST_CASE("sites_have_servers_of_their_own_in_80_seeded_histories", "[servers]") {
  PlaySites(1, 80);
}

TEST_CASE("a_hostile_worker_breaks_no_promise_in_60_seeded_histories", "[servers]") {
  PlayHostile(1, 60);
}

TEST_CASE("jobs_share_workers_by_priority_and_weight_in_60_seeded_histories", "[servers]") {
  PlayJobs(1, 60);
}

TEST_CASE("a_hostile_worker_breaks_no_promise_in_440_more_seeded_histories", "[.more]") {
  PlayHostile(61, 440);
}

TEST_CASE("1,340_more_seeded_histories_keep_every_promise", "[.more]") { PlayRandom(161, 1340); }

TEST_CASE("shards_move_and_are_filled_in_670_more_seeded_histories", "[.more]") {
  PlayMoves(81, 670);
}

TEST_CASE("lost_disks_cost_nothing_in_670_more_seeded_histories", "[.more]") {
  PlayCopies(81, 670);
}

TEST_CASE("sites_have_servers_of_their_own_in_520_more_seeded_histories", "[.more]") {
  PlaySites(81, 520);
}

TEST_CASE("a seed repeats its history exactly") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome first = Cluster(RandomOptions(seed)).Run();
    const Outcome again = Cluster(RandomOptions(seed)).Run();
    INFO("seed " << seed);
    REQUIRE(first.trace_hash == again.trace_hash);
    REQUIRE(first.events == again.events);
  }
}

TEST_CASE("without faults nothing is rejected, lost or late") {
  ClusterOptions options = RandomOptions(5);
  options.faults_until = Duration(0);
  options.network = NetworkFaults{};
  options.spec.outer.overlap = Overlap::kCarry;
  const Outcome outcome = Cluster(options).Run();
  REQUIRE(outcome.failure == "");
  REQUIRE(outcome.crashes == 0);
}

// No faults but what `happens` does, every few seconds.
ClusterOptions Calm(uint64_t seed) {
  ClusterOptions options = RandomOptions(seed);
  options.network = NetworkFaults{};
  options.crash_every = options.disconnect_every = options.isolate_every = options.pause_every =
      options.leave_every = options.change_every = Duration(0);
  options.crash_inside_step = options.disk_full = options.ghost = options.step_fails = 0;
  options.spoiled_statistics = 0;
  options.back_up_every = Duration(0);
  options.link_breaks = options.no_plan = options.trainer_sick = options.lost_writes =
      options.dies_handing_over = 0;
  return options;
}

void PlayHandovers(uint64_t first, uint64_t seeds) {
  int64_t taken_over = 0, joined = 0, together = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    ClusterOptions options = Calm(seed);
    options.workers = 4 + static_cast<int>(seed % 2);  // of three layers: one is spare, or none
    options.spec.layout.island = IslandScope::kAll;
    options.spec.layout.workers_per_island = 0;
    options.spec.outer.min_islands = 1;
    options.spec.outer.reject_outliers = false;
    options.spec.schedule.train_tokens = 3000 * options.spec.data.sequence_length;
    Cluster cluster(options);
    World& world = cluster.world();
    world.print = [&](const std::string& line) {
      taken_over += line.find("has taken over from") != std::string::npos;
      joined += line.find("has joined): plan") != std::string::npos;
    };
    for (int64_t at = 12; at < 200; at += 15) {
      const int count = 1 + static_cast<int>(world.rng.Below(3));
      together += count > 1;
      for (int i = 0; i < count; ++i) {
        // At once, or while the others move layers, or come back.
        const Duration later =
            world.UpTo(std::chrono::milliseconds(world.rng.Chance(0.5) ? 1 : 6000));
        world.timeline.After(std::chrono::seconds(at) + later, [&] { cluster.EndSomeWorker(); });
      }
    }
    INFO("seed " << seed << ": " << Describe(options));
    const Outcome outcome = cluster.Run();
    REQUIRE(outcome.failure == "");
    CHECK(outcome.steps_redone == 0);
    CHECK(outcome.steps_interrupted == 0);
  }
  std::cout << taken_over << " hand-overs, " << joined << " joins, " << together
            << " times several left at once\n";
  const auto each = static_cast<int64_t>(seeds);
  REQUIRE(taken_over > each);
  REQUIRE(joined > each);
  REQUIRE(together > each);
}

TEST_CASE("workers of shared islands come and go, also several at once, and no step is replayed") {
  PlayHandovers(1, 12);
}

TEST_CASE("in 48 more histories workers come and go, and no step is replayed", "[.more]") {
  PlayHandovers(13, 48);
}

TEST_CASE("an island that is cut off delays the others by the grace time and no more") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ClusterOptions options = RandomOptions(seed);
    options.workers = 3;
    options.spec.layout = LayoutSpec{};
    options.faults_until = Duration(0);
    options.network = NetworkFaults{};
    options.spec.outer.wait_for_all = false;
    options.spec.outer.balance_steps = true;
    options.spec.outer.reject_outliers = false;  // a void round is another one's time
    options.spec.schedule.train_tokens = 3000 * options.spec.data.sequence_length;
    Cluster cluster(options);
    World& world = cluster.world();
    const Instant cut = Instant{} + std::chrono::seconds(25);
    world.timeline.After(cut - Instant{}, [&] { world.network.Isolate("worker-0"); });
    world.timeline.After(std::chrono::seconds(65), [&] { world.network.RejoinAll(); });
    Instant last;
    Duration longest{};  // between two versions
    world.print = [&](const std::string& line) {
      if (line.find(" is committed: ") == std::string::npos) return;
      const Instant now = world.timeline.now();
      // The first rounds wait for the islands to be ready.
      if (last > cut - std::chrono::seconds(20)) longest = std::max(longest, now - last);
      last = now;
    };
    INFO("seed " << seed << ": " << Describe(options));
    REQUIRE(cluster.Run().failure == "");
    REQUIRE(last > cut);
    const double slowest_round =
        kSlowestStepSeconds * static_cast<double>(options.spec.outer.steps_per_round);
    const double transfers = 1;
    INFO(Seconds(longest) << " s between two versions");
    REQUIRE(Seconds(longest) < slowest_round + options.spec.outer.grace_seconds + transfers);
  }
}

}  // namespace
}  // namespace atl::sim
