#include "rehearsal/accounts.h"

#include <utility>

#include "absl/strings/str_replace.h"

namespace atl::rehearsal {

const char* Name(Use use) {
  constexpr const char* kNames[] = {"computing",  "waiting_for_transfers",
                                    "replayed",   "re_planning",
                                    "restarting", "waiting_for_devices"};
  return kNames[static_cast<int>(use)];
}

std::string ToWords(Use use) {
  return absl::StrReplaceAll(Name(use), {{"re_", "re-"}, {"_", " "}});
}

Accounts::Accounts(const std::vector<SceneWorker>* workers) : described_(*workers) {
  for (const SceneWorker& worker : described_) {
    const auto all = static_cast<double>(worker.devices.size());
    workers_.push_back({.devices = all, .used = all});
  }
}

void Accounts::Advance(Instant now, Worker& worker) {
  const double seconds = Seconds(now - worker.since);
  worker.since = now;
  sums_[static_cast<size_t>(worker.use)] += seconds * worker.used;
  sums_[static_cast<size_t>(Use::kWaiting)] += seconds * (worker.devices - worker.used);
  if (worker.failure >= 0 && worker.use != Use::kComputing) {
    const double owed = worker.use == Use::kWaiting ? worker.devices : worker.used;
    by_failure_[worker.failure][static_cast<size_t>(worker.use)] += seconds * owed;
  }
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

void Accounts::SetUsed(Instant now, size_t worker, int64_t devices) {
  Advance(now, workers_[worker]);
  workers_[worker].used = static_cast<double>(devices);
}

void Accounts::SetDown(Instant now, size_t worker, bool down) {
  Worker& of = workers_[worker];
  Advance(now, of);
  if (std::exchange(of.down, down) == down) return;
  if (down) price_ += described_[worker].ComputePrice(of.up_since - Instant{}, now - Instant{});
  of.up_since = now;
}

void Accounts::Move(size_t worker, Use from, Use to, Duration time) {
  const Worker& of = workers_[worker];
  const double moved = Seconds(time) * of.used;
  sums_[static_cast<size_t>(from)] -= moved;
  sums_[static_cast<size_t>(to)] += moved;
  if (of.failure < 0) return;
  UseSums& owed = by_failure_[of.failure];
  if (from != Use::kComputing) owed[static_cast<size_t>(from)] -= moved;
  owed[static_cast<size_t>(to)] += moved;
}

void Accounts::ChargeReplayed(size_t worker, Duration time) {
  const Worker& of = workers_[worker];
  if (of.failure < 0) return;
  by_failure_[of.failure][static_cast<size_t>(Use::kReplayed)] += Seconds(time) * of.used;
}

void Accounts::End(Instant now, double lost) {
  for (size_t worker = 0; worker < workers_.size(); ++worker) SetDown(now, worker, true);
  double& computing = sums_[static_cast<size_t>(Use::kComputing)];
  sums_[static_cast<size_t>(Use::kReplayed)] += lost * computing;
  computing -= lost * computing;
}

}  // namespace atl::rehearsal
