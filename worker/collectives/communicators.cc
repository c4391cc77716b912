#include "worker/collectives/communicators.h"

#include <algorithm>
#include <utility>

#include "common/logging.h"
#include "kernels/thread_communicator.h"
#include "worker/collectives/peer.h"

namespace atl::worker {

Communicators::Communicators(CommunicatorsOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<Communicator>> Communicators::Create(
    const std::string& name, const std::vector<std::string>& devices, const std::string& own) {
  const auto at = std::find(devices.begin(), devices.end(), own);
  ATOLL_CHECK(at != devices.end(), "device ", own, " is not in group ", name);
  const int rank = static_cast<int>(at - devices.begin()), size = static_cast<int>(devices.size());
  const bool ours = std::all_of(devices.begin(), devices.end(), [&](const std::string& device) {
    return WorkerFromDevice(device) == options_.worker;
  });
  std::lock_guard lock(mutex_);
  if (!aborted_.ok()) return aborted_;
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

void Communicators::Abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (aborted_.ok()) aborted_ = absl::AbortedError(reason);
}

}  // namespace atl::worker
