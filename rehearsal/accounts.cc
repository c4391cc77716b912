#include "rehearsal/accounts.h"

namespace atl::rehearsal {

const char* Name(Use use) {
  constexpr const char* kNames[] = {"computing",  "waiting_for_transfers",
                                    "replayed",   "re_planning",
                                    "restarting", "waiting_for_devices"};
  return kNames[static_cast<int>(use)];
}

Accounts::Accounts(std::vector<int64_t> devices_of_workers) {
  for (const int64_t devices : devices_of_workers) {
    workers_.push_back({.devices = static_cast<double>(devices)});
  }
}

void Accounts::Advance(Instant now, Worker& worker) {
  const double seconds = Seconds(now - worker.since);
  worker.since = now;
  sums_[static_cast<size_t>(worker.use)] += seconds * worker.devices;
  if (worker.failure >= 0 && worker.use != Use::kComputing) {
    by_failure_[worker.failure][static_cast<size_t>(worker.use)] += seconds * worker.devices;
  }
  if (!worker.down) worker.up += seconds;
}

void Accounts::Set(Instant now, size_t worker, Use use) {
  Worker& of = workers_[worker];
  if (of.use == use) return;
  Advance(now, of);
  of.use = use;
  if (use == Use::kComputing) of.failure = -1;
}

void Accounts::Blame(Instant now, size_t worker, int64_t failure) {
  Worker& of = workers_[worker];
  Advance(now, of);
  of.failure = failure;
}

void Accounts::SetDown(Instant now, size_t worker, bool down) {
  Advance(now, workers_[worker]);
  workers_[worker].down = down;
}

void Accounts::MoveToReplayed(size_t worker, Use from, Duration time) {
  const Worker& of = workers_[worker];
  const double moved = Seconds(time) * of.devices;
  sums_[static_cast<size_t>(from)] -= moved;
  sums_[static_cast<size_t>(Use::kReplayed)] += moved;
  if (of.failure < 0) return;
  UseSums& owed = by_failure_[of.failure];
  if (from != Use::kComputing) owed[static_cast<size_t>(from)] -= moved;
  owed[static_cast<size_t>(Use::kReplayed)] += moved;
}

void Accounts::ChargeReplayed(size_t worker, Duration time) {
  const Worker& of = workers_[worker];
  if (of.failure < 0) return;
  by_failure_[of.failure][static_cast<size_t>(Use::kReplayed)] += Seconds(time) * of.devices;
}

void Accounts::End(Instant now, double lost) {
  for (Worker& worker : workers_) Advance(now, worker);
  double& computing = sums_[static_cast<size_t>(Use::kComputing)];
  sums_[static_cast<size_t>(Use::kReplayed)] += lost * computing;
  computing -= lost * computing;
}

}  // namespace atl::rehearsal
