// A link against peers that keep no rule: raw ZeroMQ sockets with crafted frames.

#include "common/net/testing/hostile_peer.h"

#include <catch2/catch.hpp>
#include <limits>
#include <thread>

#include "absl/strings/match.h"
#include "common/rng.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

using namespace std::chrono_literals;
using enum PeerChannel;

// The sin of one lane's sender is answered by this reason, and the sender is lost.
template <class Sin>
void RequireBroken(Sin sin, absl::string_view reason, int lane = 1) {
  PeerLinkOptions options;
  options.window_bytes = {4000, 4000, 4000, 4000};
  HostilePeerFixture fixture(options);
  const auto sender = fixture.Lane(lane);
  sin(*sender);
  v1::Frame answer = sender->Receive();
  while (!answer.has_peer_refusal()) answer = sender->Receive();
  INFO(answer.ShortDebugString());
  REQUIRE(answer.peer_refusal().code() == v1::PeerRefusal::BROKEN);
  REQUIRE(absl::StrContains(answer.peer_refusal().reason(), reason));
  REQUIRE(absl::StrContains(fixture.w.AwaitLost("m"), reason));
  REQUIRE(fixture.w.CountReceived(kTensor) + fixture.w.CountReceived(kCommand) == 0);
  REQUIRE(fixture.w.GetCounters("m").frames_refused == 1);
}

TEST_CASE("a description that breaks a rule loses its sender, and no memory is taken for it") {
  RequireBroken([](auto& s) { s.Open(2, 1, 4000); }, "4000 bytes were not granted on channel 1");
  RequireBroken([](auto& s) { s.Open(2, 1, int64_t{1} << 40); }, "not granted");
  RequireBroken([](auto& s) { s.Open(2, 1, -1); }, "bytes -1");
  RequireBroken([](auto& s) { s.Open(2, 1, INT64_MAX); }, "out of range");
  RequireBroken([](auto& s) { s.Open(2, 4, 10); }, "channel 4");
  RequireBroken([](auto& s) { s.Open(2, 0, 10); }, "channel 0 on the wrong lane");
  RequireBroken([](auto& s) { s.Open(2, 1, 10); }, "channel 1 on the wrong lane", 0);
  RequireBroken([](auto& s) { s.Open(2, 1, 10, std::string(600, 'h')); }, "header's length");
  RequireBroken([](auto& s) { s.Open(1, 1, 10); }, "out of turn");
  RequireBroken(
      [](auto& s) {
        s.Open(2, 1, 10);
        s.Open(3, 1, 10, "h", 1);
      },
      "out of turn");
  RequireBroken(
      [](auto& s) {
        s.Open(2, 1, 10);
        s.Open(2, 1, 10, "h", 1);
      },
      "out of turn");
  RequireBroken([](auto& s) { s.Open(2, 1, 10, "h", -1); }, "sequence -1");
  RequireBroken([](auto& s) { s.Open(2, 1, 10, "h", 4); },
                "out of turn");  // 4,000 bytes are no 4 messages
  RequireBroken(
      [](auto& s) {
        s.Open(2, 1, 1000, "h", 3);  // what was sent before may come yet
        s.Open(3, 1, 1500, "h", 2);
      },
      "1500 bytes were not granted");
}

