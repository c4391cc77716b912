// atoll-coordinator: flags, and the server of server.h.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/end_signals.h"
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
  if (!status.ok()) {
    atl::LogError("store", status.message());
    return 1;
  }
  atl::LogInfo("main", "ended");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  atl::ServerOptions options;
  std::string log_level = "info";
  CLI::App app("The coordinator of Atoll: members, jobs, outer rounds.", "atoll-coordinator");
  app.add_option("--listen", options.listen, "HOST:PORT for members and the command line")
      ->capture_default_str();
  app.add_option("--state-dir", options.state_dir, "folder of the durable state")->required();
  app.add_option("--cluster", options.cluster,
                 "id of the cluster whose state folder was lost, for an empty --state-dir: its "
                 "members then obey, and atoll adopt takes their jobs over");
  app.add_option(
      "--restore", options.restore_from,
      "file of `atoll backup`: makes the state in --state-dir, which must hold none, and "
      "serves it");
  app.add_option("--log-level", log_level, "debug, info, warning or error")->capture_default_str();
  app.add_option("--http-listen", options.http_listen, "HOST:PORT of the web page; default: none");
  atl::AddMetricsFlag(app, &options.metrics_listen);
  atl::AddTlsFlags(app, &options.tls);
  atl::AddVersionFlag(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return atl::ExplainUsage(app, error);
  }
  if (const absl::Status status = atl::SetLogLevel(log_level); !status.ok()) {
    std::fprintf(stderr, "atoll-coordinator: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  return Serve(std::move(options));
}
