#include "common/net/accept_guard.h"

#include <sys/socket.h>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

constexpr const char* kWhat = "a tensor or peer link";

// libzmq sees that the connection has ended, and closes it. A descriptor that means another
// connection by now is one of a peer that has too many, or has lost it to a stranger: it connects
// again.
void End(int descriptor) { shutdown(descriptor, SHUT_RDWR); }

}  // namespace

AcceptGuard::AcceptGuard(bool needs_sessions)
    : needs_sessions_(needs_sessions),
      open_(kWhat, ShareOfDescriptors(kConnectionsMax)),
      strangers_(absl::StrCat(kWhat, ", without a session"), kStrangersMax) {}

absl::StatusOr<std::unique_ptr<AcceptGuard>> AcceptGuard::Create(ZmqContext& context,
                                                                 const Socket& watched,
                                                                 bool needs_sessions) {
  std::unique_ptr<AcceptGuard> guard(new AcceptGuard(needs_sessions));
  ATOLL_ASSIGN_OR_RETURN(guard->monitor_,
                         SocketMonitor::Create(context, watched, ZMQ_EVENT_ACCEPTED));
  return guard;
}

void AcceptGuard::Run(Instant now) {
  while (const auto event = monitor_.Next()) OnAccepted(event->value, now);
  for (auto it = since_.begin(); it != since_.end();) {
    if (now - it->second < kSessionWithin) {
      ++it;
      continue;
    }
    if (const auto peer = OpenConnections::FindPeer(it->first); strangers_.Has(it->first, peer)) {
      strangers_.NoteRefusal(absl::StrCat(peer.address, " said nothing for 10 s"));
      End(it->first);
    }
    strangers_.Remove(it->first);
    it = since_.erase(it);
  }
}

void AcceptGuard::OnAccepted(int descriptor, Instant now) {
  // The number is free again, or the connection has ended already.
  open_.Remove(descriptor);
  strangers_.Remove(descriptor);
  since_.erase(descriptor);
  const OpenConnections::Peer peer = OpenConnections::FindPeer(descriptor);
  if (peer.address.empty()) return;
  for (OpenConnections* each : {&open_, &strangers_}) {
    if (each == &strangers_ && !needs_sessions_) continue;
    if (each->HasRoom(peer.address)) continue;
    each->NoteFull(peer.address);
    return End(descriptor);
  }
  open_.Add(descriptor, peer);
  if (!needs_sessions_) return;
  strangers_.Add(descriptor, peer);
  since_[descriptor] = now;
}

void AcceptGuard::Trust(Message& message, Instant now) {
  Run(now);  // that it was accepted comes before what was sent over it
  const int descriptor = zmq_msg_get(message.get(), ZMQ_SRCFD);
  strangers_.Remove(descriptor);
  since_.erase(descriptor);
}

}  // namespace atl
