#include "cli/run/interrupts.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>

namespace atl::cli {
namespace {

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

}  // namespace

Interrupts::Interrupts() {
  const sigset_t set = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int Interrupts::Wait(Duration at_most) {
  const sigset_t set = EndingSignals();
  const auto ns = std::max<int64_t>(0, std::chrono::nanoseconds(at_most).count());
  const timespec turn{ns / 1'000'000'000, ns % 1'000'000'000};
  return std::max(0, sigtimedwait(&set, nullptr, &turn));
}

void Interrupts::End(int signal_number) {
  signal(signal_number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal_number);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(signal_number);
  _exit(128 + signal_number);  // where the signal is ignored
}

}  // namespace atl::cli
