// Communicators across processes, by Gloo over TCP, on host memory.
//
// Reductions go around a ring (gloo's RING algorithm): every element is added up in one order, that
// the group's size and the tensor's fix, and the result is handed round, so that all members have
// the same bits. bf16 is widened first.
//
// Gloo's connections are neither encrypted nor authenticated, and it trusts what it reads: they are
// for loopback, and for networks that are private by other means, when the operator says so.
// Members exchange their ports through the Rendezvous, whose links are authenticated.

#ifndef ATOLL_WORKER_COLLECTIVES_GLOO_H_
#define ATOLL_WORKER_COLLECTIVES_GLOO_H_

#include <memory>
#include <string>

#include "common/status.h"
#include "common/time.h"
#include "kernels/host_communicator.h"
#include "worker/collectives/rendezvous.h"

namespace atl::worker {

// A place to make connections from: one thread that serves those of all its groups. Making one lets
// this process ignore SIGPIPE, unless it handles it.
class GlooDevice {
 public:
  // `address`: numeric or a name, of one of this machine's interfaces; ports are the system's to
  // choose. INVALID_ARGUMENT: beyond loopback without permission. UNAVAILABLE: no such address
  // here.
  static absl::StatusOr<std::shared_ptr<GlooDevice>> Create(const std::string& address,
                                                            bool allow_plaintext_beyond_loopback);
  virtual ~GlooDevice() = default;
};

struct GlooGroup {
  std::string name;  // unique in the rendezvous, for ever
  int rank = 0;
  int size = 1;
  Duration timeout{};  // longest wait for one step of joining, or of a collective
};

// A member of a group that is being joined, or has been.
class GlooCommunicator : public HostCommunicator {
 public:
  // Does not connect yet.
  static std::unique_ptr<GlooCommunicator> Create(std::shared_ptr<GlooDevice> device,
                                                  GlooGroup group);

  // Connects to all other members: waits for them, bounded. Called once, before anything but Abort;
  // after an error the communicator is unusable.
  virtual absl::Status Join(Rendezvous& rendezvous) = 0;

  // Communicator::Abort, which also ends a Join: closes all connections at once, so that the other
  // members' waits end within milliseconds too.
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_GLOO_H_
