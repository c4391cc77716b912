#include "coordinator/simulator/bounds.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"

namespace atl::sim {
namespace {

// Times along one pipeline. Index i is relative to its first chunk.
struct Path {
  std::vector<Nanos> earliest_start;  // r: from the start to the earliest start of F(i)
  std::vector<Nanos> turn_round;      // RT: from the start of F(i) to the end of B(i)
  std::vector<Nanos> tail;            // from the end of B(i) to the end of all that must follow it
};

// Zero for a link whose trunk's bandwidth changes over time: no bound is taken from it.
Nanos LeastTransferNs(const Problem& problem, int link, int64_t bytes) {
  if (link == kNoLink) return 0;
  for (const Edge& edge : problem.network.links[link].edges) {
    for (const int t : edge.trunks) {
      if (!problem.network.trunks[t].trace.empty()) return 0;
    }
  }
  return TransferNs(problem, link, bytes);
}

Nanos LatencyNs(const Problem& problem, int link) {
  if (link == kNoLink || problem.network.links[link].edges.size() > 1) return 0;
  return problem.network.links[link].edges[0].latency_ns;
}

// How long a message keeps a link from the next one, at least.
Nanos SerialNs(const Problem& problem, int link, int64_t bytes) {
  if (link == kNoLink) return 0;
  return static_cast<Nanos>(std::min(1e15, LeastSerialNs(problem.network.links[link], bytes)));
}

// The optimizer steps of every device, which follow all its other work.
std::vector<Nanos> SumOptimizerTimes(const Problem& problem) {
  std::vector<Nanos> steps(problem.devices.size(), 0);
  for (const Chunk& chunk : problem.chunks) steps[chunk.device] += chunk.optimizer_ns;
  return steps;
}

Path ComputePipelinePath(const Problem& problem, const Pipeline& pipeline,
                         const std::vector<Nanos>& optimizers) {
  const int n = pipeline.chunk_count;
  const auto chunk = [&](int i) -> const Chunk& {
    return problem.chunks[pipeline.first_chunk + i];
  };
  const auto forward = [&](int i) {
    return LeastTransferNs(problem, chunk(i).forward_link, chunk(i).forward_bytes);
  };
  const auto backward = [&](int i) {
    return LeastTransferNs(problem, chunk(i).backward_link, chunk(i).backward_bytes);
  };
  Path path;
  path.earliest_start.assign(n, 0);
  path.turn_round.assign(n, 0);
  const auto last = [&](int i) { return chunk(i).weight_ns + optimizers[chunk(i).device]; };
  path.tail.assign(n, last(0));
  for (int i = 1; i < n; ++i) {
    path.earliest_start[i] = path.earliest_start[i - 1] + chunk(i - 1).forward_ns + forward(i - 1);
    path.tail[i] = std::max(last(i), backward(i - 1) + chunk(i - 1).backward_ns + path.tail[i - 1]);
  }
  path.turn_round[n - 1] = chunk(n - 1).forward_ns + chunk(n - 1).backward_ns;
  for (int i = n - 2; i >= 0; --i) {
    path.turn_round[i] = chunk(i).forward_ns + forward(i) + path.turn_round[i + 1] + backward(i) +
                         chunk(i).backward_ns;
  }
  return path;
}

void Raise(Bound& bound, Nanos time_ns, absl::string_view what, int index) {
  if (time_ns <= bound.time_ns) return;
  bound.time_ns = time_ns;
  bound.reason = absl::StrCat(what, " ", index);
}

// The work of a device, and around it the shortest path in and out.
struct Load {
  Nanos work_ns = 0;     // F + B + W and optimizer steps of everything
  Nanos through_ns = 0;  // F + B only
  Nanos earliest_start_ns = kForever;
  Nanos leave_ns = kForever;
};

std::vector<Load> ComputeLoads(const Problem& problem, const std::vector<Path>& paths) {
  std::vector<Load> loads(problem.devices.size());
  const std::vector<Nanos> optimizers = SumOptimizerTimes(problem);
  for (size_t d = 0; d < loads.size(); ++d) loads[d].work_ns = optimizers[d];
  for (size_t p = 0; p < problem.pipelines.size(); ++p) {
    const Pipeline& pipeline = problem.pipelines[p];
    for (int i = 0; i < pipeline.chunk_count; ++i) {
      const Chunk& chunk = problem.chunks[pipeline.first_chunk + i];
      Load& load = loads[chunk.device];
      const Nanos m = pipeline.micro_batches;
      load.through_ns += m * (chunk.forward_ns + chunk.backward_ns);
      load.work_ns += m * (chunk.forward_ns + chunk.backward_ns + chunk.weight_ns);
      load.earliest_start_ns = std::min(load.earliest_start_ns, paths[p].earliest_start[i]);
      load.leave_ns = std::min(load.leave_ns, paths[p].tail[i]);
    }
  }
  return loads;
}

// The traffic of something that carries one message at a time, or several at no more than its rate.
struct Traffic {
  double serial_ns = 0;                // of all messages
  Nanos earliest_start_ns = kForever;  // before the first can start
  Nanos leave_ns = kForever;           // after the last one
  double first_serial_ns = 0;          // of one activation per pipeline
  Nanos earliest_first_start_ns = kForever;
  Nanos first_rest_ns = kForever;  // what a pipeline still needs after its first activation
};

// After its first activation has left chunk i, a pipeline still needs all F and B of some later
// chunk, the path to it and the path out.
Nanos RestAfterFirst(const Problem& problem, const Pipeline& pipeline, const Path& path, int i) {
  Nanos rest_ns = 0;
  const Nanos m = pipeline.micro_batches;
  for (int s = i + 1; s < pipeline.chunk_count; ++s) {
    const Chunk& chunk = problem.chunks[pipeline.first_chunk + s];
    const Nanos through = m * (chunk.forward_ns + chunk.backward_ns);
    rest_ns =
        std::max(rest_ns, path.earliest_start[s] - path.earliest_start[i + 1] +
                              std::max(through + path.tail[s], through + m * chunk.weight_ns));
  }
  return LatencyNs(problem, problem.chunks[pipeline.first_chunk + i].forward_link) + rest_ns;
}

class TrafficCount {
 public:
  explicit TrafficCount(const Problem& problem)
      : problem_(problem),
        links_(problem.network.links.size()),
        lanes_(static_cast<size_t>(problem.network.lanes)),
        trunks_(problem.network.trunks.size()) {}

