#include "common/metrics/metrics_server.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/metrics/names.h"

namespace atl {
namespace {

constexpr auto kTurnLimit = std::chrono::seconds(5);
constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace

void LoopPulse::Beat() {
  const std::lock_guard lock(mutex_);
  ++beats_;
  beaten_.notify_all();
}

bool LoopPulse::Turns(const std::function<void()>& wake) {
  int64_t before = 0;
  {
    const std::lock_guard lock(mutex_);
    before = beats_;
  }
  wake();
  std::unique_lock lock(mutex_);
  return beaten_.wait_until(lock, std::chrono::steady_clock::now() + kTurnLimit,
                            [&] { return beats_ > before; });
}

void MemberMetrics::NoteConnection(bool connected) {
  const std::lock_guard lock(mutex_);
  connected_ = connected;
}

Monitored MemberMetrics::ForServer(std::function<void()> wake,
                                   std::function<void(MetricsWriter&)> add_queues) {
  Monitored monitored;
  monitored.collect = [this, add_queues = std::move(add_queues)](MetricsWriter& writer) {
    writer.AddDisk(state_folder_);
    {
      const std::lock_guard lock(mutex_);
      writer.Add(kConnected, connected_ ? 1 : 0);
      Collect(writer);
    }
    add_queues(writer);
  };
  monitored.healthy = [this, wake = std::move(wake)] { return pulse_.Turns(wake); };
  monitored.why_not_ready = [this] {
    const std::lock_guard lock(mutex_);
    return std::string(connected_ ? "" : "not connected to the coordinator");
  };
  return monitored;
}

HttpReply AnswerMonitor(const Monitored& monitored, const std::string& path) {
  HttpReply reply;
  if (path == "/metrics") {
    MetricsWriter writer;
    monitored.collect(writer);
    writer.AddProcess();
    reply.type = kTextFormat;
    reply.body = writer.Text();
  } else if (path == "/healthz") {
    const bool healthy = monitored.healthy();
    reply.status = healthy ? 200 : 503;
    reply.body = healthy ? "healthy\n" : "the main loop does not turn\n";
  } else if (path == "/readyz") {
    const std::string why = monitored.why_not_ready();
    reply.status = why.empty() ? 200 : 503;
    reply.body = (why.empty() ? "ready" : why) + "\n";
  } else {
    reply.status = 404;
    reply.body = "there are /metrics, /healthz and /readyz\n";
  }
  return reply;
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(const std::string& listen,
                                                         const TlsOptions& tls,
                                                         Monitored monitored) {
  if (listen.empty()) return std::unique_ptr<HttpServer>();
  HttpOptions options;
  options.flag = "--metrics-listen";
  options.listen = listen;
  options.tls = tls;
  options.open_paths = {"/healthz", "/readyz"};  // service managers have no certificate
  ATOLL_ASSIGN_OR_RETURN(
      auto server,
      HttpServer::Start(options, [monitored = std::move(monitored)](const HttpRequest& request) {
        if (request.path == "/metrics" && !request.peer_certificate.empty() && monitored.admits) {
          const absl::Status admitted = monitored.admits(request.peer_certificate);
          if (!admitted.ok()) {
            HttpReply denied;
            denied.status = 403;
            denied.body = absl::StrCat(admitted.message(), "\n");
            return denied;
          }
        }
        return AnswerMonitor(monitored, request.path);
      }));
  LogInfo("metrics", "served at ", server->url(), "/metrics");
  return server;
}

}  // namespace atl
