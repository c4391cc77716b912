// Links between ends that cannot reach each other: nothing listens where they are said to be, and
// a relay passes their connections on.

#include "common/net/relay/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/net/pump.h"
#include "common/net/relay/places.h"
#include "common/net/relay/words.h"
#include "common/net/testing/peer_fixture.h"
#include "common/net/testing/test_handler.h"

namespace atl {
namespace {

constexpr char kNowhere[] = "tcp://127.0.0.1:1";  // refuses connections

std::unique_ptr<Relay> MakeRelay() {
  auto relay = Relay::Create("tcp://127.0.0.1:0");
  INFO(relay.status().ToString());
  REQUIRE(relay.ok());
  return *std::move(relay);
}

LinkWay WayIn(const Relay& relay, const std::string& member, Incarnation incarnation = 1) {
  return {"tcp://" + relay.address(), MakeRelayWord(relay.secret(), {true, member, incarnation})};
}

std::string EndpointThrough(const Relay& relay, const std::string& member,
                            Incarnation incarnation = 1) {
  return MakeRelayEndpoint(relay.address(),
                           MakeRelayWord(relay.secret(), {false, member, incarnation}));
}

PeerLinkOptions Keyed() {
  PeerLinkOptions options;
  options.keys = GenerateKeyPair().value();
  return options;
}

void HideBehind(const Relay& relay, TestPeer& peer) {
  peer.link->AcceptThrough({WayIn(relay, peer.member.worker)});
  peer.member.endpoint = std::string(kNowhere) + "," + EndpointThrough(relay, peer.member.worker);
}

template <class Condition>
void Await(Condition condition) {
  const Instant limit = SteadyNow() + testing::kHangLimit;
  while (!condition()) {
    REQUIRE(SteadyNow() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// A client of a relay that says what it likes.
class Stranger {
 public:
  explicit Stranger(const Relay& relay) {
    int port = 0;
    const std::string address = relay.address();
    REQUIRE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(port));
    REQUIRE(connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  }
  void Say(absl::string_view bytes) {
    REQUIRE(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void Request(const std::string& word) {
    Say("CONNECT " + word + ":1 HTTP/1.1\r\nHost: " + word + ":1\r\n\r\n");
  }
  // Fewer: the relay has ended the connection.
  std::string Receive(size_t bytes) {
    std::string text(bytes, '\0');
    const ssize_t got = recv(socket_.get(), text.data(), bytes, MSG_WAITALL);
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }
  // The status of the answer; 0: the connection has ended without.
  int ReadAnswer() {
    std::string head;
    while (!absl::EndsWith(head, "\r\n\r\n")) {
      const std::string byte = Receive(1);
      if (byte.empty()) return 0;
      head += byte;
    }
    int status = 0;
    REQUIRE(absl::StartsWith(head, "HTTP/1.1 "));
    REQUIRE(absl::SimpleAtoi(head.substr(strlen("HTTP/1.1 "), 3), &status));
    return status;
  }
  bool IsRefused(int status) { return ReadAnswer() == status && Receive(1).empty(); }
  bool IsConnected() { return ReadAnswer() == 200; }

 private:
  const Descriptor socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

TEST_CASE("an endpoint's ways and a word are read as they were made, and no other word is valid") {
  const std::string word = MakeRelayWord("secret", {true, "w.rack-3.a_b", 17});
  REQUIRE(ReadRelayWord("secret", word) == RelayWord{true, "w.rack-3.a_b", 17});
  REQUIRE_FALSE(ReadRelayWord("another", word));
  REQUIRE_FALSE(ReadRelayWord("secret", "d" + word.substr(1)));
  REQUIRE_FALSE(ReadRelayWord("secret", word + "c"));
  REQUIRE_FALSE(ReadRelayWord("secret", "a.17"));
  const std::string endpoint = "tcp://10.0.0.5:7200," + MakeRelayEndpoint("203.0.113.9:7400", word);
  REQUIRE(ReadLinkWays(endpoint) ==
          std::vector<LinkWay>{{"tcp://10.0.0.5:7200", ""}, {"tcp://203.0.113.9:7400", word}});
  REQUIRE(DescribeEndpoint("tcp://10.0.0.5:7200,relay://127.0.0.1:0/d.17.w.b") ==
          "tcp://10.0.0.5:7200, connects itself");
  REQUIRE(SignRelayText("secret", MakeRelayText({true, "w.rack-3.a_b", 17})) == word);
  REQUIRE(DescribeEndpoint(endpoint) == "tcp://10.0.0.5:7200, relay 203.0.113.9:7400");
  REQUIRE_FALSE(IsLoopback("tcp://127.0.0.1:1," + MakeRelayEndpoint("203.0.113.9:7400", word)));
  REQUIRE(IsLoopback("tcp://127.0.0.1:1," + MakeRelayEndpoint("127.0.0.1:7400", word)));
}

TEST_CASE("a word that is too long is an error of the connection") {
  const auto relay = MakeRelay();
  TestPeer a("a", Keyed()), b("b", Keyed());
  b.member.endpoint =
      std::string(kNowhere) + "," + MakeRelayEndpoint(relay->address(), std::string(256, 'd'));
  a.link->SetTemporaryPeers({b.member}, kPatience);
  REQUIRE(a.link->Probe({b.member}, testing::kNothingComes).size() == 1);
}

TEST_CASE("a member keeps a relay that is not named any more until another one takes its place") {
  const RelayPlace a{"a", "a:1", "wait-a", "dial-a"}, b{"b", "b:1", "wait-b", "dial-b"};
  const RelayPlace restarted{"a", "a:1", "wait-a2", "dial-a2"}, c{"c", "c:1", "wait-c", "dial-c"};
  std::vector<RelayPlace> relays;
  REQUIRE_FALSE(TakeRelays({}, true, &relays));
  REQUIRE(TakeRelays({a}, true, &relays));
  REQUIRE_FALSE(TakeRelays({}, true, &relays));  // a coordinator that has just started
  REQUIRE(TakeRelays({b}, true, &relays));
  REQUIRE(relays == std::vector{b, a});
  REQUIRE_FALSE(TakeRelays({a, b}, true, &relays));
  REQUIRE(TakeRelays({restarted, b}, true, &relays));
  REQUIRE(relays == std::vector{b, restarted});
  REQUIRE(TakeRelays({b, c}, true, &relays));
  REQUIRE(relays == std::vector{b, c});
  REQUIRE(AddRelays("tcp://h:7", relays) == "tcp://h:7,relay://b:1/dial-b,relay://c:1/dial-c");
  REQUIRE(AddRelays("", relays).empty());
  REQUIRE(ListStandbyWays({b}) == std::vector<LinkWay>{{"tcp://b:1", "wait-b"}});
}

TEST_CASE(
    "members' own relays are those of the newest Welcome, and stay through a connection's first") {
  const RelayPlace a{"a", "a:1", "wait-a", "dial-a"}, w{"w", "w:1", "wait-w", "d.1.m", true};
  const RelayPlace v{"v", "v:1", "wait-v", "d.1.m", true};
  std::vector<RelayPlace> relays;
  REQUIRE(TakeRelays({a, w}, false, &relays));
  REQUIRE(AddRelays("tcp://h:7", relays) ==
          "tcp://h:7,relay://127.0.0.1:0/d.1.m,relay://a:1/dial-a");
  REQUIRE_FALSE(TakeRelays({}, true, &relays));  // a coordinator that has just started
  REQUIRE(TakeRelays({v}, true, &relays));
  REQUIRE(relays == std::vector{a, v});
  REQUIRE(TakeRelays({a}, false, &relays));
  REQUIRE(AddRelays("tcp://h:7", relays) == "tcp://h:7,relay://a:1/dial-a");
}

// Lets a worker that `from` cannot reach connect to that one's own relay; returns its endpoint.
std::string ConnectsItself(const Relay& relay, const std::string& nowhere, TestPeer& from,
                           TestPeer& peer) {
  from.link->UseOwnRelay(relay.near(), relay.secret());
  peer.link->AcceptThrough({WayIn(relay, peer.member.worker)});
  return nowhere + "," +
         MakeRelayEndpoint("127.0.0.1:0", MakeRelayText({false, peer.member.worker, 1}));
}

TEST_CASE(
    "a worker that another cannot reach connects to it, and both exchange all that they have") {
  const bool keyed = GENERATE(true, false);
  auto relay = Relay::CreateOwn("tcp://127.0.0.1:*", "tcp://127.0.0.1:*");
  REQUIRE(relay.ok());
  TestPeer a("a", keyed ? Keyed() : PeerLinkOptions()), b("b", keyed ? Keyed() : PeerLinkOptions());
  b.member.endpoint = ConnectsItself(**relay, kNowhere, a, b);
  Meet(Plan(1), {&a, &b});
  for (PeerChannel channel : {PeerChannel::kCommand, PeerChannel::kTensor}) {
    const std::string text = RandomText(channel == PeerChannel::kCommand ? 100 : 3'000'001);
    a.Say(b, channel, "h", text);
    b.Say(a, channel, "h", text);
    REQUIRE(b.ReceiveText(channel) == text);
    REQUIRE(a.ReceiveText(channel) == text);
  }
  REQUIRE(a.link->FindRelay(b.member) == "*");
  REQUIRE(a.link->ListUnreached() == std::vector<std::string>{kNowhere});
  REQUIRE(b.link->ListUnreached().empty());
  REQUIRE((*relay)->counters().pairs >= 2);  // what a sends; b has connections of its own
}

TEST_CASE("an address that leads nowhere is listed until it leads somewhere") {
  TestPeer a("a");
  PeerLinkOptions options;
  IslandMember b;
  {
    const TestPeer before("b");
    b = before.member;
    options.endpoint = before.link->endpoint();
  }
  std::thread probe([&] { a.link->Probe({b}, kPatience); });
  Await([&] { return !a.link->ListUnreached().empty(); });
  REQUIRE(a.link->ListUnreached() == std::vector{options.endpoint});
  const TestPeer again("b", options);
  probe.join();
  REQUIRE(a.link->ListUnreached().empty());
}

TEST_CASE("workers that cannot reach each other exchange all that they have through a relay") {
  const bool keyed = GENERATE(true, false);
  const auto relay = MakeRelay();
  TestPeer a("a", keyed ? Keyed() : PeerLinkOptions()), b("b", keyed ? Keyed() : PeerLinkOptions());
  HideBehind(*relay, a);
  HideBehind(*relay, b);
  Meet(Plan(1), {&a, &b});
  for (PeerChannel channel : {PeerChannel::kCommand, PeerChannel::kTensor, PeerChannel::kState,
                              PeerChannel::kCollective}) {
    const std::string text = RandomText(channel == PeerChannel::kCommand ? 100 : 3'000'001);
    a.Say(b, channel, "h", text);
    b.Say(a, channel, "h", text);
    REQUIRE(b.ReceiveText(channel) == text);
    REQUIRE(a.ReceiveText(channel) == text);
  }
  REQUIRE(a.link->FindRelay(b.member) == relay->address());
  REQUIRE(relay->counters().pairs >= 4);  // commands and bulk, of both
}

TEST_CASE("a worker that one cannot reach is connected to directly by those that can") {
  const auto relay = MakeRelay();
  TestPeer a("a", Keyed()), b("b", Keyed());
  b.link->AcceptThrough({WayIn(*relay, "b")});
  b.member.endpoint += "," + EndpointThrough(*relay, "b");
  Meet(Plan(1), {&a, &b});
  REQUIRE(a.link->FindRelay(b.member).empty());
  REQUIRE(relay->counters().paired == 0);
}

TEST_CASE("probes and samples go the way that links go") {
  const auto relay = MakeRelay();
  TestPeer a("a", Keyed()), b("b", Keyed());
  HideBehind(*relay, b);
  a.link->SetTemporaryPeers({b.member}, kPatience);
  b.link->SetTemporaryPeers({a.member}, kPatience);
  REQUIRE(a.link->Probe({b.member}, kPatience).empty());
  auto sampler = a.link->Sample(b.member, 0, kPatience);
  REQUIRE(sampler.ok());
  REQUIRE((*sampler)->Time(1 << 20, kPatience).ok());
  REQUIRE(a.link->FindRelay(b.member) == relay->address());
}

constexpr int64_t kChunkBytes = 4096;
const PushId kPush{"job-1", 0, 1, 1, 0, 1};

// A parameter server that is reached through either of two relays.
struct RelayedLink : TestLink {
  RelayedLink()
      : TestLink({.bandwidth_limit_bytes_per_s = 2e6},
                 {.chunk_bytes = kChunkBytes, .bandwidth_limit_bytes_per_s = 2e6}) {
    server->AcceptThrough({WayIn(*relays[0], "s"), WayIn(*relays[1], "s")});
    address.endpoint = std::string(kNowhere) + "," + EndpointThrough(*relays[0], "s") + "," +
                       EndpointThrough(*relays[1], "s");
  }
  ~RelayedLink() { client.reset(); }

  std::unique_ptr<Relay> relays[2] = {MakeRelay(), MakeRelay()};
};

TEST_CASE("a relay ends in the middle of a push: it goes on through the other, each byte once") {
  RelayedLink link;
  Rng rng(1);
  auto values = std::make_shared<std::vector<float>>(250'000);
  for (float& value : *values) value = static_cast<float>(rng.Normal());
  Awaited<PushResult> push = link.StartPush(kPush, values);
  Await([&] { return link.server->counters().payload_bytes_received >= 200'000; });
  const int used = link.relays[0]->counters().pairs > 0 ? 0 : 1;
  link.relays[used].reset();
  REQUIRE(push.Get().status.ToString() == "OK");
  REQUIRE(push.Get().push_status == PushStatus::kStaged);
  REQUIRE(*link.handler.Staged(kPush) == *values);
  REQUIRE(link.server->counters().payload_bytes_received == 1'000'000);
  REQUIRE(link.relays[1 - used]->counters().paired > 0);
}

TEST_CASE("a relay connects those that hold its words, and no others") {
  const auto relay = MakeRelay();
  const auto word = [&](bool accepts, Incarnation incarnation, const std::string& member = "m") {
    return MakeRelayWord(relay->secret(), {accepts, member, incarnation});
  };
  Stranger early(*relay), made_up(*relay), web(*relay);
  early.Request(word(false, 1));
  REQUIRE(early.IsRefused(503));  // the member is not there
  made_up.Request(MakeRelayWord("another secret", {true, "m", 1}));
  REQUIRE(made_up.IsRefused(403));
  web.Say("GET / HTTP/1.1\r\n\r\n");
  REQUIRE(web.IsRefused(403));

  Stranger member(*relay), dialler(*relay), of_another(*relay);
  member.Request(word(true, 1));
  Await([&] { return relay->counters().waiting == 1; });
  of_another.Request(word(false, 1, "n"));
  REQUIRE(of_another.IsRefused(503));
  dialler.Request(word(false, 1));
  REQUIRE(dialler.IsConnected());
  REQUIRE(member.IsConnected());
  dialler.Say("there");
  REQUIRE(member.Receive(5) == "there");
  member.Say("and back");
  REQUIRE(dialler.Receive(8) == "and back");

  Stranger newer(*relay), older(*relay);
  newer.Request(word(true, 2));
  REQUIRE(member.Receive(1).empty());  // its process has been replaced
  REQUIRE(dialler.Receive(1).empty());
  older.Request(word(true, 1));
  REQUIRE(older.IsRefused(403));
  const Relay::Counters counters = relay->counters();
  REQUIRE(counters.paired == 1);
  REQUIRE(counters.refused == 5);
}

TEST_CASE("a member whose clock was set back waits again once its earlier process is not there") {
  const auto relay = MakeRelay();
  const auto word = [&](bool accepts, Incarnation incarnation) {
    return MakeRelayWord(relay->secret(), {accepts, "m", incarnation});
  };
  {
    Stranger before(*relay);
    before.Request(word(true, 2));
    Await([&] { return relay->counters().waiting == 1; });
  }
  Await([&] { return relay->counters().waiting == 0; });
  Stranger after(*relay), late(*relay), dialler(*relay);
  after.Request(word(true, 1));
  Await([&] { return relay->counters().waiting == 1; });
  late.Request(word(false, 2));  // to the earlier process
  REQUIRE(late.IsRefused(503));
  dialler.Request(word(false, 1));
  REQUIRE(dialler.IsConnected());
  REQUIRE(after.IsConnected());
}

TEST_CASE("what one end sends is held back, bounded, until the other takes it") {
  const auto relay = MakeRelay();
  Stranger member(*relay), dialler(*relay);
  member.Request(MakeRelayWord(relay->secret(), {true, "m", 1}));
  Await([&] { return relay->counters().waiting == 1; });
  dialler.Request(MakeRelayWord(relay->secret(), {false, "m", 1}));
  Await([&] { return relay->counters().pairs == 1; });
  REQUIRE(dialler.IsConnected());
  REQUIRE(member.IsConnected());
  const std::string text = RandomText(32 << 20);
  std::thread sender([&] { dialler.Say(text); });
  const std::string received = member.Receive(text.size());
  sender.join();
  REQUIRE(received == text);
}

}  // namespace
}  // namespace atl
