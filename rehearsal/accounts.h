// Where device-time went, and which failures it is owed to.

#ifndef ATOLL_REHEARSAL_ACCOUNTS_H_
#define ATOLL_REHEARSAL_ACCOUNTS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/time.h"
#include "rehearsal/scene.h"

namespace atl::rehearsal {

enum class Use : uint8_t {
  kComputing,   // steps whose tokens are in the model
  kTransfers,   // waiting for pushes, pulls, decisions and leases; saving, validating
  kReplayed,    // steps that were lost, made anew or interrupted
  kReplanning,  // a failure is being detected, a plan made or set up
  kRestarting,  // a process starts and opens the job
  kWaiting      // it is down, or has no part in an island
};
inline constexpr int kUses = 6;
const char* Name(Use use);     // "computing", "waiting_for_transfers", "re_planning", ...
std::string ToWords(Use use);  // "computing", "waiting for transfers", "re-planning", ...

// Device-seconds.
using UseSums = std::array<double, kUses>;

class Accounts {
 public:
  // `workers` outlive it.
  explicit Accounts(const std::vector<SceneWorker>* workers);

  // Notes what a worker does from now on.
  void Set(Instant now, size_t worker, Use use);
  // Notes how many of its devices take part from now on, all of them at first; the others wait.
  void SetUsed(Instant now, size_t worker, int64_t devices);
  // Owes what it does other than compute, from now until it computes again, to this failure.
  void Blame(Instant now, size_t worker, int64_t failure);
  int64_t blamed(size_t worker) const { return workers_[worker].failure; }
  // Counts so much of what a worker's devices have done otherwise, owed to the failure that it is
  // blamed for.
  void Move(size_t worker, Use from, Use to, Duration time);
  // Likewise, of finished steps: End(share) takes them out of the sum of all.
  void ChargeReplayed(size_t worker, Duration time);
  // `lost`: the share of finished steps whose tokens are not in the model.
  void End(Instant now, double lost);

  const UseSums& sums() const { return sums_; }
  double price() const { return price_; }  // of workers while they were not down
  void SetDown(Instant now, size_t worker, bool down);
  const std::map<int64_t, UseSums>& by_failure() const { return by_failure_; }

 private:
  struct Worker {
    double devices = 0, used = 0;
    Instant since;
    Use use = Use::kRestarting;
    int64_t failure = -1;
    bool down = false;
    Instant up_since;
  };
  void Advance(Instant now, Worker& worker);

  const std::vector<SceneWorker>& described_;
  std::vector<Worker> workers_;
  UseSums sums_{};
  double price_ = 0;
  std::map<int64_t, UseSums> by_failure_;
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_ACCOUNTS_H_
