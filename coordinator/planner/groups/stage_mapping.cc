#include "coordinator/planner/groups/stage_mapping.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <queue>
#include <string>
#include <utility>

#include "common/check.h"

namespace atl::plan {
namespace {

constexpr int64_t kBatch = 32;      // nodes expanded at once; the result depends on it
constexpr double kSame = 1 - 1e-9;  // of the best time: what is nearer is no gain

// The times of all groups, and the least that any mapping takes of anything.
class Table {
 public:
  Table(const OrderProblem& problem, const MappingOptions& options)
      : problem_(problem),
        options_(options),
        end_(problem),
        groups_(static_cast<int>(problem.groups.size())),
        layers_(problem.groups[0].costs->layers()) {
    const StageCosts& first = *problem.groups[0].costs;
    for (int l = 0; l <= layers_; ++l) work_s_.push_back(first.TotalSeconds(0, l));
    pass_s_.assign(layers_ + 1, 0);
    for (int l = 0; l < layers_; ++l) {
      double least = INFINITY;
      for (const OrderGroup& group : problem.groups) {
        const LayerTimes times = group.costs->Of(l, l + 1);
        least = std::min(least, times.forward_s + times.backward_s);
      }
      pass_s_[l + 1] = pass_s_[l] + least;
    }
    for (int g = 0; g < groups_; ++g) AddGroup(g);
  }

  int groups() const { return groups_; }
  int layers() const { return layers_; }
  const OrderProblem& problem() const { return problem_; }

  // A stage with so many stages from itself to the end.
  PartTimes Of(int g, int first, int last, int stages) const {
    const OrderGroup& group = problem_.groups[g];
    const int in_flight = std::min({problem_.micro_batches, stages, options_.in_flight});
    const std::optional<Saving> saving =
        group.costs->LeastSaving(first, last, group.memory_bytes, in_flight);
    if (!saving) return {};
    const LayerTimes times = group.costs->Of(first, last, *saving);
    const double pass_s = times.forward_s + times.backward_s;
    return {problem_.micro_batches * (pass_s + times.weight_s), pass_s};
  }

  const PipelineEnd& end() const { return end_; }

  double pass_s(int layers) const { return pass_s_[layers]; }  // through the first so many
  double work_s(int layers) const { return problem_.micro_batches * work_s_[layers]; }
  double speed(int g) const { return speed_[g]; }  // group 0's is 1
  double state_bytes(int g, int layers) const {
    return static_cast<double>(problem_.groups[g].costs->StateBytes(0, layers));
  }

  // How many layers but the first a member can take within so many seconds, wherever they are.
  int LayersWithin(int g, double seconds) const {
    const std::vector<double>& least = least_s_[g];
    return static_cast<int>(std::upper_bound(least.begin(), least.end(), seconds) - least.begin());
  }

 private:
  void AddGroup(int g) {
    const StageCosts& own = *problem_.groups[g].costs;
    double speed = 0;
    for (int l = 0; l < layers_; ++l) {
      const double seconds = own.TotalSeconds(l, l + 1);
      if (seconds > 0) speed = std::max(speed, (work_s_[l + 1] - work_s_[l]) / seconds);
    }
    speed_.push_back(speed);
    std::vector<double>& least = least_s_.emplace_back();
    for (int count = 1; count < layers_; ++count) {
      double seconds = INFINITY;
      for (int l = 1; l + count <= layers_; ++l) {
        seconds = std::min(seconds, own.TotalSeconds(l, l + count));
      }
      least.push_back(problem_.micro_batches * seconds);
    }
  }

  const OrderProblem& problem_;
  const MappingOptions& options_;
  const PipelineEnd end_;
  const int groups_, layers_;
  std::vector<double> work_s_;  // of one micro-batch on group 0
  std::vector<double> pass_s_;
  std::vector<double> speed_;
  std::vector<std::vector<double>> least_s_;  // by group, of one layer more each, all micro-batches
};

// The end of a pipeline.
struct Node {
  int parent = -1;
  int first_layer = 0;
  int16_t group = -1;  // of its first stage
  int16_t stages = 0;
  double seconds = 0;  // T
  double bound_s = 0;
  std::string used;  // members of each group
};

// Expands nodes.
class Expander {
 public:
  Expander(const Table& table, const MappingOptions& options) : table_(table), options_(options) {}

