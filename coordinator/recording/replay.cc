#include "coordinator/recording/replay.h"

#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/plain_fields.h"
#include "common/status.h"
#include "coordinator/recording/segment.h"

namespace atl {
namespace {

// A state and its events, with room for the last one.
constexpr int64_t kSegmentFileBytesMax = kRecordedStateBytesMax + 2 * kSegmentBytes;
constexpr size_t kDecisionsNamed = 8;

// "FromWorker", of a type of this namespace.
template <class T>
std::string TypeText() {
  const std::string_view whole = __PRETTY_FUNCTION__;
  const std::string_view from = whole.substr(whole.find("T = atl::") + 9);
  return std::string(from.substr(0, from.find_first_of(";]")));
}

template <class Variant>
std::string AlternativeText(const Variant& variant) {
  return std::visit([](const auto& held) { return TypeText<std::decay_t<decltype(held)>>(); },
                    variant);
}

std::string EventText(const CoordinatorEvent& event) {
  return std::visit(
      [](const auto& e) {
        std::string text = TypeText<std::decay_t<decltype(e)>>();
        if constexpr (requires { e.job; }) absl::StrAppend(&text, " ", e.job);
        if constexpr (requires { e.island; }) absl::StrAppend(&text, " island ", e.island);
        if constexpr (requires { e.worker; }) absl::StrAppend(&text, " ", e.worker);
        if constexpr (requires { e.server; }) absl::StrAppend(&text, " ", e.server);
        if constexpr (requires { e.name; }) absl::StrAppend(&text, " ", e.name);
        if constexpr (requires { e.message; }) {
          absl::StrAppend(&text, " ", AlternativeText(e.message));
        }
        return text;
      },
      event);
}

std::string DecisionText(const CoordinatorActions& actions) {
  std::vector<std::string> decided;
  for (const StoreWrite& write : actions.persist) {
    const auto* line = std::get_if<EventRecord>(&write.record);
    const char* const what = write.erase ? " is erased" : " is stored";
    decided.push_back(line != nullptr ? absl::StrCat("log: ", line->text)
                                      : absl::StrCat(MakeRecordKey(write.record), what));
  }
  for (const MakePlan& plan : actions.plans) {
    decided.push_back(absl::StrCat("a plan for ", plan.job, " island ", plan.island));
  }
  for (const GroupWorkers& group : actions.groups) {
    decided.push_back(absl::StrCat("islands for ", group.job));
  }
  for (const ToWorker& sent : actions.to_workers) {
    decided.push_back(absl::StrCat(AlternativeText(sent.message), " to ", sent.worker));
  }
  for (const ToServer& sent : actions.to_servers) {
    decided.push_back(absl::StrCat(AlternativeText(sent.message), " to ", sent.server));
  }
  for (const Reply& reply : actions.replies) {
    decided.push_back(absl::StrCat("reply ", reply.status.ToString()));
  }
  if (decided.empty()) return "nothing";
  const size_t more = decided.size() > kDecisionsNamed ? decided.size() - kDecisionsNamed : 0;
  decided.resize(decided.size() - more);
  return absl::StrCat(absl::StrJoin(decided, "; "),
                      more > 0 ? absl::StrCat("; ", more, " more") : "");
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, ": is damaged: ", what, "; record again, or replay a copy"));
}

// Plays segments one after the other, each from its own state.
class Player {
 public:
  Player(const std::optional<EventPlace>& until, Replayed* replayed)
      : until_(until), replayed_(*replayed) {}

  // False: that was all that is to be played.
  absl::StatusOr<bool> Play(int64_t number, const std::string& path, absl::string_view bytes) {
    path_ = path;
    ATOLL_RETURN_IF_ERROR(Begin(&bytes));
    ++replayed_.segments;
    EventPlace place{number, 0};
    SegmentRecord record;
    NextRecord next = TakeRecord(&bytes, &record);
    while (next == NextRecord::kRecord) {
      if (record.kind != RecordKind::kEvent) return Damaged(path_, "its records are out of order");
      ++place.event;
      ATOLL_RETURN_IF_ERROR(Step(place, record.bytes));
      next = TakeRecord(&bytes, &record);
      const bool decided = next == NextRecord::kRecord && record.kind == RecordKind::kDecision;
      if (!decided && next != NextRecord::kDamaged) ++replayed_.unrecorded;
      if (decided) {
        ATOLL_ASSIGN_OR_RETURN(const bool alike, Compare(record.bytes));
        if (!alike) return false;
        next = TakeRecord(&bytes, &record);
      }
      if (place == until_) return false;
    }
    if (next == NextRecord::kDamaged) {
      return Damaged(path_, absl::StrCat("behind event ", ToText(place)));
    }
    replayed_.torn += next == NextRecord::kTorn;
    return true;
  }

