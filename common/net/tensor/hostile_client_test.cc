// A client against servers that keep no rule: a raw ZeroMQ socket that answers what it likes.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "absl/strings/match.h"
#include "common/net/testing/hostile_peer.h"
#include "common/net/testing/test_handler.h"
#include "common/rng.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kChunk = 1024;
constexpr Version kVersion = 5;

// Answers as the test configures it.
class HostileServer : public HostileReceiver {
 public:
  ServerAddress address() const { return {member.endpoint, ""}; }

  // The opening of the next attempt, past what the client says of earlier ones.
  v1::Frame ReceiveOpening() {
    while (true) {
      v1::Frame frame = Receive();
      if (frame.has_pull_open() || frame.has_push_open()) return frame;
    }
  }
  void Reply(uint64_t transfer, int64_t elements, int64_t first_chunk, Version version = kVersion) {
    v1::Frame frame = MakeFrame(transfer);
    frame.mutable_transfer_start()->set_version(version);
    frame.mutable_transfer_start()->set_element_count(elements);
    frame.mutable_transfer_start()->set_first_chunk(first_chunk);
    Send(frame);
  }
  void SendChunk(uint64_t transfer, int64_t index, const std::string& data, bool honest = true) {
    Send(MakeChunk(transfer, index, data, honest));
  }
};

// A client that pulls four chunks from a false server.
struct HostileServerFixture {
  HostileServerFixture()
      : client(TensorClient::Create({.chunk_bytes = kChunk}).value()), destination(kChunk, -1.0f) {}

  void StartPull(Version version = kVersion, Duration timeout = testing::kHangLimit) {
    client->Pull(server.address(), {"job-1", version, 1}, destination, timeout, pulled.Setter());
  }
  std::string Piece(int64_t index) const { return std::string(kChunk, static_cast<char>(index)); }
  // Serves an attempt as a good server would, and requires that the tensor came whole.
  void ServeHonestly(const v1::Frame& opening) {
    const int64_t first = opening.pull_open().first_chunk();
    server.Reply(opening.transfer(), kChunk, first);
    for (int64_t i = first; i < 4; ++i) server.SendChunk(opening.transfer(), i, Piece(i));
    RequireWhole();
  }
  void RequireWhole() {
    const PullResult result = pulled.Get();
    INFO(result.status.ToString());
    REQUIRE(result.status.ok());
    REQUIRE(result.version == kVersion);
    std::string whole;
    for (int64_t i = 0; i < 4; ++i) whole += Piece(i);
    REQUIRE(std::memcmp(destination.data(), whole.data(), whole.size()) == 0);
  }
  void RequireStillWorking() {
    TestLink link({}, {});
    link.client.swap(client);
    const auto values = std::make_shared<std::vector<float>>(5000, 1.0f);
    REQUIRE(link.Push({"job-1", 1, 1, 1, 0, 99}, values).status.ok());
    REQUIRE(*link.handler.Staged({"job-1", 1, 1, 1, 0, 99}) == *values);
    link.client.swap(client);
  }

  HostileServer server;
  std::unique_ptr<TensorClient> client;
  std::vector<float> destination;
  Awaited<PullResult> pulled;
};