  // All children whose bound is below `limit_s`, in order.
  std::vector<Node> Children(const Node& node, int index, double limit_s) const {
    std::vector<Node> children;
    if (options_.stages > 0 && node.stages == options_.stages) return children;
    std::vector<int> capacity(table_.groups());
    for (int g = 0; g < table_.groups(); ++g) capacity[g] = table_.LayersWithin(g, limit_s);
    for (int g = 0; g < table_.groups(); ++g) {
      if (Left(node, g) == 0) continue;
      for (int first = node.first_layer - 1; first >= 0; --first) {
        const PartTimes times = table_.Of(g, first, node.first_layer, node.stages + 1);
        if (times.own_s >= limit_s) break;  // more layers take longer
        Node child{index, first, static_cast<int16_t>(g), static_cast<int16_t>(node.stages + 1)};
        child.seconds = node.group < 0 ? times.own_s
                                       : table_.end().Prepend(times, g, node.group,
                                                              node.first_layer, node.seconds);
        if (child.seconds >= limit_s) continue;
        child.used = node.used;
        ++child.used[static_cast<size_t>(g)];
        child.bound_s = std::max(node.bound_s, ComputeLowerBound(child, capacity));
        if (child.bound_s < limit_s) children.push_back(std::move(child));
      }
    }
    return children;
  }

  // Computes a lower bound of a pipeline's end, however its front will be. `capacity`: layers that
  // a member of each group can take in less than the limit; infinite where those that are left
  // cannot hold all layers.
  double ComputeLowerBound(const Node& node, const std::vector<int>& capacity) const {
    const int layers = node.first_layer;
    if (layers == 0) {
      const bool too_few = options_.stages > 0 && node.stages != options_.stages;
      return too_few ? INFINITY : node.seconds;
    }
    double speed = 0, memory_bytes = 0, link_s = INFINITY;
    int64_t total_capacity = 0;
    int any = -1;
    for (int g = 0; g < table_.groups(); ++g) {
      const int left = Left(node, g);
      if (left == 0) continue;
      any = g;
      speed += left * table_.speed(g);
      memory_bytes += 1.0 * left * static_cast<double>(table_.problem().groups[g].memory_bytes);
      total_capacity += int64_t{left} * capacity[g];
      if (node.group >= 0) {
        link_s =
            std::min(link_s, table_.end().Prepend({0, 0}, g, node.group, layers, node.seconds));
      }
    }
    if (any < 0 || total_capacity < layers - 1 || table_.state_bytes(any, layers) > memory_bytes) {
      return INFINITY;
    }
    const double load_s = table_.work_s(layers) / speed;
    const double path_s = node.group < 0 ? 0 : table_.pass_s(layers) + link_s;
    return std::max({node.seconds, load_s, path_s});
  }

 private:
  int Left(const Node& node, int g) const {
    return table_.problem().groups[g].members - static_cast<uint8_t>(node.used[g]);
  }

  const Table& table_;
  const MappingOptions& options_;
};

// Nodes, which of them are open, and the best pipeline so far.
class Tree {
 public:
  Tree(const Table& table, const GroupOrder* known) : table_(table) {
    best_.seconds = INFINITY;
    if (known != nullptr) best_ = *known;
    Node root;
    root.first_layer = table.layers();
    root.used.assign(static_cast<size_t>(table.groups()), '\0');
    Open(std::move(root));
  }

  GroupOrder& best() { return best_; }
  double limit_s() const { return best_.seconds * kSame; }
  const Node& at(int index) const { return nodes_[index]; }

