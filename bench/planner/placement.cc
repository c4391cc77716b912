#include "bench/planner/placement.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <queue>

#include "common/status.h"

namespace atl::plan {
namespace {

using sim::Nanos;

absl::Status Validate(const PlacementProblem& problem) {
  if (problem.operators.empty() || problem.operators.size() > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem.operators.size(), " operators; placement takes 1 to 64"));
  }
  const int devices = static_cast<int>(problem.memory_bytes.size());
  for (size_t i = 0; i < problem.operators.size(); ++i) {
    const Operator& op = problem.operators[i];
    const bool inputs_before = std::all_of(op.inputs.begin(), op.inputs.end(), [&](int input) {
      return input >= 0 && input < static_cast<int>(i);
    });
    if (static_cast<int>(op.time_ns.size()) != devices || !inputs_before || op.result_bytes < 0 ||
        op.workspace_bytes < 0 || op.model < 0 ||
        op.model >= static_cast<int>(problem.weights.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "operator ", i, ": needs a time per device, inputs before it, a model with a weight"));
    }
  }
  sim::Network network;
  for (const auto& [ends, link] : problem.links) {
    if (ends.first < 0 || ends.first >= devices || ends.second < 0 || ends.second >= devices) {
      return absl::InvalidArgumentError("a link names a device that is not there");
    }
    network.links.push_back(link);
  }
  return sim::Validate(network);
}

// A partial schedule.
struct Node {
  uint64_t placed = 0;                           // bit per operator
  std::vector<int8_t> device;                    // per operator, -1: not placed
  std::vector<Nanos> end_ns;                     // per operator
  std::vector<Nanos> device_free_ns;             // per device
  std::vector<std::vector<Nanos>> edge_free_ns;  // per link, per edge
  std::vector<Placed> order;
  double bound_ns = 0;
};

class Search {
 public:
  explicit Search(const PlacementProblem& problem)
      : problem_(problem),
        ops_(static_cast<int>(problem.operators.size())),
        devices_(static_cast<int>(problem.memory_bytes.size())),
        consumers_(ops_),
        tail_ns_(ops_, 0),
        least_ns_(ops_, sim::kForever) {
    for (const auto& [ends, link] : problem.links) links_.push_back({ends, &link});
    for (int i = 0; i < ops_; ++i) {
      for (const int input : problem.operators[i].inputs) consumers_[input].push_back(i);
      for (const Nanos t : problem.operators[i].time_ns) {
        if (t >= 0) least_ns_[i] = std::min(least_ns_[i], t);
      }
    }
    for (int i = ops_ - 1; i >= 0; --i) {
      for (const int c : consumers_[i]) {
        tail_ns_[i] = std::max(tail_ns_[i], least_ns_[c] + tail_ns_[c]);
      }
    }
  }

  Node Root() const {
    Node root;
    root.device.assign(ops_, -1);
    root.end_ns.assign(ops_, 0);
    root.device_free_ns.assign(devices_, 0);
    for (const auto& [ends, link] : links_) root.edge_free_ns.emplace_back(link->edges.size(), 0);
    root.bound_ns = ComputeLowerBound(root);
    return root;
  }

  bool Complete(const Node& node) const { return static_cast<int>(node.order.size()) == ops_; }
  bool Ready(const Node& node, int op) const {
    if ((node.placed >> op & 1) != 0) return false;
    for (const int input : problem_.operators[op].inputs) {
      if ((node.placed >> input & 1) == 0) return false;
    }
    return true;
  }

  // The node with `op` on `device` next; nothing if it cannot run or does not fit there.
  std::optional<Node> Child(const Node& node, int op, int device) const {
    const Operator& o = problem_.operators[op];
    if (o.time_ns[device] < 0) return std::nullopt;
    Node child = node;
    Nanos start_ns = node.device_free_ns[device];
    for (const int input : o.inputs) {
      const int from = node.device[input];
      if (from == device) {
        start_ns = std::max(start_ns, node.end_ns[input]);
        continue;
      }
      const int link = LinkBetween(from, device);
      if (link < 0) return std::nullopt;
      start_ns = std::max(start_ns, Transfer(child, link, node.end_ns[input],
                                             problem_.operators[input].result_bytes));
    }
    if (!Fits(node, op, device, start_ns)) return std::nullopt;
    const Nanos end_ns = start_ns + o.time_ns[device];
    child.placed |= uint64_t{1} << op;
    child.device[op] = static_cast<int8_t>(device);
    child.end_ns[op] = end_ns;
    child.device_free_ns[device] = end_ns;
    child.order.push_back({op, device, start_ns, end_ns});
    child.bound_ns = std::max(node.bound_ns, ComputeLowerBound(child));
    return child;
  }

