#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/rng.h"
#include "coordinator/simulator/engine.h"
#include "coordinator/simulator/search.h"

namespace atl::sim {
namespace {

// A queue that allocates seldom, and frees nothing before its end: at most a pipeline's
// micro-batches go through it.
template <class Value>
class Fifo {
 public:
  bool empty() const { return first_ == values_.size(); }
  const Value& front() const { return values_[first_]; }
  void push_back(Value value) { values_.push_back(value); }
  void pop_front() { ++first_; }

 private:
  std::vector<Value> values_;
  size_t first_ = 0;
};

// Decides for an idle device by a GreedyPolicy; writes down what it decided.
class GreedyPicker {
 public:
  GreedyPicker(const Problem& problem, const GreedyPolicy& policy)
      : problem_(problem),
        policy_(policy),
        rng_(policy.seed),
        chunks_of_(ListChunksByDevice(problem)),
        pipeline_of_(MapChunksToPipelines(problem)),
        chunks_(problem.chunks.size()),
        warm_(problem.devices.size(), true),
        last_(problem.devices.size(), OpKind::kForward) {
    schedule_.device_ops.resize(problem.devices.size());
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const Chunk& chunk = problem.chunks[c];
      ChunkState& state = chunks_[c];
      state.limit = policy.open_limit.empty() ? INT32_MAX : policy.open_limit[c];
      state.forward_ns = TransferNs(problem, chunk.forward_link, chunk.forward_bytes);
      state.backward_ns = TransferNs(problem, chunk.backward_link, chunk.backward_bytes);
    }
  }

  void Watch(const MemoryUse* memory) { memory_ = memory; }
  Schedule TakeSchedule() { return std::move(schedule_); }

  void Ready(const Op& op) {
    ChunkState& state = chunks_[op.chunk];
    state.ready[static_cast<int>(op.kind)].push_back(op.micro_batch);
    if (op.kind != OpKind::kWeight) {
      Fifo<Nanos>& due = state.due[static_cast<int>(op.kind)];
      if (!due.empty()) due.pop_front();
    }
    if (op.kind == OpKind::kBackward) warm_[problem_.chunks[op.chunk].device] = false;
  }

  void Started(const Op& op, Nanos end_ns) {
    const Pipeline& pipeline = problem_.pipelines[pipeline_of_[op.chunk]];
    const int last = pipeline.first_chunk + pipeline.chunk_count - 1;
    if (op.kind == OpKind::kForward) {
      ++chunks_[op.chunk].open;
      if (op.chunk < last) {
        chunks_[op.chunk + 1].due[0].push_back(end_ns + chunks_[op.chunk].forward_ns);
      }
    } else if (op.kind == OpKind::kBackward && op.chunk > pipeline.first_chunk) {
      chunks_[op.chunk - 1].due[1].push_back(end_ns + chunks_[op.chunk - 1].backward_ns);
    }
  }

  void Done(const Op& op) {
    if (op.kind == OpKind::kBackward) --chunks_[op.chunk].open;
  }