  // Round robin over the numbers of stages.
  std::vector<int> Take(size_t most) {
    std::vector<int> taken;
    for (size_t idle = 0; taken.size() < most && idle < open_.size(); ++level_) {
      Queue& queue = open_[level_ % open_.size()];
      while (!queue.empty() && queue.top().bound_s >= limit_s()) queue.pop();
      ++idle;
      if (queue.empty()) continue;
      taken.push_back(queue.top().node);
      queue.pop();
      idle = 0;
    }
    return taken;
  }

  void Add(Node child) {
    if (child.bound_s >= limit_s()) return;
    if (child.first_layer == 0) {
      Finish(child);
      return;
    }
    std::string key = child.used;
    key.append(reinterpret_cast<const char*>(&child.group), sizeof(child.group));
    key.append(reinterpret_cast<const char*>(&child.first_layer), sizeof(child.first_layer));
    const auto [known, added] = least_s_.try_emplace(std::move(key), child.seconds);
    if (!added && known->second <= child.seconds) return;
    known->second = child.seconds;
    Open(std::move(child));
  }

 private:
  // The best bound first; among equals the one with fewer layers to go, then the one found first.
  struct Entry {
    double bound_s;
    int layers;
    int node;
    bool operator<(const Entry& o) const {
      if (bound_s != o.bound_s) return bound_s > o.bound_s;
      return layers != o.layers ? layers > o.layers : node > o.node;
    }
  };
  using Queue = std::priority_queue<Entry>;

  void Open(Node node) {
    const auto level = static_cast<size_t>(node.stages);
    if (open_.size() <= level) open_.resize(level + 1);
    open_[level].push({node.bound_s, node.first_layer, static_cast<int>(nodes_.size())});
    nodes_.push_back(std::move(node));
  }

  void Finish(const Node& complete) {
    best_.seconds = complete.seconds;
    best_.groups.clear();
    best_.cuts.clear();
    for (const Node* node = &complete; node->group >= 0; node = &nodes_[node->parent]) {
      best_.groups.push_back(node->group);
      best_.cuts.push_back(node->first_layer);
    }
    best_.cuts.push_back(table_.layers());
  }

  const Table& table_;
  GroupOrder best_;
  std::vector<Node> nodes_;
  std::vector<Queue> open_;  // by number of stages
  size_t level_ = 0;
  std::map<std::string, double> least_s_;  // T by what else counts of a node
};

}  // namespace

double MappingSeconds(const OrderProblem& problem, const GroupOrder& mapping,
                      const MappingOptions& options) {
  const Table table(problem, options);
  double seconds = 0;
  const int stages = static_cast<int>(mapping.groups.size());
  for (int s = stages; s-- > 0;) {
    const int g = mapping.groups[s];
    const PartTimes times = table.Of(g, mapping.cuts[s], mapping.cuts[s + 1], stages - s);
    seconds = s + 1 == stages ? times.own_s
                              : table.end().Prepend(times, g, mapping.groups[s + 1],
                                                    mapping.cuts[s + 1], seconds);
  }
  return seconds;
}

std::optional<GroupOrder> MapStages(const OrderProblem& problem, const GroupOrder* known,
                                    const MappingOptions& options) {
  ATOLL_CHECK(!problem.groups.empty());
  for (const OrderGroup& group : problem.groups) ATOLL_CHECK(group.members <= 255);
  const Table table(problem, options);
  const Expander expander(table, options);
  Tree tree(table, known);
  int64_t nodes = 0;
  while (nodes < options.max_nodes && !(options.stop && options.stop())) {
    const auto most = static_cast<size_t>(std::min(kBatch, options.max_nodes - nodes));
    const std::vector<int> parents = tree.Take(most);
    if (parents.empty()) break;
    nodes += static_cast<int64_t>(parents.size());
    std::vector<Node> children;
    for (const int parent : parents) {
      std::vector<Node> own = expander.Children(tree.at(parent), parent, tree.limit_s());
      std::move(own.begin(), own.end(), std::back_inserter(children));
    }
    for (Node& child : children) tree.Add(std::move(child));
  }
  GroupOrder& best = tree.best();
  if (best.groups.empty()) return std::nullopt;
  best.nodes = nodes;
  return best;
}

}  // namespace atl::plan
