// A recording of a coordinator: a folder of segments, 000001.recording and on. Each begins with who
// has written it and the core's whole state, then come the events that the core received, each
// with its time and followed by a digest of what the core decided. recorder.h writes them, replay.h
// plays them.
//
// A recording has what members and users sent the core, which is never a private key, a token of
// `atoll token` or a tensor; job files are in it, with all that their paths and URLs say.

#ifndef ATOLL_COORDINATOR_RECORDING_SEGMENT_H_
#define ATOLL_COORDINATOR_RECORDING_SEGMENT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files.h"
#include "coordinator/core/core.h"

namespace atl {

inline constexpr int64_t kSegmentBytes = int64_t{32} << 20;  // of events; then another one begins
// The newest segments are kept that together have at most so many times the bytes of a segment's
// events, 512 MiB. Each start begins a segment: the recording of a crash is there still after 26
// more crashes with states of kRecordedStateBytesMax, after kSegmentsMax - 1 with small ones.
inline constexpr int64_t kFolderSegments = 16;
inline constexpr int64_t kSegmentsMax = 64;
// Whose core is larger is not recorded: it is saved between two events.
inline constexpr int64_t kRecordedStateBytesMax = int64_t{16} << 20;

// Who has written a segment.
struct RecordedBy {
  std::string software_version;
  std::string core_version;  // of the sources of the core and of what it stands on
  int64_t unix_time_ms = 0;  // when
  Instant now{};             // the same, as the core's events count time

  static RecordedBy Self(int64_t unix_time_ms, Instant now);
  bool operator==(const RecordedBy&) const = default;
};

enum class RecordKind : char { kBy = 1, kState, kEvent, kDecision };

// One record of a segment; `bytes` are the segment's.
struct SegmentRecord {
  RecordKind kind = RecordKind::kBy;
  absl::string_view bytes;
};
void AppendRecord(RecordKind kind, absl::string_view bytes, std::string* segment);

enum class NextRecord { kRecord, kEnd, kTorn, kDamaged };
// Takes the first record off `rest`. kTorn: the process ended while it wrote it.
NextRecord TakeRecord(absl::string_view* rest, SegmentRecord* record);

// Numbers and paths of the folder's segments, in order. An error: one between them is missing.
absl::StatusOr<std::vector<std::pair<int64_t, std::string>>> ListSegments(
    Files& files, const std::string& folder);
std::string SegmentPath(const std::string& folder, int64_t number);

// The same for the same actions, bit for bit.
uint64_t DigestActions(const CoordinatorActions& actions);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_RECORDING_SEGMENT_H_
