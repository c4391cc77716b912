// The folder on disk that keeps a daemon's identity over restarts: its lock and its incarnation,
// the number by which others fence messages of an earlier process.

#ifndef ATOLL_COMMON_STATE_FOLDER_H_
#define ATOLL_COMMON_STATE_FOLDER_H_

#include <memory>
#include <string>

#include "common/ids.h"
#include "common/status.h"

namespace atl {

// No clock shows more milliseconds: a larger incarnation is damage or a lie.
inline constexpr Incarnation kClockIncarnationMax = Incarnation{1} << 53;

// Locks the folder for this process until it is destroyed.
class StateFolder {
 public:
  // Makes the folder, with its parents, where it is missing, and locks it. Errors begin with
  // "--state-dir PATH"; one that another process holds names that process.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& path);
  ~StateFolder();
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  const std::string& path() const { return path_; }

  // A new incarnation number, larger than all before, on the disk before this returns. It follows
  // the wall clock as well, so that it grows even after the folder was lost, or the number damaged.
  // Once a process.
  absl::StatusOr<Incarnation> NextIncarnation();

 private:
  StateFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  absl::Status Lock();

  const std::string path_;
  const int lock_;  // open file
};

}  // namespace atl

#endif  // ATOLL_COMMON_STATE_FOLDER_H_
