// Sends the log to one client, page by page, and what follows if it wants to. Loop's thread only.

#ifndef ATOLL_COORDINATOR_CLIENT_LOG_H_
#define ATOLL_COORDINATOR_CLIENT_LOG_H_

#include "coordinator/loop.h"
#include "coordinator/watchers.h"
#include "proto/coordinator.pb.h"

namespace atl {

class LogReading {
 public:
  explicit LogReading(const v1::LogsRequest& request);
  // Sends the next lines, or ends the stream when there is nothing more to wait for.
  void SendPage(Instant now, CoordinatorLoop& loop, WatchStream<v1::LogLine>& stream);

 private:
  LogQuery query_;
  int64_t tail_;  // to be found yet
  const bool follow_;
  Instant idle_until_{};
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CLIENT_LOG_H_
