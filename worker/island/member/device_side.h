// Additional parts of a member of an island where the host cannot touch its devices' memory (GPUs):
// a transport that works on the one between hosts, and NCCL's groups besides the others.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_DEVICE_SIDE_H_
#define ATOLL_WORKER_ISLAND_MEMBER_DEVICE_SIDE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/collectives/communicators.h"
#include "worker/pipeline/device_transport.h"

namespace atl::worker {

// Used by one thread at a time.
class DeviceSide {
 public:
  // Null where the host can touch all devices' memory. Takes the backends for messages out of the
  // devices, whose engine ends before this does, but after Close. `host`, and the log of what goes
  // to other workers, outlive it.
  static std::unique_ptr<DeviceSide> Of(const NodeId& worker, std::vector<LocalDevice>& devices,
                                        LocalTransport* host, MessageLog* log, Duration timeout);

  Transport* transport() { return &transport_; }

  // Prepares the plan, before the engine takes it on.
  absl::Status Prepare(const IslandPlan& plan, const EngineJob& job);
  // Lists NCCL's groups under this plan, of which the first device is one of these. REQUIRES: the
  // plan is valid for a job of this model.
  std::vector<std::string> ListOwnGroups(const IslandPlan& plan, const ModelConfig& model) const;
  // Fills in the devices: NCCL where the plan's members have it and are near each other.
  void SelectByNccl(const IslandPlan& plan, NcclOptions* options) const;
  // Nothing is under way afterwards.
  void Close() { transport_.Close(); }

 private:
  DeviceSide(LocalTransport* host, MessageLog* log, Duration timeout)
      : transport_(host, timeout, log) {}

  DeviceTransport transport_;
  std::map<std::string, Backend*> backends_;  // the engine's, which compute
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_DEVICE_SIDE_H_
