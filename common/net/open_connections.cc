#include "common/net/open_connections.h"

#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/event_loop.h"
#include "common/logging.h"

namespace atl {
namespace {

constexpr int kReservedDescriptors = 256;  // never for connections that strangers open
constexpr Duration kNoteInterval = std::chrono::seconds(10);
// A flood causes a look at all connections with each of its own. Where these are many, so many
// times what a look takes is between two.
constexpr int kRest = 20;
constexpr int64_t kFew = 32;

}  // namespace

ConnectionLimits ShareOfDescriptors(int most) {
  rlimit limit{};
  int64_t there = 1024;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    there = static_cast<int64_t>(limit.rlim_cur);
  } else if (limit.rlim_cur == RLIM_INFINITY) {
    there = most * int64_t{2};
  }
  const int64_t share =
      std::max<int64_t>(std::min<int64_t>(there / 2, there - kReservedDescriptors), 16);
  const int connections = static_cast<int>(std::min<int64_t>(share, most));
  return {connections, std::max(8, connections / 2)};
}

OpenConnections::Peer OpenConnections::FindPeer(int descriptor) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (getnameinfo(reinterpret_cast<sockaddr*>(&storage), size, host.data(), host.size(),
                  service.data(), service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return {std::string(absl::StripPrefix(host.data(), "::ffff:")), std::atoi(service.data())};
}

int OpenConnections::Count(const std::string& peer) const {
  if (peer.empty()) return static_cast<int>(open_.size());
  return static_cast<int>(std::count_if(
      open_.begin(), open_.end(), [&](const auto& entry) { return entry.second.address == peer; }));
}

bool OpenConnections::Fits(const std::string& peer) const {
  if (Count("") < std::min(limits_.by_peer, limits_.connections)) return true;
  return Count(peer) < limits_.by_peer && Count("") < limits_.connections;
}

bool OpenConnections::HasRoom(const std::string& peer) {
  if (Fits(peer)) return true;
  const Instant begin = SteadyNow();
  if (begin < look_again_at_) return false;
  std::erase_if(open_, [](const auto& entry) { return FindPeer(entry.first) != entry.second; });
  const Instant end = SteadyNow();
  if (std::ssize(open_) > kFew) look_again_at_ = end + kRest * (end - begin);
  return Fits(peer);
}

void OpenConnections::NoteRefusal(const std::string& why) {
  ++refused_;
  const Instant now = SteadyNow();
  if (noted_ != Instant{} && now - noted_ < kNoteInterval) return;
  noted_ = now;
  LogWarning("net", what_, ": ", std::exchange(refused_, 0), " connections were not taken: ", why);
}

void OpenConnections::NoteFull(const std::string& peer) {
  NoteRefusal(absl::StrCat(Count(peer), " of ", limits_.by_peer, " connections of ", peer,
                           " are open, ", Count(""), " of ", limits_.connections, " in all"));
}

}  // namespace atl
