// How long rehearsals take: jobs of some billion parameters on sites of like machines that fail,
// one island a site, one seed on one core. With arguments: islands, workers of each, days; or
// "published" (published.h).

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "bench/rehearsal/published.h"
#include "common/check.h"
#include "rehearsal/run.h"

namespace atl::bench {
namespace {

using rehearsal::Failures;
using rehearsal::RunResult;
using rehearsal::Scene;

constexpr char kFailures[] =
    "[[failures]]\nmtbf_hours = 5000\nrepair = \"lognormal(1.5 h, 1)\"\n"
    "[[failures]]\nkind = \"link\"\nmtbf_hours = 1000\nrepair = \"10 min\"\n";

JobSpec MakeSpec(int workers) {
  JobSpec spec;
  spec.name = "rehearsed";
  spec.model.hidden = 4096;
  spec.model.layers = 32;
  spec.model.heads = 32;
  spec.data.path = "/data";
  spec.data.sequence_length = 4096;
  spec.inner.batch_sequences = 3 * workers;
  spec.outer.steps_per_round = 64;
  spec.layout.island = IslandScope::kSite;
  spec.schedule.train_tokens = int64_t{1} << 47;  // it does not end
  spec.schedule.validate_every_rounds = 0;
  return spec;
}

template <class T>
T Get(absl::StatusOr<T> value) {
  ATOLL_CHECK(value.ok(), value.status().message());
  return *std::move(value);
}

Scene MakeScene(int islands, int workers) {
  plan::Cluster cluster;
  cluster.types.push_back(*plan::FindDeviceType("a100-80"));
  for (int s = 0; s < islands; ++s) {
    for (int m = 0; m < workers; ++m) {
      const std::string node = absl::StrCat("n", s, "-", m);
      cluster.devices.push_back({node, node, absl::StrCat("site-", s)});
    }
  }
  Scene scene = Get(rehearsal::MakeScene(MakeSpec(workers), cluster, 0.45));
  const absl::Status placed = rehearsal::PlaceServices({{"site-0", 4}}, "", scene);
  ATOLL_CHECK(placed.ok(), placed.message());
  return scene;
}

void Play(int islands, int workers, double days, double goal_s) {
  const Scene scene = MakeScene(islands, workers);
  const Failures failures = Get(rehearsal::ParseFailures(kFailures, "failures"));
  const Duration until = FromSeconds(days * 86'400);
  const auto source = Get(rehearsal::FailureSource::Make(&failures, &scene));
  RunResult result;
  const double seconds = MeasureSeconds([&] {
    rehearsal::Searches searches(&scene);
    result = Get(rehearsal::Play(scene, searches, Get(source.Draw(until, 1)), until, 1));
  });
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const double gigabytes = static_cast<double>(used.ru_maxrss) / (1 << 20);
  std::printf(
      "%d islands of %d workers, %g days: %.1f s, %.2f GiB; %ld failures, %ld rounds, %ld steps, "
      "%ld leaps, %ld events, %ld plans, goodput %.1f%%\n",
      islands, workers, days, seconds, gigabytes, result.failures, result.rounds, result.steps,
      result.leaps, result.events, result.plans, 100 * result.goodput());
  if (goal_s == 0) return;  // of a size that has no goal
  std::printf("FIGURE rehearsal_%d_workers %.1f s goal <=%g %s\n", islands * workers, seconds,
              goal_s, seconds <= goal_s ? "ok" : "short");
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "published") == 0) {
    atl::bench::RehearsePublished();
    return 0;
  }
  if (argc == 4) {
    atl::bench::Play(std::atoi(argv[1]), std::atoi(argv[2]), std::atof(argv[3]), 0);
    return 0;
  }
  atl::bench::Play(16, 63, 30, 20);
  atl::bench::Play(100, 100, 30, 120);
}
