// Streams to clients: each is polled from time to time, on the loop's thread, for something new to
// send. For people_service.cc only.

#ifndef ATOLL_COORDINATOR_WATCHERS_H_
#define ATOLL_COORDINATOR_WATCHERS_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

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

// Loop's thread only.
class Watchers {
 public:
  // Sends what is new; false when the stream has ended.
  using Poll = std::function<bool(Instant now)>;

  // `interval`: how often poll is called while nothing changes, and at most so often while much
  // does. The first call is made at once.
  void Add(Instant now, Duration interval, Poll poll) {
    if (poll(now)) all_.push_back({now, interval, std::move(poll)});
  }
  size_t size() const { return all_.size(); }

  // Polls the streams that are due; returns when the next one is.
  Instant Turn(Instant now) {
    Instant next = kNever;
    std::erase_if(all_, [&](Watcher& w) {
      if (now >= w.last + w.interval) {
        w.last = now;
        if (!w.poll(now)) return true;
      }
      next = std::min(next, w.last + w.interval);
      return false;
    });
    return next;
  }

 private:
  struct Watcher {
    Instant last;
    Duration interval;
    Poll poll;
  };
  std::vector<Watcher> all_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_WATCHERS_H_
