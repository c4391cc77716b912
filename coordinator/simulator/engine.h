// The event loop shared by playing a fixed schedule and by greedy scheduling. Internal.
//
// A Picker decides what an idle device does next:
//   void Ready(const Op& op)                      the inputs of `op` are there
//   bool Pick(int device, Nanos now, Op* op)      true: start *op now (it must be ready)
//   void Started(const Op& op, Nanos end_ns)      an operation of any device has started
//   void Done(const Op& op)                       ... has ended; memory is already released
// Memory in use is in Engine::memory().

#ifndef ATOLL_COORDINATOR_SIMULATOR_ENGINE_H_
#define ATOLL_COORDINATOR_SIMULATOR_ENGINE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/simulator/memory_use.h"
#include "coordinator/simulator/problem.h"
#include "coordinator/simulator/simulate.h"
#include "coordinator/simulator/transport.h"

namespace atl::sim {

template <class Picker>
class Engine {
 public:
  Engine(const Problem& problem, const Options& options)
      : problem_(problem),
        options_(options),
        transport_(problem.network, events_, options.record ? &result_.messages : nullptr),
        pipeline_of_(MapChunksToPipelines(problem)),
        running_(problem.devices.size()),
        idle_(problem.devices.size(), true),
        dirty_(problem.devices.size(), false),
        memory_(problem, pipeline_of_),
        left_on_device_(problem.devices.size(), 0),
        work_left_ns_(problem.devices.size(), 0),
        optimizers_(problem.devices.size()),
        left_of_chunk_(problem.chunks.size(), 0) {
    result_.devices.resize(problem.devices.size());
    if (HasTimeline()) result_.timeline.resize(problem.devices.size());
  }

  const MemoryUse& memory() const { return memory_; }
  const std::vector<int>& pipeline_of() const { return pipeline_of_; }

  Result Run(Picker& picker) {
    Begin(picker);
    Dispatch(picker, 0);
    while (!events_.empty() && left_ > 0) {
      const Nanos now = events_.NextTime();
      do {
        Handle(picker, now, events_.Pop());
        ++result_.events;
      } while (!events_.empty() && events_.NextTime() == now);
      transport_.EndOfInstant(now);
      Dispatch(picker, now);
      if (too_late_) {
        result_.verdict = Verdict::kStopped;
        break;
      }
    }
    Finish();
    return std::move(result_);
  }

 private:
  struct Running {
    Op op;
    Nanos start_ns = 0;
  };

  static uint64_t Token(int chunk, int micro_batch, bool forward) {
    return uint64_t{static_cast<uint32_t>(chunk)} << 33 |
           uint64_t{static_cast<uint32_t>(micro_batch)} << 1 | (forward ? 1 : 0);
  }

  bool HasTimeline() const { return options_.record || options_.timeline; }
  bool IsFirst(int c) const { return c == problem_.pipelines[pipeline_of_[c]].first_chunk; }
  bool IsLast(int c) const {
    const Pipeline& p = problem_.pipelines[pipeline_of_[c]];
    return c == p.first_chunk + p.chunk_count - 1;
  }

  void Begin(Picker& picker) {
    for (size_t c = 0; c < problem_.chunks.size(); ++c) {
      const Chunk& chunk = problem_.chunks[c];
      const int micro_batches = problem_.pipelines[pipeline_of_[c]].micro_batches;
      left_of_chunk_[c] = micro_batches;
      const int ops = micro_batches * (IsSplit(chunk) ? 3 : 2);
      left_on_device_[chunk.device] += ops;
      work_left_ns_[chunk.device] +=
          micro_batches * (chunk.forward_ns + chunk.backward_ns + chunk.weight_ns) +
          chunk.optimizer_ns;
      left_ += ops + (chunk.optimizer_ns > 0 ? 1 : 0);
      if (!IsFirst(static_cast<int>(c))) continue;
      for (int m = 0; m < micro_batches; ++m) {
        picker.Ready({static_cast<int>(c), m, OpKind::kForward});
      }
    }
    for (size_t d = 0; d < problem_.devices.size(); ++d) {
      Touch(static_cast<int>(d));
      if (HasTimeline()) result_.timeline[d].reserve(left_on_device_[d] + 1);  // and the optimizer
    }
  }