  bool Pick(int device, Nanos now, Op* op) {
    const int forward = BestForward(device, true);
    const int backward = BestReady(device, OpKind::kBackward);
    const int weight = BestReady(device, OpKind::kWeight);
    OpKind kind;
    int chunk = -1;
    if (policy_.prefer == GreedyPolicy::Prefer::kCycle && !warm_[device] &&
        std::max({forward, backward, weight}) >= 0) {
      // The kind that follows the last one in the cycle F, B, W, or the next one that is ready.
      const int of_kind[] = {forward, backward, weight};
      int next = (static_cast<int>(last_[device]) + 1) % 3;
      while (of_kind[next] < 0) next = (next + 1) % 3;
      kind = static_cast<OpKind>(next);
      chunk = of_kind[next];
    } else if (forward >= 0 && backward >= 0) {
      bool forward_first = policy_.prefer == GreedyPolicy::Prefer::kForward ||
                           (policy_.prefer == GreedyPolicy::Prefer::kWarmForward && warm_[device]);
      if (policy_.flip_chance > 0 && rng_.Chance(policy_.flip_chance)) {
        forward_first = !forward_first;
      }
      kind = forward_first ? OpKind::kForward : OpKind::kBackward;
      chunk = forward_first ? forward : backward;
    } else if (backward >= 0) {
      kind = OpKind::kBackward;
      chunk = backward;
    } else if (forward >= 0 && !Worth(device, now, forward, policy_.forward_patience, false)) {
      kind = OpKind::kForward;
      chunk = forward;
    } else if (weight >= 0 && !Worth(device, now, weight, policy_.weight_patience, true)) {
      kind = OpKind::kWeight;
      chunk = weight;
    } else if (weight >= 0 && forward < 0 && BestForward(device, false) >= 0) {
      kind = OpKind::kWeight;  // F waits for the memory that W will release
      chunk = weight;
    } else {
      return false;
    }
    Fifo<int>& ready = chunks_[chunk].ready[static_cast<int>(kind)];
    *op = {chunk, ready.front(), kind};
    ready.pop_front();
    schedule_.device_ops[device].push_back(*op);
    last_[device] = kind;
    return true;
  }

 private:
  struct ChunkState {
    Fifo<int> ready[3];  // micro-batches, by OpKind
    Fifo<Nanos> due[2];  // when F (0) and B (1) under way upstream should arrive
    int open = 0;
    int limit = 0;
    Nanos forward_ns = 0;
    Nanos backward_ns = 0;
  };

  // Chunks nearer the end first: they release memory sooner (or the other way round, by policy, for
  // B). Among equals the lowest micro-batch.
  int BestReady(int device, OpKind kind) const {
    int best = -1;
    for (const int c : chunks_of_[device]) {
      const Fifo<int>& ready = chunks_[c].ready[static_cast<int>(kind)];
      if (ready.empty()) continue;
      if (best < 0 || Better(c, best, kind)) best = c;
    }
    return best;
  }

  // `best` comes before `c` in the order of the model when both are of one pipeline.
  bool Better(int c, int best, OpKind kind) const {
    if (pipeline_of_[c] == pipeline_of_[best]) {
      return !(policy_.shallow_backward && kind == OpKind::kBackward);
    }
    const int k = static_cast<int>(kind);
    return chunks_[c].ready[k].front() < chunks_[best].ready[k].front();
  }

  bool Fits(int device, int c) const {
    return memory_->used(device) + memory_->ForForward(c) + memory_->ForLater(c) <=
           problem_.devices[device].memory_bytes;
  }

  // `fitting`: only where memory and the limit allow it.
  int BestForward(int device, bool fitting) const {
    int best = -1;
    for (const int c : chunks_of_[device]) {
      const ChunkState& state = chunks_[c];
      if (state.ready[0].empty()) continue;
      if (fitting) {
        if (state.open >= state.limit) continue;
        if (!Fits(device, c)) continue;
      }
      if (best < 0 || Better(c, best, OpKind::kForward)) best = c;
    }
    return best;
  }

  // Is waiting for a preferred operation worth it, rather than starting one of chunk c now?
  bool Worth(int device, Nanos now, int c, double patience, bool for_weight) const {
    if (patience <= 0) return false;
    const Chunk& chunk = problem_.chunks[c];
    const double span = static_cast<double>(for_weight ? chunk.weight_ns : chunk.forward_ns);
    const Nanos until = now + static_cast<Nanos>(patience * span);
    for (const int other : chunks_of_[device]) {
      const ChunkState& state = chunks_[other];
      if (!state.due[1].empty() && state.due[1].front() >= now && state.due[1].front() < until) {
        return true;
      }
      if (for_weight && !state.due[0].empty() && state.due[0].front() >= now &&
          state.due[0].front() < until && state.open < state.limit && Fits(device, other)) {
        return true;
      }
    }
    return false;
  }

  const Problem& problem_;
  const GreedyPolicy& policy_;
  Rng rng_;
  const std::vector<std::vector<int>> chunks_of_;
  const std::vector<int> pipeline_of_;
  std::vector<ChunkState> chunks_;
  std::vector<bool> warm_;
  std::vector<OpKind> last_;  // what each device started last
  const MemoryUse* memory_ = nullptr;
  Schedule schedule_;
};

}  // namespace

