#include "coordinator/planner/groups/group_order.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <utility>

#include "common/check.h"

namespace atl::plan {
namespace {

// Cuts of equal parts under a bound on each part's time: as many layers as fit, from the front. Any
// bound from `least_s` on, and below `next_s`, gives the same.
struct Parts {
  std::vector<int> cuts;
  double least_s = 0, next_s = INFINITY;
};

void FillParts(const StageCosts& costs, int first, int last, int parts, double bound_s,
               Parts& filled) {
  filled.cuts.assign(1, first);
  filled.least_s = 0;
  filled.next_s = INFINITY;
  for (int p = 0; p < parts; ++p) {
    const int begin = filled.cuts.back();
    int low = begin;
    int high = last;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      costs.TotalSeconds(begin, middle) <= bound_s ? low = middle : high = middle - 1;
    }
    filled.least_s = std::max(filled.least_s, costs.TotalSeconds(begin, low));
    if (low < last) filled.next_s = std::min(filled.next_s, costs.TotalSeconds(begin, low + 1));
    filled.cuts.push_back(low);
  }
}

// One group's part of T for layers [first, last).
struct GroupTimes : PartTimes {
  double state_bytes = 0;
  double stash_bytes = 0;
};

GroupTimes EstimateGroupTimes(const OrderProblem& problem, int g, int first, int last) {
  const OrderGroup& group = problem.groups[g];
  const LayerTimes times = group.costs->Of(first, last);
  const std::vector<int> cuts = SplitEvenly(*group.costs, first, last, group.members);
  const Link& link = problem.links[g][g];
  GroupTimes result;
  result.pass_s = times.forward_s + times.backward_s;
  double beat_s = 0;
  int parts = 0;
  for (int p = 0; p < group.members; ++p) {
    beat_s = std::max(beat_s, group.costs->TotalSeconds(cuts[p], cuts[p + 1]));
    if (cuts[p] < cuts[p + 1]) ++parts;
    if (cuts[p + 1] == last || cuts[p] == cuts[p + 1]) continue;
    const double bytes = problem.out_bytes[cuts[p + 1] - 1];
    result.pass_s += 2 * link.Seconds(bytes);
    beat_s = std::max(beat_s, link.SerialSeconds(bytes));
  }
  result.own_s = problem.micro_batches * beat_s + result.pass_s * (parts - 1) / std::max(1, parts);
  result.state_bytes = static_cast<double>(group.costs->StateBytes(first, last));
  result.stash_bytes = static_cast<double>(group.costs->StashBytes(first, last));
  return result;
}

int CountLayers(const OrderProblem& problem) { return problem.groups[0].costs->layers(); }

// EstimateGroupTimes and transfers, each computed once.
class Times {
 public:
  explicit Times(const OrderProblem& problem)
      : problem_(problem),
        groups_(problem.groups.size()),
        layers_(CountLayers(problem)),
        known_(groups_ * layers_ * (layers_ + 1)),
        end_(problem) {}

  const GroupTimes& Of(int g, int first, int last) const {
    std::optional<GroupTimes>& times =
        known_[(static_cast<size_t>(g) * layers_ + first) * (layers_ + 1) + last];
    if (!times.has_value()) times = EstimateGroupTimes(problem_, g, first, last);
    return *times;
  }

  const PipelineEnd& end() const { return end_; }

