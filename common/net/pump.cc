#include "common/net/pump.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace atl {

bool Pump::Flow::Turn(bool readable) {
  if (readable && WantsToRead()) {
    const ssize_t got = recv(from, buffer.get() + end, kBufferBytes - end, 0);
    if (got < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (got >= 0) ++moves;
    if (got == 0) ended = true;
    if (got > 0) end += static_cast<size_t>(got);
  }
  if (WantsToWrite()) {
    const ssize_t sent = send(to, buffer.get() + begin, end - begin, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent > 0) {
      ++moves;
      begin += static_cast<size_t>(sent);
      bytes += sent;
    }
    if (begin == end) begin = end = 0;
  }
  // The end of the stream passes on, once.
  if (done() && !std::exchange(passed_on, true)) shutdown(to, SHUT_WR);
  return true;
}

short Pump::Events(const Flow& in, const Flow& out) {
  return static_cast<short>((in.WantsToRead() ? POLLIN : 0) | (out.WantsToWrite() ? POLLOUT : 0));
}

bool Pump::Turn(bool near_readable, bool far_readable, Instant now) {
  const int64_t moves = forth_.moves + back_.moves;
  if (!forth_.Turn(near_readable) || !back_.Turn(far_readable)) return false;
  if (forth_.done() && back_.done()) return false;
  if (forth_.moves + back_.moves > moves) moved_at_ = now;
  return !ending() || now < moved_at_ + kEndPause;
}

}  // namespace atl
