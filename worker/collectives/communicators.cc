#include "worker/collectives/communicators.h"

#include <algorithm>
#include <utility>

#include "common/logging.h"
#include "kernels/thread_communicator.h"
#include "worker/collectives/peer.h"

namespace atl::worker {

Communicators::Communicators(CommunicatorsOptions options, Rendezvous* rendezvous)
    : options_(std::move(options)), rendezvous_(rendezvous) {}

absl::StatusOr<std::unique_ptr<Communicator>> Communicators::Create(
    const std::string& name, const std::vector<std::string>& devices, const std::string& own) {
  const auto at = std::find(devices.begin(), devices.end(), own);
  ATOLL_CHECK(at != devices.end(), "device ", own, " is not in group ", name);
  const int rank = static_cast<int>(at - devices.begin()), size = static_cast<int>(devices.size());
  const bool ours = std::all_of(devices.begin(), devices.end(), [&](const std::string& device) {
    return WorkerFromDevice(device) == options_.worker;
  });
  if (!ours) LogImplementation();
  if (!ours && options_.peer_blocks == nullptr) return JoinOthers(name, rank, size);
  std::lock_guard lock(mutex_);
  if (!aborted_.ok()) return aborted_;
  if (!ours) return JoinOverPeerLink(name, rank, devices);
  return TakeThread(name, rank, size);
}

void Communicators::LogImplementation() {
  std::lock_guard lock(mutex_);
  if (std::exchange(said_, true)) return;
  LogInfo("worker", "all-reduces with other workers go over ",
          options_.peer_blocks == nullptr
              ? "Gloo's own connections, in plaintext: not all members have keys"
          : options_.peer_blocks->has_checksums()
              ? "the peer link, in plaintext: a member has several endpoints"
              : "the peer link, encrypted: all members have keys");
}

std::unique_ptr<Communicator> Communicators::TakeThread(const std::string& name, int rank,
                                                        int size) {
  auto& members = threads_[name];
  if (members.empty()) members = NewThreadCommunicators(size, options_.timeout);
  ATOLL_CHECK(static_cast<int>(members.size()) == size && members[rank] != nullptr, "group ", name,
              " is joined twice by one rank, or has two sizes");
  return std::move(members[rank]);
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicators::JoinOthers(const std::string& name,
                                                                        int rank, int size) {
  ATOLL_CHECK(rendezvous_ != nullptr, "group ", name, " reaches other workers");
  std::unique_ptr<GlooCommunicator> member;
  {
    std::lock_guard lock(mutex_);
    if (!aborted_.ok()) return aborted_;
    if (device_ == nullptr) {
      ATOLL_ASSIGN_OR_RETURN(
          device_, GlooDevice::Create(options_.address, options_.allow_plaintext_beyond_loopback));
    }
    member = GlooCommunicator::Create(device_, {.name = absl::StrCat(options_.scope, "/", name),
                                                .rank = rank,
                                                .size = size,
                                                .timeout = options_.timeout});
    joining_.insert(member.get());
  }
  const absl::Status joined = member->Join(*rendezvous_);
  std::lock_guard lock(mutex_);
  joining_.erase(member.get());
  ATOLL_RETURN_IF_ERROR(joined);
  return member;
}

std::unique_ptr<Communicator> Communicators::JoinOverPeerLink(
    const std::string& name, int rank, const std::vector<std::string>& devices) const {
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
  if (!aborted_.ok()) return;
  aborted_ = absl::AbortedError(reason);
  for (Communicator* member : joining_) member->Abort(reason);
}

}  // namespace atl::worker
