// Makes the communicators of a worker's devices: NCCL for groups of GPUs that are near each other,
// threads where a group is all ours, the peer link where it reaches other workers.

#ifndef ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_
#define ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/ids.h"
#include "kernels/cuda/nccl.h"
#include "worker/collectives/peer_blocks.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

// NCCL; tests replace it.
struct NcclFunctions {
  std::function<absl::StatusOr<std::string>()> new_id = NewNcclId;
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(Backend&, const NcclGroup&)> join =
      JoinNccl;
};

struct NcclOptions {
  // Returns whether NCCL joins these devices; the same answer on all workers. Null: it joins none.
  std::function<bool(const std::vector<std::string>& devices)> joins = nullptr;
  std::map<std::string, std::string> ids = {};  // by group, see ConfigureCall
  // A CUDA backend on each of our own GPUs, by device. They outlive all communicators.
  std::map<std::string, Backend*> backends = {};
  // Returns whether the plan's set-up has ended, besides Abort. May be null.
  std::function<bool()> given_up = nullptr;
  // True if groups may reach other workers: NCCL's connections are plaintext.
  bool reaches_other_workers = true;
  decltype(NcclFunctions::join) join = JoinNccl;
};

struct CommunicatorsOptions {
  NodeId worker;      // whose devices are threads of this process
  std::string scope;  // begins all groups' names: one for each Configure of the island
  // Blocks of groups that reach other workers; outlives all communicators. Null where none does.
  PeerBlocks* peer_blocks = nullptr;
  // Sites of workers, where known: all-reduces over the peer link add up at each site first.
  std::map<NodeId, std::string> sites = {};
  Duration timeout = std::chrono::seconds(60);  // longest wait, of joining and of a collective
  NcclOptions nccl = {};
};

// Good for one Configure: names of groups are unique within it. Thread-safe. A member that waits
// within NCCL for the others to join checks every few milliseconds whether that was ended. Members
// that have joined have an Abort of their own, for what first connects in a send or receive, too.
class Communicators final : public CommunicatorFactory {
 public:
  explicit Communicators(CommunicatorsOptions options) : options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Create(const std::string& name,
                                                       const std::vector<std::string>& devices,
                                                       const std::string& own) override;
  void Abort(const std::string& reason) override;

 private:
  absl::Status aborted();
  void LogProtection();  // of what goes to other workers; once
  std::unique_ptr<Communicator> TakeThread(const std::string& name, int rank, int size);
  std::unique_ptr<Communicator> JoinOverPeerLink(const std::string& name, int rank,
                                                 const std::vector<std::string>& devices) const;
  absl::StatusOr<std::unique_ptr<Communicator>> JoinByNccl(const std::string& name, int rank,
                                                           const std::vector<std::string>& devices,
                                                           bool ours);

  const CommunicatorsOptions options_;

  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> threads_;  // not taken yet
  absl::Status aborted_;                                                       // guarded by mutex_
  bool logged_ = false;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_
