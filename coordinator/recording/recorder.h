// Records what a core receives and decides (segment.h), for `atoll replay`. At most kSegmentsKept
// segments of kSegmentBytes and their states are kept. A recording is for reports of faults: what
// cannot be written ends it with a warning, and the coordinator goes on.

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
class Recorder {
 public:
  // Makes the folder if it is not there, and goes on after what it has. `files` outlive it.
  static absl::StatusOr<std::unique_ptr<Recorder>> Open(Files* files, const std::string& folder,
                                                        int64_t segment_bytes = kSegmentBytes);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Before each Step of this core, which has recovered, and after it. The event is in the file
  // before the Step, which may be the one that ends the process.
  void BeforeStep(Instant now, const CoordinatorEvent& event, const CoordinatorCore& core);
  void AfterStep(const CoordinatorActions& actions);

 private:
  Recorder(Files* files, std::string folder, int64_t segment_bytes, int64_t newest)
      : files_(*files),
        folder_(std::move(folder)),
        segment_bytes_(segment_bytes),
        number_(newest) {}
  absl::Status BeginSegment(Instant now, const CoordinatorCore& core);
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
