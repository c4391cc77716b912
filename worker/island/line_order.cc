#include "worker/island/line_order.h"

namespace atl::worker {

bool LineOrder::Ready(const NodeId& worker, const LinePart& part) {
  if (ready_.size() >= kReadyMax) return false;
  return ready_.try_emplace(part, worker).second;
}

void LineOrder::Left(const NodeId& worker, const LinePart& part) {
  if (going_ && going_->turn == Turn{worker, part}) going_.reset();
  const auto waiting = ready_.find(part);
  if (waiting != ready_.end() && waiting->second == worker) ready_.erase(waiting);
}

std::optional<LineOrder::Turn> LineOrder::Next(Instant now) {
  if (going_ && now >= going_->until) going_.reset();
  if (going_ || ready_.empty()) return std::nullopt;
  const auto first = ready_.begin();
  going_ = {{first->second, first->first}, now + patience_};
  ready_.erase(first);
  return going_->turn;
}

std::optional<Instant> LineOrder::deadline() const {
  if (!going_ || ready_.empty()) return std::nullopt;  // no sender waits
  return going_->until;
}

}  // namespace atl::worker
