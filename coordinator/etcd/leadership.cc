#include "coordinator/etcd/leadership.h"

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/status.h"
#include "coordinator/etcd/stored.h"

namespace atl {
namespace {

constexpr auto kLook = std::chrono::milliseconds(200);
constexpr auto kBetweenKeepAlives = std::chrono::milliseconds(500);
constexpr auto kBetweenRetries = std::chrono::milliseconds(100);
// Longer than the lease, so that etcd may elect a leader of its own meanwhile, which prolongs all
// leases. Nothing is written after the lease, however long this is: transactions compare.
constexpr int64_t kHeldLongerS = 1;

Duration GetHeld(int64_t lease_s) { return std::chrono::seconds(lease_s + kHeldLongerS); }

// Takes the key for our lease if no process has it.
absl::StatusOr<TakenKey> Take(EtcdClient* client, const std::string& key, const etcd::Leader& self,
                              int64_t lease) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* compare = request.add_compare();
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(key);
  compare->set_create_revision(0);
  etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(self.SerializeAsString());
  put->set_lease(lease);
  request.add_failure()->mutable_request_range()->set_key(key);
  ATOLL_ASSIGN_OR_RETURN(const auto reply, client->Txn(request, [] { return false; }));
  return TakenIn(reply, key, self, lease);
}

// The present leader; nothing: none leads.
absl::StatusOr<std::optional<etcd::Leader>> Look(EtcdClient* client, const std::string& key) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  ATOLL_ASSIGN_OR_RETURN(const auto reply, client->Range(request, [] { return false; }));
  return LeaderIn(reply, key);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Leadership>> Leadership::Campaign(
    EtcdClient* client, const std::string& prefix, const etcd::Leader& self, int64_t lease_s,
    const std::function<bool()>& stop, const std::function<void(const etcd::Leader&)>& on_leader) {
  const Duration held = GetHeld(lease_s);
  const std::string key = absl::StrCat(prefix, "/leader");
  std::string known;
  bool answers = true;
  // Says once that etcd does not answer; any other error ends the waiting.
  const auto tolerate = [&](const absl::Status& status) {
    if (!status.ok() && !absl::IsUnavailable(status)) return false;
    if (status.ok() != answers) {
      answers = status.ok();
      if (!answers) LogWarning("store", status.message(), "; trying again");
      if (answers) LogInfo("store", "etcd answers again");
    }
    return true;
  };
  for (; !stop(); std::this_thread::sleep_for(kLook)) {
    const auto leader = Look(client, key);
    if (!tolerate(leader.status())) return leader.status();
    if (!leader.ok()) continue;
    if (leader->has_value()) {
      if ((*leader)->address() != known) on_leader(**leader);
      known = (*leader)->address();
      continue;
    }
    const Instant begin = SteadyNow();
    const auto lease = client->GrantLease(lease_s);
    if (!tolerate(lease.status())) return lease.status();
    if (!lease.ok()) continue;
    auto taken = Take(client, key, self, *lease);
    // Without an answer it may have been taken; then the next attempt with this lease says so.
    while (absl::IsUnavailable(taken.status()) && SteadyNow() < begin + held && !stop()) {
      taken = Take(client, key, self, *lease);
    }
    if (taken.ok() && taken->create_revision > 0) {
      return std::unique_ptr<Leadership>(
          new Leadership(client, key, *lease, lease_s, taken->create_revision, begin + held));
    }
    client->RevokeLease(*lease).IgnoreError();
    if (!tolerate(taken.status())) return taken.status();
  }
  return absl::CancelledError("ended while another coordinator leads");
}

Leadership::Leadership(EtcdClient* client, std::string key, int64_t lease, int64_t lease_s,
                       int64_t create_revision, Instant held_until)
    : client_(client),
      key_(std::move(key)),
      lease_(lease),
      lease_s_(lease_s),
      create_revision_(create_revision),
      held_until_(held_until),
      thread_([this] { KeepAlive(); }) {}

Leadership::~Leadership() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  thread_.join();
  client_->RevokeLease(lease_).IgnoreError();
}

absl::Status Leadership::Check() const {
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.ok()) return lost_;
  }
  if (SteadyNow() < held_until_.load()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the lease of the leader was not renewed for ", lease_s_ + kHeldLongerS,
                   " s (etcd does not answer, or this process stalled), so another "
                   "coordinator may lead; start this one again"));
}

absl::Status Leadership::Lose(absl::string_view reason) {
  std::function<void(const absl::Status&)> call;
  absl::Status lost;
  {
    const std::lock_guard lock(mutex_);
    if (lost_.ok()) lost_ = absl::FailedPreconditionError(reason);
    lost = lost_;
    call = std::move(on_lost_);
    on_lost_ = nullptr;
  }
  if (call) call(lost);
  return lost;
}

void Leadership::WatchLoss(std::function<void(const absl::Status&)> on_lost) {
  absl::Status lost;
  {
    const std::lock_guard lock(mutex_);
    lost = lost_;
    if (lost.ok()) on_lost_ = std::move(on_lost);
  }
  if (!lost.ok()) on_lost(lost);
}

void Leadership::KeepAlive() {
  Duration pause = kBetweenKeepAlives;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, pause, [&] { return ended_; })) return;
    }
    const Instant begin = SteadyNow();
    const absl::Status status = client_->KeepAlive(lease_);
    if (status.ok()) held_until_ = begin + GetHeld(lease_s_);
    const absl::Status held = Check();
    if (absl::IsFailedPrecondition(status) || !held.ok()) {
      Lose(absl::IsFailedPrecondition(status)
               ? "the lease of the leader has expired, and another coordinator may lead; start "
                 "this one again"
               : held.message())
          .IgnoreError();
      return;
    }
    pause = status.ok() ? kBetweenKeepAlives : kBetweenRetries;
  }
}

}  // namespace atl
