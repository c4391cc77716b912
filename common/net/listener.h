// A listening TCP socket that goes on listening: connections are bounded by peer and in all before
// a byte of them is read, and what accept() fails with (no descriptor left, a connection that broke
// meanwhile) is waited out and named in the log.

#ifndef ATOLL_COMMON_NET_LISTENER_H_
#define ATOLL_COMMON_NET_LISTENER_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/net/open_connections.h"
#include "common/status.h"

namespace atl {

class Listener {
 public:
  // An accepted connection, which the callee closes: it does not block, and is closed on exec.
  using OnConnection = std::function<void(int connection, const std::string& peer)>;
  // Makes room for one more of this peer ("": of any), by ending others; false: there is none.
  using MakeRoom = std::function<bool(const std::string& peer)>;

  // `what`: for errors and the log, "--http-listen 127.0.0.1:0". Port 0: any. The wildcard address
  // takes both families.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& what,
                                                        const std::string& host, int port,
                                                        ConnectionLimits limits);
  ~Listener();

  int port() const { return port_; }
  // Accepts from now on, on a thread of its own. Once. Without `make_room` what is too many is
  // closed.
  void Start(OnConnection on_connection, MakeRoom make_room = nullptr);
  // None is accepted afterwards, and the port is free.
  void Stop();

  // Counts the open connections of the peer; "": of all peers.
  int CountOpen(const std::string& peer);

 private:
  Listener(const std::string& what, ConnectionLimits limits) : what_(what), open_(what, limits) {}
  absl::Status Listen(const std::string& host, int port);
  void Run();
  void Accept(int socket);
  bool HasRoom(const std::string& peer);
  void NoteRefusal(const std::string& why);

  const std::string what_;
  OnConnection on_connection_;
  MakeRoom make_room_;
  std::vector<int> sockets_;
  int port_ = 0;
  int stop_ = -1;  // an eventfd that ends the thread
  std::mutex mutex_;
  OpenConnections open_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_LISTENER_H_
