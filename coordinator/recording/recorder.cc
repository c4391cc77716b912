#include "coordinator/recording/recorder.h"

#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/paths.h"
#include "common/plain_fields.h"
#include "common/status.h"
#include "common/wall_clock.h"

namespace atl {

absl::StatusOr<std::unique_ptr<EventRecorder>> EventRecorder::Open(Files* files,
                                                                   const std::string& folder,
                                                                   int64_t segment_bytes) {
  ATOLL_ASSIGN_OR_RETURN(const std::optional<PathInfo> there, FindPath(folder));
  ATOLL_RETURN_IF_ERROR(files->MakeFolder(folder));
  if (!there && chmod(folder.c_str(), 0700) != 0) return absl::ErrnoToStatus(errno, folder);
  ATOLL_ASSIGN_OR_RETURN(const auto segments, ListSegments(*files, folder));
  const int64_t newest = segments.empty() ? 0 : segments.back().first;
  return std::unique_ptr<EventRecorder>(new EventRecorder(files, folder, segment_bytes, newest));
}

EventRecorder::~EventRecorder() {
  if (file_ != nullptr) StopIf(Write());
}

void EventRecorder::BeforeStep(Instant now, const CoordinatorEvent& event,
                               const CoordinatorCore& core) {
  if (stopped_) return;
  const bool full = file_ != nullptr && file_->size() - state_ends_ >= segment_bytes_;
  if (file_ == nullptr || full) StopIf(BeginSegment(now, core));
  if (stopped_) return;
  event_.clear();
  AppendPlain(&event_, now, event);
  AppendRecord(RecordKind::kEvent, event_, &pending_);
  StopIf(Write());
}

// It is written with the next event, or at the end.
void EventRecorder::AfterStep(const CoordinatorActions& actions) {
  if (stopped_) return;
  event_.clear();
  AppendPlain(&event_, DigestActions(actions));
  AppendRecord(RecordKind::kDecision, event_, &pending_);
}

absl::Status EventRecorder::BeginSegment(Instant now, const CoordinatorCore& core) {
  if (file_ != nullptr) ATOLL_RETURN_IF_ERROR(Write());
  const std::string state = core.SaveWhole();
  if (std::ssize(state) > kRecordedStateBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the coordinator's state has ", state.size(),
                                                     " bytes, more than ", kRecordedStateBytesMax));
  }
  std::string by, begin;
  AppendPlain(&by, RecordedBy::Self(UnixTimeMs(), now));
  AppendRecord(RecordKind::kBy, by, &begin);
  AppendRecord(RecordKind::kState, state, &begin);
  ATOLL_RETURN_IF_ERROR(MakeRoom(std::ssize(begin)));
  const std::string path = SegmentPath(folder_, ++number_), temporary = path + ".tmp";
  ATOLL_ASSIGN_OR_RETURN(file_, files_.OpenAppend(temporary));
  if (chmod(temporary.c_str(), 0600) != 0) return absl::ErrnoToStatus(errno, temporary);
  ATOLL_RETURN_IF_ERROR(file_->Truncate(0));
  ATOLL_RETURN_IF_ERROR(file_->Append(std::array{AsBytes(begin)}));
  state_ends_ = file_->size();
  return files_.Rename(temporary, path);
}

absl::Status EventRecorder::MakeRoom(int64_t state_bytes) {
  ATOLL_ASSIGN_OR_RETURN(const auto segments, ListSegments(files_, folder_));
  int64_t left = std::ssize(segments), bytes = state_bytes + segment_bytes_;
  std::vector<int64_t> sizes;
  for (const auto& [number, path] : segments) {
    ATOLL_ASSIGN_OR_RETURN(const auto file, files_.OpenAppend(path));
    bytes += sizes.emplace_back(file->size());
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    if (left < kSegmentsMax && bytes <= kFolderSegments * segment_bytes_) break;
    ATOLL_RETURN_IF_ERROR(files_.Remove(segments[i].second));
    --left;
    bytes -= sizes[i];
  }
  return absl::OkStatus();
}

absl::Status EventRecorder::Write() {
  const absl::Status written = file_->Append(std::array{AsBytes(pending_)});
  pending_.clear();
  return written;
}

void EventRecorder::StopIf(const absl::Status& failed) {
  if (failed.ok() || std::exchange(stopped_, true)) return;
  file_.reset();
  LogWarning("record", folder_, ": nothing is recorded any more: ", failed.message());
}

}  // namespace atl
