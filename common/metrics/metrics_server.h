// A daemon's endpoints for monitors, over HTTP: /metrics, /healthz (200 while its main loop turns)
// and /readyz (200 while it can do its work, else 503 with the reason).

#ifndef ATOLL_COMMON_METRICS_METRICS_SERVER_H_
#define ATOLL_COMMON_METRICS_METRICS_SERVER_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/http/http_server.h"
#include "common/metrics/metrics.h"

namespace atl {

// A main loop that turns. Thread-safe.
class LoopPulse {
 public:
  void Beat();  // by the loop, every turn
  // Calls `wake`, which makes the loop turn soon, and waits for that. False after 5 s.
  bool Turns(const std::function<void()>& wake);

 private:
  std::mutex mutex_;
  std::condition_variable beaten_;
  int64_t beats_ = 0;
};

// A daemon's report of itself; called on threads of the server.
struct Monitored {
  std::function<void(MetricsWriter&)> collect;
  std::function<bool()> healthy;
  std::function<std::string()> why_not_ready;  // empty: it is ready
  // Decides whether the holder of this certificate, which the authority has signed, may read
  // /metrics; the error says why not. An empty function: all holders may.
  std::function<absl::Status(const std::string& certificate)> admits;
};

// Metrics that the daemons of all members report, besides their own. Thread-safe.
class MemberMetrics {
 public:
  explicit MemberMetrics(std::string state_folder) : state_folder_(std::move(state_folder)) {}
  virtual ~MemberMetrics() = default;

  void NoteConnection(bool connected);  // to the coordinator
  LoopPulse& pulse() { return pulse_; }

  // `wake` makes the daemon's loop turn; `add_queues` adds the lengths of its queues, on the
  // server's threads. This outlives the server.
  Monitored ForServer(std::function<void()> wake, std::function<void(MetricsWriter&)> add_queues);

 protected:
  virtual void Collect(MetricsWriter& writer) const = 0;  // mutex_ is held

  mutable std::mutex mutex_;

 private:
  const std::string state_folder_;
  LoopPulse pulse_;
  bool connected_ = false;  // guarded by mutex_
};

// Answers one of the server's three paths; other paths get a reply with status 404.
HttpReply AnswerMonitor(const Monitored& monitored, const std::string& path);

// `App` is CLI::App.
template <class App>
void AddMetricsFlag(App& app, std::string* listen) {
  app.add_option("--metrics-listen", *listen,
                 "HOST:PORT for /metrics (Prometheus), /healthz and /readyz; default: none");
}

// Null where `listen` is empty.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(const std::string& listen,
                                                         const TlsOptions& tls,
                                                         Monitored monitored);

}  // namespace atl

#endif  // ATOLL_COMMON_METRICS_METRICS_SERVER_H_
