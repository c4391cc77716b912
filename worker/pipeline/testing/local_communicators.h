// Groups of devices of one process.

#ifndef ATOLL_WORKER_PIPELINE_TESTING_LOCAL_COMMUNICATORS_H_
#define ATOLL_WORKER_PIPELINE_TESTING_LOCAL_COMMUNICATORS_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker/pipeline/engine.h"

namespace atl::worker {

// Any number of threads. One factory serves one Configure of all engines that share it.
class LocalCommunicators : public CommunicatorFactory {
 public:
  // `timeout`: how long a member waits for the others, in Create and in collectives.
  explicit LocalCommunicators(Duration timeout) : timeout_(timeout) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Create(const std::string& name,
                                                       const std::vector<std::string>& devices,
                                                       const std::string& own) override;
  void Abort(const std::string& reason) override;

 private:
  struct Meeting {
    std::vector<std::unique_ptr<Communicator>> members;  // null: taken
    size_t arrived = 0;
  };

  const Duration timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Meeting> meetings_;  // all below guarded by mutex_
  bool aborted_ = false;
  std::string reason_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_TESTING_LOCAL_COMMUNICATORS_H_
