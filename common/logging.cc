#include "common/logging.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "common/log_format.h"

namespace atl {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<LogFormat> g_format{LogFormat::kText};

constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
constexpr absl::string_view kColumns[] = {"DEBUG", "INFO ", "WARN ", "ERROR"};

constexpr absl::string_view kPriorities[] = {"<7>", "<6>", "<4>", "<3>"};

// Returns whether standard error is the journal, as systemd says it to its services.
bool IsStandardErrorJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  return stream != nullptr && fstat(STDERR_FILENO, &info) == 0 &&
         absl::StrCat(info.st_dev, ":", info.st_ino) == stream;
}

std::string Now() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                         static_cast<int>(now.tv_nsec / 1'000'000));
}

}  // namespace

absl::Status SetLogLevel(absl::string_view name) {
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) {
      g_level = static_cast<LogLevel>(i);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("log level \"", name, "\": must be debug, info, warning or error"));
}

bool Logs(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

std::string LogText(LogLevel level, absl::string_view part, absl::string_view text) {
  std::string line = absl::StrFormat("%s %-8s ", kColumns[static_cast<int>(level)], part);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&line, "\\x%02x", byte);
    } else {
      line.push_back(c);
    }
  }
  line.push_back('\n');
  return line;
}

void SetLogFormat(LogFormat format) { g_format = format; }

std::string LogJson(absl::string_view time, LogLevel level, absl::string_view part,
                    absl::string_view text) {
  const nlohmann::ordered_json line = {{"time", std::string(time)},
                                       {"severity", std::string(kNames[static_cast<int>(level)])},
                                       {"part", std::string(part)},
                                       {"text", std::string(text)}};
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void Log(LogLevel level, absl::string_view part, absl::string_view text) {
  if (!Logs(level)) return;
  static const bool journal = IsStandardErrorJournal();
  const bool json = g_format.load(std::memory_order_relaxed) == LogFormat::kJson;
  // The journal reads a priority (sd-daemon(3)) and has its own times.
  const std::string line = absl::StrCat(
      journal ? kPriorities[static_cast<int>(level)] : "", !journal && !json ? Now() + " " : "",
      json ? LogJson(Now(), level, part, text) : LogText(level, part, text));
  // There is no other place to report it when standard error itself fails.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace atl
