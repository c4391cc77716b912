#include "common/object_store/waits.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

struct Waits {
  std::mutex mutex;
  std::function<void(const std::string&)> say;
  int waiting = 0;  // that have said something

  static Waits& Get() {
    static Waits waits;
    return waits;
  }
};

thread_local Wait* current = nullptr;

}  // namespace

void WatchWaits(std::function<void(const std::string& what)> say) {
  Waits& waits = Waits::Get();
  const std::lock_guard lock(waits.mutex);
  waits.say = std::move(say);
}

Wait::Wait(std::string url)
    : url_(url.substr(0, url.find('?'))), outer_(std::exchange(current, this)) {}

Wait::~Wait() {
  current = outer_;
  if (said_.empty()) return;
  Waits& waits = Waits::Get();
  const std::lock_guard lock(waits.mutex);
  if (--waits.waiting == 0 && waits.say) waits.say("");
}

void Wait::Say(absl::string_view why) {
  std::string text = absl::StrCat("waiting for ", url_, ": ", why);
  if (text == said_) return;
  Waits& waits = Waits::Get();
  const std::lock_guard lock(waits.mutex);
  if (said_.empty()) ++waits.waiting;
  said_ = std::move(text);
  if (waits.say) waits.say(said_);
}

Wait* Wait::Current() { return current; }

}  // namespace atl
