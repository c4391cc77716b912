#include "cli/play/replay.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/text/output.h"
#include "cli/text/render.h"
#include "common/plural.h"
#include "common/status.h"
#include "coordinator/recording/replay.h"
#include "coordinator/wire.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {
namespace {

constexpr int kDecisionsShown = 10;

std::string WhenText(int64_t unix_time_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%E3S", absl::FromUnixMillis(unix_time_ms),
                          absl::UTCTimeZone());
}

std::string ReplayedText(const Replayed& replayed) {
  const PlayedEvent& last = replayed.last;
  std::string text = absl::StrCat(
      CountText(replayed.segments, "segment"), ", ", CountText(replayed.events, "event"), ": ",
      replayed.differs ? "the last decision is another one than was made"
                       : "all decisions are those that were made",
      "\n");
  if (replayed.unrecorded > 0) {
    absl::StrAppend(&text, CountText(replayed.unrecorded, "decision"),
                    " not recorded: the coordinator ended meanwhile\n");
  }
  if (replayed.torn > 0) {
    absl::StrAppend(&text, CountText(replayed.torn, "segment"), " with half a record at the end\n");
  }
  absl::StrAppend(&text, "last event: ", ToText(last.place), ", ", WhenText(last.unix_time_ms),
                  ": ", last.event, "\ndecided: ", last.decided, "\n");
  return text;
}

std::string ReplayedJson(const Replayed& replayed) {
  const PlayedEvent& last = replayed.last;
  const nlohmann::json json = {{"segments", replayed.segments},
                               {"events", replayed.events},
                               {"alike", replayed.alike},
                               {"unrecorded", replayed.unrecorded},
                               {"torn", replayed.torn},
                               {"differs", replayed.differs},
                               {"last",
                                {{"place", ToText(last.place)},
                                 {"unix_time_ms", last.unix_time_ms},
                                 {"event", last.event},
                                 {"decided", last.decided}}}};
  return json.dump(2) + "\n";
}

absl::Status RunReplay(const Global& global, const ReplayFlags& flags,
                       const std::optional<EventPlace>& until) {
  ATOLL_ASSIGN_OR_RETURN(const Replayed replayed,
                         atl::Replay(RealFiles(), flags.folder, until, flags.show));
  if (replayed.job) {
    v1::Job job;
    EncodeView(*replayed.job, &job);
    std::cout << (global.structured ? Document(job) : JobText(job, kDecisionsShown));
  } else {
    std::cout << (global.structured ? Document(ReplayedJson(replayed)) : ReplayedText(replayed));
  }
  if (!replayed.differs) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(flags.folder, ": event ", ToText(replayed.last.place),
                                         " leads to another decision than the recorded one"));
}

}  // namespace

int Replay(const Global& global, const ReplayFlags& flags) {
  std::optional<EventPlace> until;
  if (!flags.until.empty()) {
    const absl::StatusOr<EventPlace> place = ParseEventPlace(flags.until);
    if (!place.ok()) return FailUsage(absl::StrCat("--until ", place.status().message()));
    until = *place;
  }
  return ExitCode(RunReplay(global, flags, until));
}

}  // namespace atl::cli
