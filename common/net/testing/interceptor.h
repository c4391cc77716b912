// For tests: stands between two ends of links, sees their messages and passes on what it likes.

#ifndef ATOLL_COMMON_NET_TESTING_INTERCEPTOR_H_
#define ATOLL_COMMON_NET_TESTING_INTERCEPTOR_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/check.h"
#include "common/net/endpoint.h"
#include "common/net/socket.h"

namespace atl {

class Interceptor {
 public:
  using Parts = std::vector<std::string>;
  enum Direction { kToServer, kToClient };
  // Returns the messages to pass on in place of one.
  using Hook = std::function<std::vector<Parts>(Direction, Parts)>;

  // Creates an interceptor in front of a server.
  Interceptor(const std::string& server, Hook hook)
      : server_(server),
        hook_(std::move(hook)),
        context_(ZmqContext::Create(1).value()),
        front_(context_->MakeTensorSocket(ZMQ_ROUTER).value()) {
    endpoint_ = Bind(front_, "tcp://127.0.0.1:*").value();
    thread_ = std::thread([this] { Run(); });
  }
  ~Interceptor() {
    stop_ = true;
    thread_.join();
  }

  const std::string& endpoint() const { return endpoint_; }

 private:
  static Parts Take(std::vector<Message>& parts, size_t from) {
    Parts texts;
    for (size_t i = from; i < parts.size(); ++i) texts.emplace_back(parts[i].text());
    return texts;
  }
  void Send(Socket& socket, Parts parts) {
    std::vector<Message> messages;
    for (const std::string& part : parts) messages.push_back(Message::Of(part));
    while (!stop_ && socket.Send(messages) == SendOutcome::kFull) {
      zmq_pollitem_t item = {socket.get(), 0, ZMQ_POLLOUT, 0};
      zmq_poll(&item, 1, 20);
    }
  }

  void Run() {
    std::vector<Message> parts;
    while (!stop_) {
      std::vector<zmq_pollitem_t> items = {{front_.get(), 0, ZMQ_POLLIN, 0}};
      for (const auto& [client, back] : backs_) items.push_back({back.get(), 0, ZMQ_POLLIN, 0});
      zmq_poll(items.data(), static_cast<int>(items.size()), 20);
      while (front_.Receive(&parts, 4)) {
        Socket& back = GetServerSocket(std::string(parts[0].text()));
        for (Parts& out : hook_(kToServer, Take(parts, 1))) Send(back, std::move(out));
      }
      for (auto& [client, back] : backs_) {
        while (back.Receive(&parts, 4)) {
          for (Parts& out : hook_(kToClient, Take(parts, 0))) {
            out.insert(out.begin(), client);
            Send(front_, std::move(out));
          }
        }
      }
    }
  }

  // A connection to the server for each of the clients'.
  Socket& GetServerSocket(const std::string& client) {
    auto it = backs_.find(client);
    if (it == backs_.end()) {
      it = backs_.emplace(client, context_->MakeTensorSocket(ZMQ_DEALER).value()).first;
      ATOLL_CHECK(zmq_connect(it->second.get(), server_.c_str()) == 0);
    }
    return it->second;
  }

  const std::string server_;
  const Hook hook_;
  std::unique_ptr<ZmqContext> context_;
  Socket front_;
  std::string endpoint_;
  std::map<std::string, Socket> backs_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TESTING_INTERCEPTOR_H_
