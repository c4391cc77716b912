#include "common/net/tensor/pull_rates.h"

#include <algorithm>

namespace atl {

void PullRates::Opened(const std::string& endpoint) {
  if (servers_.size() >= kServersMost && !servers_.contains(endpoint)) return;
  ++servers_[endpoint].pulls;
}

void PullRates::Received(const std::string& endpoint, int64_t bytes, Instant now) {
  const auto found = servers_.find(endpoint);
  if (found == servers_.end()) return;
  Server& server = found->second;
  if (!server.begin) {
    server.begin = now;
  } else {
    server.bytes += bytes;
  }
  server.last = now;
  if (server.bytes >= kWindowBytesMost) server.Close();
}

void PullRates::Ended(const std::string& endpoint) {
  const auto found = servers_.find(endpoint);
  if (found == servers_.end()) return;
  if (--found->second.pulls == 0) found->second.Close();
}

void PullRates::Server::Close() {
  if (begin && bytes >= kWindowBytesLeast && last > *begin) {
    samples.push_back(static_cast<double>(bytes) / Seconds(last - *begin));
    if (samples.size() > kSamples) samples.pop_front();
  }
  begin.reset();
  bytes = 0;
}

std::map<std::string, double> PullRates::rates() const {
  std::map<std::string, double> rates;
  for (const auto& [endpoint, server] : servers_) {
    if (server.samples.empty()) continue;
    rates[endpoint] = *std::max_element(server.samples.begin(), server.samples.end());
  }
  return rates;
}

}  // namespace atl
