// Workers that talk to each other over real sockets on loopback.

#include <catch2/catch.hpp>
#include <future>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/net/codec.h"
#include "common/net/security.h"
#include "common/net/testing/peer_fixture.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

using namespace std::chrono_literals;
using enum PeerChannel;

bool Says(absl::string_view text, absl::string_view part) {
  INFO(text);
  const bool says = absl::StrContains(text, part);
  CHECK(says);
  return says;
}

TEST_CASE("messages of any size come whole and in order, on every channel, between three workers") {
  PeerLinkOptions options{.chunk_bytes = 4096};
  TestPeer a("a", options), b("b", options), c("c", options);
  Meet(Plan(1), {&a, &b, &c});
  const std::vector<size_t> sizes = {0, 1, 4095, 4096, 4097, 300'001};
  for (TestPeer* from : {&a, &b, &c}) {
    for (PeerChannel channel : {kCommand, kTensor, kState}) {
      for (size_t size : sizes) {
        for (TestPeer* to : {&a, &b, &c}) {
          if (to != from) from->Say(*to, channel, std::to_string(size), RandomText(size));
        }
      }
    }
  }
  for (TestPeer* to : {&a, &b, &c}) {
    for (PeerChannel channel : {kCommand, kTensor, kState}) {
      std::map<NodeId, size_t> next;
      for (size_t i = 0; i < 2 * sizes.size(); ++i) {
        const PeerDelivery delivery = to->Receive(channel);
        const size_t size = sizes[next[delivery.from]++];
        REQUIRE(delivery.header == std::to_string(size));
        const std::string text = RandomText(size);
        REQUIRE(delivery.payload.size() == static_cast<int64_t>(size));
        REQUIRE(std::equal(text.begin(), text.end(),
                           reinterpret_cast<const char*>(delivery.payload.data())));
      }
    }
  }
}

TEST_CASE("a_collective_payload_arrives_with_its_checksum_and_is_not_checked_by_the_link") {
  TestPeer a("a"), b("b");
  Meet(Plan(1), {&a, &b});
  a.Say(b, PeerChannel::kCollective, "computed", "12345");
  PeerDelivery delivery = b.Receive(PeerChannel::kCollective);
  CHECK(delivery.checksum == Hash(delivery.payload.bytes()));

  auto text = std::make_shared<const std::string>("12345");
  PeerMessage given;
  given.channel = PeerChannel::kCollective;
  given.payload = std::as_bytes(std::span(*text));
  given.owner = text;
  given.checksum = 42;
  REQUIRE(a.link->Send("b", given).ok());
  CHECK(b.Receive(PeerChannel::kCollective).checksum == 42);

  given.channel = PeerChannel::kTensor;  // which the link checks
  REQUIRE(a.link->Send("b", given).ok());
  CHECK(absl::StrContains(b.AwaitLost("a"), "wrong checksum"));
}

TEST_CASE("links take the first free port of a range, and say which range has none") {
  TestPeer first("a", {.endpoint = "tcp://127.0.0.1:*"});
  const std::string taken = first.member.endpoint;
  int port = 0;
  REQUIRE(absl::SimpleAtoi(taken.substr(taken.rfind(':') + 1), &port));
  const std::string range = absl::StrCat(taken, "-", port + 200);
  TestPeer second("b", {.endpoint = range});
  int bound = 0;
  const std::string endpoint = second.member.endpoint;
  REQUIRE(absl::SimpleAtoi(endpoint.substr(endpoint.rfind(':') + 1), &bound));
  CHECK(bound > port);
  CHECK(bound <= port + 200);
  Meet(Plan(1), {&first, &second});
  const std::string full = absl::StrCat(taken, "-", port);
  const auto none = PeerLink::Create({.name = "c", .incarnation = 1, .endpoint = full}, &second);
  CHECK(absl::IsUnavailable(none.status()));
  CHECK(Says(none.status().message(), full));
}

TEST_CASE("a receiver that keeps what it gets is sent no more than it granted") {
  PeerLinkOptions options;
  options.window_bytes[1] = 10 * (10'000 + kPeerMessageCost);
  TestPeer a("a", options), b("b", options);
  Meet(Plan(1), {&a, &b});
  for (int i = 0; i < 25; ++i) a.Say(b, kTensor, std::to_string(i), RandomText(10'000));
  std::vector<PeerDelivery> kept;
  while (kept.size() < 10) kept.push_back(b.Receive(kTensor));
  a.Say(b, kCommand, "a command is not behind tensors");
  REQUIRE(b.Receive(kCommand).header == "a command is not behind tensors");
  a.Say(b, kState, "", "nor is state");
  REQUIRE(b.ReceiveText(kState) == "nor is state");
  REQUIRE(b.CountReceived(kTensor) == 0);
  REQUIRE(a.GetCounters("b").payload_bytes_sent <= 10 * 10'000 + 12);
  kept.clear();
  for (int i = 10; i < 25; ++i) REQUIRE(b.Receive(kTensor).header == std::to_string(i));
}

TEST_CASE("the sender learns when the last byte left, when it arrived, and when it was not taken") {
  TestPeer a("a"), b("b");
  Meet(Plan(1), {&a, &b});
  const auto text = std::make_shared<std::string>(RandomText(3 << 20));
  std::promise<absl::Status> left, arrived, refused;
  std::promise<PeerTiming> took;
  PeerMessage message{.channel = kTensor, .payload = std::as_bytes(std::span(*text))};
  message.owner = text;
  message.left = [&](absl::Status status) { left.set_value(status); };
  message.arrived = [&](absl::Status status, PeerTiming timing) {
    arrived.set_value(status);
    took.set_value(timing);
  };
  const Instant begun = SteadyNow();
  REQUIRE(a.link->Send("b", std::move(message)).ok());
  REQUIRE(left.get_future().get().ok());
  REQUIRE(arrived.get_future().get().ok());
  const PeerTiming timing = took.get_future().get();
  REQUIRE(timing.queued + timing.travelled <= SteadyNow() - begun);
  REQUIRE(b.Receive(kTensor).payload.size() == 3 << 20);

  PeerMessage unwanted{.channel = kTensor, .header = "unwanted"};
  unwanted.payload = std::as_bytes(std::span(*text));
  unwanted.owner = text;
  unwanted.arrived = [&](absl::Status status, PeerTiming) { refused.set_value(status); };
  REQUIRE(a.link->Send("b", std::move(unwanted)).ok());
  REQUIRE(Says(refused.get_future().get().message(), "b did not take it: it is not expected"));
  a.Say(b, kTensor, "next", "and the next one is taken");
  REQUIRE(b.ReceiveText(kTensor) == "and the next one is taken");
  REQUIRE(b.GetCounters("a").messages_refused == 1);
  while (a.GetCounters("b").round_trip == Duration(0)) std::this_thread::yield();
}

TEST_CASE("a peer with an older plan is refused; one with a newer plan waits for us to follow") {
  TestPeer a("a"), b("b");
  Meet(Plan(3), {&a, &b});
  REQUIRE(a.link->SetPeers(Plan(4), {a.member, b.member}).ok());
  a.Say(b, kCommand, "of plan 4");
  // b still has plan 3, and is notified that it is over.
  REQUIRE(Says(b.AwaitLost("a"), "generation 1, plan 3 is over; we are at generation 1, plan 4"));
  REQUIRE(Says(b.link->AwaitPeers(In(0s)).message(), "plan 3 is over"));
  REQUIRE(b.CountReceived(kCommand) == 0);
  const absl::Status waits = a.link->AwaitPeers(In(0s));
  REQUIRE(Says(waits.message(), "b: it has not followed to our plan yet"));

  REQUIRE(b.link->SetPeers(Plan(4), {a.member, b.member}).ok());
  REQUIRE(b.Receive(kCommand).header == "of plan 4");
  REQUIRE(a.link->AwaitPeers(In(kPatience)).ok());

  // A newer generation goes before any plan number.
  REQUIRE(a.link->SetPeers(Plan(1, 2), {a.member, b.member}).ok());
  REQUIRE(Says(b.AwaitLost("a", 2), "we are at generation 2, plan 1"));
}

TEST_CASE("what was queued under an older plan is never sent under a newer one") {
  PeerLinkOptions options;
  options.window_bytes[1] = 3000;
  TestPeer a("a", options), b("b", options);
  Meet(Plan(1), {&a, &b});
  a.Say(b, kTensor, "", RandomText(1900));
  const PeerDelivery first = b.Receive(kTensor);
  const auto text = std::make_shared<std::string>(RandomText(1000));
  std::promise<absl::Status> left;
  PeerMessage stuck{.channel = kTensor, .payload = std::as_bytes(std::span(*text))};
  stuck.owner = text;
  stuck.left = [&](absl::Status status) { left.set_value(status); };
  REQUIRE(a.link->Send("b", std::move(stuck)).ok());
  REQUIRE(a.link->SetPeers(Plan(2), {a.member, b.member}).ok());
  REQUIRE(absl::IsAborted(left.get_future().get()));
  REQUIRE(b.link->SetPeers(Plan(2), {a.member, b.member}).ok());
  a.Say(b, kTensor, "", "new");
  REQUIRE(b.ReceiveText(kTensor) == "new");
}

TEST_CASE("a worker that the plan does not name, or an earlier incarnation of one, is refused") {
  TestPeer a("a"), b("b");
  IslandMember reborn = a.member;
  reborn.incarnation = 2;
  REQUIRE(b.link->SetPeers(Plan(1), {reborn, b.member}).ok());
  REQUIRE(a.link->SetPeers(Plan(1), {a.member, b.member}).ok());
  REQUIRE(Says(a.AwaitLost("b"), "the plan has no member a, incarnation 1"));

  IslandMember dead = b.member;
  dead.incarnation = 9;
  REQUIRE(a.link->SetPeers(Plan(2), {a.member, dead}).ok());
  REQUIRE(Says(a.AwaitLost("b", 2), "this is b, incarnation 1, not b, incarnation 9"));
  REQUIRE(b.CountReceived(kCommand) == 0);
}

TEST_CASE("a peer that dies is lost at once, and its successor is found under the next plan") {
  TestPeer a("a");
  auto b = std::make_unique<TestPeer>("b");
  Meet(Plan(1), {&a, b.get()});
  b.reset();
  REQUIRE(Says(a.AwaitLost("b"), "the connection was lost"));  // not by silence, which takes 6 s
  PeerMessage late;
  REQUIRE(Says(a.link->Send("b", std::move(late)).message(), "b is lost: the connection was"));
  REQUIRE(Says(a.link->AwaitPeers(In(kPatience)).message(), "b: the connection was lost"));

  TestPeer again("b", {.incarnation = 2});
  Meet(Plan(2), {&a, &again});
  a.Say(again, kCommand, "welcome back");
  REQUIRE(again.Receive(kCommand).header == "welcome back");
}

TEST_CASE("two that lost each other meet again under the same plan, and others do not notice") {
  TestPeer a("a"), b("b"), c("c");
  Meet(Plan(1), {&a, &b, &c});
  const std::vector<IslandMember> members = {a.member, b.member, c.member};
  // c speaks of an older plan for a moment: it and a lose each other, and b loses it too.
  REQUIRE(a.link->SetPeers(Plan(2), members).ok());
  REQUIRE(b.link->SetPeers(Plan(2), members).ok());
  c.AwaitLost("a");
  c.AwaitLost("b");
  REQUIRE(c.link->SetPeers(Plan(2), members).ok());
  Meet(Plan(2), {&a, &b, &c});
  // c's link breaks the connection to a alone.
  c.link->Lose("a", "the test says so");
  REQUIRE(Says(a.AwaitLost("c"), "it refuses us: the test says so"));
  a.Say(b, kState, "", "untouched");
  Meet(Plan(2), {&a, &b, &c});
  REQUIRE(b.ReceiveText(kState) == "untouched");
  a.Say(c, kTensor, "", "again");
  REQUIRE(c.ReceiveText(kTensor) == "again");
  c.Say(a, kTensor, "", "both ways");
  REQUIRE(a.ReceiveText(kTensor) == "both ways");
}

TEST_CASE("who cannot be connected to is known, and who only does not follow is not among them") {
  TestPeer a("a"), b("b"), c("c");
  std::string nowhere;
  {
    const TestPeer dead("dead");
    nowhere = dead.member.endpoint;
  }
  c.member.endpoint = nowhere;
  const std::vector<IslandMember> members = {a.member, b.member, c.member};
  REQUIRE(a.link->SetPeers(Plan(1), members).ok());
  REQUIRE(a.link->Unconnected(1h).empty());
  // The time counts on under the next plan.
  REQUIRE(a.link->SetPeers(Plan(2), members).ok());
  const Instant begun = SteadyNow();
  while (a.link->Unconnected(300ms).size() != 1) {
    REQUIRE(SteadyNow() - begun < kPatience);
    std::this_thread::yield();
  }
  const auto [worker, reason] = a.link->Unconnected(300ms)[0];
  REQUIRE(worker == "c");
  REQUIRE_FALSE(reason.empty());
  REQUIRE(a.link->SetPeers(Plan(3), {a.member, b.member}).ok());
  REQUIRE(a.link->Unconnected(0s).empty());
}

TEST_CASE("a probe reports which workers answer, and no plan notices it") {
  TestPeer a("a"), b("b"), c("c"), dead("dead");
  dead.link.reset();
  Meet(Plan(1), {&a, &b});
  CHECK(a.link->Probe({b.member, c.member}, kPatience).empty());
  const auto silent = testing::WithGrowingLimit(
      300ms, [&](Duration limit) { return a.link->Probe({dead.member}, limit); },
      [](const auto& found) { return found.size() == 1 && !found[0].second.empty(); });
  REQUIRE(silent.size() == 1);
  CHECK(silent[0].first == "dead");
  CHECK_FALSE(silent[0].second.empty());
  IslandMember nowhere = c.member;
  nowhere.endpoint = "tcp://";
  CHECK(a.link->Probe({nowhere}, kPatience).size() == 1);
  a.Say(b, kCommand, "still here");
  CHECK(b.Receive(kCommand).header == "still here");
  CHECK(b.GetCounters("a").times_lost == 0);
}

TEST_CASE(
    "with keys a worker that knows none of ours answers a probe all the same, another does not") {
  const auto with_keys = [] {
    PeerLinkOptions options;
    options.keys = GenerateKeyPair().value();
    return options;
  };
  TestPeer a("a", with_keys()), b("b", with_keys()), c("c", with_keys());
  CHECK(a.link->Probe({b.member, c.member}, kPatience).empty());
  IslandMember impostor = b.member;
  impostor.public_key = c.member.public_key;  // at b's endpoint
  CHECK(a.link->Probe({impostor}, testing::kNothingComes).size() == 1);
}

TEST_CASE("samples are taken of admitted samplers alone, beside any plan in force") {
  TestPeer a("a"), b("b"), joiner("j");
  Meet(Plan(1), {&a, &b});
  const auto sampler = joiner.link->Sample(a.member, 0, kPatience);
  REQUIRE(sampler.ok());
  const auto time = [&](int64_t bytes) { return (*sampler)->Time(bytes, kPatience).status(); };
  CHECK(Says(time(1000).message(), "a expects no samples"));
  a.link->SetTemporaryPeers({b.member}, kPatience);
  CHECK(absl::IsPermissionDenied(time(1000)));
  IslandMember older = joiner.member;
  older.incarnation = 7;
  a.link->SetTemporaryPeers({older}, kPatience);
  CHECK(absl::IsPermissionDenied(time(1000)));
  a.link->SetTemporaryPeers({joiner.member}, kPatience);
  CHECK(time(1).ToString() == "OK");
  CHECK(time(5'000'000).ToString() == "OK");
  IslandMember other = a.member;
  other.incarnation = 7;
  const auto wrong = joiner.link->Sample(other, 0, kPatience);
  REQUIRE(wrong.ok());
  CHECK(absl::IsPermissionDenied((*wrong)->Time(1, kPatience).status()));
  a.link->SetTemporaryPeers({joiner.member}, Duration(0));
  CHECK(absl::IsPermissionDenied(time(1000)));
  a.Say(b, kCommand, "still here");
  CHECK(b.Receive(kCommand).header == "still here");
  CHECK(b.GetCounters("a").times_lost + a.GetCounters("b").times_lost == 0);
}

TEST_CASE("with keys a sampler is admitted while it is one, and is no peer") {
  const auto with_keys = [] {
    PeerLinkOptions options;
    options.keys = GenerateKeyPair().value();
    return options;
  };
  TestPeer a("a", with_keys()), b("b", with_keys()), joiner("j", with_keys());
  Meet(Plan(1), {&a, &b});
  CHECK(absl::IsPermissionDenied(joiner.link->Sample(a.member, 0, kPatience).status()));
  a.link->SetTemporaryPeers({joiner.member}, kPatience);
  const auto sampler = joiner.link->Sample(a.member, 0, kPatience);
  REQUIRE(sampler.ok());
  CHECK((*sampler)->Time(100'000, kPatience).ok());
  // By its own key under another's name.
  TestPeer impostor("b", with_keys());
  a.link->SetTemporaryPeers({joiner.member, impostor.member}, kPatience);
  IslandMember both[] = {a.member, impostor.member};
  REQUIRE(impostor.link->SetPeers(Plan(1), {both[0], both[1]}).ok());
  REQUIRE(Says(impostor.AwaitLost("a"), "this is not b's key"));
  // A plan without it ends nothing.
  Meet(Plan(2), {&a, &b});
  CHECK((*sampler)->Time(100'000, kPatience).ok());
}

TEST_CASE("with keys only the plan's members get in, each under its own name") {
  const KeyPair keys[] = {GenerateKeyPair().value(), GenerateKeyPair().value(),
                          GenerateKeyPair().value()};
  TestPeer a("a", {.keys = keys[0]}), b("b", {.keys = keys[1]}), c("c", {.keys = keys[2]});
  Meet(Plan(1), {&a, &b, &c});
  a.Say(b, kTensor, "", RandomText(100'000));
  REQUIRE(b.ReceiveText(kTensor) == RandomText(100'000));

  // A member by key, under another's name.
  TestPeer impostor("a", {.keys = keys[2]});
  Meet(Plan(2), {&a, &b, &c});
  REQUIRE(impostor.link->SetPeers(Plan(2), {a.member, b.member}).ok());
  REQUIRE(Says(impostor.AwaitLost("b"), "this is not a's key"));
  // A stranger's key.
  TestPeer stranger("a", {.keys = GenerateKeyPair().value()});
  REQUIRE(stranger.link->SetPeers(Plan(2), {a.member, b.member}).ok());
  while (b.link->frames_refused() < 3) std::this_thread::yield();
  REQUIRE(!stranger.link->AwaitPeers(In(0s)).ok());

  IslandMember keyless = b.member;
  keyless.public_key.clear();
  REQUIRE(Says(a.link->SetPeers(Plan(3), {a.member, keyless}).message(), "b of the island has no"));
}

TEST_CASE("bounds are kept at the sender, and wrong addresses are refused by name") {
  PeerLinkOptions options{.queued_bytes_max = 5000, .queued_messages_max = 3};
  TestPeer a("a", options), b("b", options);
  REQUIRE(a.link->SetPeers(Plan(1), {a.member, b.member}).ok());  // b does not follow
  for (int i = 0; i < 3; ++i) a.Say(b, kCommand, "waits");
  REQUIRE(absl::IsResourceExhausted(a.link->Send("b", {})));
  const std::string large(9 << 20, 'x');
  PeerMessage message{.payload = std::as_bytes(std::span(large))};
  REQUIRE(Says(a.link->Send("b", std::move(message)).message(), "its channel takes"));
  REQUIRE(Says(a.link->Send("x", {}).message(), "x is no peer"));

  IslandMember far = b.member;
  far.endpoint = "tcp://10.0.0.1:7000";
  REQUIRE(Says(a.link->SetPeers(Plan(2), {a.member, far}).message(), "only loopback addresses"));
  REQUIRE(Says(a.link->SetPeers(Plan(2), {b.member, b.member}).message(), "twice"));
  TestPeer handler("z");
  PeerLinkOptions open{.name = "o", .endpoint = "tcp://0.0.0.0:*"};
  REQUIRE(Says(PeerLink::Create(open, &handler).status().message(), "only loopback addresses"));
}

TEST_CASE("a link that ends fails what it has not sent") {
  auto a = std::make_unique<TestPeer>("a");
  TestPeer b("b");
  REQUIRE(a->link->SetPeers(Plan(1), {a->member, b.member}).ok());
  std::promise<absl::Status> left;
  PeerMessage message;
  message.left = [&](absl::Status status) { left.set_value(status); };
  REQUIRE(a->link->Send("b", std::move(message)).ok());
  a.reset();
  REQUIRE(absl::IsCancelled(left.get_future().get()));
}

}  // namespace
}  // namespace atl
