#include "worker/collectives/nccl_communicators.h"

#include <algorithm>
#include <utility>

#include "common/event_loop.h"

namespace atl::worker {
namespace {

constexpr Duration kWaitSlice =
    std::chrono::milliseconds(20);  // Abort ends a wait after at most this

}  // namespace

NcclCommunicators::NcclCommunicators(NcclCommunicatorsOptions options, Rendezvous* rendezvous,
                                     CommunicatorFactory* others)
    : options_(std::move(options)), rendezvous_(rendezvous), others_(others) {}

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
  NcclGroup group;
  group.name = name;
  group.rank = static_cast<int>(at - devices.begin());
  group.size = static_cast<int>(devices.size());
  group.timeout = options_.timeout;
  ATOLL_ASSIGN_OR_RETURN(group.id, ExchangeUniqueId(name, ours, group.rank));
  ATOLL_RETURN_IF_ERROR(aborted());
  group.given_up = [this] { return !aborted().ok(); };
  auto joined = options_.nccl.join(*backend->second, group);
  if (!joined.ok()) ATOLL_RETURN_IF_ERROR(aborted());
  return joined;
}

absl::StatusOr<std::string> NcclCommunicators::ExchangeUniqueId(const std::string& name, bool ours,
                                                                int rank) {
  ATOLL_CHECK(ours || rendezvous_ != nullptr, "group ", name, " reaches other workers");
  if (rank == 0) {
    absl::StatusOr<std::string> id = options_.nccl.new_id();
    if (ours) {
      std::lock_guard lock(mutex_);
      ids_.insert_or_assign(name, id);
      changed_.notify_all();
    } else if (id.ok()) {
      ATOLL_RETURN_IF_ERROR(rendezvous_->Set(absl::StrCat(options_.scope, "/", name), *id));
    }
    return id;
  }
  const Instant deadline = SteadyNow() + options_.timeout;
  return ours ? FindOurs(name, deadline) : FindTheirs(name, deadline);
}

absl::StatusOr<std::string> NcclCommunicators::FindOurs(const std::string& name, Instant deadline) {
  std::unique_lock lock(mutex_);
  const bool done = changed_.wait_for(lock, deadline - SteadyNow(), [&] {
    return !aborted_.ok() || ids_.find(name) != ids_.end();
  });
  if (!aborted_.ok()) return aborted_;
  if (done) return ids_.find(name)->second;
  return absl::DeadlineExceededError(
      absl::StrCat("rank 0 of group ", name, " did not come in time"));
}

absl::StatusOr<std::string> NcclCommunicators::FindTheirs(const std::string& name,
                                                          Instant deadline) {
  for (;;) {
    ATOLL_RETURN_IF_ERROR(aborted());
    const Instant until = std::min(deadline, SteadyNow() + kWaitSlice);
    absl::StatusOr<std::string> id =
        rendezvous_->Get(absl::StrCat(options_.scope, "/", name), until);
    if (id.ok() || until == deadline || !absl::IsDeadlineExceeded(id.status())) return id;
  }
}

absl::Status NcclCommunicators::aborted() {
  std::lock_guard lock(mutex_);
  return aborted_;
}

void NcclCommunicators::Abort(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (aborted_.ok()) aborted_ = absl::AbortedError(reason);
    changed_.notify_all();
  }
  others_->Abort(reason);
}

}  // namespace atl::worker
