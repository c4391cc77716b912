#include "common/crash_scope.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace atl {
namespace {

std::atomic<int> file{-1};
std::array<std::atomic<bool>, kCrashSlots> taken{};

// A thread's own slot; 0: none was free.
class Slot {
 public:
  Slot() {
    for (int i = 1; i < kCrashSlots && index_ == 0; ++i) {
      if (!taken[static_cast<size_t>(i)].exchange(true)) index_ = i;
    }
  }
  ~Slot() {
    if (index_ != 0) taken[static_cast<size_t>(index_)] = false;
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  int index() const { return index_; }

 private:
  int index_ = 0;
};

thread_local const char* innermost = "";

void WriteTo(int slot, const char* what) {
  const int fd = file.load(std::memory_order_relaxed);
  if (fd < 0) return;
  const auto at = static_cast<off_t>(slot) * static_cast<off_t>(kCrashSlotBytes);
  const int kept = errno;
  [[maybe_unused]] const ssize_t written = pwrite(fd, what, strlen(what) + 1, at);
  errno = kept;
}

// Makes this the thread's innermost name.
void Enter(const char* what) {
  const bool same = strcmp(innermost, what) == 0;
  innermost = what;
  if (same) return;
  thread_local const Slot slot;
  if (slot.index() != 0) WriteTo(slot.index(), what);
}

}  // namespace

CrashScope::CrashScope(absl::string_view what) : before_(innermost) {
  const size_t size = std::min(what.size(), what_.size() - 1);
  std::copy_n(what.data(), size, what_.data());
  what_[size] = '\0';
  Enter(what_.data());
}

CrashScope::~CrashScope() { Enter(before_); }

void WriteCrashNames(int fd) { file = fd; }

void WriteCrashedName() {
  if (*innermost != '\0') WriteTo(0, innermost);
}

}  // namespace atl
