// A listening TCP socket that goes on listening: connections are bounded by peer and in all before
// a byte of them is read, and what accept() fails with (no descriptor left, a connection that broke
// meanwhile) is waited out and named in the log.

#ifndef ATOLL_COMMON_NET_LISTENER_H_
#define ATOLL_COMMON_NET_LISTENER_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/status.h"
#include "common/time.h"

namespace atl {

struct ConnectionLimits {
  int connections = 0;  // in all
  int by_peer = 0;      // of one address
};

// A part of the descriptors that this process may open: the rest is for its files and its own
// connections. At most `most`; of one address half of them.
ConnectionLimits ShareOfDescriptors(int most);

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
  Listener(std::string what, ConnectionLimits limits) : what_(std::move(what)), limits_(limits) {}
  absl::Status Listen(const std::string& host, int port);
  void Run();
  void Accept(int socket);
  bool HasRoom(const std::string& peer);
  // The log has one line for the refusals of ten seconds.
  void NoteRefusal(const std::string& why);

  struct Peer {
    std::string address;
    int port = 0;
  };

  const std::string what_;
  const ConnectionLimits limits_;
  OnConnection on_connection_;
  MakeRoom make_room_;
  std::vector<int> sockets_;
  int port_ = 0;
  int stop_ = -1;  // an eventfd that ends the thread
  std::mutex mutex_;
  std::map<int, Peer> open_;  // guarded by mutex_; by descriptor, as accepted
  int64_t refused_ = 0;       // of the thread, as below
  Instant noted_{};
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_LISTENER_H_
