#include "coordinator/simulator/schedules.h"

#include <algorithm>

#include "common/status.h"

namespace atl::sim {
namespace {

void Backward(const Chunk& chunk, int c, int m, std::vector<Op>& ops) {
  ops.push_back({c, m, OpKind::kBackward});
  if (IsSplit(chunk)) ops.push_back({c, m, OpKind::kWeight});
}

absl::Status OneChunkPerDevice(const Problem& problem, absl::string_view family) {
  for (const std::vector<int>& chunks : ListChunksByDevice(problem)) {
    if (chunks.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(family, " takes one chunk per device; use interleaved or a V"));
    }
  }
  return absl::OkStatus();
}

// `forwards` first, then B and F in turn; W(j) runs once B(j + lag) has.
std::vector<Op> WarmThenAlternate(const Chunk& chunk, int c, int m, int forwards, int lag) {
  std::vector<Op> ops;
  int next_forward = 0;
  while (next_forward < std::min(m, forwards)) {
    ops.push_back({c, next_forward++, OpKind::kForward});
  }
  int next_weight = 0;
  for (int b = 0; b < m; ++b) {
    ops.push_back({c, b, OpKind::kBackward});
    if (IsSplit(chunk) && b - lag >= next_weight) {
      ops.push_back({c, next_weight++, OpKind::kWeight});
    }
    if (next_forward < m) ops.push_back({c, next_forward++, OpKind::kForward});
  }
  while (IsSplit(chunk) && next_weight < m) ops.push_back({c, next_weight++, OpKind::kWeight});
  return ops;
}

// Stage s of p runs warm(p, s) forwards first and holds W back lag(p, s) passes.
template <class Warm, class Lag>
Schedule ByStage(const Problem& problem, const Warm& warm, const Lag& lag) {
  Schedule schedule;
  schedule.device_ops.resize(problem.devices.size());
  for (const Pipeline& pipeline : problem.pipelines) {
    const int p = pipeline.chunk_count;
    for (int s = 0; s < p; ++s) {
      const int c = pipeline.first_chunk + s;
      const Chunk& chunk = problem.chunks[c];
      schedule.device_ops[chunk.device] =
          WarmThenAlternate(chunk, c, pipeline.micro_batches, warm(p, s), lag(p, s));
    }
  }
  return schedule;
}

// Megatron's order of one device: the k-th forward (or backward) pass takes the chunks in turn, p
// micro-batches at a time.
void InterleavedDevice(const Problem& problem, const Pipeline& pipeline, int p, int d,
                       std::vector<Op>& ops) {
  const int v = pipeline.chunk_count / p;
  const int total = pipeline.micro_batches * v;
  const auto op_of = [&](int k, bool forward) {
    const int round = k / (p * v);
    const int turn = (k % (p * v)) / p;
    const int local = forward ? turn : v - 1 - turn;
    return std::pair(pipeline.first_chunk + local * p + d, round * p + k % p);
  };
  const int warm = std::min(total, (p - d - 1) * 2 + (v - 1) * p);
  int forwards = 0;
  const auto run_forward = [&] {
    const auto [c, m] = op_of(forwards++, true);
    ops.push_back({c, m, OpKind::kForward});
  };
  while (forwards < warm) run_forward();
  for (int k = 0; k < total; ++k) {
    if (forwards < total) run_forward();
    const auto [c, m] = op_of(k, false);
    Backward(problem.chunks[c], c, m, ops);
  }
}

}  // namespace

Schedule GPipe(const Problem& problem) {
  Schedule schedule;
  schedule.device_ops.resize(problem.devices.size());
  for (const Pipeline& pipeline : problem.pipelines) {
    const int end = pipeline.first_chunk + pipeline.chunk_count;
    for (int c = pipeline.first_chunk; c < end; ++c) {
      for (int m = 0; m < pipeline.micro_batches; ++m) {
        schedule.device_ops[problem.chunks[c].device].push_back({c, m, OpKind::kForward});
      }
    }
  }
  for (const Pipeline& pipeline : problem.pipelines) {
    for (int c = pipeline.first_chunk + pipeline.chunk_count - 1; c >= pipeline.first_chunk; --c) {
      for (int m = 0; m < pipeline.micro_batches; ++m) {
        Backward(problem.chunks[c], c, m, schedule.device_ops[problem.chunks[c].device]);
      }
    }
  }
  return schedule;
}

absl::StatusOr<Schedule> OneForwardOneBackward(const Problem& problem) {
  ATOLL_RETURN_IF_ERROR(OneChunkPerDevice(problem, "1f1b"));
  return ByStage(
      problem, [](int p, int s) { return p - s; }, [](int, int) { return 0; });
}

absl::StatusOr<Schedule> Interleaved(const Problem& problem) {
  Schedule schedule;
  schedule.device_ops.resize(problem.devices.size());
  for (const Pipeline& pipeline : problem.pipelines) {
    // p: how many chunks until the first device comes again.
    const int first = problem.chunks[pipeline.first_chunk].device;
    int p = 1;
    while (p < pipeline.chunk_count && problem.chunks[pipeline.first_chunk + p].device != first) {
      ++p;
    }
    for (int i = 0; i < pipeline.chunk_count; ++i) {
      if (problem.chunks[pipeline.first_chunk + i].device !=
          problem.chunks[pipeline.first_chunk + i % p].device) {
        return absl::InvalidArgumentError(
            "interleaved takes chunks assigned to the devices in turn");
      }
    }
    if (pipeline.chunk_count % p != 0 || pipeline.micro_batches % p != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("interleaved takes micro-batches and chunks in multiples of the ", p,
                       " devices, not ", pipeline.micro_batches, " and ", pipeline.chunk_count));
    }
    for (int d = 0; d < p; ++d) {
      InterleavedDevice(problem, pipeline, p, d,
                        schedule.device_ops[problem.chunks[pipeline.first_chunk + d].device]);
    }
  }
  return schedule;
}

absl::StatusOr<Schedule> ZeroBubbleH1(const Problem& problem) {
  ATOLL_RETURN_IF_ERROR(OneChunkPerDevice(problem, "zb-h1"));
  return ByStage(
      problem, [](int p, int s) { return p - s; }, [](int, int s) { return s; });
}

absl::StatusOr<Schedule> ZeroBubbleH2(const Problem& problem) {
  ATOLL_RETURN_IF_ERROR(OneChunkPerDevice(problem, "zb-h2"));
  return ByStage(
      problem, [](int p, int s) { return 2 * (p - s) - 1; }, [](int, int s) { return 2 * s; });
}

}  // namespace atl::sim
