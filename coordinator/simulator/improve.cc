// Local search over the order of operations, guided by the critical path: only moves inside a block
// of operations that follow each other on a device without a gap, on the chain that ends last, can
// shorten a schedule (as in job shops).

#include <algorithm>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "coordinator/simulator/search.h"

namespace atl::sim {
namespace {

// Moves the operation at `from` of a device's list to `to`.
struct Move {
  int device = 0;
  size_t from = 0;
  size_t to = 0;
};

void Apply(const Move& move, Schedule& schedule) {
  std::vector<Op>& ops = schedule.device_ops[move.device];
  const auto at = [&](size_t i) { return ops.begin() + static_cast<int64_t>(i); };
  if (move.from < move.to) {
    std::rotate(at(move.from), at(move.from) + 1, at(move.to) + 1);
  } else {
    std::rotate(at(move.to), at(move.from), at(move.from) + 1);
  }
}

// Whether the moved operation would pass one of the same kind in its chunk, so that micro-batches
// leave their order. Memory in slots, and the runtime's W, are counted in that order.
bool Overtakes(const Move& move, const Schedule& schedule) {
  const std::vector<Op>& ops = schedule.device_ops[move.device];
  const Op& moved = ops[move.from];
  for (size_t i = std::min(move.from, move.to); i <= std::max(move.from, move.to); ++i) {
    if (i != move.from && ops[i].chunk == moved.chunk && ops[i].kind == moved.kind) return true;
  }
  return false;
}

// Operations [first, last] of a device's list.
struct Block {
  int device = 0;
  size_t first = 0;
  size_t last = 0;
};

class CriticalPath {
 public:
  explicit CriticalPath(const Problem& problem)
      : problem_(problem),
        pipeline_of_(MapChunksToPipelines(problem)),
        base_(problem.chunks.size()) {
    int64_t size = 0;
    for (size_t c = 0; c < problem.chunks.size(); ++c) {
      base_[c] = size;
      size += 3 * problem.pipelines[pipeline_of_[c]].micro_batches;
      const Chunk& chunk = problem.chunks[c];
      forward_ns_.push_back(TransferNs(chunk.forward_link, chunk.forward_bytes));
      backward_ns_.push_back(TransferNs(chunk.backward_link, chunk.backward_bytes));
    }
    position_.resize(size);
  }

  // The blocks of two operations or more on the chain that decides `objective`; where two
  // predecessors are equally late, chance decides. `result` has its timeline.
  std::vector<Block> Blocks(const Result& result, Objective objective, Rng& rng) {
    for (const auto& spans : result.timeline) {
      for (size_t i = 0; i < spans.size(); ++i) {
        if (spans[i].op.kind != OpKind::kOptimizer) position_[Index(spans[i].op)] = i;
      }
    }
    std::vector<Block> blocks;
    auto [device, at] = End(result, objective);
    size_t block_last = at;
    while (true) {
      const std::vector<OpSpan>& spans = result.timeline[device];
      const OpSpan& span = spans[at];
      const bool tight = at > 0 && spans[at - 1].end_ns == span.start_ns;
      Op before;
      const bool has_input = FindInput(span.op, &before);
      const bool follow =
          tight && (!has_input || !InputTight(result, span, before) || rng.Chance(0.5));
      if (follow) {
        --at;
        continue;
      }
      if (block_last > at) blocks.push_back({device, at, block_last});
      if (!has_input || span.start_ns == 0) return blocks;
      device = problem_.chunks[before.chunk].device;
      at = block_last = position_[Index(before)];
    }
  }

 private:
  int64_t Index(const Op& op) const {
    return base_[op.chunk] + 3 * int64_t{op.micro_batch} + static_cast<int>(op.kind);
  }

  // The last F, B or W of the device that decides.
  static std::pair<int, size_t> End(const Result& result, Objective objective) {
    int best = 0;
    size_t best_at = 0;
    Nanos best_ns = -1;
    for (size_t d = 0; d < result.timeline.size(); ++d) {
      const std::vector<OpSpan>& spans = result.timeline[d];
      size_t at = spans.size();
      while (at > 0 && spans[at - 1].op.kind == OpKind::kOptimizer) --at;
      if (at == 0) continue;
      const Nanos start_ns = objective == Objective::kPeriod ? spans[0].start_ns : 0;
      if (spans[at - 1].end_ns - start_ns <= best_ns) continue;
      best = static_cast<int>(d);
      best_at = at - 1;
      best_ns = spans[at - 1].end_ns - start_ns;
    }
    return {best, best_at};
  }