  // All children that cost less than `limit_ns` at best, in order.
  std::vector<Node> Children(const Node& node, double limit_ns) const {
    std::vector<Node> children;
    for (int op = 0; op < ops_; ++op) {
      if (!Ready(node, op)) continue;
      for (int device = 0; device < devices_; ++device) {
        if (Redundant(node, device)) continue;
        std::optional<Node> child = Child(node, op, device);
        if (child.has_value() && child->bound_ns < limit_ns) children.push_back(*std::move(child));
      }
    }
    return children;
  }

  // Dominance compares times alone, so it is for problems in which nothing else distinguishes two
  // nodes with the same key: memory never binds, and no edges exclude each other.
  bool CanDominate() const {
    int64_t all_bytes = 0;
    int64_t largest = 0;
    for (const Operator& op : problem_.operators) {
      all_bytes += 2 * op.result_bytes;  // and a copy
      largest = std::max(largest, op.workspace_bytes);
    }
    for (const int64_t memory : problem_.memory_bytes) {
      if (all_bytes + largest > memory) return false;
    }
    for (const auto& [ends, link] : links_) {
      for (const sim::Edge& edge : link->edges) {
        if (edge.conflict_set >= 0) return false;
      }
    }
    return true;
  }

  // An untouched device for which an identical untouched one comes before it.
  bool Redundant(const Node& node, int device) const {
    if (node.device_free_ns[device] != 0 || Used(node, device)) return false;
    for (int other = 0; other < device; ++other) {
      if (!Used(node, other) && Identical(other, device)) return true;
    }
    return false;
  }

  // Returns the key of a node's future: operators placed and where results still wanted lie; then
  // times.
  std::vector<int> MakeNodeKey(const Node& node) const {
    std::vector<int> key = {static_cast<int>(node.placed & 0xffffffff),
                            static_cast<int>(node.placed >> 32)};
    for (int i = 0; i < ops_; ++i) {
      if (Wanted(node, i)) key.push_back(i * 128 + node.device[i]);
    }
    return key;
  }
  std::vector<Nanos> ListNodeTimes(const Node& node) const {
    std::vector<Nanos> times = node.device_free_ns;
    for (int i = 0; i < ops_; ++i) {
      if (Wanted(node, i)) times.push_back(node.end_ns[i]);
    }
    for (const auto& edges : node.edge_free_ns)
      times.insert(times.end(), edges.begin(), edges.end());
    std::vector<Nanos> model_end(problem_.weights.size(), 0);
    for (const Placed& p : node.order) {
      Nanos& end = model_end[problem_.operators[p.op].model];
      end = std::max(end, p.end_ns);
    }
    times.insert(times.end(), model_end.begin(), model_end.end());
    return times;
  }

  Nanos urgency(int op) const { return least_ns_[op] + tail_ns_[op]; }
  int ops() const { return ops_; }
  int devices() const { return devices_; }

 private:
  bool Wanted(const Node& node, int op) const {
    if ((node.placed >> op & 1) == 0) return false;
    return std::any_of(consumers_[op].begin(), consumers_[op].end(),
                       [&](int c) { return (node.placed >> c & 1) == 0; });
  }

  bool Used(const Node& node, int device) const {
    return std::any_of(node.order.begin(), node.order.end(),
                       [&](const Placed& p) { return p.device == device; });
  }

  int LinkBetween(int from, int to) const {
    for (size_t l = 0; l < links_.size(); ++l) {
      if (links_[l].first == std::pair(from, to)) return static_cast<int>(l);
    }
    return -1;
  }

  // Equal times and memory, and no link distinguishes the devices (only where neither has links, or
  // both the same).
  bool Identical(int a, int b) const {
    if (problem_.memory_bytes[a] != problem_.memory_bytes[b]) return false;
    for (const Operator& op : problem_.operators) {
      if (op.time_ns[a] != op.time_ns[b]) return false;
    }
    const auto same = [&](std::pair<int, int> x, std::pair<int, int> y) {
      const auto i = problem_.links.find(x);
      const auto j = problem_.links.find(y);
      if (i == problem_.links.end() || j == problem_.links.end()) {
        return i == problem_.links.end() && j == problem_.links.end();
      }
      const auto equal = [](const sim::Edge& p, const sim::Edge& q) {
        return p.latency_ns == q.latency_ns && p.bytes_per_s == q.bytes_per_s &&
               p.conflict_set == q.conflict_set && sim::SameCurve(p.sizes, q.sizes);
      };
      return i->second.edges.size() == j->second.edges.size() &&
             std::equal(i->second.edges.begin(), i->second.edges.end(), j->second.edges.begin(),
                        equal);
    };
    for (int c = 0; c < devices_; ++c) {
      if (c == a || c == b) continue;
      if (!same({a, c}, {b, c}) || !same({c, a}, {c, b})) return false;
    }
    return same({a, b}, {b, a});
  }

