// atoll-coordinator: flags, and the server of server.h.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/end_signals.h"
#include "common/flag_sources.h"
#include "common/log_flags.h"
#include "common/logging.h"
#include "common/metrics/metrics_server.h"
#include "common/usage.h"
#include "coordinator/server.h"

namespace {

int Serve(atl::ServerOptions options) {
  atl::EndSignals signals;
  auto server = atl::CoordinatorServer::Start(std::move(options));
  if (!server.ok()) {
    std::fprintf(stderr, "atoll-coordinator: %s\n", std::string(server.status().message()).c_str());
    return server.status().code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
  }
  atl::LogInfo("main", "listening on ", (*server)->address());
  signals.Watch([&](const char*) { (*server)->Stop(); });
  const absl::Status status = (*server)->Run();
  signals.StopWatching();
  status.ok() ? atl::LogInfo("main", "ended") : atl::LogError("store", status.message());
  return status.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // Debian's Abseil looks for cycles at every lock of gRPC's, a sixth of an idle member's cost.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  atl::ServerOptions options;
  std::string lifetime = "720h";
  CLI::App app("The coordinator of Atoll: members, jobs, outer rounds.", "atoll-coordinator");
  app.add_option("--listen", options.listen,
                 "HOST:PORT at which members and the command line connect")
      ->capture_default_str();
  app.add_option("--state-dir", options.state_dir, "folder of the durable state")->required();
  atl::AddStoreFlags(app, &options);
  atl::AddQuotaFlag(app, &options);
  app.add_option("--cluster", options.cluster,
                 "id of a cluster whose state was lost, with an empty --state-dir: its members "
                 "accept this coordinator, and `atoll adopt` takes over their jobs");
  app.add_option(
      "--restore", options.restore_from,
      "file of `atoll backup`: restores it to --state-dir, which must be empty, and starts");
  app.add_option("--record", options.record,
                 "folder for a recording of what is received and decided, for `atoll replay`: the "
                 "newest 512 MiB of it, for this user alone to read");
  atl::AddLogFlags(app);
  app.add_option("--http-listen", options.http_listen, "HOST:PORT of the web page; default: none");
  app.add_option("--certificate-lifetime", lifetime,
                 "validity of the certificates of members that join, such as 720h; they are "
                 "renewed in time")
      ->capture_default_str();
  atl::AddMetricsFlag(app, &options.metrics_listen);
  atl::AddTlsFlags(app, &options.tls);
  atl::AddVersionFlag(app);
  try {
    atl::ParseFlags(app, argc, argv, "/etc/atoll/coordinator.toml");
  } catch (const CLI::ParseError& error) {
    return atl::ExplainUsage(app, error);
  }
  absl::Duration parsed;
  if (!absl::ParseDuration(lifetime, &parsed) || parsed < absl::Seconds(2) ||
      parsed > absl::Hours(87'600)) {  // the authority's own
    std::fprintf(stderr, "atoll-coordinator: --certificate-lifetime %s: %s\n", lifetime.c_str(),
                 "must be a time such as 720h, at most 87600h");
    return 2;
  }
  options.certificate_lifetime_s = absl::ToInt64Seconds(parsed);
  return Serve(std::move(options));
}
