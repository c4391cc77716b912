// Options of histories, by their seeds.

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/protocol/outer_optimizer.h"
#include "tests/sim/cluster.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

void ChooseOptimizer(uint64_t seed, OuterSpec& outer) {
  Rng rng(seed, /*stream=*/320);
  if (!rng.Chance(0.5)) return;
  outer.optimizer = OuterOptimizers()[rng.Below(OuterOptimizers().size())].name;
  outer.merge = OuterMerges()[rng.Below(OuterMerges().size())];
  if (!ValidateOuterChoice(outer).ok()) outer.wait_for_all = false;
  if (!ValidateOuterChoice(outer).ok()) outer.merge = "mean";
}

void ChooseFragments(uint64_t seed, OuterSpec& outer) {
  Rng rng(seed, /*stream=*/402);
  if (!HasSinglePushRounds(outer) && rng.Chance(0.5)) {
    outer.fragments = 2 + static_cast<int64_t>(rng.Below(2));  // of three layers
    outer.steps_per_round = outer.fragments * (2 + static_cast<int64_t>(rng.Below(12)));
  }
  if (rng.Chance(0.2)) outer.fragment_blend = 0.25 + 0.75 * rng.Uniform();
  if (rng.Chance(0.3) && outer.overlap == Overlap::kCarry) {
    const int64_t most = outer.steps_per_round / outer.fragments;
    outer.fragment_delay_steps = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(most)));
  }
}

void ChooseMoments(uint64_t seed, OuterSpec& outer) {
  Rng rng(seed, /*stream=*/620);
  if (outer.fragments > 1 || HasSinglePushRounds(outer) || !rng.Chance(0.5)) return;
  outer.average_moments_steps =
      1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(3 * outer.steps_per_round)));
}

void ChooseTask(uint64_t seed, JobSpec& spec) {
  Rng rng(seed, /*stream=*/590);
  if (!rng.Chance(0.3)) return;
  spec.evaluation.push_back({.name = "toy",
                             .path = "toy.jsonl",
                             .kind = TaskKind::kExact,
                             .every_rounds = static_cast<int64_t>(rng.Below(4))});
}

}  // namespace

ClusterOptions RandomOptions(uint64_t seed) {
  Rng rng(seed, /*stream=*/77);
  ClusterOptions o;
  o.seed = seed;
  o.workers = 1 + static_cast<int>(rng.Below(4));
  o.servers = 1 + static_cast<int>(rng.Below(3));
  o.network.drop = rng.Chance(0.5) ? 0 : 0.1 * rng.Uniform();
  o.network.duplicate = rng.Chance(0.5) ? 0 : 0.2 * rng.Uniform();
  o.network.slow = rng.Chance(0.5) ? 0 : 0.05 * rng.Uniform();
  o.network.delay_max = milliseconds(1 + rng.Below(rng.Chance(0.2) ? 800 : 40));
  o.crash_every = rng.Chance(0.2) ? seconds(0) : seconds(5 + rng.Below(40));
  o.disconnect_every = rng.Chance(0.3) ? seconds(0) : seconds(5 + rng.Below(40));
  o.isolate_every = rng.Chance(0.5) ? seconds(0) : seconds(15 + rng.Below(60));
  o.pause_every = rng.Chance(0.7) ? seconds(0) : seconds(20 + rng.Below(40));
  JobSpec& spec = o.spec;
  spec.name = "sim";
  spec.model.hidden = 8;
  spec.model.layers = 1;
  spec.model.heads = 2;
  spec.model.seed = seed;
  spec.data.path = "toy";
  spec.data.sequence_length = 16;
  spec.inner.batch_sequences = 1 + static_cast<int64_t>(rng.Below(5));
  spec.outer.learning_rate = 0.7;
  spec.outer.momentum = 0.8;
  spec.outer.steps_per_round = 2 + static_cast<int64_t>(rng.Below(12));
  spec.outer.balance_steps = rng.Chance(0.5);
  spec.outer.grace_seconds = 0.5 + 3 * rng.Uniform();
  spec.outer.wait_for_all = rng.Chance(0.2);
  spec.outer.overlap = rng.Chance(0.5) ? Overlap::kCarry : Overlap::kNone;
  spec.outer.push_encoding = rng.Chance(0.3) ? Encoding::kBfloat16 : Encoding::kFloat32;
  spec.outer.reject_outliers = rng.Chance(0.8);
  spec.outer.clip_norm = rng.Chance(0.5) ? 0 : 0.05 + rng.Uniform();
  spec.schedule.validate_every_rounds = static_cast<int64_t>(rng.Below(4));
  ChooseTask(seed, spec);
  spec.schedule.checkpoint_every_steps = rng.Chance(0.3) ? 0 : 1 + rng.Below(8);
  spec.schedule.snapshot_every_rounds = 1 + static_cast<int64_t>(rng.Below(4));
  Rng types(seed, /*stream=*/79);
  if (types.Chance(0.4)) {
    constexpr Encoding kQuantized[] = {Encoding::kInt8, Encoding::kInt4, Encoding::kE3m0,
                                       Encoding::kTopK};
    spec.outer.push_encoding = kQuantized[types.Below(std::size(kQuantized))];
  }
  ChooseOptimizer(seed, spec.outer);
  Rng shape(seed, /*stream=*/78);
  if (shape.Chance(0.5)) {
    o.workers = 2 + static_cast<int>(shape.Below(4));
    o.leave_every = shape.Chance(0.5) ? seconds(0) : seconds(10 + shape.Below(30));
    spec.layout.island = shape.Chance(0.6) ? IslandScope::kAll : IslandScope::kSite;
    Rng sites(seed, /*stream=*/79);
    o.sites_declared = sites.Chance(0.5);
    o.change_every = sites.Chance(0.5) ? seconds(0) : seconds(5 + sites.Below(40));
    spec.layout.workers_per_island = static_cast<int64_t>(shape.Below(3));
    if (sites.Chance(0.3)) {
      spec.layout.island = IslandScope::kAuto;
      spec.layout.workers_per_island = 0;
    }
    spec.inner.micro_batch_sequences = 0;
  }
  Rng pulls(seed, /*stream=*/82);
  if (pulls.Chance(0.3)) {
    o.spec.outer.pull_encoding = pulls.Chance(0.5) ? Encoding::kInt8 : Encoding::kInt4;
  }
  ChooseFragments(seed, spec.outer);
  ChooseMoments(seed, spec.outer);
  o.signs = Rng(seed, /*stream=*/610).Chance(0.5);
  const int64_t sequences = 200 + static_cast<int64_t>(rng.Below(1500));
  spec.schedule.train_tokens = sequences * spec.data.sequence_length;
  return o;
}

