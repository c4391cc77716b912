#include "coordinator/recording/recorder.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/plain_fields.h"
#include "common/status.h"
#include "common/wall_clock.h"

namespace atl {

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Open(Files* files, const std::string& folder,
                                                         int64_t segment_bytes) {
  ATOLL_RETURN_IF_ERROR(files->MakeFolder(folder));
  ATOLL_ASSIGN_OR_RETURN(const auto segments, ListSegments(*files, folder));
  const int64_t newest = segments.empty() ? 0 : segments.back().first;
  return std::unique_ptr<Recorder>(new Recorder(files, folder, segment_bytes, newest));
}

Recorder::~Recorder() {
  if (file_ != nullptr) StopIf(Write());
}

void Recorder::BeforeStep(Instant now, const CoordinatorEvent& event, const CoordinatorCore& core) {
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
void Recorder::AfterStep(const CoordinatorActions& actions) {
  if (stopped_) return;
  event_.clear();
  AppendPlain(&event_, DigestActions(actions));
  AppendRecord(RecordKind::kDecision, event_, &pending_);
}

absl::Status Recorder::BeginSegment(Instant now, const CoordinatorCore& core) {
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
  const std::string path = SegmentPath(folder_, ++number_);
  ATOLL_RETURN_IF_ERROR(WriteFileAtomically(files_, path, std::array{AsBytes(begin)}));
  ATOLL_ASSIGN_OR_RETURN(file_, files_.OpenAppend(path));
  state_ends_ = file_->size();
  ATOLL_ASSIGN_OR_RETURN(const auto segments, ListSegments(files_, folder_));
  for (const auto& [number, old] : segments) {
    if (number <= number_ - kSegmentsKept) ATOLL_RETURN_IF_ERROR(files_.Remove(old));
  }
  return absl::OkStatus();
}

absl::Status Recorder::Write() {
  const absl::Status written = file_->Append(std::array{AsBytes(pending_)});
  pending_.clear();
  return written;
}

void Recorder::StopIf(const absl::Status& failed) {
  if (failed.ok() || std::exchange(stopped_, true)) return;
  file_.reset();
  LogWarning("record", folder_, ": nothing is recorded any more: ", failed.message());
}

}  // namespace atl
