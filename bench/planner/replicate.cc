#include "bench/planner/replicate.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace atl::sim {
namespace {

// The devices of a pipeline, rising.
std::vector<int> ListDevices(const Problem& problem, const Pipeline& pipeline) {
  std::set<int> devices;
  for (int i = 0; i < pipeline.chunk_count; ++i) {
    devices.insert(problem.chunks[pipeline.first_chunk + i].device);
  }
  return {devices.begin(), devices.end()};
}

int GetIndex(const std::vector<int>& sorted, int value) {
  return static_cast<int>(std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
}

bool SameEdges(const Link& a, const Link& b) {
  return (a.lane >= 0) == (b.lane >= 0) &&
         std::equal(a.edges.begin(), a.edges.end(), b.edges.begin(), b.edges.end(),
                    [](const Edge& x, const Edge& y) {
                      return x.latency_ns == y.latency_ns && x.bytes_per_s == y.bytes_per_s &&
                             x.trunks.size() == y.trunks.size() &&
                             x.conflict_set == y.conflict_set && SameCurve(x.sizes, y.sizes);
                    });
}

// Both as made by Alone, which numbers devices and links by first use.
bool SameAlone(const Problem& a, const Problem& b) {
  const auto key = [](const Chunk& c) {
    return std::tuple(c.device, c.forward_ns, c.backward_ns, c.weight_ns, c.optimizer_ns,
                      c.activation_bytes, c.weight_bytes, c.forward_link, c.backward_link,
                      c.forward_bytes, c.backward_bytes);
  };
  return a.pipelines[0].micro_batches == b.pipelines[0].micro_batches &&
         std::equal(a.chunks.begin(), a.chunks.end(), b.chunks.begin(), b.chunks.end(),
                    [&](const Chunk& x, const Chunk& y) { return key(x) == key(y); }) &&
         std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(), b.devices.end(),
                    [](Device x, Device y) { return x.memory_bytes == y.memory_bytes; }) &&
         std::equal(a.network.links.begin(), a.network.links.end(), b.network.links.begin(),
                    b.network.links.end(), SameEdges);
}

// The links that a pipeline shares with `sharers` others at its even share of the bandwidth.
Problem AtShare(Problem alone, int sharers) {
  for (Link& link : alone.network.links) {
    bool shared = link.lane >= 0;
    for (const Edge& edge : link.edges) shared = shared || !edge.trunks.empty();
    if (!shared) continue;
    for (Edge& edge : link.edges) edge.bytes_per_s /= sharers;
  }
  return alone;
}

}  // namespace

Problem Alone(const Problem& problem, int pipeline) {
  const Pipeline& from = problem.pipelines[pipeline];
  const std::vector<int> devices = ListDevices(problem, from);
  Problem alone;
  alone.network.trunks = problem.network.trunks;
  alone.network.lanes = problem.network.lanes;
  alone.fixed_slots = problem.fixed_slots;
  for (const int d : devices) alone.devices.push_back(problem.devices[d]);
  std::vector<int> links;  // by their new index
  const auto take = [&](int& link) {
    if (link == kNoLink) return;
    const auto found = std::find(links.begin(), links.end(), link);
    if (found == links.end()) {
      links.push_back(link);
      alone.network.links.push_back(problem.network.links[link]);
      link = static_cast<int>(links.size()) - 1;
    } else {
      link = static_cast<int>(found - links.begin());
    }
  };
  for (int i = 0; i < from.chunk_count; ++i) {
    Chunk chunk = problem.chunks[from.first_chunk + i];
    chunk.device = GetIndex(devices, chunk.device);
    take(chunk.forward_link);
    take(chunk.backward_link);
    alone.chunks.push_back(chunk);
  }
  alone.pipelines = {from};
  alone.pipelines[0].first_chunk = 0;
  return alone;
}

std::vector<Kind> FindPipelineKinds(const Problem& problem) {
  std::vector<bool> taken(problem.devices.size(), false);
  std::vector<Kind> kinds;
  std::vector<Problem> firsts;
  for (size_t p = 0; p < problem.pipelines.size(); ++p) {
    for (const int d : ListDevices(problem, problem.pipelines[p])) {
      if (taken[d]) return {};
      taken[d] = true;
    }
    Problem alone = Alone(problem, static_cast<int>(p));
    const auto same = std::find_if(firsts.begin(), firsts.end(),
                                   [&](const Problem& first) { return SameAlone(first, alone); });
    if (same != firsts.end()) {
      kinds[same - firsts.begin()].pipelines.push_back(static_cast<int>(p));
      continue;
    }
    kinds.push_back({{static_cast<int>(p)}});
    firsts.push_back(std::move(alone));
  }
  return kinds;
}

Schedule Together(const Problem& problem, const std::vector<Kind>& kinds,
                  const std::vector<Schedule>& orders) {
  Schedule schedule;
  schedule.device_ops.resize(problem.devices.size());
  for (size_t k = 0; k < kinds.size(); ++k) {
    for (const int p : kinds[k].pipelines) {
      const Pipeline& pipeline = problem.pipelines[p];
      const std::vector<int> devices = ListDevices(problem, pipeline);
      for (size_t d = 0; d < devices.size(); ++d) {
        std::vector<Op>& ops = schedule.device_ops[devices[d]];
        ops = orders[k].device_ops[d];
        for (Op& op : ops) op.chunk += pipeline.first_chunk;
      }
    }
  }
  return schedule;
}

absl::StatusOr<Found> SearchReplicas(const Problem& problem, const SearchOptions& options) {
  const int replicas = static_cast<int>(problem.pipelines.size());
  const std::vector<Kind> kinds =
      replicas > 1 && options.restarts > 1 ? FindPipelineKinds(problem) : std::vector<Kind>{};
  if (kinds.empty()) return Search(problem, options);
  SearchOptions joint = options;
  joint.restarts = std::min(options.restarts, std::max(6, options.restarts / replicas));
  absl::StatusOr<Found> best = Search(problem, joint);
  const bool shares = problem.network.lanes > 0 || !problem.network.trunks.empty();
  for (const int sharers : shares ? std::vector{1, replicas} : std::vector{1}) {
    std::vector<Schedule> orders;
    for (const Kind& kind : kinds) {
      auto one = Search(AtShare(Alone(problem, kind.pipelines[0]), sharers), options);
      if (!one.ok()) return best;
      orders.push_back(std::move(one->schedule));
    }
    Found copies{Together(problem, kinds, orders), {}, "one replica's order for all"};
    copies.result = SimulateUnchecked(problem, copies.schedule, {});
    if (copies.result.verdict != Verdict::kFits) continue;
    if (!best.ok() || copies.result.makespan_ns < best->result.makespan_ns)
      best = std::move(copies);
  }
  return best;
}

}  // namespace atl::sim
