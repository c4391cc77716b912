// Plays a recording (segment.h) through the core, and compares each decision with the one that was
// made.

#ifndef ATOLL_COORDINATOR_RECORDING_REPLAY_H_
#define ATOLL_COORDINATOR_RECORDING_REPLAY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/files.h"
#include "coordinator/core/core.h"

namespace atl {

// An event of a recording, by its segment's number and its place there, from 1; text: "3:1204".
struct EventPlace {
  int64_t segment = 0;
  int64_t event = 0;

  auto operator<=>(const EventPlace&) const = default;
};
std::string ToText(const EventPlace& place);
absl::StatusOr<EventPlace> ParseEventPlace(const std::string& text);

// An event that was played, in words.
struct PlayedEvent {
  EventPlace place;
  int64_t unix_time_ms = 0;
  std::string event;    // "FromWorker w1 WorkerHeartbeat"
  std::string decided;  // by this replay: "job/lm-1 is stored; IslandOrder to w1"
};

struct Replayed {
  int64_t segments = 0;
  int64_t events = 0;
  int64_t alike = 0;       // events whose decision is the recorded one
  int64_t unrecorded = 0;  // whose decision was not recorded: the process ended before
  int64_t torn = 0;        // segments whose last record is not whole
  PlayedEvent last;
  bool differs = false;        // the last one: another decision, where the replay ended
  std::optional<JobView> job;  // then
};

// Plays up to this event, if any is named. `job`: shown at the end. An error names the file and
// what is wrong with it: a recording by another version of the core (FailedPrecondition), one that
// is damaged (DataLoss), one that has no such event or job (NotFound).
absl::StatusOr<Replayed> Replay(Files& files, const std::string& folder,
                                const std::optional<EventPlace>& until, const JobId& job);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_RECORDING_REPLAY_H_
