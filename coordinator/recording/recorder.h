// Records what a core receives and decides (segment.h), for `atoll replay`. Only the owner of the
// process may read it. A recording is for reports of faults: what cannot be written ends it with a
// warning, and the coordinator goes on. It outlives its process, and its machine only by chance:
// nothing is synced, as events wait for it.

#ifndef ATOLL_COORDINATOR_RECORDING_RECORDER_H_
#define ATOLL_COORDINATOR_RECORDING_RECORDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/files.h"
#include "coordinator/core/core.h"
#include "coordinator/recording/segment.h"

namespace atl {

// Not thread-safe. One recorder a folder.
class EventRecorder {
 public:
  // Makes the folder if it is not there, for its owner alone, and goes on after what it has.
  // `files` are the system's, and outlive it.
  static absl::StatusOr<std::unique_ptr<EventRecorder>> Open(Files* files,
                                                             const std::string& folder,
                                                             int64_t segment_bytes = kSegmentBytes);
  ~EventRecorder();
  EventRecorder(const EventRecorder&) = delete;
  EventRecorder& operator=(const EventRecorder&) = delete;

  // Before each Step of this core, which has recovered, and after it. The event is in the file
  // before the Step, which may be the one that ends the process.
  void BeforeStep(Instant now, const CoordinatorEvent& event, const CoordinatorCore& core);
  void AfterStep(const CoordinatorActions& actions);

 private:
  EventRecorder(Files* files, std::string folder, int64_t segment_bytes, int64_t newest)
      : files_(*files),
        folder_(std::move(folder)),
        segment_bytes_(segment_bytes),
        number_(newest) {}
  absl::Status BeginSegment(Instant now, const CoordinatorCore& core);
  // Removes the oldest that exceed the bounds together with a whole segment to come.
  absl::Status MakeRoom(int64_t state_bytes);
  absl::Status Write();
  void StopIf(const absl::Status& failed);

  Files& files_;
  const std::string folder_;
  const int64_t segment_bytes_;
  int64_t number_;  // of the newest segment
  std::unique_ptr<AppendFile> file_;
  int64_t state_ends_ = 0;  // in the file
  bool stopped_ = false;
  std::string pending_;  // records
  std::string event_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_RECORDING_RECORDER_H_
