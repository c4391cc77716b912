// Spans to an OpenTelemetry collector: OTLP over HTTP, as JSON, by OpenTelemetry's own environment
// variables. Nothing is exported unless OTEL_EXPORTER_OTLP_ENDPOINT or its form for traces is set.

#ifndef ATOLL_COORDINATOR_TRACING_OTLP_H_
#define ATOLL_COORDINATOR_TRACING_OTLP_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/status.h"
#include "coordinator/tracing/span.h"

namespace atl {

struct OtlpSettings {
  std::string url;  // .../v1/traces
  std::vector<std::pair<std::string, std::string>> headers;
  std::vector<std::pair<std::string, std::string>> resource;  // service.name among them
  int64_t timeout_ms = 10000;                                 // of one request
  int64_t delay_ms = 5000;                                    // spans wait for so long at most
  int64_t queue_max = 2048;                                   // spans
  int64_t batch_max = 512;                                    // spans in one request
};

// `variable` gives an environment variable's value, or null. No settings: traces are not wanted.
// INVALID_ARGUMENT names the variable.
absl::StatusOr<std::optional<OtlpSettings>> ReadOtlpSettings(
    const std::function<const char*(const char*)>& variable, const std::string& service);

// The body of a request.
std::string OtlpJson(const std::vector<std::pair<std::string, std::string>>& resource,
                     const std::vector<Span>& spans);

// Sends on a thread of its own. Spans that find the queue full, or that no collector takes, are
// dropped; the log says so once for each time that it begins.
class OtlpExporter {
 public:
  explicit OtlpExporter(OtlpSettings settings);
  ~OtlpExporter();  // sends what is queued, within one timeout
  void Export(std::vector<Span> spans);

 private:
  void Run();
  absl::Status Post(const std::string& body) const;

  const OtlpSettings settings_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Span> queue_;  // guarded by mutex_
  bool ending_ = false;     // guarded by mutex_
  bool dropping_ = false;   // guarded by mutex_
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRACING_OTLP_H_
