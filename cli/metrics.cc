#include "cli/metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/tensorboard/event.pb.h"
#include "cli/text/output.h"
#include "cli/text/render.h"
#include "cli/text/scores.h"
#include "common/files.h"

namespace atl::cli {
namespace {

constexpr auto kFollowInterval = std::chrono::seconds(5);

// ---- CSV ----

// Whole numbers keep all their digits, and times their milliseconds.
std::string Number(double value) {
  const bool whole = value == std::trunc(value) && std::abs(value) < 1e15;
  return whole ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.10g", value);
}
std::string Time(double unix_s) { return absl::StrFormat("%.3f", unix_s); }

// A coordinator of an older version has no such column.
double At(const google::protobuf::RepeatedField<double>& column, int i) {
  return i < column.size() ? column.Get(i) : 0;
}

void AppendCurve(const std::string& series, const std::string& island, const v1::Curve& c,
                 std::string* out) {
  for (int i = 0; i < c.unix_s_size(); ++i) {
    absl::StrAppend(out, series, ",", island, ",", Time(c.unix_s(i)));
    for (const double value :
         {c.version(i), c.tokens(i), c.loss(i), c.loss_min(i), c.loss_max(i), c.seconds(i),
          c.rounds(i), c.contributions(i), c.rejected(i), c.staleness(i), c.steps(i),
          At(c.learning_rate(), i), At(c.gradient_norm(), i)}) {
      absl::StrAppend(out, ",", Number(value));
    }
    absl::StrAppend(out, ",,,,,,,,\n");
  }
}

// ---- TensorBoard's event files: TFRecords of Event messages ----

constexpr uint32_t kCastagnoli = 0x82f63b78;  // reversed
constexpr uint32_t kMaskDelta = 0xa282ead8;   // TFRecord's

uint32_t Crc32c(absl::string_view bytes) {
  static const auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t n = 0; n < 256; ++n) {
      table[n] = n;
      for (int bit = 0; bit < 8; ++bit) {
        table[n] = (table[n] >> 1) ^ ((table[n] & 1) != 0 ? kCastagnoli : 0);
      }
    }
    return table;
  }();
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

template <class T>
std::string LittleEndian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return LittleEndian(((crc >> 15) | (crc << 17)) + kMaskDelta);
}

void AppendRecord(const tensorboard::Event& event, std::string* out) {
  const std::string data = event.SerializeAsString();
  const std::string length = LittleEndian(static_cast<uint64_t>(data.size()));
  absl::StrAppend(out, length, MaskedCrc(length), data, MaskedCrc(data));
}

// Points of curves as records.
class EventText {
 public:
  void Add(const std::string& tag, double unix_s, double step, double value) {
    if (!std::isfinite(value)) return;
    tensorboard::Event event;
    event.set_wall_time(unix_s);
    event.set_step(static_cast<int64_t>(step));
    tensorboard::Summary::Value* scalar = event.mutable_summary()->add_value();
    scalar->set_tag(tag);
    scalar->set_simple_value(static_cast<float>(value));
    AppendRecord(event, &text_);
  }

  void Add(const std::string& of, const v1::Curve& c, double after_unix_s) {
    for (int i = 0; i < c.unix_s_size(); ++i) {
      if (c.unix_s(i) <= after_unix_s) continue;
      const auto add = [&](const char* name, double value) {
        Add(absl::StrCat(name, "/", of), c.unix_s(i), c.version(i), value);
      };
      if (c.loss(i) != 0) add("loss", c.loss(i));
      if (At(c.learning_rate(), i) > 0) add("learning_rate", c.learning_rate(i));
      if (At(c.gradient_norm(), i) > 0) add("gradient_norm", c.gradient_norm(i));
      if (c.seconds(i) > 0) {
        add("tokens_per_second", c.tokens(i) / c.seconds(i));
        add("round_seconds", c.seconds(i) / c.rounds(i));
      }
      add("staleness", c.staleness(i));
      add("rejected", c.rejected(i));
    }
  }

  std::string* text() { return &text_; }

 private:
  std::string text_;
};

// TensorBoard takes a file by "tfevents" in its name; one name a job, so that it is replaced.
absl::StatusOr<std::string> WriteEvents(const v1::JobHistory& history, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  const std::string path = absl::StrCat(folder, "/events.out.tfevents.",
                                        history.submitted_unix_ms() / 1000, ".", history.job());
  const std::string events = HistoryAsEvents(history);
  const ByteSpan bytes = std::as_bytes(std::span(events));
  ATOLL_RETURN_IF_ERROR(WriteFileAtomically(RealFiles(), path, {&bytes, 1}));
  std::cout << path << "\n" << std::flush;
  return path;
}

// Adds to the file what comes, until the job has ended: readers of the file follow it.
absl::Status FollowEvents(Client& client, const v1::HistoryRequest& request, v1::JobHistory history,
                          const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, WriteEvents(history, folder));
  ATOLL_ASSIGN_OR_RETURN(const auto file, RealFiles().OpenAppend(path));
  while (history.ended_unix_ms() == 0) {
    std::this_thread::sleep_for(kFollowInterval);
    const WrittenEvents known = NewestEvents(history);
    ATOLL_ASSIGN_OR_RETURN(history, client.History(request));
    const std::string more = HistoryAsEvents(history, known);
    if (more.empty()) continue;
    const ByteSpan bytes = std::as_bytes(std::span(more));
    ATOLL_RETURN_IF_ERROR(file->Append({&bytes, 1}));
    ATOLL_RETURN_IF_ERROR(file->Sync());
  }
  return absl::OkStatus();
}

// ---- merges ----

