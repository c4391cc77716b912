// Transports of the same bytes between the same two processes.

#ifndef ATOLL_BENCH_DATAPLANE_PEER_H_
#define ATOLL_BENCH_DATAPLANE_PEER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/ids.h"

namespace atl::bench {

inline constexpr int64_t kChunkBytes = int64_t{1} << 20;
inline constexpr int64_t kTotalBytes = int64_t{128} << 20;  // of a round, in each direction

// A round: `count` tensors pushed, then pulled; each is in the other process's memory, in one
// chunk, when its push or pull counts as done.
struct Load {
  Encoding encoding = Encoding::kFloat32;
  int64_t elements = 0;
  int count = 0;
  int64_t tensor_bytes() const { return elements * BytesPerElement(encoding); }
};

// A server in the child process; it runs until the process ends.
class Server {
 public:
  virtual ~Server() = default;
  virtual int port() const = 0;
};

class Client {
 public:
  virtual ~Client() = default;
  virtual void Round(const Load& load) = 0;  // ends the process when something fails
};

std::unique_ptr<Server> MakeTcpServer();
std::unique_ptr<Client> MakeTcpClient(int port);
std::unique_ptr<Server> MakeGrpcServer();
std::unique_ptr<Client> MakeGrpcClient(int port);
std::unique_ptr<Server> MakeTensorServer();
std::unique_ptr<Client> MakeTensorClient(int port);
// With keys. Their keys are made by the first call; make it before processes part.
void MakeKeys();
// The same through a relay, a thread of the server's process.
std::unique_ptr<Server> MakeRelayedServer();
std::unique_ptr<Client> MakeRelayedClient(int port);
std::unique_ptr<Server> MakeSealedServer();
std::unique_ptr<Client> MakeSealedClient(int port);

}  // namespace atl::bench

#endif  // ATOLL_BENCH_DATAPLANE_PEER_H_
