// Makes communicators by NCCL for groups of GPUs that are near each other, and leaves the rest to
// another factory.

#ifndef ATOLL_WORKER_COLLECTIVES_NCCL_COMMUNICATORS_H_
#define ATOLL_WORKER_COLLECTIVES_NCCL_COMMUNICATORS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "kernels/cuda/nccl.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

// NCCL; tests replace it.
struct NcclFunctions {
  std::function<absl::StatusOr<std::string>()> new_id = NewNcclId;
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(Backend&, const NcclGroup&)> join =
      JoinNccl;
};

struct NcclCommunicatorsOptions {
  NodeId worker;                                // whose devices are threads of this process
  std::map<std::string, std::string> ids;       // by group, see ConfigureCall
  Duration timeout = std::chrono::seconds(60);  // longest wait, of joining and of a collective
  // Returns whether the plan's set-up has ended, besides Abort. May be null.
  std::function<bool()> given_up;
  // Returns whether NCCL joins these devices; the same answer on all workers.
  std::function<bool(const std::vector<std::string>& devices)> by_nccl;
  // A CUDA backend on each of our own GPUs, by device. They outlive all communicators.
  std::map<std::string, Backend*> backends;
  // True if groups may reach other workers: NCCL's connections are plaintext.
  bool reaches_other_workers = true;
  decltype(NcclFunctions::join) join = JoinNccl;
};

// Good for one Configure. Thread-safe. A member that waits within NCCL for the others to join
// checks every few milliseconds whether that was ended. Members that have joined have an Abort
// of their own, for what first connects in a send or receive, too.
class NcclCommunicators final : public CommunicatorFactory {
 public:
  // `others` outlives it.
  NcclCommunicators(NcclCommunicatorsOptions options, CommunicatorFactory* others)
      : options_(std::move(options)), others_(others) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Create(const std::string& name,
                                                       const std::vector<std::string>& devices,
                                                       const std::string& own) override;
  void Abort(const std::string& reason) override;

 private:
  absl::Status aborted();

  const NcclCommunicatorsOptions options_;
  CommunicatorFactory* const others_;

  std::mutex mutex_;
  absl::Status aborted_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_NCCL_COMMUNICATORS_H_
