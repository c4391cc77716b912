// Frames of one direction of one connection, in order, whose payloads are sealed or opened on
// threads that all links of the process share. So the cryptography of one connection takes as many
// cores as it needs, and the network thread none.

#ifndef ATOLL_COMMON_NET_SEAL_QUEUE_H_
#define ATOLL_COMMON_NET_SEAL_QUEUE_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/net/seal.h"
#include "common/net/session.h"
#include "common/net/socket.h"
#include "common/status.h"
#include "proto/frame.pb.h"

namespace atl {

// A frame that has come over a link, or that is to be sent.
struct LinkFrame {
  std::string from;     // at servers: the connection, as ROUTER names it
  std::string key;      // at servers: the Z85 key that the other end has proven; "" without keys
  absl::Status status;  // whether `frame` is one, by the rules that need no knowledge of transfers
  v1::Frame frame;
  bool has_payload = false;
  Message payload;
  absl::Status opened;  // DataLoss: the payload does not open and means nothing
};

// Used by one thread.
class SealQueue {
 public:
  SealQueue() = default;
  // Waits for the payloads that are being worked on: some hundred microseconds each.
  ~SealQueue();
  SealQueue(const SealQueue&) = delete;
  SealQueue& operator=(const SealQueue&) = delete;

  void Push(LinkFrame frame);
  // Its payload is sealed, and the chunk gets the tag. `wake` is called, on another thread, when
  // that is done; it must outlive the queue.
  void PushToSeal(LinkFrame frame, const SealKey& key, const std::function<void()>& wake);
  // Its payload is opened where it lies.
  void PushToOpen(LinkFrame frame, const SealKey& key, const std::function<void()>& wake);

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  size_t working() const;  // payloads that are not done
  // The first frame, if it is done; else null.
  LinkFrame* Front();
  void Pop() { entries_.pop_front(); }
  // REQUIRES: not empty. Returns when the first frame is done.
  void AwaitFront();

 private:
  struct Work;
  struct Entry {
    LinkFrame frame;
    std::shared_ptr<Work> work;  // null: nothing is to be done
  };
  void Start(LinkFrame frame, const SealKey& key, const std::function<void()>& wake, bool seals);
  static void Finish(Entry& entry);

  std::deque<Entry> entries_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_SEAL_QUEUE_H_
