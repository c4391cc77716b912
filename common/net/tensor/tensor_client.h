// The client end of a tensor link: it pushes tensors to servers and pulls tensors from them.
//
// Workers use it (and `atoll export`). One network thread serves all transfers to all servers; it
// converts to and from the encoding of messages chunk by chunk, so no second copy of a tensor
// exists.
//
// A lost connection is replaced and its transfers continue from the last chunk that arrived, over
// another connection where there is one; a corrupt chunk is sent again. A push repeated is the same
// push (promise N2). Every transfer ends, at its timeout at the latest, with one call of its
// `done`.
//
// Large transfers go in segments of about 8 MiB, cut at the same elements by every sender: a
// server acknowledges and keeps each, so a push repeated after any failure sends only the others.
// What counters() counts are then segments.

#ifndef ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_H_
#define ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/ids.h"
#include "common/net/security.h"
#include "common/net/tensor/tensor_types.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

struct ServerAddress {
  std::string endpoint;    // "tcp://host:port"
  std::string public_key;  // of the server, Z85; empty: plaintext
  auto operator<=>(const ServerAddress&) const = default;
};

// How a push or a pull ends. Status, besides OK: DeadlineExceeded (and what it was waiting for),
// Cancelled, Unauthenticated (the server does not know our key), InvalidArgument (a bad request or
// address), FailedPrecondition (the server refused; its reason follows).
struct TransferResult {
  absl::Status status;
  PushStatus push_status = PushStatus::kRefused;  // of a push: kStaged or kDuplicate when OK
  // The version that was pulled; when refused, the server's newest.
  Version version = kNoVersion;
  std::optional<PullRefusal> refusal = std::nullopt;  // set when the server refused a pull
};
using PushResult = TransferResult;
using PullResult = TransferResult;

using TransferId = uint64_t;

struct TensorClientOptions {
  ClientSecurity security;
  int io_threads = 1;  // libzmq's threads, which move bytes between sockets and memory
  // Connections from the first transfer on, and as many as bandwidth and latency turn out to need
  // (path_connections.h). Transfers and their segments are spread over them.
  int connections_per_server = 1;
  int connections_per_server_max = 16;
  int64_t chunk_bytes = int64_t{1} << 20;      // of a payload frame; a multiple of 4
  int pull_window_chunks = 16;                 // that one pull may have in flight
  int64_t send_bytes_max = int64_t{64} << 20;  // with libzmq and not yet sent; 4 MiB a connection
  int transfers_max = 1024;                    // at a time; more are refused at once

  // 0: as fast as it goes. For tests that need a slow link: bytes per second of payload, in each
  // direction, for this client as a whole.
  double bandwidth_limit_bytes_per_s = 0;
};

class TensorClient {
 public:
  using Done = std::function<void(TransferResult)>;

  static absl::StatusOr<std::unique_ptr<TensorClient>> Create(TensorClientOptions options);

  // Ends every transfer with Cancelled, then stops. No `done` runs after this.
  virtual ~TensorClient() = default;
  TensorClient(const TensorClient&) = delete;
  TensorClient& operator=(const TensorClient&) = delete;

  // All of these are thread-safe and return at once. `done` runs once, on the network thread, and
  // must not hold it up: it enqueues, or starts the next transfer. It must not destroy the client.

  // Sends `source`, encoded (not quantised), as the push `id`. `source` stays unchanged while
  // `owner` is kept here: until the last byte has left. That may be slightly after `done`.
  virtual TransferId Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                          std::span<const float> source, std::shared_ptr<const void> owner,
                          Duration timeout, Done done) = 0;

  // The same with bytes that are encoded already, in whatever encoding: EncodedBytes(encoding,
  // element_count) of them.
  virtual TransferId Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                          int64_t element_count, std::span<const std::byte> source,
                          std::shared_ptr<const void> owner, Duration timeout, Done done) = 0;

  // (Both: id.elements is what is pushed, or 0 for a whole shard.)

  // Fills `destination`, which must stay valid until `done` and have exactly as many elements as
  // were requested.
  // Its content is unspecified unless the result is OK.
  virtual TransferId Pull(const ServerAddress& server, const PullRequest& request,
                          std::span<float> destination, Duration timeout, Done done) = 0;

  // Ends a transfer with Cancelled, unless it has ended. A push may have been taken all the same.
  virtual void Cancel(TransferId id) = 0;

  virtual LinkCounters counters() const = 0;
  // Bytes a second that pulls have come in with lately, by endpoint (pull_rates.h).
  virtual std::map<std::string, double> pull_rates() const = 0;

 protected:
  TensorClient() = default;

 private:
  class Impl;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_TENSOR_CLIENT_H_
