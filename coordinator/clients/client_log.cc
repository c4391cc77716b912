#include "common/net/control/grpc_status.h"
#include "coordinator/clients/client_answers.h"

namespace atl {
namespace {

constexpr int64_t kLogLinesAtOnce = 1000;
constexpr Duration kLogInterval = std::chrono::milliseconds(200);

// In the order of Severity, whose first is kDebug.
constexpr const char* kSeverities[] = {"debug", "info", "warning", "error"};
constexpr int kFirstSeverity = static_cast<int>(Severity::kDebug);

v1::LogLine ToLogLine(const LogEntry& line) {
  v1::LogLine message;
  message.set_sequence(line.event.sequence);
  message.set_unix_ms(line.unix_time_ms);
  message.set_job(line.event.job);
  message.set_severity(kSeverities[static_cast<int>(line.event.severity) - kFirstSeverity]);
  message.set_text(line.event.text);
  return message;
}

}  // namespace

LogReading::LogReading(const v1::LogsRequest& request)
    : query_{request.job(), request.after_sequence(), request.since_unix_ms()},
      tail_(request.tail()),
      follow_(request.follow()) {
  for (int s = 0; s < std::ssize(kSeverities); ++s) {
    if (request.severity() != kSeverities[s]) continue;
    query_.severity = static_cast<Severity>(kFirstSeverity + s);
  }
  query_.contains = request.contains();
}

void LogReading::SendPage(Instant now, CoordinatorLoop& loop, WatchStream<v1::LogLine>& stream) {
  if (now < idle_until_) return;
  const std::optional<JobState> state = loop.core().FindState(query_.job);
  if (!query_.job.empty() && !state) return stream.End(ToGrpc(NoSuchJob(query_.job)));
  if (tail_ > 0) {
    const auto after = loop.store().FindLogTail(query_, tail_);
    if (!after.ok()) return stream.End(ToGrpc(after.status()));
    query_.after_sequence = *after;
    tail_ = 0;
  }
  const auto lines = loop.store().ReadLog(query_, kLogLinesAtOnce);
  if (!lines.ok()) return stream.End(ToGrpc(lines.status()));
  for (const LogEntry& line : *lines) {
    query_.after_sequence = line.event.sequence;
    stream.Send(ToLogLine(line), 2 * kLogLinesAtOnce);
  }
  // The next page follows at once, until all that is kept has been sent.
  if (lines->size() == kLogLinesAtOnce) return;
  idle_until_ = now + kLogInterval;
  if (!follow_ || (state && HasEnded(*state))) stream.End(grpc::Status::OK);
}

}  // namespace atl
