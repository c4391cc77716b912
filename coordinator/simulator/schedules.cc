#include "coordinator/simulator/schedules.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

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

namespace {

constexpr int kPeriod = 6;  // F, B and W of two chunks

struct Block {
  int a = 1, b = 1, c = 1, d = 1;  // units between neighbours, in the order of the pass
  int turn_f = 1, turn_loss = 1,
      turn_b = 1;  // from one leg's last operation to the next one's first
  int Turns() const { return turn_f + turn_loss + turn_b; }
};

// When a device's operations of micro-batch 0 run: F and B of the first chunk, then of the second.
struct OpSlots {
  int f0 = 0, b0 = 0, f1 = 0, b1 = 0;
};

OpSlots ComputeOpSlots(const Block& block, int p, int i) {
  OpSlots at;
  at.f0 = i * block.a;
  const int f1_first = (p - 1) * block.a + block.turn_f;
  at.f1 = f1_first + (p - 1 - i) * block.b;
  const int b1_first = f1_first + (p - 1) * block.b + block.turn_loss;
  at.b1 = b1_first + i * block.c;
  const int b0_first = b1_first + (p - 1) * block.c + block.turn_b;
  at.b0 = b0_first + (p - 1 - i) * block.d;
  return at;
}

bool Repeats(const Block& block, int p) {
  for (int i = 0; i < p; ++i) {
    const OpSlots at = ComputeOpSlots(block, p, i);
    std::array<int, 4> slots = {at.f0 % kPeriod, at.f1 % kPeriod, at.b0 % kPeriod, at.b1 % kPeriod};
    std::sort(slots.begin(), slots.end());
    if (std::adjacent_find(slots.begin(), slots.end()) != slots.end()) return false;
  }
  return true;
}

std::vector<Block> ListBlocks(int p, int d) {
  std::vector<Block> blocks;
  Block block;
  for (block.a = 1; block.a < d; ++block.a) {
    for (block.b = 1; block.b < d; ++block.b) {
      block.d = d - block.a;
      block.c = d - block.b;
      for (block.turn_f = 1; block.turn_f <= kPeriod; ++block.turn_f) {
        for (block.turn_loss = 1; block.turn_loss <= kPeriod; ++block.turn_loss) {
          for (block.turn_b = 1; block.turn_b <= kPeriod; ++block.turn_b) {
            if (Repeats(block, p)) blocks.push_back(block);
          }
        }
      }
    }
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& x, const Block& y) { return x.Turns() < y.Turns(); });
  return blocks;
}

// Fills the two free slots of every period with W, each as soon after its B as possible.
std::vector<Op> DeviceOps(const Pipeline& pipeline, const Block& block, int p, int i) {
  const OpSlots at = ComputeOpSlots(block, p, i);
  std::array<bool, kPeriod> taken = {};
  for (const int slot : {at.f0, at.f1, at.b0, at.b1}) taken[slot % kPeriod] = true;
  const auto after = [&](int slot) {
    do ++slot;
    while (taken[slot % kPeriod]);
    taken[slot % kPeriod] = true;
    return slot;
  };
  const int w1 = after(at.b1);
  const int w0 = after(at.b0);
  const int first = pipeline.first_chunk + i;
  const int second = pipeline.first_chunk + 2 * p - 1 - i;
  std::vector<std::pair<int64_t, Op>> timed;
  for (int m = 0; m < pipeline.micro_batches; ++m) {
    const auto add = [&](int slot, int chunk, OpKind kind) {
      timed.push_back({slot + int64_t{kPeriod} * m, {chunk, m, kind}});
    };
    add(at.f0, first, OpKind::kForward);
    add(at.f1, second, OpKind::kForward);
    add(at.b1, second, OpKind::kBackward);
    add(at.b0, first, OpKind::kBackward);
    add(w1, second, OpKind::kWeight);
    add(w0, first, OpKind::kWeight);
  }
  std::sort(timed.begin(), timed.end(),
            [&](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<Op> ops;
  for (const auto& [time, op] : timed) ops.push_back(op);
  return ops;
}

absl::Status IsV(const Problem& problem, const Pipeline& pipeline) {
  const int chunks = pipeline.chunk_count;
  bool fits = chunks % 2 == 0;
  for (int i = 0; fits && i < chunks; ++i) {
    const Chunk& chunk = problem.chunks[pipeline.first_chunk + i];
    const Chunk& mirror = problem.chunks[pipeline.first_chunk + chunks - 1 - i];
    fits = IsSplit(chunk) && chunk.device == mirror.device;
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a V takes two chunks per device, the second half of the model on the way back, and a "
      "backward that is split");
}

}  // namespace

absl::StatusOr<std::vector<Schedule>> VBlockSchedules(const Problem& problem, int d, int most) {
  for (const Pipeline& pipeline : problem.pipelines) {
    ATOLL_RETURN_IF_ERROR(IsV(problem, pipeline));
  }
  std::map<int, std::vector<Block>> blocks;  // by devices of a pipeline
  size_t count = static_cast<size_t>(most);
  for (const Pipeline& pipeline : problem.pipelines) {
    const int p = pipeline.chunk_count / 2;
    const auto [listed, added] = blocks.try_emplace(p);
    if (added) listed->second = ListBlocks(p, d);
    count = std::min(count, listed->second.size());
  }
  std::vector<Schedule> schedules(count);
  for (size_t n = 0; n < count; ++n) {
    schedules[n].device_ops.resize(problem.devices.size());
    for (const Pipeline& pipeline : problem.pipelines) {
      const int p = pipeline.chunk_count / 2;
      for (int i = 0; i < p; ++i) {
        const int device = problem.chunks[pipeline.first_chunk + i].device;
        schedules[n].device_ops[device] = DeviceOps(pipeline, blocks[p][n], p, i);
      }
    }
  }
  return schedules;
}

}  // namespace atl::sim
