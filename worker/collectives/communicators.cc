#include "worker/collectives/communicators.h"

#include <algorithm>
#include <utility>

#include "common/logging.h"
#include "kernels/thread_communicator.h"
#include "worker/collectives/peer.h"

namespace atl::worker {

absl::StatusOr<std::unique_ptr<Communicator>> Communicators::Create(
    const std::string& name, const std::vector<std::string>& devices, const std::string& own) {
  const auto at = std::find(devices.begin(), devices.end(), own);
  ATOLL_CHECK(at != devices.end(), "device ", own, " is not in group ", name);
  const int rank = static_cast<int>(at - devices.begin()), size = static_cast<int>(devices.size());
  const bool ours = std::all_of(devices.begin(), devices.end(), [&](const std::string& device) {
    return WorkerFromDevice(device) == options_.worker;
  });
  ATOLL_RETURN_IF_ERROR(aborted());
  if (options_.nccl.joins && options_.nccl.joins(devices)) {
    return JoinByNccl(name, rank, devices, ours);
  }
  const std::lock_guard lock(mutex_);
  if (!ours) {
    LogProtection();
    return JoinOverPeerLink(name, rank, devices);
  }
  return TakeThread(name, rank, size);
}

void Communicators::LogProtection() {
  if (options_.peer_blocks == nullptr || std::exchange(logged_, true)) return;
  LogInfo("worker", "all-reduces with other workers go over the peer link, ",
          options_.peer_blocks->has_checksums() ? "in plaintext: not all members have keys"
                                                : "encrypted: all members have keys");
}

std::unique_ptr<Communicator> Communicators::TakeThread(const std::string& name, int rank,
                                                        int size) {
  auto& members = threads_[name];
  if (members.empty()) members = NewThreadCommunicators(size, options_.timeout);
  ATOLL_CHECK(static_cast<int>(members.size()) == size && members[rank] != nullptr, "group ", name,
              " is joined twice by one rank, or has two sizes");
  return std::move(members[rank]);
}

std::unique_ptr<Communicator> Communicators::JoinOverPeerLink(
    const std::string& name, int rank, const std::vector<std::string>& devices) const {
  ATOLL_CHECK(options_.peer_blocks != nullptr, "group ", name, " reaches other workers");
  PeerGroup group{.name = absl::StrCat(options_.scope, "/", name), .rank = rank};
  group.timeout = options_.timeout;
  for (const std::string& device : devices) {
    group.workers.push_back(WorkerFromDevice(device));
    const auto site = options_.sites.find(group.workers.back());
    group.sites.push_back(site == options_.sites.end() ? "" : site->second);
  }
  return NewPeerCommunicator(options_.peer_blocks, std::move(group));
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicators::JoinByNccl(
    const std::string& name, int rank, const std::vector<std::string>& devices, bool ours) {
  const NcclOptions& nccl = options_.nccl;
  const std::string& own = devices[static_cast<size_t>(rank)];
  const auto backend = nccl.backends.find(own);
  ATOLL_CHECK(backend != nccl.backends.end(), "device ", own, " has no CUDA backend");
  if (!ours && !nccl.reaches_other_workers) {
    return absl::FailedPreconditionError(
        absl::StrCat("group ", name,
                     " reaches other workers by NCCL, whose connections are "
                     "neither encrypted nor authenticated: start the workers with --insecure, or "
                     "use a layout without such groups"));
  }
  const auto id = nccl.ids.find(name);
  if (id == nccl.ids.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker of ", devices[0], " has made no NCCL id for group ", name));
  }
  NcclGroup group;
  group.name = name;
  group.id = id->second;
  group.rank = rank;
  group.size = static_cast<int>(devices.size());
  group.timeout = options_.timeout;
  group.given_up = [this] { return !aborted().ok(); };
  auto joined = nccl.join(*backend->second, group);
  if (!joined.ok()) ATOLL_RETURN_IF_ERROR(aborted());
  return joined;
}

absl::Status Communicators::aborted() {
  if (options_.nccl.given_up && options_.nccl.given_up()) {
    return absl::AbortedError("the island is set up again");
  }
  const std::lock_guard lock(mutex_);
  return aborted_;
}

void Communicators::Abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (aborted_.ok()) aborted_ = absl::AbortedError(reason);
}

}  // namespace atl::worker
