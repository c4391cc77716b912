#include "worker/collectives/nccl_communicators.h"

#include <algorithm>

namespace atl::worker {

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicators::Create(
    const std::string& name, const std::vector<std::string>& devices, const std::string& own) {
  if (!options_.by_nccl(devices)) return others_->Create(name, devices, own);
  const auto at = std::find(devices.begin(), devices.end(), own);
  ATOLL_CHECK(at != devices.end(), "device ", own, " is not in group ", name);
  const auto backend = options_.backends.find(own);
  ATOLL_CHECK(backend != options_.backends.end(), "device ", own, " has no CUDA backend");
  const bool ours = std::all_of(devices.begin(), devices.end(), [&](const std::string& device) {
    return WorkerFromDevice(device) == options_.worker;
  });
  if (!ours && !options_.reaches_other_workers) {
    return absl::FailedPreconditionError(
        absl::StrCat("group ", name,
                     " reaches other workers by NCCL, whose connections are "
                     "neither encrypted nor authenticated: start the workers with --insecure, or "
                     "use a layout without such groups"));
  }
  const auto id = options_.ids.find(name);
  if (id == options_.ids.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker of ", devices[0], " has made no NCCL id for group ", name));
  }
  ATOLL_RETURN_IF_ERROR(aborted());
  NcclGroup group;
  group.name = name;
  group.id = id->second;
  group.rank = static_cast<int>(at - devices.begin());
  group.size = static_cast<int>(devices.size());
  group.timeout = options_.timeout;
  group.given_up = [this] { return !aborted().ok(); };
  auto joined = options_.join(*backend->second, group);
  if (!joined.ok()) ATOLL_RETURN_IF_ERROR(aborted());
  return joined;
}

absl::Status NcclCommunicators::aborted() {
  if (options_.given_up && options_.given_up()) {
    return absl::AbortedError("the island is set up again");
  }
  const std::lock_guard lock(mutex_);
  return aborted_;
}

void NcclCommunicators::Abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_.ok()) aborted_ = absl::AbortedError(reason);
  }
  others_->Abort(reason);
}

}  // namespace atl::worker
