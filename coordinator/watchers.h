// Streams to clients: each is polled from time to time, on the loop's thread, for something new to
// send. For people_service.cc and trust_service.cc only.

#ifndef ATOLL_COORDINATOR_WATCHERS_H_
#define ATOLL_COORDINATOR_WATCHERS_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "common/event_loop.h"
#include "common/time.h"
#include "coordinator/streams.h"

namespace atl {

// One stream of messages M to one caller.
template <class M>
class WatchStream : public SendingStream<grpc::ServerWriteReactor<M>, M> {
 public:
  static std::shared_ptr<WatchStream> Begin() {
    auto stream = std::shared_ptr<WatchStream>(new WatchStream);
    stream->self_ = stream;
    return stream;
  }
  void OnDone() override { auto self = std::move(self_); }

 private:
  WatchStream() = default;
  std::shared_ptr<WatchStream> self_;  // until OnDone
};

// Polls streams by turns, within a bound: a view of thousands of members takes milliseconds to make
// or to send, and the loop's other tasks wait meanwhile. Where the bound is reached, each stream is
// polled less often. Loop's thread only.
class Watchers {
 public:
  // Sends what is new; false when the stream has ended.
  using Poll = std::function<bool(Instant now)>;

  // `clock` measures how long polls take.
  explicit Watchers(std::function<Instant()> clock = SteadyNow) : clock_(std::move(clock)) {}

  // `interval`: how often poll is called at most. It is due at once.
  void Add(Instant now, Duration interval, Poll poll) {
    all_.emplace(now, Watcher{interval, std::move(poll)});
  }
  size_t size() const { return all_.size(); }

  // Polls streams that are due, those first that have been due for longest. Returns when it is to
  // be called again.
  Instant Turn(Instant now) {
    if (now >= rest_until_) {
      const Instant begin = clock_();
      Instant end = begin;
      while (!all_.empty() && all_.begin()->first <= now && end - begin < kAtOnce) {
        auto due = all_.extract(all_.begin());
        if (due.mapped().poll(now)) {
          due.key() = now + due.mapped().interval;
          all_.insert(std::move(due));
        }
        end = clock_();
      }
      rest_until_ = end + kRest * (end - begin);
    }
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
  const std::function<Instant()> clock_;
  std::multimap<Instant, Watcher> all_;  // by when each is due
  Instant rest_until_{};
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_WATCHERS_H_
