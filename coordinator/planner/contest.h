// Simulates layouts and keeps the best; the others become alternatives. Called by one thread.
// Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_CONTEST_H_
#define ATOLL_COORDINATOR_PLANNER_CONTEST_H_

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/candidates.h"
#include "coordinator/planner/cluster/objective.h"
#include "coordinator/planner/planner.h"

namespace atl::plan {

// A small change of all replicas of the slowest kind: a layer moves from one stage to another.
struct Change {
  size_t from = 0, to = 0;  // stages
};

// All of them, those that relieve the busiest devices most first.
std::vector<Change> ListChanges(const Layout& layout, const Outcome& outcome);

// False if it cannot be.
bool Apply(const Outcome& outcome, const Change& change, Layout& layout);

// Every replica lies in one site and has at least two entities.
bool StaysInSites(const Cluster& cluster, const Layout& layout);

// Returns the share of a step beyond its slowest kind's slowest entity working all the time.
double ComputeBubbleFraction(const Outcome& outcome);

// Different kinds of layout, not small changes of one.
std::string Family(const Candidate& candidate);
// Numbers of replicas, stages and devices a stage: what sets layouts' steps apart most.
std::string StructureKey(const Layout& layout);

class Contest {
 public:
  // A layout may be so much above the best, and become the best when it is improved.
  static constexpr double kMayWin = 1.05;

  // They must outlive it; `plan` gets the best layout, beginning with the one that it has.
  Contest(const Cluster& cluster, const Costs& costs, const Job& job, const Options& options,
          Plan& plan);

  bool Stopped() const { return options_.stop && options_.stop(); }
  bool any() const { return !plan_.layout.replicas.empty(); }
  const absl::Status& why_not() const { return why_not_; }
  const absl::Status& over_limit() const { return over_limit_; }  // the last one that was refused

  // True if it is the best so far.
  bool Enter(Layout layout, const std::string& what);
  // One of Options::starts, where the job allows it.
  void EnterStart(const Layout& layout);
  // A candidate, and the same with its groups ordered by SpanTrain's search.
  void EnterBoth(const Candidate& candidate);
  // An alternative that is not as fast, or (without an outcome) not simulated.
  void Lose(const std::string& what, const Layout& layout, double step_s, const Outcome* outcome);
  // Returns whether a layout of this rank may be the best once it is improved.
  bool MayWin(double rank) const { return rank < kMayWin * plan_.rank; }
  // Small changes of the best layouts of each kind that may win, each tried once.
  void ImproveAll(int tries);
  // The same of the winner. False where none is left, or the search is stopped.
  bool Improve(int tries);
  // Two stages per device, of the winner and of those that it may make better than the winner.
  void TryShapes();
  // Searches longer for the winner's schedule, unless the search is stopped, and completes the
  // plan.
  void Finish();

 private:
  // A layout whose small changes are tried, the likeliest first.
  struct Start {
    Layout layout;
    Outcome outcome;
    double rank = INFINITY;
    std::string what;
    std::vector<Change> changes = {};
    size_t next_change = 0;
    bool changes_listed = false;
  };

  // Returns the step of the layout with the best savings, which it gets. CANCELLED where it surely
  // ranks above `rank_limit`.
  absl::StatusOr<Outcome> Evaluated(Layout& layout, const Outcome* known, double rank_limit,
                                    int restarts);
  bool Climb(Start& start, int tries);
  void SearchLonger();
  // Notes which limit it goes over.
  bool KeepsLimits(const Layout& layout, double step_s);
  // Keeps the best plain layouts whose devices idle and whose pipelines stay inside sites, one of
  // each structure.
  void NoteIdling(const Layout& layout, const Outcome& outcome, double rank);
  void Win(const Start& winner);
  bool Few() const { return std::ssize(cluster_.devices) <= kFewDevices; }
  bool IsAllowed(const Layout& layout) const;

  const Cluster& cluster_;
  const Costs& costs_;
  const Job& job_;
  const Options& options_;
  const Ranking ranking_;
  Plan& plan_;
  std::vector<std::pair<double, Layout>> idling_;  // by rank
  int violating_ = 0;  // candidates that break what the job fixes, looked at all the same
  std::map<std::string, Start> starts_;  // the best of each kind (Describe), of few devices
  std::optional<Start> best_;            // what Improve goes on from
  std::set<std::string> tried_;          // by PlacementKey
  std::string winner_;
  absl::Status why_not_ = absl::ResourceExhaustedError("no layout fits");
  absl::Status over_limit_ = absl::OkStatus();
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CONTEST_H_
