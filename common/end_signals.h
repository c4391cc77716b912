// SIGTERM and SIGINT end a daemon in an orderly way; a second one ends it at once.
//
//   EndSignals signals;                            // first of all, before any thread is made
//   ...
//   signals.Watch([&](const char* name) { loop.Stop(); });
//
// `end` is called at most once, on a thread of this object, with the signal's name. SIGPIPE and
// SIGXFSZ are ignored from then on: a connection that breaks, and a file that reaches the limit on
// sizes, are errors of their own calls.

#ifndef ATOLL_COMMON_END_SIGNALS_H_
#define ATOLL_COMMON_END_SIGNALS_H_

#include <signal.h>

#include <atomic>
#include <functional>
#include <thread>

namespace atl {

class EndSignals {
 public:
  EndSignals();  // blocks both in this thread and in all that it makes from now on
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  // Starts to watch; once. What `end` uses outlives this object, or StopWatching().
  void Watch(std::function<void(const char* name)> end);
  // `end` is not called after this. From then on nothing ends the process but SIGKILL.
  void StopWatching();

 private:
  void Wait(const std::function<void(const char*)>& end);

  sigset_t set_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_END_SIGNALS_H_