TEST_CASE("whatever is not the next chunk ends the attempt, and the next one goes on from there") {
  HostileServerFixture fixture;
  HostileServer& server = fixture.server;
  fixture.StartPull();
  int attempts = 0;
  const auto attack = [&](int64_t held, auto answer) {
    const v1::Frame opening = server.ReceiveOpening();
    INFO("attack " << ++attempts);
    REQUIRE(opening.pull_open().first_chunk() == held);
    answer(opening.transfer());
  };
  const auto replied = [&](int64_t first, auto answer) {
    return [&, first, answer](uint64_t transfer) {
      server.Reply(transfer, kChunk, first);
      answer(transfer);
    };
  };
  attack(0, [&](uint64_t t) { server.SendChunk(t, 0, fixture.Piece(0)); });  // before the reply
  attack(0,
         [&](uint64_t t) { server.Reply(t, kChunk, 0, kVersion + 1); });  // not what was requested
  attack(0, [&](uint64_t t) { server.Reply(t, kChunk, 3); });             // skips chunks
  attack(0, replied(0, [&](uint64_t t) { server.SendChunk(t, 0, fixture.Piece(0), false); }));
  attack(0, replied(0, [&](uint64_t t) { server.SendChunk(t, 1, fixture.Piece(1)); }));
  attack(0, replied(0, [&](uint64_t t) { server.SendChunk(t, 0, ""); }));
  attack(0, replied(0, [&](uint64_t t) { server.SendChunk(t, 0, "short"); }));
  attack(0, replied(0, [&](uint64_t t) { server.SendChunk(t, 0, fixture.Piece(0) + "x"); }));
  attack(0, replied(0, [&](uint64_t t) {
           server.SendChunk(t, 0, fixture.Piece(0));
           server.SendChunk(t, 1, fixture.Piece(1), false);
         }));
  attack(1, replied(1, [&](uint64_t t) { server.SendChunk(t, 0, fixture.Piece(9)); }));  // again
  attack(1, [&](uint64_t t) { server.Reply(t, kChunk, 2); });
  fixture.ServeHonestly(server.ReceiveOpening());
  REQUIRE(fixture.client->counters().restarts == attempts);
  fixture.RequireStillWorking();
}

