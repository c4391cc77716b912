// Makes the communicators of a worker's devices: threads where a group is all ours, the peer link
// where it reaches other workers.

#ifndef ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_
#define ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/ids.h"
#include "worker/collectives/peer_blocks.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

struct CommunicatorsOptions {
  NodeId worker;      // whose devices are threads of this process
  std::string scope;  // begins all groups' names: one for each Configure of the island
  // Blocks of groups that reach other workers; outlives all communicators. Null where none does.
  PeerBlocks* peer_blocks = nullptr;
  // Sites of workers, where known: all-reduces over the peer link add up at each site first.
  std::map<NodeId, std::string> sites = {};
  Duration timeout = std::chrono::seconds(60);  // longest wait of a collective
};

// Good for one Configure: names of groups are unique within it. Thread-safe.
class Communicators final : public CommunicatorFactory {
 public:
  explicit Communicators(CommunicatorsOptions options);

  absl::StatusOr<std::unique_ptr<Communicator>> Create(const std::string& name,
                                                       const std::vector<std::string>& devices,
                                                       const std::string& own) override;
  void Abort(const std::string& reason) override;

 private:
  void LogProtection();  // of what goes to other workers; once
  std::unique_ptr<Communicator> TakeThread(const std::string& name, int rank, int size);
  std::unique_ptr<Communicator> JoinOverPeerLink(const std::string& name, int rank,
                                                 const std::vector<std::string>& devices) const;

  const CommunicatorsOptions options_;

  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> threads_;  // not taken yet
  absl::Status aborted_;
  bool logged_ = false;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_
