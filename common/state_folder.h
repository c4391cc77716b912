// The folder on its disk that makes a daemon the same one over its restarts.

#ifndef ATOLL_COMMON_STATE_FOLDER_H_
#define ATOLL_COMMON_STATE_FOLDER_H_

#include <memory>
#include <string>

#include "common/ids.h"
#include "common/status.h"

namespace atl {

// Holds the folder for this process alone as long as it lives.
class StateFolder {
 public:
  // Makes the folder where it is missing, locks it, and takes the next incarnation, which is on the
  // disk before this returns. Incarnations grow with every start; they follow the wall clock as
  // well, so that they grow even after the folder was lost, and whatever is left of a damaged
  // number. Errors begin with "--state-dir PATH"; one that another process holds names that
  // process.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& path);
  ~StateFolder();
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  const std::string& path() const { return path_; }
  Incarnation incarnation() const { return incarnation_; }

 private:
  StateFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  absl::Status Lock();
  absl::Status TakeIncarnation();

  const std::string path_;
  const int lock_;  // open file
  Incarnation incarnation_ = 0;
};

}  // namespace atl

#endif  // ATOLL_COMMON_STATE_FOLDER_H_