// Lanes of one sender; a rule that the last of these breaks loses the sender.
TEST_CASE("lanes of one session that contradict each other lose their sender") {
  const std::string chunk(1024, 'x');
  const auto broken = [&](auto sin, absl::string_view reason) {
    HostilePeerFixture fixture;
    const auto first = fixture.Lane(1), second = fixture.Lane(2);
    first->Open(2, 1, 2000);
    first->SendChunk(2, 0, chunk);
    sin(*second);
    REQUIRE(absl::StrContains(fixture.w.AwaitLost("m"), reason));
    REQUIRE(fixture.w.CountReceived(kTensor) == 0);
    fixture.RequireStillServing();
  };
  broken([&](auto& s) { s.SendChunk(2, 1, chunk); }, "a chunk of no open message");
  broken([&](auto& s) { s.Open(2, 1, 1 << 20); }, "out of turn");
  broken([&](auto& s) { s.Open(2, 1, 2000, "other"); }, "out of turn");
  broken([&](auto& s) { s.Open(2, 2, 2000); }, "out of turn");
  broken([&](auto& s) { s.Open(2, 1, 2000, "h", 2); }, "out of turn");
  broken([&](auto& s) { s.Open(3, 1, 2000, "h", 1); }, "out of turn");
  broken([&](auto& s) { s.Open(2, 0, 2000); }, "channel 0 on the wrong lane");
  const auto opened = [&](auto sin) {
    return [sin](auto& s) {
      s.Open(2, 1, 2000);
      sin(s);
    };
  };
  broken(opened([&](auto& s) { s.SendChunk(2, 2, chunk); }), "chunk 2 of 2");
  broken(opened([&](auto& s) { s.SendChunk(2, 1, chunk); }), "1024 bytes instead of 976");
  // Until the other lane's has been read, this one is the first.
  const auto twice = opened([&](auto& s) {
    s.SendChunk(2, 0, chunk);
    s.SendChunk(2, 0, chunk);
  });
  broken(twice, "chunk 0 came twice");
}

TEST_CASE("a message of several lanes is put together, and waits for those sent before it") {
  const std::string chunk(1024, 'x');
  HostilePeerFixture fixture;
  const auto first = fixture.Lane(1), second = fixture.Lane(2);
  second->Open(3, 1, 2048, "later", 2);
  second->SendChunk(3, 1, chunk);
  first->Open(3, 1, 2048, "later", 2);
  first->SendChunk(3, 0, chunk);
  first->Open(2, 1, 1024, "before", 1);
  fixture.RequireStillServing();
  REQUIRE(fixture.w.CountReceived(kTensor) == 0);
  first->SendChunk(2, 0, chunk);
  REQUIRE(fixture.w.Receive(kTensor).header == "before");
  const PeerDelivery later = fixture.w.Receive(kTensor);
  REQUIRE(later.header == "later");
  REQUIRE(later.payload.size() == 2048);
}

TEST_CASE("what a lane brings of a session that is over, or without a first lane, is dropped") {
  const std::string chunk(1024, 'x');
  HostilePeerFixture fixture;
  const auto first = fixture.Lane(1);
  HostileSender old(fixture.w.member.endpoint);
  v1::Frame hello = MakeHello(fixture.m.member, fixture.w.member, 2);
  hello.mutable_peer_hello()->set_session(77);
  old.Send(hello);
  REQUIRE(old.Receive().has_peer_welcome());
  const int64_t before = fixture.w.link->frames_refused();
  old.Open(2, 1, 1024, "old");
  old.SendChunk(2, 0, chunk);
  while (fixture.w.link->frames_refused() < before + 2) std::this_thread::yield();
  first->Open(2, 1, 0, "new");
  REQUIRE(fixture.w.Receive(kTensor).header == "new");
}

TEST_CASE("lanes with chunks of different sizes lose their sender") {
  HostilePeerFixture fixture;
  const auto first = fixture.Lane(1);
  HostileSender second(fixture.w.member.endpoint);
  v1::Frame hello = MakeHello(fixture.m.member, fixture.w.member, 2);
  hello.mutable_peer_hello()->set_chunk_bytes(4096);
  second.Send(hello);
  REQUIRE(second.Receive().has_peer_welcome());
  second.Open(2, 1, 5000);
  REQUIRE(absl::StrContains(fixture.w.AwaitLost("m"), "different sizes"));
}

