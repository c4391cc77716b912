#include <deque>
#include <utility>
#include <vector>

#include "coordinator/simulator/engine.h"
#include "coordinator/simulator/search.h"

namespace atl::sim {
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