  void Touch(int device) {
    if (dirty_[device]) return;
    dirty_[device] = true;
    dirty_devices_.push_back(device);
  }

  void Dispatch(Picker& picker, Nanos now) {
    for (size_t i = 0; i < dirty_devices_.size(); ++i) {
      const int device = dirty_devices_[i];
      dirty_[device] = false;
      if (!idle_[device]) continue;
      Op op;
      if (left_on_device_[device] > 0) {
        if (picker.Pick(device, now, &op)) StartOp(picker, device, now, op);
      } else if (!optimizers_[device].empty()) {
        op = {optimizers_[device].front(), 0, OpKind::kOptimizer};
        optimizers_[device].erase(optimizers_[device].begin());
        StartOp(picker, device, now, op);
      }
    }
    dirty_devices_.clear();
  }

  Nanos GetDuration(const Op& op) const {
    const Chunk& chunk = problem_.chunks[op.chunk];
    switch (op.kind) {
      case OpKind::kForward:
        return chunk.forward_ns;
      case OpKind::kBackward:
        return chunk.backward_ns;
      case OpKind::kWeight:
        return chunk.weight_ns;
      case OpKind::kOptimizer:
        return chunk.optimizer_ns;
    }
    return 0;
  }

  void StartOp(Picker& picker, int device, Nanos now, const Op& op) {
    const Nanos end_ns = now + GetDuration(op);
    idle_[device] = false;
    running_[device] = {op, now};
    too_late_ = too_late_ || now > options_.latest_end_ns - work_left_ns_[device];
    work_left_ns_[device] -= end_ns - now;
    DeviceUse& use = result_.devices[device];
    if (use.busy_ns == 0 && use.last_ns == 0) use.first_ns = now;
    use.busy_ns += end_ns - now;
    if (op.kind == OpKind::kForward) {
      memory_.Start(op);
      const int64_t used = memory_.used(device);
      use.peak_bytes = std::max(use.peak_bytes, used);
      if (used > problem_.devices[device].memory_bytes && result_.verdict == Verdict::kFits) {
        result_.verdict = Verdict::kOutOfMemory;
        oom_device_ = device;
        oom_op_ = op;
      }
    }
    picker.Started(op, end_ns);
    events_.Push(end_ns, EventKind::kOpDone, device);
  }

  void Handle(Picker& picker, Nanos now, const Event& event) {
    switch (event.kind) {
      case EventKind::kOpDone:
        OpDone(picker, now, static_cast<int>(event.token));
        break;
      case EventKind::kSent:
        idle_[static_cast<int>(event.token)] = true;
        Touch(static_cast<int>(event.token));
        break;
      case EventKind::kArrive: {
        const int chunk = static_cast<int>(event.token >> 33);
        const int micro_batch = static_cast<int>(event.token >> 1 & 0xffffffff);
        const bool forward = (event.token & 1) != 0;
        Arrived(picker, chunk, micro_batch, forward ? OpKind::kForward : OpKind::kBackward);
        break;
      }
      default:
        transport_.Handle(now, event);
    }
  }

  void Arrived(Picker& picker, int chunk, int micro_batch, OpKind kind) {
    picker.Ready({chunk, micro_batch, kind});
    Touch(problem_.chunks[chunk].device);
  }

