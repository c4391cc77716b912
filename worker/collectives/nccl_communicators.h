// Makes communicators by NCCL for groups of GPUs that are near each other, and leaves the rest to
// another factory.

#ifndef ATOLL_WORKER_COLLECTIVES_NCCL_COMMUNICATORS_H_
#define ATOLL_WORKER_COLLECTIVES_NCCL_COMMUNICATORS_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/ids.h"
#include "kernels/cuda/nccl.h"
#include "worker/collectives/rendezvous.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

// NCCL; tests replace it.
struct NcclFunctions {
  std::function<absl::StatusOr<std::string>()> new_id = NewNcclId;
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(Backend&, const NcclGroup&)> join =
      JoinNccl;
};

struct NcclCommunicatorsOptions {
  NodeId worker;      // whose devices are threads of this process
  std::string scope;  // begins all names in the rendezvous: one for each Configure of the island
  Duration timeout = std::chrono::seconds(60);  // longest wait, of joining and of a collective
  // Returns whether NCCL joins these devices; the same answer on all workers.
  std::function<bool(const std::vector<std::string>& devices)> by_nccl;
  // A CUDA backend on each of our own GPUs, by device. They outlive all communicators.
  std::map<std::string, Backend*> backends;
  // True if groups may reach other workers: NCCL's connections are plaintext.
  bool reaches_other_workers = true;
  NcclFunctions nccl;
};

// Good for one Configure. Thread-safe. A member that waits for a group's id, or within NCCL for the
// others to join, checks every few milliseconds whether Abort was called. Members that have joined
// have an Abort of their own, for what first connects in a send or receive, too.
class NcclCommunicators final : public CommunicatorFactory {
 public:
  // `rendezvous` (null where no group reaches another worker) and `others` outlive it.
  NcclCommunicators(NcclCommunicatorsOptions options, Rendezvous* rendezvous,
                    CommunicatorFactory* others);

  absl::StatusOr<std::unique_ptr<Communicator>> Create(const std::string& name,
                                                       const std::vector<std::string>& devices,
                                                       const std::string& own) override;
  void Abort(const std::string& reason) override;

 private:
  // The id of a group: rank 0 makes it and publishes it to the others.
  absl::StatusOr<std::string> ExchangeUniqueId(const std::string& name, bool ours, int rank);
  absl::StatusOr<std::string> FindOurs(const std::string& name, Instant deadline);
  absl::StatusOr<std::string> FindTheirs(const std::string& name, Instant deadline);
  absl::Status aborted();

  const NcclCommunicatorsOptions options_;
  Rendezvous* const rendezvous_;
  CommunicatorFactory* const others_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, absl::StatusOr<std::string>> ids_;  // of groups within this worker
  absl::Status aborted_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_NCCL_COMMUNICATORS_H_
