// Rendezvous of a collective's members: every member announces itself to all, over the peer link.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_PEER_RENDEZVOUS_H_
#define ATOLL_WORKER_ISLAND_MEMBER_PEER_RENDEZVOUS_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "worker/collectives/rendezvous.h"

namespace atl::worker {

class PeerRendezvous final : public Rendezvous {
 public:
  // `publish` sends an entry to all other members of the island.
  using Publish = std::function<absl::Status(const std::string& key, const std::string& value)>;
  explicit PeerRendezvous(Publish publish) : publish_(std::move(publish)) {}

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, Instant deadline) override;

  // Takes an entry from another member, at an attempt that may be ahead of ours.
  void OnEntry(int64_t epoch, const std::string& key, const std::string& value);
  // Forgets what belongs to earlier attempts; waits may succeed again.
  void BeginEpoch(int64_t epoch);
  void Abort(const absl::Status& why);  // ends every Get, until BeginEpoch

 private:
  static constexpr size_t kEntriesMax = 16384;

  const Publish publish_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t epoch_ = 0;                                               // all guarded by mutex_
  std::map<std::string, std::pair<int64_t, std::string>> entries_;  // with their epoch
  absl::Status aborted_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_PEER_RENDEZVOUS_H_
