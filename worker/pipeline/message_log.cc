#include "worker/pipeline/message_log.h"

#include <utility>

#include "common/event_loop.h"
#include "common/protocol/step_trace.h"

namespace atl::worker {

void MessageLog::Record(int64_t step) {
  const std::lock_guard lock(mutex_);
  messages_.clear();
  missing_ = 0;
  step_ = step;
}

size_t MessageLog::OnSent(SentMessage message) {
  const std::lock_guard lock(mutex_);
  if (message.tag.step != step_ || messages_.size() >= kTraceEntriesMax) return kTraceEntriesMax;
  ++missing_;
  messages_.push_back(std::move(message));
  return messages_.size() - 1;
}

void MessageLog::OnArrived(int64_t step, size_t index, Instant start, Instant arrived) {
  const std::lock_guard lock(mutex_);
  if (step != step_ || index >= messages_.size() || messages_[index].there) return;
  SentMessage& message = messages_[index];
  message.start = start;
  message.arrived = arrived;
  message.there = true;
  --missing_;
  arrived_.notify_all();
}

std::vector<SentMessage> MessageLog::Take(Instant deadline) {
  std::unique_lock lock(mutex_);
  arrived_.wait_until(lock, ToSteady(deadline), [this] { return missing_ == 0; });
  step_ = -1;
  missing_ = 0;
  return std::exchange(messages_, {});
}

}  // namespace atl::worker
