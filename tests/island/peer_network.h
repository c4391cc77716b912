// Workers of one process that reach each other as daemons do: messages by peer links over sockets
// on loopback, all-reduces of several workers too; encrypted with keys.

#ifndef ATOLL_TESTS_ISLAND_PEER_NETWORK_H_
#define ATOLL_TESTS_ISLAND_PEER_NETWORK_H_

#include <map>
#include <memory>

#include "tests/island/island_harness.h"

namespace atl::worker {

class PeerNetwork final : public IslandNetwork {
 public:
  // Counters of the plan's members. `seen` outlives it.
  struct Seen {
    int64_t tensors = 0;      // messages between stages and for commits that came over a socket
    int64_t all_reduces = 0;  // blocks of all-reduces, likewise
    int64_t all_reduce_bytes_between_sites = 0;
  };
  PeerNetwork(const IslandPlan& plan, bool with_keys, Seen* seen);
  ~PeerNetwork() override;

  void Begin(const IslandPlan& plan) override;
  Transport& transport(const NodeId& worker) override;
  CommunicatorFactory& communicators(const NodeId& worker) override;

 private:
  class Node;

  Seen* const seen_;
  std::map<NodeId, std::unique_ptr<Node>> nodes_;
  int64_t plans_ = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_PEER_NETWORK_H_