  void Add(int link, int64_t bytes, Nanos m, Nanos earliest_start_ns, Nanos leave_ns,
           std::optional<Nanos> rest_ns) {
    if (link == kNoLink) return;
    const Link& l = problem_.network.links[link];
    const double link_ns = LeastSerialNs(l, bytes);
    const auto one = [&](Traffic& traffic, double serial_ns) {
      traffic.serial_ns += serial_ns * static_cast<double>(m);
      traffic.earliest_start_ns = std::min(traffic.earliest_start_ns, earliest_start_ns);
      traffic.leave_ns = std::min(traffic.leave_ns, leave_ns);
      if (!rest_ns.has_value()) return;
      traffic.first_serial_ns += serial_ns;
      traffic.earliest_first_start_ns =
          std::min(traffic.earliest_first_start_ns, earliest_start_ns);
      traffic.first_rest_ns = std::min(traffic.first_rest_ns, *rest_ns);
    };
    one(links_[link], link_ns);
    if (l.lane >= 0) one(lanes_[l.lane], link_ns);
    if (l.edges.size() > 1) return;  // a split transfer may avoid the trunk
    const double effective = EffectiveBytes(l.edges[0].sizes, static_cast<double>(bytes));
    for (const int t : l.edges[0].trunks) {
      one(trunks_[t], effective / ComputeMaxBandwidth(problem_.network.trunks[t]) * 1e9);
    }
  }

  void RaiseAll(Bound& bound) const {
    for (size_t l = 0; l < links_.size(); ++l) RaiseOne(bound, links_[l], "link", l);
    for (size_t l = 0; l < lanes_.size(); ++l) RaiseOne(bound, lanes_[l], "lane", l);
    for (size_t t = 0; t < trunks_.size(); ++t) RaiseOne(bound, trunks_[t], "trunk", t);
  }

 private:
  static double ComputeMaxBandwidth(const Trunk& trunk) {
    double rate = trunk.bytes_per_s;
    for (const BandwidthStep& step : trunk.trace) rate = std::max(rate, step.bytes_per_s);
    return rate;
  }

