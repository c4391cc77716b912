// The server's ends of gRPC streams, by the callback API. gRPC's threads call the reactors; the
// loop's thread sends. Every operation in flight keeps its stream alive, and every stream ends with
// exactly one Finish. For the coordinator's service files only.

#ifndef ATOLL_COORDINATOR_STREAMS_H_
#define ATOLL_COORDINATOR_STREAMS_H_

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace atl {

// Queues messages to the peer and writes them one by one; Reactor is ServerBidiReactor or
// ServerWriteReactor. Thread-safe.
template <class Reactor, class Message>
class SendingStream : public Reactor {
 public:
  // False when the peer does not keep up with `max_queued` messages, or the stream has ended.
  bool Send(Message message, size_t max_queued) {
    const std::lock_guard lock(mutex_);
    if (ended_ || queue_.size() >= max_queued) return false;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
    return true;
  }

  // The next message, replacing the one that was sent so before, if its writing has not begun.
  void SendNewest(Message message) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!queue_.empty()) {
      newest_ = std::move(message);
      return;
    }
    queue_.push_back(std::move(message));
    this->StartWrite(&queue_.front());
  }

  bool idle() {
    const std::lock_guard lock(mutex_);
    return queue_.empty();
  }

  // Ends the stream once what is queued is written, or at once if the peer has disconnected.
  // Idempotent.
  void End(grpc::Status status) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = std::move(status);
    if (queue_.empty()) this->Finish(status_);
  }

  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  // Starts an operation unless the stream has ended, when nothing may be started any more.
  template <class Start>
  void IfOpen(Start start) {
    const std::lock_guard lock(mutex_);
    if (!ended_) start();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (ok) {
      queue_.pop_front();
      if (newest_) queue_.push_front(*std::exchange(newest_, std::nullopt));
    } else {
      queue_.clear();
      if (!ended_) status_ = grpc::Status(grpc::StatusCode::CANCELLED, "the peer has disconnected");
    }
    if (!queue_.empty()) return this->StartWrite(&queue_.front());
    if (ended_ || !ok) {
      ended_ = true;
      this->Finish(status_);
    }
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

 private:
  std::mutex mutex_;
  std::deque<Message> queue_;      // front: being written; guarded by mutex_, as all below
  std::optional<Message> newest_;  // goes before the rest of the queue; empty if the queue is
  bool ended_ = false;
  grpc::Status status_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STREAMS_H_
