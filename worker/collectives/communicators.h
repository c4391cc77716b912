// Makes the communicators of a worker's devices: threads where a group is all ours; where it
// reaches other workers, Gloo or the peer link (common/protocol/peer_collectives.h).

#ifndef ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_
#define ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/ids.h"
#include "worker/collectives/gloo.h"
#include "worker/collectives/peer_blocks.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

struct CommunicatorsOptions {
  NodeId worker;      // whose devices are threads of this process
  std::string scope;  // begins all names in the rendezvous: one for each Configure of the island
  std::string address = "127.0.0.1";  // of the interface that other workers reach us at
  bool allow_plaintext_beyond_loopback = false;
  // Where not null, groups that reach other workers all-reduce over the peer link.
  PeerBlocks* peer_blocks = nullptr;
  // Of workers, where known: all-reduces over the peer link add up at each site first.
  std::map<NodeId, std::string> sites = {};
  Duration timeout = std::chrono::seconds(60);  // longest wait, of joining and of a collective
};

// Good for one Configure: names of groups are unique within it. Thread-safe.
class Communicators final : public CommunicatorFactory {
 public:
  // `rendezvous` outlives it; null where no group reaches another worker.
  Communicators(CommunicatorsOptions options, Rendezvous* rendezvous);

  absl::StatusOr<std::unique_ptr<Communicator>> Create(const std::string& name,
                                                       const std::vector<std::string>& devices,
                                                       const std::string& own) override;
  void Abort(const std::string& reason) override;

 private:
  void LogImplementation();  // once, in the log
  std::unique_ptr<Communicator> TakeThread(const std::string& name, int rank, int size);
  absl::StatusOr<std::unique_ptr<Communicator>> JoinOthers(const std::string& name, int rank,
                                                           int size);
  std::unique_ptr<Communicator> JoinOverPeerLink(const std::string& name, int rank,
                                                 const std::vector<std::string>& devices) const;

  const CommunicatorsOptions options_;
  Rendezvous* const rendezvous_;

  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> threads_;  // not taken yet
  std::shared_ptr<GlooDevice> device_;                                         // once needed
  std::set<Communicator*> joining_;
  absl::Status aborted_;
  bool said_ = false;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_COMMUNICATORS_H_