ClusterOptions MovingOptions(uint64_t seed) {
  ClusterOptions o = RandomOptions(seed);
  Rng moves(seed, /*stream=*/80);
  o.moves = true;
  o.late_servers = static_cast<int>(moves.Below(3));
  o.drain_every = moves.Chance(0.5) ? seconds(0) : seconds(8 + moves.Below(30));
  o.disk_lost = moves.Chance(0.5) ? 0 : 0.3;
  // Who has lost both a disk and the store has lost the model.
  if (o.disk_lost > 0) o.lost_store = 0;
  o.mistaken_coordinator = 0;
  return o;
}

ClusterOptions CopiesOptions(uint64_t seed) {
  ClusterOptions o = MovingOptions(seed);
  Rng copies(seed, /*stream=*/81);
  o.spec.outer.shard_copies = 2;
  o.servers = 2 + static_cast<int>(copies.Below(2));
  o.disk_lost = copies.Chance(0.3) ? 0 : 0.4;
  o.unavailable_long = copies.Chance(0.5) ? 0 : 0.4;
  o.folder_missing = 0;  // which is a disk that is lost and found here
  if (copies.Chance(0.7)) {
    o.lost_store = 0;
    return o;
  }
  // Copies stay where they are, and the coordinator's store is lost.
  const ClusterOptions plain = RandomOptions(seed);
  o.lost_store = plain.lost_store;
  o.mistaken_coordinator = plain.mistaken_coordinator;
  o.late_servers = 0;
  o.drain_every = seconds(0);
  o.disk_lost = o.unavailable_long = 0;
  return o;
}

ClusterOptions HostileOptions(uint64_t seed) {
  ClusterOptions o = RandomOptions(seed);
  Rng hostile(seed, /*stream=*/611);
  o.workers = 3 + static_cast<int>(hostile.Below(3));
  o.spec.layout = LayoutSpec{};
  OuterSpec& outer = o.spec.outer;
  if (HasSinglePushRounds(outer)) outer.optimizer = "nesterov";
  outer.merge = hostile.Chance(0.5) ? "geometric_median" : "trimmed_norms";
  if (hostile.Chance(0.5)) outer.max_share = 0.2 + 0.3 * hostile.Uniform();
  o.signs = true;
  constexpr float kPoisons[] = {-1, -20, 20};
  const uint64_t kind = hostile.Below(std::size(kPoisons) + 1);
  o.lies = kind == std::size(kPoisons);
  if (!o.lies) o.poison = kPoisons[kind];
  return o;
}

