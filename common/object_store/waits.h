// Waits of this process's requests, so that its state can name a store that is silent or busy while
// they still try.

#ifndef ATOLL_COMMON_OBJECT_STORE_WAITS_H_
#define ATOLL_COMMON_OBJECT_STORE_WAITS_H_

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace atl {

// `say` gets what a request waits for, and "" once none does: from any thread, one at a time. Of
// the whole process; empty: they are not said.
void WatchWaits(std::function<void(const std::string& what)> say);

// A request with all its tries, on this thread.
class Wait {
 public:
  explicit Wait(std::string url);  // without its query in what is said
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  void Say(absl::string_view why);

  // This thread's innermost one; null: there is none.
  static Wait* Current();

 private:
  const std::string url_;
  Wait* const outer_;
  std::string said_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_WAITS_H_