TEST_CASE("chunks that break a rule lose their sender, and no memory is taken for them") {
  const std::string chunk(1024, 'x');
  RequireBroken([&](auto& s) { s.SendChunk(7, 0, chunk); }, "a chunk of no open message");
  RequireBroken(
      [&](auto& s) {
        s.Open(2, 1, 2000);
        s.SendChunk(2, 1, chunk);
      },
      "1024 bytes instead of 976");
  RequireBroken(
      [&](auto& s) {
        s.Open(2, 1, 2000);
        s.SendChunk(2, 0, "short");
      },
      "5 bytes instead of 1024");
  RequireBroken(
      [&](auto& s) {
        s.Open(2, 1, 2000);
        s.SendChunk(2, 0, chunk, false);
      },
      "wrong checksum");
  RequireBroken(
      [&](auto& s) {
        s.Open(2, 1, 2000, "unwanted");
        s.SendChunk(2, 0, chunk);
        s.SendChunk(2, 1, chunk);
      },
      "do not add up");
  RequireBroken([](auto& s) { s.Send({std::string(5000, 'h')}); }, "header's length");
  RequireBroken([](auto& s) { s.Send({"", "b", "c"}); }, "one or two frames");
  RequireBroken(
      [](auto& s) {
        v1::Frame pong = MakeFrame(2);
        pong.mutable_peer_pong();
        s.Send(pong);
      },
      "senders do not send", 0);
}

TEST_CASE("hellos of strangers, to others and of other versions are refused or ignored") {
  HostilePeerFixture fixture;
  const auto refused = [&](auto change, absl::string_view reason) {
    HostileSender sender(fixture.w.member.endpoint);
    v1::Frame frame = MakeHello(fixture.m.member, fixture.w.member, 0);
    change(*frame.mutable_peer_hello());
    sender.Send(frame);
    const v1::Frame answer = sender.Receive();
    INFO(answer.ShortDebugString());
    REQUIRE(absl::StrContains(answer.peer_refusal().reason(), reason));
  };
  refused([](auto& hello) { hello.set_from("x"); }, "no member x");
  refused([](auto& hello) { hello.set_from_incarnation(7); }, "incarnation 7");
  refused([](auto& hello) { hello.set_to("p"); }, "not p");
  refused([](auto& hello) { hello.set_plan(0); }, "plan 0 is over");
  const auto ignored = [&](auto change) {
    HostileSender sender(fixture.w.member.endpoint);
    v1::Frame frame = MakeHello(fixture.m.member, fixture.w.member, 0);
    change(frame);
    const int64_t before = fixture.w.link->frames_refused();
    sender.Send(frame);
    sender.Open(2, 0, 10);
    while (fixture.w.link->frames_refused() == before) std::this_thread::yield();
  };
  ignored([](auto& frame) { frame.set_protocol_version(9); });
  ignored([](auto& frame) { frame.mutable_peer_hello()->set_job("../etc"); });
  ignored([](auto& frame) { frame.mutable_peer_hello()->set_job("job-2"); });
  ignored([](auto& frame) { frame.mutable_peer_hello()->set_lane(5); });
  ignored([](auto& frame) { frame.mutable_peer_hello()->set_chunk_bytes(3); });
  ignored([](auto& frame) { frame.mutable_peer_hello()->set_generation(-1); });
  REQUIRE(fixture.w.admissions() == 0);
  fixture.RequireStillServing();
}

TEST_CASE("connections without end are forgotten, members' are kept") {
  PeerLinkOptions options;
  options.connections_max = 5;
  HostilePeerFixture fixture(options);
  REQUIRE(fixture.p.link->AwaitPeers(In(kPatience), {"w"}).ok());
  const auto lane = fixture.Lane(0);
  std::vector<std::unique_ptr<HostileSender>> crowd;  // two find room
  for (int64_t i = 0; i < 5; ++i) crowd.push_back(fixture.WaitingLane({"x", i, "", ""}, 0));
  for (int i = 0; i < 3; ++i) {
    const v1::Frame answer = crowd[i]->Receive();
    INFO(answer.ShortDebugString());
    REQUIRE(absl::StrContains(answer.peer_refusal().reason(), "too many connections"));
  }
  lane->Open(2, 0, 0, "still here");
  REQUIRE(fixture.w.Receive(kCommand).header == "still here");
  fixture.RequireStillServing();
}

TEST_CASE("a hello that waits is not welcomed in place of a later one on a newer connection") {
  HostilePeerFixture fixture;
  // w is not notified that the first one is of no use any more.
  const auto first = fixture.WaitingLane(fixture.m.member, 1);
  const auto second = fixture.WaitingLane(fixture.m.member, 1);
  const std::vector<IslandMember> members = {fixture.w.member, fixture.p.member, fixture.m.member};
  REQUIRE(fixture.w.link->SetPeers(Plan(2), members).ok());
  REQUIRE(second->Receive().has_peer_welcome());
  second->Open(3, 1, 0, "here", 1);
  REQUIRE(fixture.w.Receive(kTensor).header == "here");
}

