// How fast a worker's pulls come in from each parameter server: what its links to them carry, and
// what the servers give, measured by the transfers of the job itself.
//
// A window begins with the first chunk that arrives (so that no request's latency counts) and ends
// when no pull from that server is in flight any more, or after kWindowBytesMost. One of at least
// kWindowBytesLeast is a sample; the rate is the largest of the last kSamples. Not thread-safe.

#ifndef ATOLL_COMMON_NET_TENSOR_PULL_RATES_H_
#define ATOLL_COMMON_NET_TENSOR_PULL_RATES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "common/time.h"

namespace atl {

class PullRates {
 public:
  static constexpr int64_t kWindowBytesLeast = int64_t{1} << 20;
  static constexpr int64_t kWindowBytesMost = int64_t{64} << 20;
  static constexpr size_t kSamples = 8;
  static constexpr size_t kServersMost = 1024;  // others are not measured

  void Opened(const std::string& endpoint);
  void Received(const std::string& endpoint, int64_t bytes, Instant now);
  void Ended(const std::string& endpoint);

  // Bytes a second, by endpoint, of those with a sample.
  std::map<std::string, double> rates() const;

 private:
  struct Server {
    int pulls = 0;                 // in flight
    std::optional<Instant> begin;  // of the window
    Instant last{};
    int64_t bytes = 0;  // since `begin`
    std::deque<double> samples;

    void Close();
  };

  std::map<std::string, Server> servers_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_PULL_RATES_H_