 private:
  const OrderProblem& problem_;
  const size_t groups_, layers_;
  mutable std::vector<std::optional<GroupTimes>> known_;
  const PipelineEnd end_;
};

// How far the group's members together are from holding this, as a share of their memory; at most 0
// if they hold it. `stages`: from this group's first member to the end of the pipeline.
double Lacks(const OrderProblem& problem, int g, const GroupTimes& times, int stages) {
  const OrderGroup& group = problem.groups[g];
  const double in_flight = std::min(problem.micro_batches, stages);
  const double has = static_cast<double>(group.memory_bytes) * static_cast<double>(group.members);
  return (times.state_bytes + in_flight * times.stash_bytes - has) / std::max(1.0, has);
}

// How far the worst group is from holding its layers, and T. Once these are above `limit` it is
// enough that what is returned is, too.
using Merit = std::pair<double, double>;
Merit Evaluate(const OrderProblem& problem, const Times& table, const GroupOrder& order,
               const Merit& limit) {
  double seconds = 0;
  double lacks = 0;
  int stages = 0;
  int next = -1;
  for (size_t i = order.groups.size(); i-- > 0;) {
    if (order.cuts[i] == order.cuts[i + 1]) continue;
    const int g = order.groups[i];
    const GroupTimes& times = table.Of(g, order.cuts[i], order.cuts[i + 1]);
    stages += problem.groups[g].members;
    lacks = std::max(lacks, Lacks(problem, g, times, stages));
    seconds =
        next < 0 ? times.own_s : table.end().Prepend(times, g, next, order.cuts[i + 1], seconds);
    next = g;
    if (Merit(lacks, seconds) > limit) break;  // neither falls
  }
  return {lacks, seconds};
}

// Without the groups that take no layers.
GroupOrder Tidy(const GroupOrder& order) {
  GroupOrder tidy;
  tidy.seconds = order.seconds;
  for (size_t i = 0; i < order.groups.size(); ++i) {
    if (order.cuts[i] == order.cuts[i + 1]) continue;
    tidy.groups.push_back(order.groups[i]);
    tidy.cuts.push_back(order.cuts[i]);
  }
  tidy.cuts.push_back(order.cuts.back());
  return tidy;
}

// Best first: fits, then by how little it lacks, then by time; then by what it is, so that the
// order never depends on chance.
struct BeamState {
  double lacks = 0;
  GroupOrder order;

  Merit merit() const { return {lacks, order.seconds}; }
  bool operator<(const BeamState& o) const {
    if (merit() != o.merit()) return merit() < o.merit();
    return std::tie(order.groups, order.cuts) < std::tie(o.order.groups, o.order.cuts);
  }
};

class Beam {
 public:
  static constexpr int kWidth = 32, kPatience = 5;

  explicit Beam(const OrderProblem& problem) : problem_(problem), times_(problem) {
    for (const OrderGroup& group : problem.groups) {
      speed_.push_back(group.members / group.costs->TotalSeconds(0, CountLayers(problem)));
    }
  }

  std::optional<GroupOrder> Run() {
    Start();
    for (int unchanged = 0; unchanged < kPatience && !beam_.empty();) {
      const std::vector<BeamState> parents = beam_;
      for (const BeamState& parent : parents) Expand(parent.order);
      unchanged = beam_[0] < parents[0] ? 0 : unchanged + 1;
    }
    if (beam_.empty() || beam_[0].lacks > 0) return std::nullopt;
    return Tidy(beam_[0].order);
  }

 private:
  // Sets cuts in proportion to the groups' speed.
  void CutInProportion(GroupOrder& order) const {
    const int layers = CountLayers(problem_);
    double all = 0;
    for (const int g : order.groups) all += speed_[g];
    double before = 0;
    order.cuts.assign(1, 0);
    for (const int g : order.groups) {
      before += speed_[g];
      order.cuts.push_back(static_cast<int>(std::lround(layers * before / all)));
    }
  }

  void Start() {
    GroupOrder order;
    order.groups.resize(problem_.groups.size());
    std::iota(order.groups.begin(), order.groups.end(), 0);
    const int layers = CountLayers(problem_);
    for (size_t rotation = 0; rotation < order.groups.size(); ++rotation) {
      CutInProportion(order);
      Add(order);
      GroupOrder reversed{{order.groups.rbegin(), order.groups.rend()}, {}, 0};
      CutInProportion(reversed);
      Add(reversed);
      std::rotate(order.groups.begin(), order.groups.begin() + 1, order.groups.end());
    }
    // Each alone, the rest idle: few devices can be better than slow links.
    order.cuts.assign(order.groups.size() + 1, layers);
    order.cuts[0] = 0;
    for (size_t g = 0; g < order.groups.size(); ++g) {
      std::swap(order.groups[0], order.groups[g]);
      Add(order);
      std::swap(order.groups[0], order.groups[g]);
    }
  }