  void OpDone(Picker& picker, Nanos now, int device) {
    const Op op = running_[device].op;
    const Chunk& chunk = problem_.chunks[op.chunk];
    const Nanos send_ns = op.kind == OpKind::kForward    ? chunk.forward_send_ns
                          : op.kind == OpKind::kBackward ? chunk.backward_send_ns
                                                         : 0;
    idle_[device] = send_ns == 0;
    if (send_ns > 0) events_.Push(now + send_ns, EventKind::kSent, device);
    --left_;
    ++result_.operations;
    result_.devices[device].last_ns = now;
    result_.makespan_ns = std::max(result_.makespan_ns, now);
    if (HasTimeline()) result_.timeline[device].push_back({op, running_[device].start_ns, now});
    Touch(device);
    if (op.kind == OpKind::kOptimizer) return;
    memory_.End(op);
    --left_on_device_[device];
    switch (op.kind) {
      case OpKind::kForward:
        if (IsLast(op.chunk)) {
          picker.Ready({op.chunk, op.micro_batch, OpKind::kBackward});
        } else {
          SendOn(picker, now, op, chunk.forward_link, chunk.forward_bytes, op.chunk + 1);
        }
        break;
      case OpKind::kBackward:
        if (!IsFirst(op.chunk)) {
          const Chunk& before = problem_.chunks[op.chunk - 1];
          SendOn(picker, now, op, before.backward_link, before.backward_bytes, op.chunk - 1);
        }
        if (IsSplit(chunk)) {
          picker.Ready({op.chunk, op.micro_batch, OpKind::kWeight});
        } else {
          GradientDone(op.chunk);
        }
        break;
      default:
        GradientDone(op.chunk);
    }
    picker.Done(op);
  }

  void SendOn(Picker& picker, Nanos now, const Op& op, int link, int64_t bytes, int to_chunk) {
    const bool forward = op.kind == OpKind::kForward;
    if (link == kNoLink) {
      Arrived(picker, to_chunk, op.micro_batch, op.kind);
      return;
    }
    const int replica = problem_.pipelines[pipeline_of_[op.chunk]].replica;
    const uint64_t send_priority =
        uint64_t{static_cast<uint32_t>(op.micro_batch)} << 32 | static_cast<uint32_t>(replica);
    MessageSpan span{link, op.chunk, op.micro_batch, forward};
    transport_.Send(now, link, bytes, Token(to_chunk, op.micro_batch, forward), send_priority,
                    span);
  }

  void GradientDone(int c) {
    if (--left_of_chunk_[c] > 0 || problem_.chunks[c].optimizer_ns == 0) return;
    optimizers_[problem_.chunks[c].device].push_back(c);
    Touch(problem_.chunks[c].device);
  }

  void Finish() {
    for (const DeviceUse& use : result_.devices) {
      result_.period_ns = std::max(result_.period_ns, use.last_ns - use.first_ns);
    }
    if (result_.verdict == Verdict::kStopped) {
      result_.reason = absl::StrCat("stopped with ", left_, " operations to do");
    } else if (left_ > 0) {
      result_.verdict = Verdict::kStuck;
      result_.reason = absl::StrCat("it waits for itself: ", left_, " operations can never start");
    } else if (result_.verdict == Verdict::kOutOfMemory) {
      result_.reason =
          absl::StrCat("device ", oom_device_, " runs out of memory at ", ToString(oom_op_),
                       ": needs ", result_.devices[oom_device_].peak_bytes,
                       " bytes for activations, has ", problem_.devices[oom_device_].memory_bytes);
    }
  }

  const Problem& problem_;
  const Options options_;
  Result result_;
  EventQueue events_;
  Transport transport_;
  std::vector<int> pipeline_of_;
  std::vector<Running> running_;
  std::vector<bool> idle_;
  std::vector<bool> dirty_;
  std::vector<int> dirty_devices_;
  MemoryUse memory_;
  std::vector<int> left_on_device_;
  std::vector<Nanos> work_left_ns_;           // by device, of what has not started
  std::vector<std::vector<int>> optimizers_;  // per device: chunks whose step can run
  std::vector<int> left_of_chunk_;            // gradients missing
  int64_t left_ = 0;                          // operations not done
  bool too_late_ = false;
  int oom_device_ = -1;
  Op oom_op_;
};

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_ENGINE_H_