Found Greedy(const Problem& problem, const GreedyPolicy& policy, Nanos latest_end_ns) {
  ATOLL_CHECK(policy.open_limit.empty() || policy.open_limit.size() == problem.chunks.size());
  Engine<GreedyPicker> engine(problem, {.latest_end_ns = latest_end_ns});
  GreedyPicker picker(problem, policy);
  picker.Watch(&engine.memory());
  Found found;
  found.result = engine.Run(picker);
  found.schedule = picker.TakeSchedule();
  return found;
}

Nanos GetObjectiveValue(const Result& result, Objective objective) {
  return objective == Objective::kMakespan ? result.makespan_ns : result.period_ns;
}

namespace {

// Takes F and B in the order of a schedule, and a ready W whenever the next of them is not ready,
// or is an F that does not fit into memory.
class FillingPicker {
 public:
  FillingPicker(const Problem& problem, const Schedule& schedule)
      : problem_(problem),
        next_(problem.devices.size(), 0),
        order_(problem.devices.size()),
        weights_(problem.devices.size()),
        ready_(problem.chunks.size()) {
    made_.device_ops.resize(problem.devices.size());
    for (size_t d = 0; d < order_.size(); ++d) {
      for (const Op& op : schedule.device_ops[d]) {
        if (op.kind != OpKind::kWeight) order_[d].push_back(op);
      }
    }
    const std::vector<int> pipeline_of = MapChunksToPipelines(problem);
    for (size_t c = 0; c < ready_.size(); ++c) {
      ready_[c].assign(2 * problem.pipelines[pipeline_of[c]].micro_batches, false);
    }
  }

  void Watch(const MemoryUse* memory) { memory_ = memory; }
  Schedule TakeSchedule() { return std::move(made_); }

  void Ready(const Op& op) {
    if (op.kind == OpKind::kWeight) {
      weights_[problem_.chunks[op.chunk].device].push_back(op);
    } else {
      ready_[op.chunk][Index(op)] = true;
    }
  }
  void Started(const Op&, Nanos) {}
  void Done(const Op&) {}

  bool Pick(int device, Nanos, Op* op) {
    if (next_[device] < order_[device].size()) {
      const Op& wanted = order_[device][next_[device]];
      if (ready_[wanted.chunk][Index(wanted)] && Fits(device, wanted)) {
        ++next_[device];
        *op = wanted;
        made_.device_ops[device].push_back(*op);
        return true;
      }
    }
    std::deque<Op>& weights = weights_[device];
    if (weights.empty()) return false;
    *op = weights.front();
    weights.pop_front();
    made_.device_ops[device].push_back(*op);
    return true;
  }

 private:
  static size_t Index(const Op& op) {
    return 2 * static_cast<size_t>(op.micro_batch) + (op.kind == OpKind::kBackward ? 1 : 0);
  }

  bool Fits(int device, const Op& op) const {
    return op.kind != OpKind::kForward || memory_->used(device) + memory_->ForForward(op.chunk) <=
                                              problem_.devices[device].memory_bytes;
  }

  const Problem& problem_;
  std::vector<size_t> next_;
  std::vector<std::vector<Op>> order_;    // F and B
  std::vector<std::deque<Op>> weights_;   // ready
  std::vector<std::vector<bool>> ready_;  // by chunk: F and B of each micro-batch
  const MemoryUse* memory_ = nullptr;
  Schedule made_;
};

}  // namespace

Found FillWithWeights(const Problem& problem, const Schedule& schedule, Nanos latest_end_ns) {
  Engine<FillingPicker> engine(problem, {.latest_end_ns = latest_end_ns});
  FillingPicker picker(problem, schedule);
  picker.Watch(&engine.memory());
  Found found;
  found.result = engine.Run(picker);
  found.schedule = picker.TakeSchedule();
  return found;
}

}  // namespace atl::sim
