// Streams to clients: each is polled from time to time, on the loop's thread, for something new to
// send. For client_service.cc and trust_service.cc only.

#ifndef ATOLL_COORDINATOR_WATCHERS_H_
#define ATOLL_COORDINATOR_WATCHERS_H_

#include <grpcpp/server_context.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "common/event_loop.h"
#include "common/time.h"
#include "coordinator/streams.h"

namespace atl {

// One stream of messages M to one caller.
template <class M>
class WatchStream : public SendingStream<grpc::ServerWriteReactor<M>, M> {
 public:
  // `context`: of the call, to abort it; without one it cannot be.
  static std::shared_ptr<WatchStream> Begin(grpc::CallbackServerContext* context = nullptr) {
    auto stream = std::shared_ptr<WatchStream>(new WatchStream);
    stream->self_ = stream;
    stream->context_ = context;
    return stream;
  }
  // Ends the call although a message of it waits for the caller to read.
  void Abort() {
    const std::lock_guard lock(context_mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }
  void OnDone() override {
    {
      const std::lock_guard lock(context_mutex_);
      context_ = nullptr;
    }
    auto self = std::move(self_);
  }

 private:
  WatchStream() = default;
  std::shared_ptr<WatchStream> self_;               // until OnDone
  std::recursive_mutex context_mutex_;              // OnDone may be called from within TryCancel
  grpc::CallbackServerContext* context_ = nullptr;  // until OnDone; guarded by context_mutex_
};

// Watches whether a caller reads. A caller that has left a message unread for a long time gets no
// further ones, and takes a slot from others that would read.
class ViewWatch {
 public:
  static constexpr Duration kLongest = std::chrono::minutes(2);

  // `idle`: all that was sent has been read. True: its call is to end.
  bool IsOver(Instant now, bool idle) {
    if (idle || !since_) since_ = now;
    return now - *since_ >= kLongest;
  }

 private:
  std::optional<Instant> since_;  // when all was read, or the first call
};

// Polls streams round-robin, within a bound: a view of thousands of members takes milliseconds to
// make or to send, and the loop's other tasks wait meanwhile. Where the bound is reached, each
// stream is polled less often. A stream's first poll is outside of the bound: it costs what a unary
// call does, and a caller waits for it. Loop's thread only.
class Watchers {
 public:
  // Sends what is new; false when the stream has ended.
  using Poll = std::function<bool(Instant now)>;

  // `clock` measures how long polls take.
  explicit Watchers(std::function<Instant()> clock = SteadyNow) : clock_(std::move(clock)) {}

  // `interval`: how often poll is called at most. It is due at once.
  void Add(Duration interval, Poll poll) { new_.push_back({interval, std::move(poll)}); }
  size_t size() const { return new_.size() + all_.size(); }

  // Polls streams that are due: new ones, then those that have been due for longest. Returns when
  // it is to be called again.
  Instant Turn(Instant now) {
    const Instant begin = clock_();
    Instant end = begin;
    while (!new_.empty() && end - begin < kAtOnce) {
      Watcher watcher = std::move(new_.front());
      new_.pop_front();
      PollOnce(now, std::move(watcher));
      end = clock_();
    }
    if (now >= rest_until_) {
      const Instant bounded_begin = end;
      while (!all_.empty() && all_.begin()->first <= now && end - bounded_begin < kAtOnce) {
        PollOnce(now, std::move(all_.extract(all_.begin()).mapped()));
        end = clock_();
      }
      rest_until_ = end + kRest * (end - bounded_begin);
    }
    if (!new_.empty()) return end;
    return all_.empty() ? kNever : std::max(all_.begin()->first, rest_until_);
  }

 private:
  static constexpr Duration kAtOnce = std::chrono::milliseconds(5);
  // Times as long as polls took: a twentieth of the thread is theirs.
  static constexpr int kRest = 19;

  struct Watcher {
    Duration interval;
    Poll poll;
  };

  void PollOnce(Instant now, Watcher watcher) {
    if (!watcher.poll(now)) return;
    all_.emplace(now + watcher.interval, std::move(watcher));
  }

  const std::function<Instant()> clock_;
  std::deque<Watcher> new_;              // not polled yet
  std::multimap<Instant, Watcher> all_;  // by when each is due
  Instant rest_until_{};
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_WATCHERS_H_