absl::Status PrintMerges(Client& client, const std::string& job, bool follow) {
  int64_t last = -1;
  const auto print = [&](const v1::Job& message) {
    for (const v1::Decision& decision : message.decisions()) {
      if (decision.round() <= last) continue;
      last = decision.round();
      std::cout << DocumentLine(decision);
    }
    std::cout << std::flush;
    return !Ended(message.summary().state());
  };
  if (follow) return client.Watch(job, 0, print);
  ATOLL_ASSIGN_OR_RETURN(const v1::Job message, client.Get(job));
  print(message);
  return absl::OkStatus();
}

absl::Status Run(const Global& global, const std::string& job, const MetricsFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  ATOLL_ASSIGN_OR_RETURN(const std::string id, client->FindJob(job));
  if (flags.merges) return PrintMerges(*client, id, flags.follow);
  v1::HistoryRequest request;
  request.set_job(id);
  request.set_points(flags.points);
  request.set_islands(1 << 20);
  ATOLL_ASSIGN_OR_RETURN(v1::JobHistory history, client->History(request));
  if (!flags.tensorboard.empty()) {
    if (!flags.follow) return WriteEvents(history, flags.tensorboard).status();
    return FollowEvents(*client, request, std::move(history), flags.tensorboard);
  }
  std::cout << (global.structured ? Document(history) : HistoryAsCsv(history)) << std::flush;
  return absl::OkStatus();
}

}  // namespace

std::string HistoryAsCsv(const v1::JobHistory& history) {
  std::string out =
      "series,island,unix_s,version,tokens,loss,loss_min,loss_max,seconds,rounds,contributions,"
      "rejected,staleness,steps,learning_rate,gradient_norm,accuracy,accuracy_standard_error,"
      "normalised_accuracy,normalised_accuracy_standard_error,perplexity,word_perplexity,"
      "byte_perplexity,bits_per_byte\n";
  AppendCurve("rounds", "", history.rounds(), &out);
  for (const v1::IslandCurve& island : history.islands()) {
    AppendCurve("island", absl::StrCat(island.island()), island.curve(), &out);
  }
  for (const v1::ValidationPoint& v : history.validation()) {
    absl::StrAppend(&out, "validation,,", Time(v.unix_s()), ",", v.version(), ",,",
                    Number(v.loss()), ",,,,,,,,,,,,,,,,,,\n");
    for (const v1::ValidationLoss& set : v.sets()) {
      absl::StrAppend(&out, "validation/", set.name(), ",,", Time(v.unix_s()), ",", v.version(),
                      ",,", Number(set.loss()), ",,,,,,,,,,,,,,,,,,\n");
    }
    for (const v1::TaskScore& score : v.scores()) {
      absl::StrAppend(&out, "evaluation/", score.name(), ",,", Time(v.unix_s()), ",", v.version(),
                      ",,,,,,,,,,,,");
      for (const auto& [name, value] : ListScoreNumbers(score)) {
        absl::StrAppend(&out, ",", value ? Number(*value) : "");
      }
      absl::StrAppend(&out, "\n");
    }
  }
  return out;
}

WrittenEvents NewestEvents(const v1::JobHistory& history) {
  WrittenEvents newest;
  for (const double unix_s : history.rounds().unix_s()) {
    newest.unix_s = std::max(newest.unix_s, unix_s);
  }
  for (const v1::ValidationPoint& v : history.validation()) {
    if (v.version() < newest.validated_version) continue;
    newest.validated_version = v.version();
    newest.scored.clear();
    for (const v1::TaskScore& score : v.scores()) newest.scored.insert(score.name());
  }
  return newest;
}

std::string HistoryAsEvents(const v1::JobHistory& history, std::optional<WrittenEvents> written) {
  EventText events;
  if (!written) {
    tensorboard::Event first;
    first.set_wall_time(static_cast<double>(history.submitted_unix_ms()) / 1e3);
    first.set_file_version("brain.Event:2");
    AppendRecord(first, events.text());
  }
  const WrittenEvents before = written.value_or(WrittenEvents());
  events.Add("all", history.rounds(), before.unix_s);
  for (const v1::IslandCurve& island : history.islands()) {
    events.Add(absl::StrCat("island_", island.island()), island.curve(), before.unix_s);
  }
  for (const v1::ValidationPoint& v : history.validation()) {
    if (v.version() < before.validated_version) continue;
    const bool known = v.version() == before.validated_version;  // but for scores that came since
    const auto version = static_cast<double>(v.version());
    if (!known) events.Add("loss/validation", v.unix_s(), version, v.loss());
    for (const v1::ValidationLoss& set : v.sets()) {
      if (known) break;
      events.Add("loss/validation/" + set.name(), v.unix_s(), version, set.loss());
    }
    for (const v1::TaskScore& score : v.scores()) {
      if (known && before.scored.contains(score.name())) continue;
      for (const auto& [name, value] : ListScoreNumbers(score)) {
        if (!value) continue;
        events.Add(absl::StrCat(name, "/", score.name()), v.unix_s(), version, *value);
      }
    }
  }
  return *events.text();
}

int Metrics(const Global& global, const std::string& job, const MetricsFlags& flags) {
  if (flags.points < 16 || flags.points > 4096) {
    return FailUsage(absl::StrCat("--points ", flags.points, ": must be from 16 to 4096"));
  }
  if (flags.follow && !flags.merges && flags.tensorboard.empty()) {
    return FailUsage("--follow needs --merges or --tensorboard");
  }
  if (global.structured && (flags.csv || !flags.tensorboard.empty())) {
    return FailUsage("--output excludes --csv and --tensorboard");
  }
  return ExitCode(Run(global, job, flags));
}

}  // namespace atl::cli