  Nanos Transfer(Node& node, int link, Nanos ready_ns, int64_t bytes) const {
    const sim::Link& l = *links_[link].second;
    std::vector<Nanos>& free_ns = node.edge_free_ns[link];
    std::vector<sim::EdgeOffer> offers;
    for (size_t e = 0; e < l.edges.size(); ++e) {
      const Nanos wait_ns = std::max<Nanos>(0, free_ns[e] - ready_ns);
      offers.push_back({static_cast<double>(wait_ns + l.edges[e].latency_ns),
                        l.edges[e].bytes_per_s * 1e-9, l.edges[e].conflict_set,
                        l.edges[e].sizes.get()});
    }
    const sim::Split split = sim::SplitTransfer(static_cast<double>(bytes), offers);
    const Nanos arrival_ns = ready_ns + static_cast<Nanos>(std::ceil(split.arrival_ns - 1e-6));
    for (size_t e = 0; e < l.edges.size(); ++e) {
      if (split.bytes[e] <= 0) continue;
      const int set = l.edges[e].conflict_set;
      for (size_t f = 0; f < l.edges.size(); ++f) {
        if (f != e && (set < 0 || l.edges[f].conflict_set != set)) continue;
        free_ns[f] = arrival_ns - l.edges[e].latency_ns;
      }
    }
    return arrival_ns;
  }

  // Results on the device that are still needed at `start_ns`, the inputs' copies, and its own.
  bool Fits(const Node& node, int op, int device, Nanos start_ns) const {
    const Operator& o = problem_.operators[op];
    int64_t bytes = o.workspace_bytes + o.result_bytes;
    for (const int input : o.inputs) {
      if (node.device[input] != device) bytes += problem_.operators[input].result_bytes;
    }
    for (const Placed& p : node.order) {
      if (p.device != device) continue;
      const std::vector<int>& consumers = consumers_[p.op];
      const bool live =
          consumers.empty() || std::any_of(consumers.begin(), consumers.end(), [&](int c) {
            return (node.placed >> c & 1) == 0 || node.end_ns[c] > start_ns;
          });
      if (live) bytes += problem_.operators[p.op].result_bytes;
    }
    return bytes <= problem_.memory_bytes[device];
  }

  // Per model: no earlier than what is placed, nor than the longest chain of what is not. With one
  // model also: the devices cannot do what remains any sooner, evenly shared.
  double ComputeLowerBound(const Node& node) const {
    std::vector<Nanos> end_ns(problem_.weights.size(), 0);
    std::vector<Nanos> earliest_end_ns(ops_, 0);  // by operator
    double left_ns = 0;
    for (int i = 0; i < ops_; ++i) {
      const Operator& op = problem_.operators[i];
      if ((node.placed >> i & 1) != 0) {
        earliest_end_ns[i] = node.end_ns[i];
      } else {
        Nanos start_ns = *std::min_element(node.device_free_ns.begin(), node.device_free_ns.end());
        for (const int input : op.inputs) start_ns = std::max(start_ns, earliest_end_ns[input]);
        earliest_end_ns[i] = start_ns + least_ns_[i];
        left_ns += static_cast<double>(least_ns_[i]);
      }
      end_ns[op.model] = std::max(end_ns[op.model], earliest_end_ns[i]);
    }
    if (problem_.weights.size() == 1) {
      double sum_ns = left_ns;
      for (const Nanos t : node.device_free_ns) sum_ns += static_cast<double>(t);
      end_ns[0] = std::max(end_ns[0], static_cast<Nanos>(std::ceil(sum_ns / devices_ - 1e-6)));
    }
    double bound = 0;
    for (size_t m = 0; m < end_ns.size(); ++m) {
      bound += problem_.weights[m] * static_cast<double>(end_ns[m]);
    }
    return bound;
  }

  const PlacementProblem& problem_;
  const int ops_;
  const int devices_;
  std::vector<std::pair<std::pair<int, int>, const sim::Link*>> links_;
  std::vector<std::vector<int>> consumers_;
  std::vector<Nanos> tail_ns_;   // least time from an operator's end to its model's
  std::vector<Nanos> least_ns_;  // on its fastest device
};

// False if one of the others is nowhere later; otherwise remembers, up to a bound.
bool Remember(std::vector<Nanos> times, std::vector<std::vector<Nanos>>& others) {
  constexpr size_t kKept = 32;
  for (const std::vector<Nanos>& other : others) {
    const bool dominated = std::equal(other.begin(), other.end(), times.begin(),
                                      [](Nanos a, Nanos b) { return a <= b; });
    if (dominated) return false;
  }
  if (others.size() < kKept) others.push_back(std::move(times));
  return true;
}

