// The reductions of one device's gradients in one step, on a thread of their own, so that they
// overlap with B and W of other layers: all-reduces, or, where ownership is sharded
// (common/model/ownership.h), reduce-scatters to the owners, whose parameters come back by
// all-gather after the optimizer's step. All devices do theirs in the same order of layers (see
// role.h), so that blocking collectives cannot wait for each other in a circle.
//
// Where collectives are enqueued (NCCL's), the host waits for none of them: streams wait for each
// other, and a layer's all-gather is waited for by the first operation that reads the layer, so
// that it overlaps with F of the layers before it.

#ifndef ATOLL_WORKER_PIPELINE_GRADIENT_SYNC_H_
#define ATOLL_WORKER_PIPELINE_GRADIENT_SYNC_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "worker/pipeline/device.h"
#include "worker/pipeline/interrupt.h"
#include "worker/pipeline/stream_clock.h"
#include "worker/work_queue.h"

namespace atl::worker {

class GradientSync {
 public:
  // Communicators by group name.
  using Communicators = std::map<std::string, std::unique_ptr<Communicator>>;

  GradientSync(Device& device, const Communicators& communicators, Interrupt& interrupt);
  ~GradientSync() { Stop(); }  // afterwards nothing is raised

  // Begins a step: nothing is complete.
  void Start();
  // The layer's gradient on this device is complete, at this point of the device's stream.
  void Complete(int32_t layer);
  // Ends the wait for layers that will never be complete.
  void Stop();
  // Until all is done or enqueued; then what happened.
  absl::Status Wait();
  // Puts all that follows on the device's stream behind all reductions. After Wait.
  void Join();
  // Sends, after the optimizer's step on the device's stream and where ownership is sharded, the
  // owners' parameters to all holders. On the caller's thread. `waits`: for each layer, to time it.
  absl::Status Spread(bool waits);
  // Lets all that follows on the device's stream read and write a layer's parameters. From the
  // thread that spreads.
  void AwaitSpread(int32_t layer);
  void AwaitSpread();  // of all layers
  bool spreads() const { return !awaited_.empty(); }
  // Returns what has become of the newest Spread; OK while it is under way. A device gives a
  // failure once, to whichever thread looks first; here all get it. `waits`: until it is over.
  absl::Status EndSpread(bool waits);
  // REQUIRES: after Wait, and the device has done all of it.
  std::vector<OpSpan> spans() const;

 private:
  absl::Status Run();
  absl::Status WaitFor(const SyncTask& task);
  absl::Status Do(const SyncTask& task);
  // `gradient`: of the layer's elements from `begin` on.
  absl::Status Sum(const SyncTask& task, const Tensor& gradient, int64_t begin = 0);
  Cuts ComputeCuts(const SyncTask& task, Range elements) const;
  absl::Status AllGatherTask(const SyncTask& task);
  // Calls function(held) for what lies here of the task's elements.
  template <typename Function>
  void ForEachHeld(const SyncTask& task, const Function& function) const;
  void AwaitSpread(HeldState& held);
  void NoticeSpread();
  absl::Status AllReduceTable(const SyncTask& task);

  Device& device_;
  const Communicators& communicators_;
  Interrupt& interrupt_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int32_t> complete_;                        // guarded by mutex_
  bool stopped_ = false;                              // guarded by mutex_
  std::map<int32_t, std::unique_ptr<Event>> events_;  // by layer; guarded by mutex_
  absl::Status status_;
  StreamClock clock_;
  struct Timed {
    OpSpan span;
    int start = 0, end = 0;  // points of the clock
  };
  std::vector<Timed> timed_;
  std::vector<OpSpan> spread_spans_;
  std::unique_ptr<Event> summed_, stepped_;
  // By task: its all-gather. Which layers are not behind theirs yet on the device's stream.
  std::vector<std::unique_ptr<Event>> gathered_;
  std::set<HeldState*> awaited_;
  std::mutex spread_mutex_;
  bool spreading_ = false;      // and has not been seen to end; guarded by spread_mutex_
  absl::Status spread_status_;  // guarded by spread_mutex_
  int64_t summed_bytes_ = 0;    // of the task under way; its thread's own
  WorkQueue thread_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_GRADIENT_SYNC_H_
