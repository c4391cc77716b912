// The folder that is one parameter server's memory between its lives.

#ifndef ATOLL_PARAMSERVER_STATE_FOLDER_H_
#define ATOLL_PARAMSERVER_STATE_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/ids.h"

namespace atl::ps {

// Holds the folder for this process alone while it lives. Makes it if it is not there.
class StateFolder {
 public:
  // An error says which process has it, or what is wrong with it.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& path);
  ~StateFolder();
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  // A number larger than that of any life before, also when the folder was lost meanwhile and the
  // wall clock has not gone back. Durable. To be called once a life.
  absl::StatusOr<Incarnation> NextIncarnation();

  const std::string& path() const { return path_; }

 private:
  StateFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  const std::string path_;
  const int lock_;  // open file with the lock
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STATE_FOLDER_H_
