// The member's end of the control plane: a worker's or parameter server's Attach stream to the
// coordinator, opened again whenever it breaks, with a capped backoff.
//
//   WorkerAttach attach(options, [&](WorkerAttach::Event e) { loop.Post(std::move(e)); });
//   attach.Send(WorkerHello{...});   // after each AttachOpened; order is kept
//   ...
//   loop.Stop(); attach.Close(flush);
//
// What was queued when a stream breaks is lost; the protocol sends again what is still needed.
// Events come from a thread of the client's, one after the other; the callback may wait
// (backpressure: the coordinator sends more slowly), and must not call the client. Messages from
// the coordinator are already checked (common/protocol/wire.h) and addressed to this member.

#ifndef ATOLL_COMMON_NET_CONTROL_ATTACH_CLIENT_H_
#define ATOLL_COMMON_NET_CONTROL_ATTACH_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "common/net/control/tls.h"
#include "common/protocol/control.h"
#include "common/time.h"

namespace atl {
namespace v1 {
class ClientKeys;
}

struct AttachOptions {
  std::string coordinator;  // "host:port", or a list of them, of which one leads (leader.h)
  TlsOptions tls;
  NodeId name;
  Incarnation incarnation = 0;
  size_t max_queued = 1024;  // messages to send
  Duration backoff_min = std::chrono::milliseconds(100);
  Duration backoff_max = std::chrono::seconds(5);
  Duration refused_backoff_max = std::chrono::seconds(60);  // where our certificate is refused
  // Optional: gets the list of keys (proto/keys.proto), at first and whenever it changes. Without a
  // stream the newest one holds. From the client's thread; must not wait.
  std::function<void(const v1::ClientKeys&)> on_keys = {};
};

// Connected. The hello is to be sent now.
struct AttachOpened {};

// The stream is broken, or could not be opened; another attempt follows by itself.
struct AttachLost {
  std::string reason;
};

// Instantiated for <FromWorker, ToWorker> and <FromServer, ToServer>.
template <class Up, class Down>
class AttachClient {
 public:
  using Event = std::variant<AttachOpened, AttachLost, Down>;
  using Message = decltype(Up::message);

  // Checks the options (name, address, TLS files) and begins to connect.
  static absl::StatusOr<std::unique_ptr<AttachClient>> Open(AttachOptions options,
                                                            std::function<void(Event)> on_event);
  // Close(Duration{0}).
  ~AttachClient();

  // Queues a message under this member's name and incarnation. False: no stream is open or the
  // queue is full, and the message is lost. Thread-safe; never waits.
  bool Send(Message message);

  // Sends what is queued, waiting at most `flush`, and ends the stream. No event comes once it
  // returns. Idempotent. REQUIRES: the callback does not wait for the caller any more.
  void Close(Duration flush);

 private:
  class Impl;
  explicit AttachClient(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

using WorkerAttach = AttachClient<FromWorker, ToWorker>;
using ServerAttach = AttachClient<FromServer, ToServer>;

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_ATTACH_CLIENT_H_
