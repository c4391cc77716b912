#include "common/net/relay/link_route.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/event_loop.h"

namespace atl {
namespace {

// Allows three packets to the other end of the world and back.
constexpr Duration kDirectWithin = std::chrono::seconds(2);
// Several more, and the relay may wait for a connection of the member.
constexpr Duration kRelayWithin = std::chrono::seconds(8);
constexpr Duration kHandshakeWithin = std::chrono::seconds(8);  // longer than libzmq's limit
constexpr Duration kFailedPause = std::chrono::milliseconds(100);

Duration TimeFor(const LinkWay& way) { return way.word.empty() ? kDirectWithin : kRelayWithin; }

}  // namespace

absl::Status LinkRoute::Connect(ZmqContext& context, Socket& socket, const std::string& endpoint) {
  endpoint_ = endpoint;
  ways_ = ReadLinkWays(endpoint);
  present_ = ways_.size() > 1 ? context.ways().Find(endpoint, SteadyNow()) % ways_.size() : 0;
  NoteLost(SteadyNow());
  return Dial(context, socket);
}

absl::Status LinkRoute::ConnectAgain(ZmqContext& context, Socket& socket) {
  if (!dialled_.empty()) zmq_disconnect(socket.use(), dialled_.c_str());
  return Dial(context, socket);
}

absl::Status LinkRoute::Dial(ZmqContext& context, Socket& socket) {
  const LinkWay& way = ways_[present_];
  ATOLL_ASSIGN_OR_RETURN(dialled_, context.tunnels().Route(way.endpoint, way.word));
  if (zmq_connect(socket.use(), dialled_.c_str()) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(way.endpoint, ": ", zmq_strerror(zmq_errno())));
}

bool LinkRoute::TryNext(ZmqContext& context, Socket& socket, Instant now) {
  if (ways_.size() < 2 || now < give_up_at_) return false;
  present_ = (present_ + 1) % ways_.size();
  NoteLost(now);
  if (!ConnectAgain(context, socket).ok()) NoteFailed(now);
  return true;
}

void LinkRoute::NoteConnected(Instant now) {
  if (!failed_) give_up_at_ = now + kHandshakeWithin;
}

void LinkRoute::NoteUp(ZmqContext& context, Instant now) {
  if (ways_.size() > 1) context.ways().Note(endpoint_, present_, now);
}

void LinkRoute::NoteFailed(Instant now) {
  give_up_at_ = std::min(give_up_at_, now + kFailedPause);
  failed_ = true;
}

void LinkRoute::NoteLost(Instant now) {
  give_up_at_ = now + TimeFor(ways_[present_]);
  failed_ = false;
}

std::string LinkRoute::relay() const {
  if (ways_.empty() || ways_[present_].word.empty()) return "";
  return std::string(absl::StripPrefix(ways_[present_].endpoint, "tcp://"));
}

}  // namespace atl
