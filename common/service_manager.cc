#include "common/service_manager.h"

#include <systemd/sd-daemon.h>

namespace atl {

ServiceManager::ServiceManager() {
  uint64_t watchdog_us = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &watchdog_us) > 0) {
    interval_ = std::chrono::duration_cast<Duration>(std::chrono::microseconds(watchdog_us)) / 4;
  }
}

void ServiceManager::NotifyReady() { sd_notify(0, "READY=1"); }

void ServiceManager::NotifyStopping() { sd_notify(0, "STOPPING=1"); }

Instant ServiceManager::KeepAlive(Instant now) {
  if (interval_ == Duration(0)) return kNever;
  if (now >= next_) {
    sd_notify(0, "WATCHDOG=1");
    next_ = now + interval_;
  }
  return next_;
}

}  // namespace atl