  static void RaiseOne(Bound& bound, const Traffic& traffic, absl::string_view what, size_t index) {
    if (traffic.serial_ns <= 0 || traffic.serial_ns > 1e18) return;
    Raise(bound,
          traffic.earliest_start_ns + static_cast<Nanos>(traffic.serial_ns) + traffic.leave_ns,
          what, static_cast<int>(index));
    if (traffic.first_serial_ns <= 0) return;
    Raise(bound,
          traffic.earliest_first_start_ns + static_cast<Nanos>(traffic.first_serial_ns) +
              traffic.first_rest_ns,
          absl::StrCat("last to get its turn on ", what), static_cast<int>(index));
  }

  const Problem& problem_;
  std::vector<Traffic> links_;
  std::vector<Traffic> lanes_;
  std::vector<Traffic> trunks_;
};

void RaiseByLinks(const Problem& problem, const std::vector<Path>& paths, Bound& bound) {
  TrafficCount count(problem);
  for (size_t p = 0; p < problem.pipelines.size(); ++p) {
    const Pipeline& pipeline = problem.pipelines[p];
    const Path& path = paths[p];
    const Nanos m = pipeline.micro_batches;
    for (int i = 0; i + 1 < pipeline.chunk_count; ++i) {
      const Chunk& chunk = problem.chunks[pipeline.first_chunk + i];
      // After the last byte has left: its latency, the rest of the round trip, what follows it.
      count.Add(chunk.forward_link, chunk.forward_bytes, m,
                path.earliest_start[i] + chunk.forward_ns,
                LatencyNs(problem, chunk.forward_link) + path.turn_round[i + 1] + path.tail[i + 1],
                RestAfterFirst(problem, pipeline, path, i));
      count.Add(chunk.backward_link, chunk.backward_bytes, m,
                path.earliest_start[i + 1] + path.turn_round[i + 1],
                LatencyNs(problem, chunk.backward_link) + chunk.backward_ns + path.tail[i],
                std::nullopt);
    }
  }
  count.RaiseAll(bound);
}

// The earliest moment, from the start of the first F of chunk i, at which `count` micro-batches
// have ended their B there: all of them have passed each later chunk and come back from it.
Nanos Returned(const Problem& problem, const Pipeline& pipeline, const Path& path, int i,
               int64_t count) {
  Nanos latest = 0;
  Nanos back_ns = 0;  // from the end of B(s) to the end of B(i)
  for (int s = i; s < pipeline.chunk_count; ++s) {
    const Chunk& chunk = problem.chunks[pipeline.first_chunk + s];
    latest = std::max(latest, path.earliest_start[s] - path.earliest_start[i] +
                                  count * (chunk.forward_ns + chunk.backward_ns) + back_ns);
    back_ns +=
        LeastTransferNs(problem, chunk.backward_link, chunk.backward_bytes) + chunk.backward_ns;
  }
  return latest;
}

// See bounds.h for the proof. The device may hold other chunks too; K counts this one alone, which
// keeps it a bound.
void RaiseByMemory(const Problem& problem, const std::vector<Path>& paths, bool whole,
                   Bound& bound) {
  for (size_t p = 0; p < problem.pipelines.size(); ++p) {
    const Pipeline& pipeline = problem.pipelines[p];
    const Path& path = paths[p];
    for (int i = 0; i < pipeline.chunk_count; ++i) {
      const Chunk& chunk = problem.chunks[pipeline.first_chunk + i];
      const int64_t memory = problem.devices[chunk.device].memory_bytes;
      if (chunk.activation_bytes == 0 || memory < chunk.activation_bytes) continue;
      const int64_t slots = memory / chunk.activation_bytes;
      const int64_t more = (pipeline.micro_batches - 1) / slots;  // rounds after the first
      if (more == 0) continue;
      // Before its B ends a micro-batch holds all of it; until W ends only if nothing goes at B.
      const Nanos held_ns = chunk.weight_bytes == chunk.activation_bytes ? chunk.weight_ns : 0;
      const Nanos earliest_start = whole ? path.earliest_start[i] : 0;
      const Nanos tail = whole ? path.tail[i] : chunk.weight_ns;
      const int64_t first = pipeline.micro_batches - more * slots;
      const Nanos first_ns = Returned(problem, pipeline, path, i, first) + held_ns;
      Raise(bound,
            earliest_start + first_ns + (more - 1) * (path.turn_round[i] + held_ns) +
                path.turn_round[i] + tail,
            "memory of chunk", pipeline.first_chunk + i);
    }
  }
}

std::vector<Nanos> GradientsDoneBy(const Problem& problem, const std::vector<Path>& paths) {
  std::vector<Nanos> done(problem.chunks.size(), 0);
  for (size_t p = 0; p < problem.pipelines.size(); ++p) {
    const Pipeline& pipeline = problem.pipelines[p];
    const Nanos m = pipeline.micro_batches;
    Nanos last_b_ns = 0;  // earliest end of the last B of the chunk
    for (int i = pipeline.chunk_count - 1; i >= 0; --i) {
      const int c = pipeline.first_chunk + i;
      const Chunk& chunk = problem.chunks[c];
      const Nanos way_back =
          i + 1 < pipeline.chunk_count
              ? LeastTransferNs(problem, chunk.backward_link, chunk.backward_bytes)
              : 0;
      if (last_b_ns > 0) last_b_ns += way_back + chunk.backward_ns;
      const auto serial = [&](int link, int64_t bytes) {  // of all messages, and the last one's way
        return (m - 1) * SerialNs(problem, link, bytes) + LeastTransferNs(problem, link, bytes);
      };
      if (i > 0) {
        const Chunk& before = problem.chunks[c - 1];
        last_b_ns = std::max(last_b_ns, paths[p].earliest_start[i - 1] + before.forward_ns +
                                            serial(before.forward_link, before.forward_bytes) +
                                            paths[p].turn_round[i]);
      }
      if (i + 1 < pipeline.chunk_count) {
        last_b_ns = std::max(
            last_b_ns, paths[p].earliest_start[i + 1] + paths[p].turn_round[i + 1] +
                           serial(chunk.backward_link, chunk.backward_bytes) + chunk.backward_ns);
      }
      last_b_ns = std::max(last_b_ns,
                           paths[p].earliest_start[i] + m * (chunk.forward_ns + chunk.backward_ns));
      done[c] = std::max(last_b_ns + chunk.weight_ns,
                         paths[p].earliest_start[i] +
                             m * (chunk.forward_ns + chunk.backward_ns + chunk.weight_ns));
    }
  }
  return done;
}

std::vector<Path> ComputePipelinePaths(const Problem& problem) {
  std::vector<Path> paths;
  const std::vector<Nanos> optimizers = SumOptimizerTimes(problem);
  for (const Pipeline& pipeline : problem.pipelines) {
    paths.push_back(ComputePipelinePath(problem, pipeline, optimizers));
  }
  return paths;
}

}  // namespace

Bound MakespanBound(const Problem& problem) {
  const std::vector<Path> paths = ComputePipelinePaths(problem);
  Bound bound;
  for (size_t p = 0; p < paths.size(); ++p) {
    Raise(bound,
          paths[p].turn_round[0] + problem.chunks[problem.pipelines[p].first_chunk].weight_ns,
          "one micro-batch through pipeline", static_cast<int>(p));
  }
  const std::vector<Load> loads = ComputeLoads(problem, paths);
  for (size_t d = 0; d < loads.size(); ++d) {
    if (loads[d].work_ns == 0) continue;
    Raise(bound, loads[d].earliest_start_ns + loads[d].work_ns, "compute of device",
          static_cast<int>(d));
    Raise(bound, loads[d].earliest_start_ns + loads[d].through_ns + loads[d].leave_ns,
          "compute and way out of device", static_cast<int>(d));
  }
  RaiseByLinks(problem, paths, bound);
  RaiseByMemory(problem, paths, true, bound);
  const std::vector<Nanos> done = GradientsDoneBy(problem, paths);
  for (size_t c = 0; c < done.size(); ++c) {
    Raise(bound, done[c] + problem.chunks[c].optimizer_ns, "gradients of chunk",
          static_cast<int>(c));
  }
  return bound;
}

std::vector<Nanos> GradientsDone(const Problem& problem) {
  return GradientsDoneBy(problem, ComputePipelinePaths(problem));
}

Bound PeriodBound(const Problem& problem) {
  const std::vector<Path> paths = ComputePipelinePaths(problem);
  Bound bound;
  const std::vector<Load> loads = ComputeLoads(problem, paths);
  for (size_t d = 0; d < loads.size(); ++d) {
    Raise(bound, loads[d].work_ns, "compute of device", static_cast<int>(d));
  }
  RaiseByMemory(problem, paths, false, bound);
  return bound;
}

}  // namespace atl::sim
