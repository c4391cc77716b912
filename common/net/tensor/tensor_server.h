// The end of a tensor link that holds tensors: it takes pushes and answers pulls.
//
// Parameter servers use it. One ROUTER socket, libzmq's I/O threads, and one network thread of its
// own that checks, assembles and cuts up. The protocol and its limits are in proto/frame.proto.
//
// Backpressure. Memory is bounded whatever arrives: a push takes memory only after the handler has
// admitted it, at most `assembly_bytes_max` bytes of pushes are unacknowledged at a time (later
// ones wait in a bounded queue, or are ordered to retry), a client sends only the chunks it was
// granted, and at most `send_bytes_max` bytes, 4 MiB a client of them, plus two chunks a client,
// are on their way out.

#ifndef ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_
#define ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/net/payload.h"
#include "common/net/security.h"
#include "common/net/tensor/tensor_types.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

// Names a request that waits for its answer. Copy it freely; it means nothing in another server.
struct ReplyToken {
  uint64_t id = 0;
  auto operator<=>(const ReplyToken&) const = default;
};

// The tensors' owner, which carries out requests. All calls come on the server's network thread,
// which must not wait: decide from memory, or enqueue and return.
class TensorHandler {
 public:
  virtual ~TensorHandler() = default;

  // Decides whether to take a push of which only the description has come; no memory is taken for
  // it yet. OK: its bytes are requested and OnPush follows, or nothing if the sender dies.
  // AlreadyExists: answered kDuplicate, and its bytes are not sent. Anything else: answered
  // kRefused with the message as reason.
  virtual absl::Status AdmitPush(const PushId& id, Encoding encoding, int64_t element_count) = 0;

  // A push that was admitted is here, whole and with its checksums verified. `payload` holds
  // element_count elements as encoded (see codec.h). Answer once with AcknowledgePush. While the
  // answer is outstanding, the same push sent again is not delivered again: it shares the answer.
  virtual void OnPush(const PushId& id, Encoding encoding, int64_t element_count, Payload payload,
                      ReplyToken token) = 0;

  // Answer once with ReplyPull or RefusePull, now or later. A puller that has ended meanwhile is
  // forgotten: answering it does nothing.
  virtual void OnPull(const PullRequest& request, ReplyToken token) = 0;
};

struct TensorServerOptions {
  std::string endpoint;  // "tcp://127.0.0.1:7071"; "tcp://[::1]:*" takes any free port
  ServerSecurity security;
  int io_threads = 2;  // libzmq's threads, which move bytes between sockets and memory

  int64_t push_bytes_max = int64_t{4} << 30;      // of one push, as encoded; larger is refused
  int64_t assembly_bytes_max = int64_t{4} << 30;  // of all pushes admitted and unacknowledged
  int64_t send_bytes_max = int64_t{256} << 20;    // of all chunks handed to libzmq and not yet sent
  int64_t idle_buffer_bytes_max = int64_t{1} << 30;  // kept to be used again
  int push_window_chunks = 16;                       // that one push may have in flight
  int waiting_pushes_max = 4096;  // that wait for assembly room; more are ordered to retry
  int transfers_per_client_max = 1024;
  Duration idle_timeout = std::chrono::seconds(60);  // without a frame: a transfer is dropped

  // 0: as fast as it goes. For tests that need a slow link: bytes per second of pull payload sent.
  double bandwidth_limit_bytes_per_s = 0;
};

class TensorServer {
 public:
  // Binds and starts. `handler` must outlive the server. Errors name the endpoint.
  static absl::StatusOr<std::unique_ptr<TensorServer>> Create(TensorServerOptions options,
                                                              TensorHandler* handler);
  // Stops: no handler call runs or starts after this. Clients see the connection close.
  virtual ~TensorServer() = default;
  TensorServer(const TensorServer&) = delete;
  TensorServer& operator=(const TensorServer&) = delete;

  // The endpoint bound, with its real port.
  virtual const std::string& endpoint() const = 0;

  // The answers. Thread-safe; they return at once. An unknown or answered token does nothing.
  // kStaged guarantees that the push is durable (design: it is in the log, synced).
  virtual void AcknowledgePush(ReplyToken token, PushStatus status, std::string reason = "") = 0;

  // Sends `values`, which stay unchanged for as long as `owner` is kept here: until the last byte
  // has left, or the puller has disconnected. fp32 is sent from where it lies, without a copy.
  virtual void ReplyPull(ReplyToken token, Version version, std::span<const float> values,
                         std::shared_ptr<const void> owner) = 0;

  // `current`: the newest version held, kNoVersion if none.
  virtual void RefusePull(ReplyToken token, PullRefusal refusal, Version current,
                          std::string reason) = 0;

  // With security.keys, lets these public keys, checked before, connect in place of those before.
  // Every transfer of a client whose key is not among them ends, and nothing more is taken from it.
  // Thread-safe; returns at once.
  virtual void SetClientKeys(std::vector<std::string> public_keys) = 0;

  virtual LinkCounters counters() const = 0;   // thread-safe
  virtual int64_t assembly_bytes() const = 0;  // bytes admitted and unacknowledged now; thread-safe

 protected:
  TensorServer() = default;

 private:
  class Impl;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_SERVER_H_
