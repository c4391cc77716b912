#include "common/crash_scope.h"

#include <algorithm>

namespace atl {
namespace {

thread_local const char* innermost = nullptr;

}  // namespace

CrashScope::CrashScope(absl::string_view what) : before_(innermost) {
  const size_t size = std::min(what.size(), what_.size() - 1);
  std::copy_n(what.data(), size, what_.data());
  what_[size] = '\0';
  innermost = what_.data();
}

CrashScope::~CrashScope() { innermost = before_; }

const char* CrashScope::current() { return innermost; }

}  // namespace atl
