// Communicators across workers over the peer link, on host memory: encrypted where the link is.
//
// Every member owns a part of the tensor. All send it their numbers of that part, it adds them up
// in the order of ranks, rounds once, and sends the result to all. So each member moves as many
// bytes as in a ring, in two waits instead of 2 (n - 1), and the order of summing is that of the
// ranks for every element, whatever the size. All-reduces of two members, and small ones of more,
// need one wait: each sends all its numbers to all others, and every member adds up everything, in
// the same order.
//
// Where members are at several sites, each part has an agent at each site but its owner's
// (group_sites.h). It adds up the numbers of its site, the owner adds up what sites send, and the
// agents pass the result on. So what goes between sites does not grow with the members at a site.
//
// Big parts travel in blocks, and the result of one goes out while the next come in. Few blocks
// wait to be sent at a time. A block whose checksum is wrong fails the call. A member that leaves
// in good order says so behind its last block; one that fails, or is lost, ends the calls of all
// others at once.

#ifndef ATOLL_WORKER_COLLECTIVES_PEER_H_
#define ATOLL_WORKER_COLLECTIVES_PEER_H_

#include <memory>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/time.h"
#include "kernels/communicator.h"
#include "worker/collectives/peer_blocks.h"

namespace atl::worker {

struct PeerGroup {
  std::string name;  // unique among those of the island, for ever; at most 400 bytes
  int rank = 0;
  std::vector<NodeId> workers;  // of each rank; a worker may have several
  // The site of each rank; ranks without a known one ("") are at one site. Empty: all are at one.
  std::vector<std::string> sites = {};
  Duration timeout{};  // longest wait for another member
};

// `blocks` outlives it. Does not wait; but before the first collective all members are made.
std::unique_ptr<Communicator> NewPeerCommunicator(PeerBlocks* blocks, PeerGroup group);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_PEER_H_
