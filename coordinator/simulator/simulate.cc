#include "coordinator/simulator/simulate.h"

#include <vector>

#include "coordinator/simulator/engine.h"

namespace atl::sim {
namespace {

// Takes every device's operations in the order of its list.
class ListPicker {
 public:
  ListPicker(const Problem& problem, const Schedule& schedule, const std::vector<int>& pipeline_of)
      : schedule_(schedule), next_(problem.devices.size(), 0), base_(problem.chunks.size()) {
    int64_t size = 0;
    for (size_t c = 0; c < problem.chunks.size(); ++c) {
      base_[c] = size;
      size += 3 * problem.pipelines[pipeline_of[c]].micro_batches;
    }
    ready_.assign(size, 0);
  }

  void Ready(const Op& op) { ready_[Index(op)] = 1; }
  bool Pick(int device, Nanos, Op* op) {
    const std::vector<Op>& ops = schedule_.device_ops[device];
    if (next_[device] == ops.size() || ready_[Index(ops[next_[device]])] == 0) return false;
    *op = ops[next_[device]++];
    return true;
  }
  void Started(const Op&, Nanos) {}
  void Done(const Op&) {}

 private:
  int64_t Index(const Op& op) const {
    return base_[op.chunk] + 3 * int64_t{op.micro_batch} + static_cast<int>(op.kind);
  }

  const Schedule& schedule_;
  std::vector<size_t> next_;
  std::vector<int64_t> base_;
  std::vector<uint8_t> ready_;
};

}  // namespace

Result SimulateUnchecked(const Problem& problem, const Schedule& schedule, const Options& options) {
  Engine<ListPicker> engine(problem, options);
  ListPicker picker(problem, schedule, engine.pipeline_of());
  return engine.Run(picker);
}

absl::StatusOr<Result> Simulate(const Problem& problem, const Schedule& schedule,
                                const Options& options) {
  ATOLL_RETURN_IF_ERROR(Validate(problem));
  ATOLL_RETURN_IF_ERROR(Validate(problem, schedule));
  return SimulateUnchecked(problem, schedule, options);
}

}  // namespace atl::sim
