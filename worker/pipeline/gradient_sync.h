// The reductions of one device's gradients in one step, on a thread of their own, so that they
// overlap with B and W of other layers: all-reduces, or, where ownership is sharded
// (common/model/ownership.h), reduce-scatters to the owners, whose parameters come back by
// all-gather after the optimizer's step. All devices do theirs in the same order of layers (see
// role.h), so that blocking collectives cannot wait for each other in a circle.

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
#include "worker/work_queue.h"

namespace atl::worker {

class GradientSync {
 public:
  // Communicators by group name.
  using Communicators = std::map<std::string, std::unique_ptr<Communicator>>;

  GradientSync(Device& device, const Communicators& communicators, Interrupt& interrupt);

  // Begins a step: nothing is complete.
  void Start();
  // The layer's gradient on this device is complete, at this point of the device's stream.
  void Complete(int32_t layer);
  // Ends the wait for layers that will never be complete.
  void Stop();
  // Until all is done; then what happened.
  absl::Status Wait();
  // Sends, after the optimizer's step and where ownership is sharded, the owners' parameters to all
  // holders. On the caller's thread, when the device's stream has come to its end.
  absl::Status Spread();
  const std::vector<OpSpan>& spans() const { return spans_; }  // after Wait

 private:
  absl::Status Run();
  absl::Status WaitFor(const SyncTask& task);
  absl::Status Do(const SyncTask& task);
  // `gradient`: of the layer's elements from `begin` on.
  absl::Status Sum(const SyncTask& task, const Tensor& gradient, int64_t begin = 0);
  Cuts ComputeCuts(const SyncTask& task, Range elements) const;
  absl::Status AllGatherTask(const SyncTask& task);
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
  std::vector<OpSpan> spans_;
  int64_t summed_bytes_ = 0;  // of the task under way; its thread's own
  WorkQueue thread_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_GRADIENT_SYNC_H_
