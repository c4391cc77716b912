#include "coordinator/trust/key_storer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/event_loop.h"
#include "common/logging.h"

namespace atl {
namespace {

constexpr auto kStoreAgain = std::chrono::seconds(1);  // what could not be stored
constexpr int kRest = 4;  // times as long as storing took: a fifth of a core at most

}  // namespace

KeyStorer::KeyStorer(AccessControl* access, std::function<void()> on_stored)
    : access_(access), on_stored_(std::move(on_stored)) {
  access_->on_keys = [this] {
    const std::lock_guard lock(mutex_);
    changed_ = true;
    wake_.notify_one();
  };
  thread_ = std::thread([this] { Run(); });
}

KeyStorer::~KeyStorer() {
  access_->on_keys = [] {};
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void KeyStorer::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return changed_ || stop_; });
    if (!changed_) return;
    changed_ = false;
    lock.unlock();
    const Instant begun = SteadyNow();
    const absl::Status stored = access_->StoreNotes();
    if (!stored.ok()) LogWarning("access", "CURVE keys are not stored: ", stored.message());
    on_stored_();
    Duration rest = kRest * (SteadyNow() - begun);
    if (!stored.ok()) rest = std::max<Duration>(rest, kStoreAgain);
    lock.lock();
    changed_ = changed_ || (!stored.ok() && !stop_);
    wake_.wait_for(lock, rest, [this] { return stop_; });
  }
}

}  // namespace atl
