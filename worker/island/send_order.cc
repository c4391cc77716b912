#include "worker/island/send_order.h"

namespace atl::worker {

bool SendOrder::Ready(const NodeId& worker, const SendPart& part) {
  if (ready_.size() >= kReadyMax) return false;
  return ready_.try_emplace(part, worker).second;
}

void SendOrder::Left(const NodeId& worker, const SendPart& part) {
  if (outstanding_ && outstanding_->grant == Grant{worker, part}) outstanding_.reset();
  const auto waiting = ready_.find(part);
  if (waiting != ready_.end() && waiting->second == worker) ready_.erase(waiting);
}

std::optional<SendOrder::Grant> SendOrder::Next(Instant now) {
  if (outstanding_ && now >= outstanding_->until) outstanding_.reset();
  if (outstanding_ || ready_.empty()) return std::nullopt;
  const auto first = ready_.begin();
  outstanding_ = {{first->second, first->first}, now + patience_};
  ready_.erase(first);
  return outstanding_->grant;
}

std::optional<Instant> SendOrder::deadline() const {
  if (!outstanding_ || ready_.empty()) return std::nullopt;  // no sender waits
  return outstanding_->until;
}

}  // namespace atl::worker