TEST_CASE("a receiver that answers what it must not is lost") {
  const auto lost = [](auto sin, absl::string_view reason) {
    HostilePeerFixture fixture;
    fixture.m.WelcomeBoth();
    sin(fixture.m);
    const std::string why = fixture.w.AwaitLost("m");
    INFO(why);
    REQUIRE(absl::StrContains(why, reason));
    fixture.RequireStillServing();
  };
  lost([](auto& m) { m.Send({""}); }, "broke the protocol");
  lost([](auto& m) { m.Send({std::string(2000, 'x')}); }, "header's length");
  lost([](auto& m) { m.Send(MakeHello(m.member, m.member, 0)); }, "receivers do not send");
  lost(
      [](auto& m) {
        v1::Frame credit = MakeFrame(1);
        credit.mutable_peer_credit()->set_channel(-1);
        m.Send(credit);
      },
      "channel -1");
  for (const int64_t limit : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    lost(
        [limit](auto& m) {
          v1::Frame credit = MakeFrame(1);
          credit.mutable_peer_credit()->set_limit(limit);
          m.Send(credit);
        },
        absl::StrCat("limit ", limit));
  }
}

TEST_CASE("a peer that grants nothing, or answers no ping, delays no other peer") {
  // Where the machine is slow, an honest one may be silent for some seconds, too.
  const bool honest_kept = testing::WithGrowingLimit(
      2s,
      [](Duration silence_max) {
        HostilePeerFixture fixture({.silence_max = silence_max});
        fixture.m.WelcomeBoth();
        PeerMessage state{.channel = kState};
        REQUIRE(fixture.w.link->Send("m", std::move(state)).ok());  // no credit for it
        if (!fixture.p.TrySay(fixture.w, kTensor, "honest").ok()) return false;
        const std::clock_t begun = std::clock();  // of the processor
        REQUIRE(
            absl::StrContains(fixture.w.AwaitLost("m"),
                              absl::StrCat("has not answered for ", Seconds(silence_max), " s")));
        // The answer was not waited for in a loop.
        REQUIRE(std::clock() - begun < CLOCKS_PER_SEC / 4 * Seconds(silence_max));
        if (fixture.w.GetCounters("p").times_lost > 0) return false;
        REQUIRE(fixture.w.Receive(kTensor).header == "honest");
        return true;
      },
      [](bool kept) { return kept; });
  REQUIRE(honest_kept);
}

TEST_CASE("random bytes and mangled frames do a peer no harm") {
  HostilePeerFixture fixture;
  constexpr uint64_t kSeed = 20261122;
  INFO("seed " << kSeed);
  Rng rng(kSeed);
  HostileSender sender(fixture.w.member.endpoint);
  for (int i = 0; i < 3000; ++i) {
    v1::Frame frame = i % 2 == 0 ? MakeHello(fixture.m.member, fixture.w.member, rng.Below(3))
                                 : MakeFrame(1 + rng.Below(50));
    if (i % 2 == 1) {
      frame.mutable_peer_open()->set_channel(rng.Below(3));
      frame.mutable_peer_open()->set_bytes(rng.Below(3000));
      frame.mutable_peer_open()->set_sequence(1 + rng.Below(10));
    }
    std::string header = frame.SerializeAsString();
    const uint64_t changes = rng.Below(4);
    for (uint64_t k = 0; k < changes; ++k) {
      header[rng.Below(header.size())] = static_cast<char>(rng.Next());
    }
    std::vector<std::string> parts = {header};
    if (rng.Chance(0.3)) parts.push_back(std::string(rng.Below(3000), 'p'));
    sender.Send(parts);
  }
  while (fixture.w.link->frames_refused() < 500) std::this_thread::yield();
  fixture.RequireStillServing();
}

}  // namespace
}  // namespace atl
