// Leader election and fencing of coordinators: the one leads whose lease the key PREFIX/leader has.
// The key's create revision is the fencing number of the leadership: every write compares it, so
// nothing is written by one that does not lead any more.

#ifndef ATOLL_COORDINATOR_ETCD_LEADERSHIP_H_
#define ATOLL_COORDINATOR_ETCD_LEADERSHIP_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/time.h"
#include "coordinator/etcd/client.h"
#include "coordinator/etcd/stored.pb.h"

namespace atl {

// The time after which a leader that says nothing is succeeded: the shortest that etcd grants with
// its usual election timeout.
inline constexpr int64_t kLeaseTtlS = 2;

class Leadership {
 public:
  // Waits until this process leads. `stop`: polled several times a second; Cancelled once it is
  // true. `lease_s`: of the leadership, kLeaseTtlS but in tests. `on_leader`: called with the
  // leader, whenever that changes while waiting. An etcd that does not answer is waited for, too;
  // other errors end it.
  static absl::StatusOr<std::unique_ptr<Leadership>> Campaign(
      EtcdClient* client, const std::string& prefix, const etcd::Leader& self, int64_t lease_s,
      const std::function<bool()>& stop, const std::function<void(const etcd::Leader&)>& on_leader);
  // Gives the leadership up.
  ~Leadership();

  const std::string& key() const { return key_; }
  int64_t create_revision() const { return create_revision_; }
  int64_t lease_s() const { return lease_s_; }

  // OK as long as the lease lasts, as far as this end knows. Any thread.
  absl::Status Check() const;
  // Makes Check fail from now on, for a caller that found the key to be another's.
  absl::Status Lose(absl::string_view reason);
  // Calls `on_lost`, at once if it is lost already, at most once. Any thread.
  void WatchLoss(std::function<void(const absl::Status&)> on_lost);

 private:
  Leadership(EtcdClient* client, std::string key, int64_t lease, int64_t lease_s,
             int64_t create_revision, Instant held_until);
  void KeepAlive();

  EtcdClient* const client_;
  const std::string key_;
  const int64_t lease_;
  const int64_t lease_s_;
  const int64_t create_revision_;
  std::atomic<Instant> held_until_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by mutex_, as below
  absl::Status lost_;   // OK: not lost
  std::function<void(const absl::Status&)> on_lost_;
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_LEADERSHIP_H_
