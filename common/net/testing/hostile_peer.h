// Ends of links that keep no rule: raw ZeroMQ sockets with crafted frames.

#ifndef ATOLL_COMMON_NET_TESTING_HOSTILE_PEER_H_
#define ATOLL_COMMON_NET_TESTING_HOSTILE_PEER_H_

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/net/codec.h"
#include "common/net/endpoint.h"
#include "common/net/frame.h"
#include "common/net/testing/peer_fixture.h"

namespace atl {

inline void Await(Socket& socket, short what) {
  zmq_pollitem_t item = {socket.get(), 0, what, 0};
  REQUIRE(zmq_poll(&item, 1, std::chrono::milliseconds(testing::kHangLimit).count()) == 1);
}

inline v1::Frame MakeHello(const IslandMember& from, const IslandMember& to, int lane) {
  v1::Frame frame = MakeFrame(1);
  v1::PeerHello& hello = *frame.mutable_peer_hello();
  hello.set_job("job-1");
  hello.set_generation(1);
  hello.set_plan(1);
  hello.set_from(from.worker);
  hello.set_from_incarnation(from.incarnation);
  hello.set_to(to.worker);
  hello.set_to_incarnation(to.incarnation);
  hello.set_lane(lane);
  hello.set_chunk_bytes(1024);
  return frame;
}

inline std::vector<std::string> MakeChunk(uint64_t transfer, int64_t index, const std::string& data,
                                          bool honest = true) {
  v1::Frame frame = MakeFrame(transfer);
  frame.mutable_chunk()->set_index(index);
  frame.mutable_chunk()->set_checksum(Hash(std::as_bytes(std::span(data))) + !honest);
  return {frame.SerializeAsString(), data};
}

// A connection to a link that says what it likes.
class HostileSender {
 public:
  explicit HostileSender(const std::string& endpoint)
      : context_(ZmqContext::Create(1).value()),
        dealer_(context_->MakeTensorSocket(ZMQ_DEALER).value()) {
    REQUIRE(zmq_connect(dealer_.get(), endpoint.c_str()) == 0);
    Await(dealer_, ZMQ_POLLOUT);
  }
  void Send(const std::vector<std::string>& parts) {
    std::vector<Message> message;
    for (const std::string& part : parts) message.push_back(Message::Of(part));
    while (dealer_.Send(message) != SendOutcome::kSent) Await(dealer_, ZMQ_POLLOUT);
  }
  void Send(const v1::Frame& frame) { Send({frame.SerializeAsString()}); }
  // Opens a peer's message as its channel's next one on this lane, unless `sequence` says
  // otherwise.
  void Open(uint64_t number, int channel, int64_t bytes, const std::string& header = "h",
            int64_t sequence = 0) {
    v1::Frame frame = MakeFrame(number);
    frame.mutable_peer_open()->set_sequence(sequence != 0 ? sequence : ++opened_[channel]);
    frame.mutable_peer_open()->set_channel(channel);
    frame.mutable_peer_open()->set_bytes(bytes);
    frame.mutable_peer_open()->set_header(header);
    Send(frame);
  }
  void SendChunk(uint64_t number, int64_t index, const std::string& data, bool honest = true) {
    Send(MakeChunk(number, index, data, honest));
  }
  // The link's next word.
  v1::Frame Receive() {
    std::vector<Message> parts;
    while (!dealer_.Receive(&parts, 2)) Await(dealer_, ZMQ_POLLIN);
    v1::Frame frame;
    REQUIRE(frame.ParseFromArray(parts[0].text().data(), parts[0].text().size()));
    return frame;
  }

 private:
  std::unique_ptr<ZmqContext> context_;
  Socket dealer_;
  std::map<int, int64_t> opened_;  // messages, by channel
};

// The other ends of a link's connections, which answer what they like.
class HostileReceiver {
 public:
  HostileReceiver()
      : context_(ZmqContext::Create(1).value()),
        router_(context_->MakeTensorSocket(ZMQ_ROUTER).value()) {
    member = {"m", 1, Bind(router_, "tcp://127.0.0.1:*").value(), ""};
  }
  // The next frame of a connection, which is answered to from now on.
  v1::Frame Receive() {
    std::vector<Message> parts;
    while (!router_.Receive(&parts, 3)) Await(router_, ZMQ_POLLIN);
    peer_ = std::string(parts[0].text());
    v1::Frame frame;
    REQUIRE(frame.ParseFromArray(parts[1].text().data(), parts[1].text().size()));
    return frame;
  }
  bool TrySend(const std::vector<std::string>& parts) {
    std::vector<Message> message;
    message.push_back(Message::Of(peer_));
    for (const std::string& part : parts) message.push_back(Message::Of(part));
    return router_.Send(message) == SendOutcome::kSent;
  }
  void Send(const std::vector<std::string>& parts) {
    while (!TrySend(parts)) Await(router_, ZMQ_POLLOUT);
  }
  void Send(const v1::Frame& frame) { Send({frame.SerializeAsString()}); }
  void WelcomeBoth() {
    for (int lanes = 0; lanes < 2;) {
      const v1::Frame hello = Receive();
      if (hello.peer_hello().from() != "w") continue;
      v1::Frame welcome = MakeFrame(hello.transfer());
      for (const int64_t limit : {1 << 20, 1 << 20, 0, 0}) {
        welcome.mutable_peer_welcome()->add_limits(limit);
      }
      Send(welcome);
      ++lanes;
    }
  }
  IslandMember member;

 private:
  std::unique_ptr<ZmqContext> context_;
  Socket router_;
  std::string peer_;
};

// An honest worker w, its honest peer p, and a member m of the plan whose lanes the test writes.
struct HostilePeerFixture {
  explicit HostilePeerFixture(PeerLinkOptions options = {}) : w("w", options), p("p") {
    const std::vector<IslandMember> members = {w.member, p.member, m.member};
    REQUIRE(w.link->SetPeers(Plan(1), members).ok());
    REQUIRE(p.link->SetPeers(Plan(1), members).ok());
  }
  std::unique_ptr<HostileSender> Lane(int lane) {
    auto sender = std::make_unique<HostileSender>(w.member.endpoint);
    sender->Send(MakeHello(m.member, w.member, lane));
    REQUIRE(sender->Receive().has_peer_welcome());
    return sender;
  }
  // Says hello under plan 2, which w does not know yet: nothing is answered.
  std::unique_ptr<HostileSender> WaitingLane(const IslandMember& from, int lane) {
    auto sender = std::make_unique<HostileSender>(w.member.endpoint);
    v1::Frame hello = MakeHello(from, w.member, lane);
    hello.mutable_peer_hello()->set_plan(2);
    const int64_t before = w.link->frames_refused();
    sender->Send(hello);
    sender->Open(2, lane, 0);  // too early: when it has been refused the hello has been read
    while (w.link->frames_refused() == before) std::this_thread::yield();
    return sender;
  }
  void RequireStillServing() {
    p.Say(w, PeerChannel::kTensor, "honest", std::string(5000, 'h'));
    while (w.Receive(PeerChannel::kTensor).header != "honest") {
    }
  }
  HostileReceiver m;
  TestPeer w, p;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TESTING_HOSTILE_PEER_H_
