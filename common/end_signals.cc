#include "common/end_signals.h"

#include <unistd.h>

#include <ctime>
#include <utility>

#include "common/check.h"

namespace atl {

EndSignals::EndSignals() {
  sigemptyset(&set_);
  sigaddset(&set_, SIGTERM);
  sigaddset(&set_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit fails, and says so
}

EndSignals::~EndSignals() { StopWatching(); }

void EndSignals::Watch(std::function<void(const char*)> end) {
  ATOLL_CHECK(!thread_.joinable());
  thread_ = std::thread([this, end = std::move(end)] { Wait(end); });
}

void EndSignals::StopWatching() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void EndSignals::Wait(const std::function<void(const char*)>& end) {
  bool signalled = false;
  while (!stop_) {
    const timespec turn{0, 100'000'000};
    const int signal = sigtimedwait(&set_, nullptr, &turn);
    if (signal <= 0) continue;
    if (std::exchange(signalled, true)) _exit(128 + signal);
    end(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  }
}

}  // namespace atl
