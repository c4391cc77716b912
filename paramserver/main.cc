// atoll-paramserver: flags, the daemon, and signals that end it.

#include <pthread.h>
#include <signal.h>

#include <string>
#include <thread>

#include "common/logging.h"
#include "paramserver/flags.h"
#include "paramserver/server.h"

int main(int argc, char** argv) {
  using namespace atl;
  const ps::ParsedFlags flags = ps::ParseFlags(argc, argv);
  if (!flags.options) return flags.exit_code;

  // Blocked in every thread; one waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  auto daemon = ps::Daemon::Create(*flags.options);
  if (!daemon.ok()) {
    LogError("server", std::string(daemon.status().message()));
    return 1;
  }
  std::thread waiter([&] {
    int received = 0;
    sigwait(&signals, &received);
    (*daemon)->Stop();
  });
  const absl::Status outcome = (*daemon)->Run();
  pthread_kill(waiter.native_handle(), SIGTERM);
  waiter.join();
  daemon->reset();
  if (!outcome.ok()) {
    LogError("server", std::string(outcome.message()));
    return 1;
  }
  LogInfo("server", "stopped");
  return 0;
}
