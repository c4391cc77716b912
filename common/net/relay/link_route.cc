#include "common/net/relay/link_route.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
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
  present_ = ChooseFirst(context);
  NoteLost(SteadyNow());
  return Dial(context, socket);
}

size_t LinkRoute::ChooseFirst(ZmqContext& context) {
  const std::optional<LinkWay> last = context.ways().Find(endpoint_, SteadyNow());
  if (!last) return 0;
  const auto find = [&](auto is_it) {
    return static_cast<size_t>(std::find_if(ways_.begin(), ways_.end(), is_it) - ways_.begin());
  };
  const size_t own = find([](const LinkWay& way) { return way.at_own_relay(); });
  if (!last->word.empty() && own < ways_.size()) return own;
  const size_t same = find([&](const LinkWay& way) { return way == *last; });
  if (same < ways_.size()) return same;
  if (!last->word.empty()) return 0;
  ways_.insert(ways_.begin() + 1, *last);  // an address of its name
  return 1;
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
  if (is_direct() && now >= unreached_at_) {
    context.ways().NoteUnreached(ways_[0].endpoint);
    unreached_at_ = kNever;
  }
  if (present_ == 0 && now >= give_up_at_) AddAddresses(context, now);
  if (ways_.size() < 2 || now < give_up_at_) return false;
  present_ = (present_ + 1) % ways_.size();
  StartWay(now);
  if (!ConnectAgain(context, socket).ok()) NoteFailed(now);
  return true;
}

// They come after the name, of which the first address was tried.
void LinkRoute::AddAddresses(ZmqContext& context, Instant now) {
  const std::string& name = ways_[0].endpoint;
  const absl::StatusOr<std::string> route = context.tunnels().Route(name);
  if (!route.ok() || *route != name) return;  // a proxy finds them
  size_t at = 1;
  for (const std::string& address : context.names().Find(name, now)) {
    const LinkWay way{address, ""};
    if (ways_.size() >= kWaysMax || std::find(ways_.begin(), ways_.end(), way) != ways_.end()) {
      continue;
    }
    ways_.insert(ways_.begin() + static_cast<std::ptrdiff_t>(at++), way);
    if (unreached_at_ != kNever) unreached_at_ += kDirectWithin;
  }
}

void LinkRoute::NoteConnected(Instant now) {
  if (failed_) return;
  give_up_at_ = now + kHandshakeWithin;
  if (unreached_at_ != kNever) unreached_at_ = std::max(unreached_at_, give_up_at_);
}

void LinkRoute::NoteUp(ZmqContext& context, Instant now) {
  unreached_at_ = kNever;
  if (is_direct()) {
    context.ways().NoteReached(ways_[0].endpoint);
  } else {
    context.ways().NoteUnreached(ways_[0].endpoint);
  }
  if (ways_.size() > 1) context.ways().Note(endpoint_, ways_[present_], present_ == 0, now);
}

void LinkRoute::NoteFailed(Instant now) {
  give_up_at_ = std::min(give_up_at_, now + kFailedPause);
  failed_ = true;
}

void LinkRoute::NoteLost(Instant now) {
  unreached_at_ = now + kUnreachedAfter;
  StartWay(now);
}

void LinkRoute::StartWay(Instant now) {
  give_up_at_ = now + TimeFor(ways_[present_]);
  failed_ = false;
}

std::string LinkRoute::relay() const { return ways_.empty() ? "" : ways_[present_].relay(); }

}  // namespace atl
