// atoll-paramserver: flags, the daemon, and signals that end it.

#include <cstdio>
#include <string>

#include "common/descriptor_limit.h"
#include "common/end_signals.h"
#include "common/logging.h"
#include "paramserver/flags.h"
#include "paramserver/server.h"

int main(int argc, char** argv) {
  using namespace atl;
  const ps::ParsedFlags flags = ps::ParseFlags(argc, argv);
  if (!flags.options) return flags.exit_code;

  EndSignals signals;
  RaiseDescriptorLimit();
  auto daemon = ps::Daemon::Create(*flags.options);
  if (!daemon.ok()) {
    std::fprintf(stderr, "atoll-paramserver: %s\n", std::string(daemon.status().message()).c_str());
    return absl::IsInvalidArgument(daemon.status()) ? 2 : 1;
  }
  signals.Watch([&](const char*) { (*daemon)->Stop(); });
  const absl::Status outcome = (*daemon)->Run();
  signals.StopWatching();
  daemon->reset();
  if (!outcome.ok()) {
    LogError("server", std::string(outcome.message()));
    return 1;
  }
  LogInfo("server", "stopped");
  return 0;
}