  const CoordinatorCore* core() const { return core_ ? &*core_ : nullptr; }
  Instant now() const { return now_; }
  void DescribeLast() const {
    PlayedEvent& last = replayed_.last;
    last.unix_time_ms = by_.unix_time_ms + (now_ - by_.now) / std::chrono::milliseconds(1);
    last.event = EventText(event_);
    last.decided = DecisionText(actions_);
  }

 private:
  absl::Status Begin(absl::string_view* bytes) {
    SegmentRecord record;
    if (TakeRecord(bytes, &record) != NextRecord::kRecord || record.kind != RecordKind::kBy) {
      return Damaged(path_, "it does not begin as a recording");
    }
    PlainReader by(record.bytes);
    by.Visit(by_);
    const RecordedBy self = RecordedBy::Self(by_.unix_time_ms, by_.now);
    if (by.ok() && by_ != self) {
      return absl::FailedPreconditionError(absl::StrCat(
          path_, ": was recorded by version ", by_.software_version, ", core ", by_.core_version,
          ", and this is version ", self.software_version, ", core ", self.core_version,
          ": replay it with the atoll command of the coordinator's build"));
    }
    if (!by.ok() || TakeRecord(bytes, &record) != NextRecord::kRecord ||
        record.kind != RecordKind::kState) {
      return Damaged(path_, "its state is not whole");
    }
    core_.emplace(CoordinatorOptions(), ClusterId(), /*epoch=*/0);
    if (!core_->LoadWhole(record.bytes)) return Damaged(path_, "its state cannot be read");
    now_ = by_.now;
    return absl::OkStatus();
  }

  absl::Status Step(const EventPlace& place, absl::string_view bytes) {
    Instant now;
    PlainReader reader(bytes);
    reader(now, event_);
    if (!reader.ok() || now < now_) {
      return Damaged(path_, absl::StrCat("event ", ToText(place), " cannot be read"));
    }
    now_ = now;
    actions_ = core_->Step(now, event_);
    ++replayed_.events;
    replayed_.last.place = place;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Compare(absl::string_view bytes) {
    uint64_t digest = 0;
    PlainReader reader(bytes);
    reader.Visit(digest);
    if (!reader.ok()) return Damaged(path_, "a decision cannot be read");
    replayed_.differs = digest != DigestActions(actions_);
    replayed_.alike += !replayed_.differs;
    return !replayed_.differs;
  }

  const std::optional<EventPlace> until_;
  Replayed& replayed_;
  std::string path_;
  RecordedBy by_;
  std::optional<CoordinatorCore> core_;
  Instant now_{};
  CoordinatorEvent event_;  // the last one, and what is decided
  CoordinatorActions actions_;
};

}  // namespace

std::string ToText(const EventPlace& place) {
  return absl::StrCat(place.segment, ":", place.event);
}

absl::StatusOr<EventPlace> ParseEventPlace(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  EventPlace place;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &place.segment) ||
      !absl::SimpleAtoi(parts[1], &place.event) || place.segment < 1 || place.event < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": is not SEGMENT:EVENT, such as 3:1204"));
  }
  return place;
}

absl::StatusOr<Replayed> Replay(Files& files, const std::string& folder,
                                const std::optional<EventPlace>& until, const JobId& job) {
  ATOLL_ASSIGN_OR_RETURN(const auto segments, ListSegments(files, folder));
  if (segments.empty()) {
    return absl::NotFoundError(absl::StrCat(folder, ": has no recording (NNNNNN.recording)"));
  }
  Replayed replayed;
  Player player(until, &replayed);
  for (const auto& [number, path] : segments) {
    if (until && number > until->segment) break;
    ATOLL_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                           files.Read(path, kSegmentFileBytesMax));
    ATOLL_ASSIGN_OR_RETURN(
        const bool more,
        player.Play(number, path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    if (!more) break;
  }
  player.DescribeLast();
  if (until && !replayed.differs && replayed.last.place != *until) {
    return absl::NotFoundError(absl::StrCat(folder, ": has no event ", ToText(*until),
                                            "; the last one before it is ",
                                            ToText(replayed.last.place)));
  }
  if (job.empty()) return replayed;
  if (player.core() != nullptr) replayed.job = player.core()->Job(player.now(), job);
  if (!replayed.job) {
    return absl::NotFoundError(
        absl::StrCat(folder, ": has no job ", job, " at event ", ToText(replayed.last.place)));
  }
  return replayed;
}

}  // namespace atl
