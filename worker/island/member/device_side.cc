#include "worker/island/member/device_side.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "worker/pipeline/role.h"
#include "worker/pipeline/transport_selection.h"

namespace atl::worker {

std::unique_ptr<DeviceSide> DeviceSide::Of(const NodeId& worker, std::vector<LocalDevice>& devices,
                                           LocalTransport* host, MessageLog* log,
                                           Duration timeout) {
  if (std::all_of(devices.begin(), devices.end(),
                  [](const LocalDevice& d) { return d.compute->memory_on_host(); })) {
    return nullptr;
  }
  std::unique_ptr<DeviceSide> side(new DeviceSide(host, log, timeout));
  for (LocalDevice& device : devices) {
    ATOLL_CHECK(device.sending != nullptr && device.receiving != nullptr, "device ", device.index,
                " has no backends for its messages");
    const std::string name = absl::StrCat(worker, "/", device.index);
    side->backends_[name] = device.compute.get();
    side->transport_.Add(name, std::move(device.sending), std::move(device.receiving));
  }
  return side;
}

absl::Status DeviceSide::Prepare(const IslandPlan& plan, const EngineJob& job) {
  int64_t sequences = 0;
  for (const PlanReplica& replica : plan.replicas) {
    sequences = std::max(sequences, replica.micro_batch_sequences);
  }
  int64_t cols = 0;  // of the widest activation between layers
  for (int64_t layer = 0; layer <= job.model.layers; ++layer) {
    cols = std::max(cols, job.model.OutputColumns(layer));
  }
  ATOLL_RETURN_IF_ERROR(transport_.Prepare(
      plan, sequences * job.sequence_length * cols * GetElementSize(job.compute)));
  for (const StageLink& stage_link : ListStageLinks(plan)) {
    if (!backends_.contains(stage_link.from)) continue;
    LogInfo("transport", stage_link.from, " > ", stage_link.to, ": ",
            transport_.DescribeTransport(stage_link.from, stage_link.to));
  }
  return absl::OkStatus();
}

std::vector<std::string> DeviceSide::ListOwnGroups(const IslandPlan& plan,
                                                   const ModelConfig& model) const {
  std::vector<std::string> names;
  for (const std::string& device : ListDevices(plan)) {
    if (!backends_.contains(device)) continue;
    const auto layers = static_cast<int32_t>(model.layers) + 2;
    for (const DeviceGroup& group :
         MakeDeviceRole(plan, device, layers, GetTiedTable(model)).groups) {
      if (group.devices[0] == device && SharesNccl(plan, group.devices)) {
        names.push_back(group.name);
      }
    }
  }
  for (const StageLink& stage_link : ListStageLinks(plan)) {
    if (backends_.contains(stage_link.from) &&
        SelectTransport(plan, stage_link.from, stage_link.to).kind == TransportKind::kNccl) {
      names.push_back(stage_link.Name());
    }
  }
  return names;
}

void DeviceSide::SelectByNccl(const IslandPlan& plan, NcclOptions* options) const {
  options->joins = [plan](const std::vector<std::string>& devices) {
    return SharesNccl(plan, devices);
  };
  options->backends = backends_;
}

}  // namespace atl::worker