  void Expand(const GroupOrder& order) {
    const size_t n = order.groups.size();
    GroupOrder tried = order;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = i + 1; j < n; ++j) {
        std::swap(tried.groups[i], tried.groups[j]);
        Add(tried);
        // Each with the layers that it had.
        for (size_t k = 0; k < n; ++k) {
          const size_t from = k == i ? j : k == j ? i : k;
          tried.cuts[k + 1] = tried.cuts[k] + order.cuts[from + 1] - order.cuts[from];
        }
        Add(tried);
        CutInProportion(tried);
        Add(tried);
        tried.cuts = order.cuts;
        std::swap(tried.groups[i], tried.groups[j]);
      }
    }
    for (size_t boundary = 1; boundary < n; ++boundary) {
      int& cut = tried.cuts[boundary];
      const int was = cut, before = order.cuts[boundary - 1], after = order.cuts[boundary + 1];
      // A group idles, a neighbour takes its layers; or a group that idles takes half a
      // neighbour's. Or one or two layers move.
      for (const int to :
           {before, after, (before + after) / 2, was - 2, was - 1, was + 1, was + 2}) {
        cut = to;
        if (before <= cut && cut <= after) Add(tried);
      }
      cut = was;
    }
  }

  // Keeps the best ones.
  void Add(const GroupOrder& order) {
    const bool full = std::ssize(beam_) >= kWidth;
    const Merit merit =
        Evaluate(problem_, times_, order, full ? beam_.back().merit() : Merit(INFINITY, INFINITY));
    if (full && merit > beam_.back().merit()) return;
    BeamState state{merit.first, order};
    state.order.seconds = merit.second;
    const auto position = std::lower_bound(beam_.begin(), beam_.end(), state);
    if (position != beam_.end() && !(state < *position)) return;  // it is there
    beam_.insert(position, std::move(state));
    if (std::ssize(beam_) > kWidth) beam_.pop_back();
  }

  const OrderProblem& problem_;
  const Times times_;
  std::vector<double> speed_;    // of each group
  std::vector<BeamState> beam_;  // best first
};

}  // namespace

double PipelineEnd::Prepend(const PartTimes& times, int group, int next, int cut,
                            double rest_s) const {
  const Link& link = problem_.links[group][next];
  const double bytes = problem_.out_bytes[cut - 1];
  const double transfer_s =
      link.edges.empty() ? link.Seconds(bytes) : SplitSeconds(link, group, next, cut);
  return std::max(times.own_s,
                  times.pass_s + 2 * transfer_s +
                      std::max(rest_s, problem_.micro_batches * link.SerialSeconds(bytes)));
}

double PipelineEnd::SplitSeconds(const Link& link, int group, int next, int cut) const {
  const size_t groups = problem_.groups.size();
  if (split_s_.empty()) split_s_.assign(groups * groups * layers_, -1);
  double& seconds = split_s_[(static_cast<size_t>(group) * groups + next) * layers_ + (cut - 1)];
  if (seconds < 0) seconds = link.Seconds(problem_.out_bytes[cut - 1]);
  return seconds;
}

std::vector<int> SplitEvenly(const StageCosts& costs, int first, int last, int parts) {
  if (parts == 1) return {first, last};
  double high = costs.TotalSeconds(first, last) * (1 + 1e-9);
  double low = high / parts * (1 - 1e-6);
  Parts best, tried;
  FillParts(costs, first, last, parts, high, best);
  for (int i = 0; i < 30 && high - low > high * 1e-6; ++i) {
    const double middle = (low + high) / 2;
    FillParts(costs, first, last, parts, middle, tried);
    if (tried.cuts.back() == last) {
      std::swap(best, tried);
      high = std::min(middle, best.least_s);
    } else {
      low = std::max(middle, tried.next_s);
    }
  }
  best.cuts.back() = last;
  return std::move(best.cuts);
}

double OrderSeconds(const OrderProblem& problem, const GroupOrder& order) {
  const auto [lacks, seconds] = Evaluate(problem, Times(problem), order, Merit(INFINITY, INFINITY));
  return lacks > 0 ? INFINITY : seconds;
}

std::optional<GroupOrder> OrderByBeam(const OrderProblem& problem) {
  ATOLL_CHECK(!problem.groups.empty());
  return Beam(problem).Run();
}

}  // namespace atl::plan