ClusterOptions JobsOptions(uint64_t seed) {
  ClusterOptions o = RandomOptions(seed);
  Rng jobs(seed, /*stream=*/612);
  o.workers = 3 + static_cast<int>(jobs.Below(4));
  o.lost_store = o.mistaken_coordinator = o.folder_missing = 0;  // which are of one job's history
  o.limit = std::chrono::hours(1);
  const auto choose = [&](JobSpec& spec) {
    spec.schedule.priority = static_cast<int64_t>(jobs.Below(3));
    spec.schedule.weight = 1 + static_cast<int64_t>(jobs.Below(3));
    if (spec.layout.island != IslandScope::kWorker) return;
    spec.outer.min_islands = 1 + static_cast<int64_t>(jobs.Below(static_cast<uint64_t>(o.workers)));
    spec.outer.max_islands = spec.outer.min_islands + static_cast<int64_t>(jobs.Below(4));
  };
  const uint64_t count = 1 + jobs.Below(3);
  for (uint64_t i = 0; i < count; ++i) {
    OtherJob other{seconds(5 + jobs.Below(50)), o.spec};
    other.spec.name = absl::StrFormat("other%d", i);
    other.spec.schedule.train_tokens =
        static_cast<int64_t>(100 + jobs.Below(600)) * o.spec.data.sequence_length;
    choose(other.spec);
    o.others.push_back(std::move(other));
  }
  choose(o.spec);
  // The first one is submitted before one of higher priority.
  o.others[0].spec.schedule.priority = o.spec.schedule.priority + 1;
  // In every second history two owners have quotas; who owns a job may have none.
  Rng owners(seed, /*stream=*/761);
  if (owners.Chance(0.5)) return o;
  for (const char* owner : {"u0", "u1"}) {
    o.quotas.push_back({owner, static_cast<int64_t>(owners.Below(4))});
  }
  o.owner = absl::StrCat("u", owners.Below(3));
  for (OtherJob& other : o.others) other.owner = absl::StrCat("u", owners.Below(3));
  return o;
}

ClusterOptions SitesOptions(uint64_t seed) {
  ClusterOptions o = RandomOptions(seed);
  Rng sites(seed, /*stream=*/480);
  o.workers = std::max(o.workers, 2);
  o.sites_declared = true;
  o.site_servers["even"] = 1 + static_cast<int>(sites.Below(2));
  if (sites.Chance(0.5)) o.site_servers["odd"] = 1 + static_cast<int>(sites.Below(2));
  o.late_site_servers = sites.Chance(0.3);
  o.site_disk_lost = sites.Chance(0.5) ? 0 : 0.4;
  OuterSpec& outer = o.spec.outer;
  outer.site.rounds = 1 + static_cast<int64_t>(sites.Below(4));
  if (sites.Chance(0.5)) {
    outer.site.optimizer = "nesterov";
    outer.site.learning_rate = 0.3 + 0.7 * sites.Uniform();
    outer.site.momentum = 0.9 * sites.Uniform();
  }
  outer.fragments = 1;
  outer.average_moments_steps = 0;
  if (IsQuantized(outer.push_encoding)) outer.push_encoding = Encoding::kBfloat16;
  return o;
}

std::string Describe(const ClusterOptions& o) {
  return absl::StrFormat(
      "%d other jobs, %d workers, %d servers and %d late ones, a drain every %.0f s, disks lost "
      "%.1f, drop %.3f, "
      "duplicate %.3f, slow %.3f, delay up to %.0f ms, a crash "
      "every %.0f s, a disconnect every %.0f s, an isolation every %.0f s, a pause every %.0f s; "
      "%d tokens, batch %d, H %d, %d fragments, delay %d, blend %.2f, encodings %d and %d, "
      "overlap %s, "
      "grace %.1f s%s%s, %d workers an island, "
      "an end every "
      "%.0f s",
      o.others.size(), o.workers, o.servers, o.late_servers, Seconds(o.drain_every), o.disk_lost,
      o.network.drop, o.network.duplicate, o.network.slow, 1e3 * Seconds(o.network.delay_max),
      Seconds(o.crash_every), Seconds(o.disconnect_every), Seconds(o.isolate_every),
      Seconds(o.pause_every), o.spec.schedule.train_tokens, o.spec.inner.batch_sequences,
      o.spec.outer.steps_per_round, o.spec.outer.fragments, o.spec.outer.fragment_delay_steps,
      o.spec.outer.fragment_blend, static_cast<int>(o.spec.outer.push_encoding),
      static_cast<int>(o.spec.outer.pull_encoding),
      o.spec.outer.overlap == Overlap::kCarry ? "carry" : "none", o.spec.outer.grace_seconds,
      o.spec.outer.wait_for_all ? ", waits for all" : "",
      o.spec.layout.island == IslandScope::kAll ? ", one island of all"
      : o.spec.layout.island == IslandScope::kSite
          ? (o.sites_declared ? ", islands by site" : ", islands by measured site")
      : o.spec.layout.island == IslandScope::kAuto ? ", islands as the planner says"
                                                   : "",
      o.spec.layout.workers_per_island, Seconds(o.leave_every));
}

}  // namespace atl::sim