TEST_CASE("a tensor of another size is refused before anything is written") {
  HostileServerFixture fixture;
  fixture.StartPull();
  const uint64_t transfer = fixture.server.ReceiveOpening().transfer();
  fixture.server.Reply(transfer, int64_t{1} << 40, 0);
  fixture.server.SendChunk(transfer, 0, fixture.Piece(0));
  REQUIRE(fixture.pulled.Get().status.code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(fixture.destination == std::vector<float>(kChunk, -1.0f));
}

TEST_CASE("unrequested frames are dropped") {
  HostileServerFixture fixture;
  HostileServer& server = fixture.server;
  fixture.StartPull();
  const v1::Frame opening = server.ReceiveOpening();
  const uint64_t transfer = opening.transfer();
  server.SendChunk(transfer + 1, 0, "of no transfer");
  server.Reply(transfer + 7, 3, 0);
  // The frames that follow are counted.
  server.Send({""});
  server.Send({std::string(5000, 'h')});
  server.Send({"a", "b", "c"});
  server.Send(MakeFrame(transfer));
  server.Send({opening.SerializeAsString()});
  v1::Frame frame = MakeFrame(transfer);
  frame.mutable_transfer_end()->set_outcome(v1::TransferEnd::STAGED);
  server.Send(frame);
  frame.mutable_transfer_end()->set_reason(std::string(kReasonBytesMax + 1, 'r'));
  server.Send(frame);
  frame.mutable_transfer_end()->set_reason("of a later protocol");
  frame.set_protocol_version(kProtocolVersion + 1);
  server.Send(frame);
  server.Reply(transfer, -1, 0);
  server.Reply(transfer, kChunk, 0, -2);
  fixture.ServeHonestly(opening);
  REQUIRE(fixture.client->counters().frames_refused == 10);
  REQUIRE(fixture.client->counters().restarts == 0);
}

TEST_CASE("a push sends what the tensor has, however often it is started") {
  HostileServerFixture fixture;
  HostileServer& server = fixture.server;
  const auto values = std::make_shared<std::vector<float>>(kChunk, 2.0f);
  Awaited<PushResult> pushed;
  fixture.client->Push(server.address(), {"job-1", 0, 1, 1, 0, 1}, Encoding::kFloat32, *values,
                       values, testing::kHangLimit, pushed.Setter());
  v1::Frame answer = MakeFrame(server.ReceiveOpening().transfer());
  answer.mutable_transfer_start()->set_first_chunk(-3);  // dropped
  server.Send(answer);
  answer.mutable_transfer_end()->set_outcome(static_cast<v1::TransferEnd::Outcome>(77));
  server.Send(answer);  // no outcome that is known: another attempt

  answer = MakeFrame(server.ReceiveOpening().transfer());
  answer.mutable_transfer_start()->set_first_chunk(1);
  for (int i = 0; i < 3; ++i) server.Send(answer);
  for (int64_t index = 1; index < 4; ++index) REQUIRE(server.Receive().chunk().index() == index);
  answer.mutable_transfer_end()->set_outcome(v1::TransferEnd::STAGED);
  server.Send(answer);
  REQUIRE(pushed.Get().status.ok());
  REQUIRE(fixture.client->counters().payload_bytes_sent == 3 * kChunk);
}

TEST_CASE("a message above the limit costs the server the connection; the pull is opened again") {
  HostileServerFixture fixture;
  fixture.StartPull();
  fixture.server.ReceiveOpening();
  fixture.server.Send({"h", std::string(kChunkBytesMax + 1, 'x')});
  fixture.ServeHonestly(fixture.server.ReceiveOpening());
  REQUIRE(fixture.client->counters().restarts == 1);
}

TEST_CASE("an endless stream ends nothing but itself") {
  HostileServerFixture fixture;
  fixture.StartPull();
  const v1::Frame opening = fixture.server.ReceiveOpening();
  fixture.ServeHonestly(opening);
  std::atomic<bool> stop = false;
  std::atomic<int> sent = 0;
  std::thread flood([&] {
    const auto chunk = MakeChunk(opening.transfer(), 4, fixture.Piece(4));
    while (!stop) sent += fixture.server.TrySend(chunk);
  });
  while (sent < 1000) std::this_thread::yield();
  fixture.RequireStillWorking();
  stop = true;
  flood.join();
  fixture.RequireWhole();  // what was delivered stays as it was
}

// How a pull with this limit ends at a server whose chunks all have a wrong checksum.
absl::Status PullFromALiar(Duration limit) {
  HostileServerFixture fixture;
  fixture.StartPull(kVersion, limit);
  std::atomic<bool> stop = false;
  std::thread liar([&] {
    while (!stop) {
      const uint64_t transfer = fixture.server.ReceiveOpening().transfer();
      fixture.server.Reply(transfer, kChunk, 0);
      fixture.server.SendChunk(transfer, 0, fixture.Piece(0), false);
      stop = fixture.pulled.calls() > 0;
    }
  });
  const absl::Status status = fixture.pulled.Get().status;
  Awaited<PullResult> last;  // sends to the liar once more
  stop = true;
  fixture.client->Pull(fixture.server.address(), {"job-1", 0, 1}, fixture.destination,
                       testing::kHangLimit, last.Setter());
  liar.join();
  return status;
}

TEST_CASE("a transfer from a server that only lies ends at the timeout, with the last lie") {
  const auto says = [](const absl::Status& status) {
    return absl::StrContains(status.message(), "chunk 0 has a wrong checksum");
  };
  const absl::Status status = testing::WithGrowingLimit(
      400ms, [](Duration limit) { return PullFromALiar(limit); }, says);
  INFO(status.ToString());
  REQUIRE(status.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(says(status));
}

TEST_CASE("random bytes and mangled answers do no harm") {
  HostileServerFixture fixture;
  constexpr uint64_t kSeed = 20261121;
  INFO("seed " << kSeed);
  Rng rng(kSeed);
  for (int i = 0; i < 20; ++i) {
    fixture.StartPull(kNoVersion);
    const uint64_t transfer = fixture.server.ReceiveOpening().transfer();
    for (int k = 0; k < 100; ++k) {
      std::vector<std::string> parts =
          MakeChunk(transfer, static_cast<int64_t>(rng.Below(5)), fixture.Piece(0));
      for (uint64_t changes = rng.Below(4); changes > 0; --changes) {
        parts[0][rng.Below(parts[0].size())] = static_cast<char>(rng.Next());
      }
      if (rng.Chance(0.3)) parts.pop_back();
      fixture.server.Send(parts);
    }
  }
  while (fixture.client->counters().frames_refused < 200) std::this_thread::yield();
  fixture.RequireStillWorking();
}

}  // namespace
}  // namespace atl
