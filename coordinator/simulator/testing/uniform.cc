#include "coordinator/simulator/testing/uniform.h"

#include <map>
#include <utility>

#include "common/check.h"

namespace atl::sim {

Problem MakeUniform(const UniformPipeline& pipeline) {
  ATOLL_CHECK(pipeline.stages >= 1 && pipeline.chunks_per_device >= 1);
  const int p = pipeline.stages;
  Problem problem;
  // One byte per nanosecond: a message's bytes are its serialisation time.
  std::map<std::pair<int, int>, int> links;
  const auto link_between = [&](int from, int to) {
    const auto [found, added] =
        links.try_emplace({from, to}, static_cast<int>(problem.network.links.size()));
    if (added) problem.network.links.push_back({{Edge{pipeline.latency_ns, 1e9, {}, -1}}});
    return found->second;
  };
  constexpr int64_t kSlotBytes = 1 << 20;
  problem.devices.assign(p, Device{pipeline.slots * kSlotBytes});
  const int chunks = p * pipeline.chunks_per_device;
  for (int c = 0; c < chunks; ++c) {
    const bool returning = pipeline.v_shape && (c / p) % 2 == 1;
    Chunk chunk;
    chunk.device = returning ? p - 1 - c % p : c % p;
    chunk.forward_ns = pipeline.forward_ns;
    chunk.backward_ns = pipeline.backward_ns;
    chunk.weight_ns = pipeline.weight_ns;
    chunk.activation_bytes = kSlotBytes / pipeline.chunks_per_device;
    const double held = static_cast<double>(chunk.activation_bytes) * pipeline.weight_share;
    chunk.weight_bytes = pipeline.weight_ns > 0 ? static_cast<int64_t>(held) : 0;
    problem.chunks.push_back(chunk);
  }
  for (int c = 0; c + 1 < chunks; ++c) {
    const int here = problem.chunks[c].device;
    const int there = problem.chunks[c + 1].device;
    if (here == there) continue;
    problem.chunks[c].forward_link = link_between(here, there);
    problem.chunks[c].backward_link = link_between(there, here);
    problem.chunks[c].forward_bytes = pipeline.serial_ns;
    problem.chunks[c].backward_bytes = pipeline.serial_ns;
  }
  problem.pipelines.push_back({0, chunks, pipeline.micro_batches, 0});
  return problem;
}

}  // namespace atl::sim
