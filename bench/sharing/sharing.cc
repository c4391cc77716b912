// Jobs that share workers: the product's division against first come, first served by the same
// core (priorities in the order of arrival), and against the best of all schedules for small cases.
// Weighted times are from submission to end, times `schedule.weight`; in the best schedule starts
// and moves take no time. With an
// argument: so many random cases.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "bench/sharing/played.h"
#include "bench/sharing/schedules.h"

namespace atl::bench {
namespace {

struct Ratios {
  double to_best = 0, to_first = 0, makespan = 0;
  Played played;
};

Ratios Run(const std::string& name, const SharedCase& c, bool small) {
  Ratios r{.played = Play(c)};
  const double weighted = WeightedTime(c, r.played.ends);
  const double first = WeightedTime(c, Play(c, {.first_come = true}).ends);
  if (small) r.to_best = weighted / WeightedTime(c, EndBest(c));
  r.to_first = weighted / first;
  r.makespan = Makespan(c, r.played.ends) / LeastMakespan(c);
  std::printf("%-28s %8.0f %10.3f %10.3f %10.3f %8ld %6ld\n", name.c_str(), weighted, r.to_best,
              r.to_first, r.makespan, r.played.interruptions, r.played.lost_steps);
  std::fflush(stdout);
  return r;
}

SharedCase Draw(uint64_t seed, int64_t jobs_most, int64_t workers_most, double arrive_within) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  SharedCase c;
  c.workers = draw(workers_most / 2, workers_most);
  const int64_t jobs = draw(jobs_most / 2, jobs_most);
  std::vector<int64_t> arrivals(static_cast<size_t>(jobs));
  for (int64_t& at : arrivals) at = draw(0, static_cast<int64_t>(arrive_within));
  std::sort(arrivals.begin(), arrivals.end());
  arrivals.front() = 0;
  for (const int64_t at : arrivals) {
    SharedJob job;
    job.arrives = static_cast<double>(at);
    job.work = 600.0 * static_cast<double>(int64_t{1} << draw(0, 4));
    job.needed = draw(1, 2);
    job.most = draw(std::max<int64_t>(2, c.workers / 2), c.workers);
    job.weight = static_cast<double>(int64_t{1} << draw(0, 2));
    c.jobs.push_back(job);
  }
  return c;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

int Main(int random_cases) {
  std::printf("%-28s %8s %10s %10s %10s %8s %6s\n", "case", "time", "/ best", "/ first", "makespan",
              "moves", "lost");
  const auto jobs = [](std::vector<SharedJob> list) { return list; };
  const std::vector<std::pair<std::string, SharedCase>> named = {
      {"four equal jobs",
       {8, jobs({{0, 4800, 1, 8, 1}, {0, 4800, 1, 8, 1}, {0, 4800, 1, 8, 1}, {0, 4800, 1, 8, 1}})}},
      {"short ones behind a long one",
       {8, jobs({{0, 19200, 1, 8, 1},
                 {60, 1200, 1, 8, 1},
                 {120, 1200, 1, 8, 1},
                 {180, 2400, 1, 8, 1}})}},
      {"a heavy one among light ones",
       {8, jobs({{0, 4800, 1, 8, 1}, {0, 4800, 1, 8, 1}, {0, 4800, 1, 8, 8}})}},
      {"gangs",
       {6,
        jobs({{0, 4800, 4, 6, 1}, {0, 4800, 4, 6, 1}, {30, 1200, 1, 2, 1}, {60, 1200, 2, 2, 1}})}},
  };
  int64_t lost = 0, moves = 0, count = 0;
  std::vector<double> to_best, to_first, makespan, many_to_first, many_makespan;
  const auto note = [&](const Ratios& r) {
    lost += r.played.lost_steps;
    moves += r.played.interruptions;
    count += std::ssize(r.played.ends);
  };
  for (const auto& [name, c] : named) note(Run(name, c, /*small=*/true));
  for (int seed = 1; seed <= random_cases; ++seed) {
    const Ratios r = Run(absl::StrCat("random ", seed), Draw(seed, 4, 8, 600), /*small=*/true);
    note(r);
    to_best.push_back(r.to_best);
    to_first.push_back(r.to_first);
    makespan.push_back(r.makespan);
  }
  for (int seed = 1; seed <= 3; ++seed) {
    const Ratios r = Run(absl::StrCat("many ", seed), Draw(seed, 20, 32, 3000), /*small=*/false);
    note(r);
    many_to_first.push_back(r.to_first);
    many_makespan.push_back(r.makespan);
  }
  PrintFigureAtMost("sharing.weighted_time_to_best", Mean(to_best), "ratio", 1.25);
  PrintFigureAtMost("sharing.weighted_time_to_first_come", Mean(to_first), "ratio", 0.9);
  PrintFigureAtMost("sharing.makespan_to_least", Mean(makespan), "ratio", 1.15);
  PrintFigureAtMost("sharing.many_weighted_time_to_first_come", Mean(many_to_first), "ratio", 0.7);
  PrintFigureAtMost("sharing.many_makespan_to_least", Mean(many_makespan), "ratio", 1.15);
  PrintFigureAtMost("sharing.moves_a_job", static_cast<double>(moves) / static_cast<double>(count),
                    "moves", 8);
  PrintFigureAtMost("sharing.lost_steps", static_cast<double>(lost), "steps", 0);
  return 0;
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) { return atl::bench::Main(argc > 1 ? std::atoi(argv[1]) : 40); }
