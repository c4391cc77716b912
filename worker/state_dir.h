// The worker's folder on its disk: who it is over restarts, and its checkpoints.

#ifndef ATOLL_WORKER_STATE_DIR_H_
#define ATOLL_WORKER_STATE_DIR_H_

#include <memory>
#include <string>

#include "common/ids.h"
#include "common/status.h"

namespace atl::worker {

// Holds the folder's lock as long as it lives, so that two workers never share one.
class StateDir {
 public:
  // Makes the folder where it is missing, locks it, and takes the next incarnation, which is on the
  // disk before this returns. Incarnations grow with every start; they follow the wall clock as
  // well, so that they grow even after the folder was lost.
  static absl::StatusOr<std::unique_ptr<StateDir>> Open(const std::string& path);
  ~StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;

  Incarnation incarnation() const { return incarnation_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string profiles() const { return path_ + "/profiles"; }

 private:
  StateDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  absl::Status TakeIncarnation();

  const std::string path_;
  const int lock_fd_;
  Incarnation incarnation_ = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_DIR_H_
