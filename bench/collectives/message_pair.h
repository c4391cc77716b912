// Two workers in this process that send messages as pipeline stages do, by real peer links.

#ifndef ATOLL_BENCH_COLLECTIVES_MESSAGE_PAIR_H_
#define ATOLL_BENCH_COLLECTIVES_MESSAGE_PAIR_H_

#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace atl::bench {

struct MessagePairOptions {
  std::vector<std::string> more_endpoints = {};  // of both, beside tcp://127.0.0.1:*
  bool encrypted = false;
};

// REQUIRES: one thread calls. No message is in flight at destruction.
class MessagePair {
 public:
  explicit MessagePair(const MessagePairOptions& options);
  ~MessagePair();

  // From the first to the second; resolves when it has arrived.
  std::future<void> Send(const std::shared_ptr<std::vector<std::byte>>& bytes);
  // Sends so many messages, one behind the other; returns when all have arrived.
  void Stream(const std::shared_ptr<std::vector<std::byte>>& bytes, int messages);

 private:
  class Worker;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_COLLECTIVES_MESSAGE_PAIR_H_
