#include "worker/pipeline/testing/local_communicators.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/thread_communicator.h"

namespace atl::worker {

absl::StatusOr<std::unique_ptr<Communicator>> LocalCommunicators::Create(
    const std::string& name, const std::vector<std::string>& devices, const std::string& own) {
  const auto rank =
      static_cast<size_t>(std::find(devices.begin(), devices.end(), own) - devices.begin());
  ATOLL_CHECK(rank < devices.size(), own, " is not in group ", name);
  std::unique_lock lock(mutex_);
  const auto [it, is_new] = meetings_.try_emplace(name);
  Meeting& meeting = it->second;
  if (is_new) {
    meeting.members = NewThreadCommunicators(static_cast<int>(devices.size()), timeout_);
  }
  ATOLL_CHECK(meeting.members.size() == devices.size() && meeting.members[rank] != nullptr, own,
              " joins group ", name, " twice, or as one of other devices");
  std::unique_ptr<Communicator> member = std::move(meeting.members[rank]);
  ++meeting.arrived;
  changed_.notify_all();
  const bool all = changed_.wait_for(lock, timeout_,
                                     [&] { return aborted_ || meeting.arrived == devices.size(); });
  if (aborted_) return absl::AbortedError(reason_);
  if (!all) {
    return absl::DeadlineExceededError(absl::StrCat("group ", name, ": only ", meeting.arrived,
                                                    " of ", devices.size(), " devices came"));
  }
  return member;
}

void LocalCommunicators::Abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  aborted_ = true;
  reason_ = reason;
  changed_.notify_all();
}

}  // namespace atl::worker
