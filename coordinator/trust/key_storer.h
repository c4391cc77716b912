// Makes CURVE keys durable that members have announced, and reports when the list of keys has
// changed: many changes at once, so that thousands of members that attach take a few lists.

#ifndef ATOLL_COORDINATOR_TRUST_KEY_STORER_H_
#define ATOLL_COORDINATOR_TRUST_KEY_STORER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "coordinator/trust/access_control.h"

namespace atl {

class KeyStorer {
 public:
  // Takes over access->on_keys, until it goes. `on_stored` is called on a thread of its own, once
  // what was announced is durable, or could not be stored for now.
  KeyStorer(AccessControl* access, std::function<void()> on_stored);
  ~KeyStorer();

 private:
  void Run();

  AccessControl* const access_;
  const std::function<void()> on_stored_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool changed_ = false, stop_ = false;  // guarded by mutex_
  std::thread thread_;                   // last: it uses all of the above
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_KEY_STORER_H_