  // The operation whose result `op` needs; false at the start of a pipeline.
  bool FindInput(const Op& op, Op* input) const {
    const Pipeline& pipeline = problem_.pipelines[pipeline_of_[op.chunk]];
    *input = op;
    switch (op.kind) {
      case OpKind::kForward:
        --input->chunk;
        return op.chunk > pipeline.first_chunk;
      case OpKind::kBackward:
        if (op.chunk + 1 < pipeline.first_chunk + pipeline.chunk_count) {
          ++input->chunk;
        } else {
          input->kind = OpKind::kForward;
        }
        return true;
      default:
        input->kind = OpKind::kBackward;
        return true;
    }
  }

  // Could the input, with its transfer, be what `span` waited for? A transfer takes no less than it
  // takes alone.
  bool InputTight(const Result& result, const OpSpan& span, const Op& input) const {
    const int device = problem_.chunks[input.chunk].device;
    const Nanos end_ns = result.timeline[device][position_[Index(input)]].end_ns;
    const Nanos alone_ns = input.chunk < span.op.chunk   ? forward_ns_[input.chunk]
                           : input.chunk > span.op.chunk ? backward_ns_[span.op.chunk]
                                                         : 0;
    return end_ns + alone_ns >= span.start_ns;
  }

  Nanos TransferNs(int link, int64_t bytes) const {
    if (link == kNoLink) return 0;
    return AloneTransferNs(problem_.network, problem_.network.links[link], bytes);
  }

  const Problem& problem_;
  const std::vector<int> pipeline_of_;
  std::vector<int64_t> base_;
  std::vector<Nanos> forward_ns_, backward_ns_;  // by chunk: what a message takes alone
  std::vector<size_t> position_;
};

// Most often two neighbours at an end of the block; otherwise one from inside to an end.
Move PickMove(const std::vector<Block>& blocks, Rng& rng) {
  const Block& block = blocks[rng.Below(blocks.size())];
  const bool front = rng.Chance(0.5);
  if (rng.Chance(0.6)) {
    const size_t at = front ? block.first : block.last - 1;
    return {block.device, at, at + 1};
  }
  const size_t inside = block.first + rng.Below(block.last - block.first + 1);
  return {block.device, inside, front ? block.first : block.last};
}

}  // namespace

void ImproveOrder(const Problem& problem, Objective objective, int tries, uint64_t seed,
                  Found& found) {
  constexpr double kWorseAtStart = 0.01;  // accepted, falling to nothing at the end
  Rng rng(seed);
  CriticalPath path(problem);
  const auto value = [&](const Result& r) { return GetObjectiveValue(r, objective); };
  const Nanos before = value(found.result);
  Schedule here = found.schedule;
  Nanos here_value = before;
  std::vector<Block> blocks =
      path.Blocks(SimulateUnchecked(problem, here, {.timeline = true}), objective, rng);
  for (int i = 0; i < tries && !blocks.empty(); ++i) {
    const Move move = PickMove(blocks, rng);
    if (move.from == move.to) continue;
    if (problem.fixed_slots && Overtakes(move, here)) continue;
    Apply(move, here);
    const double left = 1 - static_cast<double>(i) / tries;
    const auto limit =
        here_value + static_cast<Nanos>(kWorseAtStart * left * left * static_cast<double>(before));
    const Nanos latest_end_ns = objective == Objective::kMakespan ? limit : kForever;
    Result result =
        SimulateUnchecked(problem, here, {.timeline = true, .latest_end_ns = latest_end_ns});
    if (result.verdict != Verdict::kFits || value(result) > limit) {
      Apply({move.device, move.to, move.from}, here);
      continue;
    }
    here_value = value(result);
    blocks = path.Blocks(result, objective, rng);
    const auto both = [&](const Result& r) { return std::pair(value(r), r.makespan_ns); };
    if (both(result) >= both(found.result)) continue;
    result.timeline.clear();
    found.result = std::move(result);
    found.schedule = here;
  }
}

}  // namespace atl::sim
