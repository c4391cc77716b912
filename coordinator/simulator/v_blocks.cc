#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "common/status.h"
#include "coordinator/simulator/schedules.h"

namespace atl::sim {
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
