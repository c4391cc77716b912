#include "bench/sharing/schedules.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "common/check.h"

namespace atl::bench {
namespace {

constexpr double kNoWork = 1e-9;

// Describes how far the jobs are at an instant.
struct Progress {
  double now = 0;
  std::vector<double> left;  // work, by job
  Ends ends;
  double cost = 0;  // of the jobs that have ended

  explicit Progress(const SharedCase& c) : ends(c.jobs.size(), 0) {
    for (const SharedJob& job : c.jobs) left.push_back(job.work);
  }
  bool waits(const SharedCase& c, size_t job) const {
    return left[job] > kNoWork && c.jobs[job].arrives <= now;
  }
};

// Workers, by job.
using Allocation = std::vector<int64_t>;

double NextArrival(const SharedCase& c, double now) {
  double next = std::numeric_limits<double>::infinity();
  for (const SharedJob& job : c.jobs) {
    if (job.arrives > now) next = std::min(next, job.arrives);
  }
  return next;
}

bool HasEnded(const Progress& p) {
  return std::all_of(p.left.begin(), p.left.end(), [](double left) { return left <= kNoWork; });
}

// Goes on until a job arrives or ends.
void Advance(const SharedCase& c, const Allocation& workers, Progress& p) {
  double until = NextArrival(c, p.now);
  for (size_t job = 0; job < c.jobs.size(); ++job) {
    if (workers[job] > 0) {
      until = std::min(until, p.now + p.left[job] / static_cast<double>(workers[job]));
    }
  }
  ATOLL_CHECK(until < std::numeric_limits<double>::infinity(), "a schedule that ends nothing");
  for (size_t job = 0; job < c.jobs.size(); ++job) {
    if (workers[job] == 0) continue;
    p.left[job] -= static_cast<double>(workers[job]) * (until - p.now);
    if (p.left[job] > kNoWork) continue;
    p.left[job] = 0;
    p.ends[job] = until;
    p.cost += c.jobs[job].weight * (until - c.jobs[job].arrives);
  }
  p.now = until;
}

// Tries schedules depth first; what cannot be better than the best so far is left out.
class Search {
 public:
  explicit Search(const SharedCase& c) : c_(c) {}

  Ends Run() {
    Progress start(c_);
    Go(start);
    return best_;
  }

 private:
  // Computes the cost with each job alone on all workers that it can use.
  double Bound(const Progress& p) const {
    double bound = p.cost;
    for (size_t job = 0; job < c_.jobs.size(); ++job) {
      if (p.left[job] <= kNoWork) continue;
      const SharedJob& j = c_.jobs[job];
      const auto most = static_cast<double>(std::min(j.most, c_.workers));
      bound += j.weight * (std::max(p.now, j.arrives) + p.left[job] / most - j.arrives);
    }
    return bound;
  }

  void Go(const Progress& p) {
    if (Bound(p) >= least_) return;
    if (HasEnded(p)) {
      least_ = p.cost;
      best_ = p.ends;
      return;
    }
    Allocation workers(c_.jobs.size(), 0);
    Allocate(p, 0, c_.workers, workers);
  }

  // Where every job has its workers and none could have one more, the schedule goes on.
  void Allocate(const Progress& p, size_t job, int64_t free, Allocation& workers) {
    if (job == c_.jobs.size()) {
      for (size_t j = 0; j < c_.jobs.size(); ++j) {
        const int64_t more = workers[j] == 0 ? c_.jobs[j].needed : 1;
        if (p.waits(c_, j) && more <= free && workers[j] + more <= c_.jobs[j].most) return;
      }
      Progress next = p;
      Advance(c_, workers, next);
      return Go(next);
    }
    if (p.waits(c_, job)) {
      for (int64_t n = std::min(free, c_.jobs[job].most); n >= c_.jobs[job].needed; --n) {
        workers[job] = n;
        Allocate(p, job + 1, free - n, workers);
      }
    }
    workers[job] = 0;
    Allocate(p, job + 1, free, workers);
  }

  const SharedCase& c_;
  double least_ = std::numeric_limits<double>::infinity();
  Ends best_;
};

}  // namespace

double WeightedTime(const SharedCase& c, const Ends& ends) {
  double sum = 0;
  for (size_t job = 0; job < c.jobs.size(); ++job) {
    sum += c.jobs[job].weight * (ends[job] - c.jobs[job].arrives);
  }
  return sum;
}

double Makespan(const SharedCase& c, const Ends& ends) {
  return *std::max_element(ends.begin(), ends.end()) - c.jobs.front().arrives;
}

Ends EndBest(const SharedCase& c) { return Search(c).Run(); }

double LeastMakespan(const SharedCase& c) {
  double least = 0;
  for (const SharedJob& first : c.jobs) {
    double work = 0;  // that arrives from then on
    for (const SharedJob& job : c.jobs) {
      if (job.arrives >= first.arrives) work += job.work;
    }
    const auto most = static_cast<double>(std::min(first.most, c.workers));
    least = std::max({least, first.arrives + work / static_cast<double>(c.workers),
                      first.arrives + first.work / most});
  }
  return least - c.jobs.front().arrives;
}

}  // namespace atl::bench
