// Decoupled DiLoCo (arXiv 2604.21428): goodput of learners of equal size, each chip interrupted
// once a year. It leaves open the size of what an interruption takes out, and the times until it is
// noticed, replaced and used again: the rehearsal has Atoll's own defaults of all of them, a spare
// that is there at once, and machines of a 128th of all chips. Steps take a second.
//
// Without elasticity all wait for each machine that is interrupted. Interruptions come every 26 s,
// on the average, also while another machine is on its way back, so that all are up for e^(-D/26 s)
// of the time if each is unavailable for D. 27% is 34 s; 3 points are 3 s of it, and no source has
// D. (8 and 16 learners call for 27 and 31 s by the same formula.) The row has a process that
// starts (30 s) where the job is open, is set up (5 s) under the plan that there was, and loses two
// steps at most: 36 s. One that opens the job anew (20 s), plans (10 s) and loses a round has 68 s.
//
// torchft (pytorch.org/blog, June 2025): 30 groups of 10 L40S that reduce gradients in each step of
// 9 s, one group killed once a minute or every 15 s. Its efficiency is the share of steps that all
// committed, times that of groups that took part. The time to come back is what its first run
// shows: 29.6 of 30 groups took part, so each was unavailable for 24 s. Atoll's island is
// interrupted by a loss and again by a return; torchft drops one step. Goodput is what both have.

#include "bench/rehearsal/published.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "common/check.h"
#include "rehearsal/answer.h"

namespace atl::bench {
namespace {

using rehearsal::Scene;

constexpr int kSeeds = 3;
constexpr double kGoalPoints = 3;
constexpr double kChips = 1.2e6, kHoursPerYear = 8760;
constexpr int kSlices = 128;

struct Published {
  const char* name;
  double goodput;  // published
  int islands = 1;
  int workers = 1;        // of each
  double mtbf_hours = 0;  // of a worker
  const char* kind = "node";
  const char* times = "";
  double step_s = 1;
  double hours = 2;
  bool has_goal = true;
  int64_t steps_per_round = 24;  // what an island without other owners of its state may lose
};

template <class T>
T Get(absl::StatusOr<T> value) {
  ATOLL_CHECK(value.ok(), value.status().message());
  return *std::move(value);
}

// The model is small: a slice of thousands of chips copies its share of the state in no time.
Scene MakeScene(const Published& run, double flops_per_s) {
  JobSpec spec;
  spec.name = "published";
  spec.model.hidden = 1024;
  spec.model.layers = 12;
  spec.model.heads = 16;
  spec.data.path = "/data";
  spec.data.sequence_length = 1024;
  spec.inner.batch_sequences = 8 * run.workers;
  spec.outer.steps_per_round = run.steps_per_round;
  spec.layout.island = IslandScope::kSite;
  spec.schedule.train_tokens = int64_t{1} << 47;  // it does not end
  spec.schedule.validate_every_rounds = 0;
  plan::Cluster cluster;
  cluster.types.push_back(*plan::FindDeviceType("h100"));
  cluster.types[0].flops_per_s = flops_per_s;
  cluster.types[0].memory_bytes_per_s = 1e15;
  cluster.site_link.bytes_per_s = 1e13;
  cluster.wan_link.bytes_per_s = 1e11;
  for (int i = 0; i < run.islands; ++i) {
    for (int w = 0; w < run.workers; ++w) {
      const std::string node = absl::StrCat("n", i, "-", w);
      cluster.devices.push_back({node, node, absl::StrCat("site-", i)});
    }
  }
  return Get(rehearsal::MakeScene(spec, cluster, 0.5));
}

double StepSeconds(const Scene& scene, int workers) {
  rehearsal::Searches searches(&scene);
  PlanRequest request;
  request.spec = scene.spec;
  for (size_t w = 0; w < static_cast<size_t>(workers); ++w) {
    request.members.push_back({{scene.workers[w].name, 1}, scene.workers[w].site, {}, {}});
  }
  return 1e-9 * static_cast<double>(Get(searches.Find(request)).step_ns);
}

void Rehearse(const Published& run) {
  constexpr double kFlops = 1e14;
  const double step_s = StepSeconds(MakeScene(run, kFlops), run.workers);
  Scene scene = MakeScene(run, kFlops * step_s / run.step_s);
  const std::string text =
      absl::StrCat("coordinator = \"site-0\"\n", run.times,
                   "[[servers]]\nsite = \"site-0\"\ncount = 4\n", "[[failures]]\nkind = \"",
                   run.kind, "\"\nmtbf_hours = ", run.mtbf_hours, "\nrepair = \"1 s\"\n");
  const rehearsal::Failures failures = Get(rehearsal::ParseFailures(text, run.name));
  scene.times = failures.times;
  const absl::Status placed =
      rehearsal::PlaceServices(failures.servers, failures.coordinator_site, scene);
  ATOLL_CHECK(placed.ok(), placed.message());
  const rehearsal::Answer answer =
      Get(rehearsal::Rehearse(scene, failures, FromSeconds(run.hours * 3600), 1, kSeeds));
  const double rehearsed = 100 * answer.goodput.median;
  const double off = rehearsed - run.goodput;
  std::printf("%-24s published %5.1f%%, rehearsed %5.1f%%: %+.1f points\n", run.name, run.goodput,
              rehearsed, off);
  std::printf("  device-time:");
  for (int use = 0; use < rehearsal::kUses; ++use) {
    std::printf(" %s %.1f%%", rehearsal::Name(static_cast<rehearsal::Use>(use)),
                100 * answer.shares[static_cast<size_t>(use)]);
  }
  const rehearsal::RunResult& first = answer.runs.front();
  std::printf("; seed 1: %ld failures, %ld steps, %ld rounds\n", first.failures, first.steps,
              first.rounds);
  if (!run.has_goal) return;
  std::printf("FIGURE rehearsal_published_%s %.1f points goal <=%g %s\n", run.name, std::fabs(off),
              kGoalPoints, std::fabs(off) <= kGoalPoints ? "ok" : "short");
}

}  // namespace

void RehearsePublished() {
  const double slice = kHoursPerYear / (kChips / kSlices);
  const char* const kept = "[times]\nopen = \"0.1 s\"\nplan = \"0.1 s\"\n";
  const char* const own = "[times]\nrestart = \"12 s\"\nopen = \"12 s\"\ndetect = \"5 s\"\n";
  const Published runs[] = {
      {"16_learners", 93, 16, kSlices / 16, slice, "node"},
      {"8_learners", 88, 8, kSlices / 8, slice, "node"},
      {"1_elastic", 58, 1, kSlices, slice, "node"},
      {"1_rigid", 27, 1, 1, slice / kSlices, "node", kept, 1, 2, true, 2},
      {"torchft_60_s", 81.2, 1, 30, 0.5, "worker", own, 9, 6, false},
      {"torchft_15_s", 13.4, 1, 30, 0.125, "worker", own, 9, 6, false},
  };
  for (const Published& run : runs) Rehearse(run);
}

}  // namespace atl::bench
