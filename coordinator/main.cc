// atoll-coordinator: flags, and the server of server.h.

#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <thread>

#include "common/logging.h"
#include "coordinator/server.h"

namespace {

// SIGINT and SIGTERM, for this thread and all that it starts.
sigset_t BlockEndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int Serve(atl::ServerOptions options) {
  const sigset_t signals = BlockEndSignals();
  auto server = atl::CoordinatorServer::Start(std::move(options));
  if (!server.ok()) {
    std::fprintf(stderr, "atoll-coordinator: %s\n", std::string(server.status().message()).c_str());
    return server.status().code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
  }
  atl::LogInfo("main", "listening on port ", (*server)->port());
  std::thread stopper([&] {
    int signal = 0;
    sigwait(&signals, &signal);
    (*server)->Stop();
  });
  const absl::Status status = (*server)->Run();
  pthread_kill(stopper.native_handle(), SIGTERM);  // where the store failed, nobody else sends it
  stopper.join();
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
  app.add_option("--log-level", log_level, "debug, info, warning or error")->capture_default_str();
  atl::AddTlsFlags(app, &options.tls);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const absl::Status status = atl::SetLogLevel(log_level); !status.ok()) {
    std::fprintf(stderr, "atoll-coordinator: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  return Serve(std::move(options));
}
