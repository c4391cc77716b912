#include "worker/island/member/peer_rendezvous.h"

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"

namespace atl::worker {

absl::Status PeerRendezvous::Set(const std::string& key, const std::string& value) {
  int64_t epoch;
  {
    const std::lock_guard lock(mutex_);
    ATOLL_RETURN_IF_ERROR(aborted_);
    epoch = epoch_;
  }
  OnEntry(epoch, key, value);
  return publish_(key, value);
}

absl::StatusOr<std::string> PeerRendezvous::Get(const std::string& key, Instant deadline) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return !aborted_.ok() || entries_.contains(key); };
  if (!changed_.wait_until(lock, ToSteady(deadline), there)) {
    return absl::DeadlineExceededError(absl::StrCat("no member has set ", key));
  }
  ATOLL_RETURN_IF_ERROR(aborted_);
  return entries_.at(key).second;
}

void PeerRendezvous::OnEntry(int64_t epoch, const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  if (epoch < epoch_ || entries_.size() >= kEntriesMax) return;
  entries_[key] = {epoch, value};
  changed_.notify_all();
}

void PeerRendezvous::BeginEpoch(int64_t epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
  aborted_ = absl::OkStatus();
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.first < epoch; });
}

void PeerRendezvous::Abort(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  aborted_ = why;
  changed_.notify_all();
}

}  // namespace atl::worker
