// Reports a daemon's state to systemd (sd_notify(3)); without systemd every call does nothing.
//
//   RunService(&loop, step);   // in place of loop.Run(step)
//
// Units are Type=notify: a daemon is started when its event loop begins. With WatchdogSec= in its
// unit, systemd restarts a daemon whose event loop has made no turn for that time. Only the event
// loop calls KeepAlive: a thread of its own would prove nothing. Not thread-safe: one thread calls
// everything.

#ifndef ATOLL_COMMON_SERVICE_MANAGER_H_
#define ATOLL_COMMON_SERVICE_MANAGER_H_

#include <algorithm>
#include <functional>
#include <utility>

#include "common/event_loop.h"
#include "common/time.h"

namespace atl {

class ServiceManager {
 public:
  ServiceManager();  // reads WATCHDOG_USEC, as sd_watchdog_enabled(3) does

  void NotifyReady();
  void NotifyStopping();

  // Notifies the watchdog, at most four times in its period. Returns when it wants the next call:
  // kNever without a watchdog.
  Instant KeepAlive(Instant now);

 private:
  Duration interval_{0};  // 0: no watchdog
  Instant next_{};
};

// Runs the loop until it stops, as a service: ready, kept alive each turn, stopping unless the
// process `comes_back` as a service, by exec.
template <class Event, class Step>
void RunService(EventLoop<Event>* loop, Step&& step,
                const std::function<bool()>& comes_back = nullptr) {
  ServiceManager service;
  service.NotifyReady();
  loop->Run([&](Instant now, std::optional<Event> event) {
    const Instant deadline = step(now, std::move(event));
    return std::min(deadline, service.KeepAlive(now));
  });
  if (comes_back == nullptr || !comes_back()) service.NotifyStopping();
}

}  // namespace atl

#endif  // ATOLL_COMMON_SERVICE_MANAGER_H_