// Open nodes, best bound first, and the best complete placement so far.
class Frontier {
 public:
  Frontier(const Search& search, Placement incumbent)
      : search_(search), dominate_(search.CanDominate()), best_(std::move(incumbent)) {
    Push(search.Root());
  }

  Placement& best() { return best_; }
  bool Open() const { return !open_.empty() && open_.top().bound_ns < best_.cost_ns; }
  double BoundNs() const {
    return open_.empty() ? best_.cost_ns : std::min(best_.cost_ns, open_.top().bound_ns);
  }

  std::vector<std::shared_ptr<const Node>> Take(size_t most) {
    std::vector<std::shared_ptr<const Node>> taken;
    while (taken.size() < most && Open()) {
      taken.push_back(open_.top().node);
      open_.pop();
    }
    return taken;
  }

  void Add(Node child) {
    if (child.bound_ns >= best_.cost_ns) return;
    if (search_.Complete(child)) {
      best_.order = child.order;
      best_.cost_ns = child.bound_ns;
      return;
    }
    if (dominate_ && !Remember(search_.ListNodeTimes(child), seen_[search_.MakeNodeKey(child)]))
      return;
    Push(std::move(child));
  }

 private:
  // Best bound first; among equals the one with more placed, then the one found first.
  struct Entry {
    double bound_ns;
    size_t placed;
    int64_t sequence;
    std::shared_ptr<const Node> node;
    bool operator<(const Entry& o) const {
      if (bound_ns != o.bound_ns) return bound_ns > o.bound_ns;
      if (placed != o.placed) return placed < o.placed;
      return sequence > o.sequence;
    }
  };

  void Push(Node node) {
    const double bound = node.bound_ns;
    const size_t placed = node.order.size();
    open_.push({bound, placed, sequence_++, std::make_shared<const Node>(std::move(node))});
  }

  const Search& search_;
  const bool dominate_;
  Placement best_;
  std::priority_queue<Entry> open_;
  std::map<std::vector<int>, std::vector<std::vector<Nanos>>> seen_;
  int64_t sequence_ = 0;
};

Placement Finish(const Node& node) { return {node.order, node.bound_ns, node.bound_ns, false, 0}; }

}  // namespace

absl::StatusOr<Placement> PlaceGreedily(const PlacementProblem& problem) {
  ATOLL_RETURN_IF_ERROR(Validate(problem));
  const Search search(problem);
  Node node = search.Root();
  while (!search.Complete(node)) {
    int most = -1;
    for (int op = 0; op < search.ops(); ++op) {
      if (!search.Ready(node, op)) continue;
      if (most < 0 || search.urgency(op) > search.urgency(most)) most = op;
    }
    std::optional<Node> best;
    for (int device = 0; device < search.devices(); ++device) {
      std::optional<Node> child = search.Child(node, most, device);
      if (!child.has_value()) continue;
      if (!best.has_value() || child->end_ns[most] < best->end_ns[most]) best = std::move(child);
    }
    if (!best.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("operator ", most, " fits on no device that its inputs can reach"));
    }
    node = *std::move(best);
  }
  return Finish(node);
}

absl::StatusOr<Placement> PlaceOptimally(const PlacementProblem& problem,
                                         const PlacementOptions& options) {
  ATOLL_RETURN_IF_ERROR(Validate(problem));
  if (options.batch < 1 || options.batch > 1 << 16) {
    return absl::InvalidArgumentError(absl::StrCat("batch = ", options.batch, " nodes"));
  }
  const absl::StatusOr<Placement> greedy = PlaceGreedily(problem);
  const Search search(problem);
  Frontier frontier(search, greedy.ok() ? *greedy : Placement{{}, INFINITY});
  Placement& best = frontier.best();
  int64_t nodes = 0;
  while (nodes < options.max_nodes && frontier.Open() && !(options.stop && options.stop())) {
    const auto parents = frontier.Take(
        static_cast<size_t>(std::min<int64_t>(options.batch, options.max_nodes - nodes)));
    nodes += static_cast<int64_t>(parents.size());
    std::vector<std::vector<Node>> children(parents.size());
    ForAll(options.pool, parents.size(),
           [&](size_t i) { children[i] = search.Children(*parents[i], best.cost_ns); });
    for (std::vector<Node>& of_parent : children) {
      for (Node& child : of_parent) frontier.Add(std::move(child));
    }
  }
  if (best.order.empty()) {
    if (!frontier.Open()) return greedy.status();
    return absl::ResourceExhaustedError("no placement found within the nodes allowed");
  }
  best.nodes = nodes;
  best.bound_ns = frontier.BoundNs();
  best.optimal = best.bound_ns >= best.cost_ns;
  return best;
}

}  // namespace atl::plan
