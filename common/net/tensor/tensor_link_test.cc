// Both ends together, over real sockets on loopback.

#include <catch2/catch.hpp>
#include <ctime>
#include <thread>

#include "absl/strings/match.h"
#include "common/net/testing/breaking_proxy.h"
#include "common/net/testing/test_handler.h"
#include "common/rng.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

using namespace std::chrono_literals;

Values RandomValues(size_t count, uint64_t seed = 1) {
  Rng rng(seed);
  auto values = std::make_shared<std::vector<float>>(count);
  for (float& value : *values) value = static_cast<float>(rng.Normal());
  return values;
}

PushId ShardPush(ShardId shard) { return {"job-1", 0, 1, 1, 0, shard}; }

TensorClientOptions SmallChunks() { return {.chunk_bytes = 4096}; }

// Returns what bf16 leaves of the values.
std::vector<float> Narrowed(const std::vector<float>& values, Encoding encoding) {
  std::vector<std::byte> bytes(values.size() * BytesPerElement(encoding));
  EncodeTensor(encoding, values, bytes);
  return Decoded(encoding, bytes);
}

bool Says(const absl::Status& status, absl::string_view text) {
  INFO(status.ToString());
  const bool says = absl::StrContains(status.message(), text);
  CHECK(says);
  return says;
}

TEST_CASE("tensors of any size come whole out of a push, in both encodings, and a pull") {
  TestLink link({}, SmallChunks());
  ShardId shard = 0;
  for (Encoding encoding : {Encoding::kFloat32, Encoding::kBfloat16}) {
    for (size_t count : {0u, 1u, 1023u, 1024u, 1025u, 100'003u}) {
      const Values values = RandomValues(count, count);
      const PushResult pushed = link.Push(ShardPush(++shard), values, encoding);
      REQUIRE(pushed.status.ToString() == "OK");
      REQUIRE(pushed.push_status == PushStatus::kStaged);
      REQUIRE(*link.handler.Staged(ShardPush(shard)) == Narrowed(*values, encoding));

      link.handler.Hold(shard, values, 7);
      std::vector<float> pulled(count);
      const PullResult result = link.Pull({"job-1", 7, shard}, pulled);
      REQUIRE(result.status.ok());
      REQUIRE(result.version == 7);
      REQUIRE(pulled == *values);
    }
  }
  REQUIRE(link.server->assembly_bytes() == 0);
  REQUIRE(link.client->counters().transfers_done == 24);
  REQUIRE(link.client->counters().restarts == 0);
}

TEST_CASE("bytes that are quantised already arrive as they are") {
  TestLink link({}, SmallChunks());
  ShardId shard = 0;
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kInt4, Encoding::kTopK}) {
    for (const int64_t count : {0, 1, 257, 100'003}) {
      const auto bytes = std::make_shared<std::vector<std::byte>>(EncodedBytes(encoding, count));
      Rng rng(count);
      for (std::byte& byte : *bytes) byte = static_cast<std::byte>(rng.Below(256));
      Awaited<PushResult> result;
      link.client->Push(link.address, ShardPush(++shard), encoding, count, *bytes, bytes,
                        testing::kHangLimit, result.Setter());
      REQUIRE(result.Get().status.ToString() == "OK");
      REQUIRE(link.handler.StagedBytes(ShardPush(shard)) == *bytes);
      REQUIRE(link.handler.Staged(ShardPush(shard))->size() == static_cast<size_t>(count));
    }
  }
  while (link.server->assembly_bytes() != 0) std::this_thread::yield();
}

TEST_CASE("many transfers at a time, over several connections, do not mix") {
  TensorClientOptions options = SmallChunks();
  options.connections_per_server = 3;
  TestLink link({}, options);
  constexpr int kShards = 60;
  std::vector<Values> sources;
  std::vector<Awaited<PushResult>> pushes;
  for (int i = 0; i < kShards; ++i) {
    sources.push_back(RandomValues(20'000 + 977 * i, i));
    link.handler.Hold(i, sources[i], 3);
    pushes.push_back(link.StartPush(ShardPush(i), sources[i]));
  }
  std::vector<std::vector<float>> pulled(kShards);
  std::vector<Awaited<PullResult>> pulls;
  for (int i = 0; i < kShards; ++i) {
    pulled[i].resize(sources[i]->size());
    pulls.push_back(link.StartPull({"job-1", kNoVersion, i}, pulled[i]));
  }
  for (int i = 0; i < kShards; ++i) {
    REQUIRE(pushes[i].Get().status.ok());
    REQUIRE(*link.handler.Staged(ShardPush(i)) == *sources[i]);
    REQUIRE(pulls[i].Get().status.ok());
    REQUIRE(pulled[i] == *sources[i]);
  }
}

TEST_CASE("a push that is there already is a duplicate, and its bytes are not sent again") {
  TestLink link;
  const Values values = RandomValues(50'000);
  REQUIRE(link.Push(ShardPush(1), values).push_status == PushStatus::kStaged);
  const int64_t sent = link.client->counters().payload_bytes_sent;
  const PushResult again = link.Push(ShardPush(1), values);
  REQUIRE(again.status.ok());
  REQUIRE(again.push_status == PushStatus::kDuplicate);
  REQUIRE(link.client->counters().payload_bytes_sent == sent);
  REQUIRE(link.handler.deliveries() == 1);
}

TEST_CASE("a push sent again while its answer is outstanding shares that answer") {
  TestLink link;
  link.handler.HoldAnswers(true);
  const Values values = RandomValues(1000);
  const absl::Status first = testing::WithGrowingLimit(
      500ms,
      [&](Duration limit) {
        return link.Push(ShardPush(1), values, Encoding::kFloat32, limit).status;
      },
      [&](const absl::Status&) { return link.handler.deliveries() > 0; });
  REQUIRE(first.code() == absl::StatusCode::kDeadlineExceeded);
  const ReplyToken token = link.handler.AwaitHeld();
  Awaited<PushResult> second = link.StartPush(ShardPush(1), values);
  while (link.server->counters().restarts == 0) std::this_thread::yield();
  link.server->AcknowledgePush(token, PushStatus::kStaged);
  REQUIRE(second.Get().push_status == PushStatus::kStaged);
  REQUIRE(link.handler.deliveries() == 1);
}

TEST_CASE("a refused push says why, sends no bytes and takes no memory") {
  TestLink link;
  link.handler.Refuse(absl::FailedPreconditionError("generation 1 is over"));
  const PushResult result = link.Push(ShardPush(1), RandomValues(1'000'000));
  REQUIRE(result.status.code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE(Says(result.status, "generation 1 is over"));
  REQUIRE(link.client->counters().payload_bytes_sent == 0);
  REQUIRE(link.server->assembly_bytes() == 0);
}

TEST_CASE("a push larger than the server takes is refused without a call of the handler") {
  TestLink link({.push_bytes_max = 1000});
  REQUIRE(Says(link.Push(ShardPush(1), RandomValues(251)).status, "1000 at most"));
  REQUIRE(link.handler.admissions() == 0);
  REQUIRE(link.Push(ShardPush(2), RandomValues(250)).status.ok());
}

TEST_CASE("pushes wait for room: the bytes unacknowledged never pass the bound") {
  TestLink link({.assembly_bytes_max = 100'000});
  link.handler.HoldAnswers(true);
  std::vector<Awaited<PushResult>> pushes;
  for (int i = 0; i < 10; ++i) pushes.push_back(link.StartPush(ShardPush(i), RandomValues(10'000)));
  for (int i = 0; i < 10; ++i) {
    const ReplyToken token = link.handler.AwaitHeld();
    REQUIRE(link.server->assembly_bytes() <= 100'000);
    REQUIRE(link.handler.admissions() <= i + 2);
    link.server->AcknowledgePush(token, PushStatus::kStaged);
  }
  for (auto& push : pushes) REQUIRE(push.Get().status.ok());
}

TEST_CASE("a refused pull reports the code, the newest version and the reason") {
  TestLink link;
  link.handler.Hold(1, RandomValues(10), 4);
  std::vector<float> destination(10);
  const PullResult early = link.Pull({"job-1", 5, 1}, destination);
  REQUIRE(early.refusal == PullRefusal::kNotYet);
  REQUIRE(early.version == 4);
  REQUIRE(Says(early.status, "the round is open"));
  REQUIRE(link.Pull({"job-1", 4, 2}, destination).refusal == PullRefusal::kUnknown);
}

TEST_CASE("a destination of the wrong size is refused before anything is written") {
  TestLink link;
  link.handler.Hold(1, RandomValues(100), 4);
  std::vector<float> destination(99, 5.0f);
  const PullResult result = link.Pull({"job-1", 4, 1}, destination);
  REQUIRE(result.status.code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(Says(result.status, "100 elements, the destination 99"));
  REQUIRE(destination == std::vector<float>(99, 5.0f));
}

TEST_CASE("a transfer without a server ends at its timeout and reports what it waited for") {
  auto client = TensorClient::Create({}).value();
  const Values values = RandomValues(10);
  const std::string trouble = "waiting for a connection (last trouble: no answer";
  const absl::Status status = testing::WithGrowingLimit(
      300ms,
      [&](Duration limit) {
        Awaited<PushResult> result;
        client->Push({"tcp://127.0.0.1:1", ""}, ShardPush(3), Encoding::kFloat32, *values, values,
                     limit, result.Setter());
        return result.Get().status;
      },
      [&](const absl::Status& ended) { return absl::StrContains(ended.message(), trouble); });
  REQUIRE(status.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(Says(status, "push of job-1 shard 3 to tcp://127.0.0.1:1"));
  REQUIRE(Says(status, trouble));
}

TEST_CASE("a transfer that waits for a connection takes no processor time") {
  auto client = TensorClient::Create({}).value();
  const Values values = RandomValues(10);
  Awaited<PushResult> result;
  const std::clock_t begin = std::clock();  // of the process, not of the wall
  client->Push({"tcp://127.0.0.1:1", ""}, ShardPush(3), Encoding::kFloat32, *values, values, 1s,
               result.Setter());
  REQUIRE(result.Get().status.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(std::clock() - begin < CLOCKS_PER_SEC / 4);
}

TEST_CASE("a transfer can be cancelled, and every done runs once even when the client dies") {
  TestLink link;
  link.handler.HoldAnswers(true);
  const Values values = RandomValues(10);
  Awaited<PushResult> cancelled;
  const TransferId id = link.client->Push(link.address, ShardPush(1), Encoding::kFloat32, *values,
                                          values, testing::kHangLimit, cancelled.Setter());
  link.handler.AwaitHeld();
  link.client->Cancel(id);
  REQUIRE(cancelled.Get().status.code() == absl::StatusCode::kCancelled);
  Awaited<PushResult> orphan = link.StartPush(ShardPush(2), values);
  link.client.reset();
  REQUIRE(orphan.Get().status.code() == absl::StatusCode::kCancelled);
  REQUIRE(orphan.calls() == 1);
  REQUIRE(cancelled.calls() == 1);
}

TEST_CASE("a server that dies in the middle and comes back gets the rest; nothing is lost") {
  // Slow enough for the death to fall in the middle.
  TensorClientOptions slow = SmallChunks();
  slow.bandwidth_limit_bytes_per_s = 2e6;
  TestLink link({.bandwidth_limit_bytes_per_s = 2e6}, slow);
  const Values values = RandomValues(250'000);
  Awaited<PushResult> push = link.StartPush(ShardPush(1), values);
  link.handler.Hold(1, values, 9);
  std::vector<float> pulled(values->size());
  Awaited<PullResult> pull = link.StartPull({"job-1", 9, 1}, pulled);
  while (link.client->counters().payload_bytes_received < 100'000 ||
         link.client->counters().payload_bytes_sent < 100'000) {
    std::this_thread::yield();
  }
  link.server.reset();
  link.server = TensorServer::Create({.endpoint = link.address.endpoint}, &link.handler).value();
  link.handler.Serve(link.server.get());
  REQUIRE(push.Get().status.ok());
  REQUIRE(*link.handler.Staged(ShardPush(1)) == *values);
  REQUIRE(pull.Get().status.ok());
  REQUIRE(pulled == *values);
  REQUIRE(link.client->counters().restarts == 2);
  // The pull went on where it had stopped.
  REQUIRE(link.client->counters().payload_bytes_received ==
          static_cast<int64_t>(values->size() * sizeof(float)));
}

TEST_CASE("a_connection_that_breaks_in_the_middle_costs_only_the_chunks_under_way") {
  TensorClientOptions slow = SmallChunks();
  slow.bandwidth_limit_bytes_per_s = 2e6;
  TestLink link({.bandwidth_limit_bytes_per_s = 2e6}, slow);
  BreakingProxy proxy(link.address.endpoint);
  link.address.endpoint = proxy.endpoint();
  const Values values = RandomValues(250'000);
  Awaited<PushResult> push = link.StartPush(ShardPush(1), values);
  link.handler.Hold(1, values, 9);
  std::vector<float> pulled(values->size());
  Awaited<PullResult> pull = link.StartPull({"job-1", 9, 1}, pulled);
  while (link.client->counters().payload_bytes_received < 100'000 ||
         link.server->counters().payload_bytes_received < 100'000) {
    std::this_thread::yield();
  }
  proxy.Break();
  REQUIRE(push.Get().status.ok());
  REQUIRE(*link.handler.Staged(ShardPush(1)) == *values);
  REQUIRE(pull.Get().status.ok());
  REQUIRE(pulled == *values);
  REQUIRE(link.client->counters().restarts >= 2);
  // Both went on after the last chunk that had arrived: none was taken twice.
  const auto bytes = static_cast<int64_t>(values->size() * sizeof(float));
  REQUIRE(link.server->counters().payload_bytes_received == bytes);
  REQUIRE(link.client->counters().payload_bytes_received == bytes);
}

TEST_CASE("a_large_push_sends_only_the_segments_that_are_not_staged_already") {
  TestLink link({}, {.connections_per_server = 3});
  const Values values = RandomValues(int64_t{12} << 20);  // 48 MiB: 6 segments
  PushId part = ShardPush(1);
  part.begin = 2 << 20;
  part.elements = 4 << 20;
  Awaited<PushResult> first;
  link.client->Push(link.address, part, Encoding::kFloat32,
                    std::span(*values).subspan(2 << 20, 4 << 20), values, testing::kHangLimit,
                    first.Setter());
  REQUIRE(first.Get().status.ok());
  REQUIRE(link.handler.deliveries() == 2);
  REQUIRE(link.Push(ShardPush(1), values).push_status == PushStatus::kStaged);
  REQUIRE(link.handler.deliveries() == 6);
  REQUIRE(link.server->counters().payload_bytes_received ==
          static_cast<int64_t>(values->size() * sizeof(float)));
  std::vector<float> pushed;
  for (int64_t begin = 0; begin < std::ssize(*values); begin += 2 << 20) {
    PushId segment = ShardPush(1);
    segment.begin = begin;
    segment.elements = 2 << 20;
    const Values staged = link.handler.Staged(segment);
    REQUIRE(staged != nullptr);
    pushed.insert(pushed.end(), staged->begin(), staged->end());
  }
  REQUIRE(pushed == *values);
  REQUIRE(link.Push(ShardPush(1), values).push_status == PushStatus::kDuplicate);
  REQUIRE(link.handler.deliveries() == 6);
}

TEST_CASE("a_large_pull_comes_whole_in_segments_and_a_refused_segment_refuses_it") {
  TestLink link({}, {.connections_per_server = 3});
  const Values values = RandomValues((int64_t{5} << 20) + 12'345);
  link.handler.Hold(1, values, 9);
  std::vector<float> pulled(values->size());
  const PullResult whole = link.Pull({"job-1", 9, 1}, pulled);
  REQUIRE(whole.status.ok());
  REQUIRE(whole.version == 9);
  REQUIRE(pulled == *values);
  const PullResult early = link.Pull({"job-1", 10, 1}, pulled);
  REQUIRE(early.refusal == PullRefusal::kNotYet);
  REQUIRE(early.version == 9);
}

// How pulls end whose chunks wait for those of older pulls, for longer than a client may be silent.
std::vector<absl::Status> PullAllWhileWaiting(Duration idle) {
  // Two seconds for all of them where 300 ms are idle.
  TestLink link({.idle_timeout = idle, .bandwidth_limit_bytes_per_s = 16e6 * 0.3 / Seconds(idle)},
                {.connections_per_server_max = 1});
  const auto other = TensorClient::Create({.connections_per_server_max = 1}).value();
  const Values values = RandomValues(int64_t{1} << 20);  // one segment
  link.handler.Hold(1, values, 9);
  std::vector<std::vector<float>> pulled(8, std::vector<float>(values->size()));
  std::vector<Awaited<PullResult>> pulls(pulled.size());
  for (size_t i = 0; i < pulled.size(); ++i) {
    TensorClient& client = i % 2 == 0 ? *link.client : *other;
    // The last one of each client waits for all its others.
    client.Pull(link.address, {"job-1", 9, 1}, pulled[i], testing::kHangLimit, pulls[i].Setter());
  }
  std::vector<absl::Status> statuses;
  for (size_t i = 0; i < pulled.size(); ++i) {
    statuses.push_back(pulls[i].Get().status);
    if (statuses.back().ok()) REQUIRE(pulled[i] == *values);
  }
  return statuses;
}

TEST_CASE("pulls_that_wait_for_older_ones_of_several_clients_are_not_dropped_as_idle") {
  // Where the machine is slow, a client may be silent for 300 ms although it does all that it
  // should.
  const std::vector<absl::Status> statuses = testing::WithGrowingLimit(
      300ms, [](Duration idle) { return PullAllWhileWaiting(idle); },
      [](const std::vector<absl::Status>& ended) {
        return std::all_of(ended.begin(), ended.end(),
                           [](const absl::Status& status) { return status.ok(); });
      });
  for (const absl::Status& status : statuses) REQUIRE(status.ToString() == "OK");
}

// More of each than its connection takes at once: 4 MiB with libzmq, and the kernel's buffers.
TEST_CASE("large_pulls_of_several_clients_come_whole_in_segments") {
  TestLink link;
  const Values values = RandomValues(int64_t{20} << 20);  // 80 MiB: 10 segments
  link.handler.Hold(1, values, 9);
  std::vector<std::unique_ptr<TensorClient>> clients;
  std::vector<std::vector<float>> pulled(3, std::vector<float>(values->size()));
  std::vector<Awaited<PullResult>> pulls(pulled.size());
  for (size_t i = 0; i < pulled.size(); ++i) {
    clients.push_back(TensorClient::Create({}).value());
    clients[i]->Pull(link.address, {"job-1", 9, 1}, pulled[i], testing::kHangLimit,
                     pulls[i].Setter());
  }
  for (size_t i = 0; i < pulled.size(); ++i) {
    REQUIRE(pulls[i].Get().status.ToString() == "OK");
    REQUIRE(pulled[i] == *values);
  }
  REQUIRE(link.server->counters().payload_bytes_sent == 3 * int64_t{80} << 20);
}

TEST_CASE("a_large_transfer_can_be_cancelled_and_ends_once") {
  TensorClientOptions slow;
  slow.bandwidth_limit_bytes_per_s = 1e6;
  TestLink link({}, slow);
  const Values values = RandomValues(int64_t{8} << 20);
  Awaited<PushResult> cancelled, orphan;
  const TransferId id = link.client->Push(link.address, ShardPush(1), Encoding::kFloat32, *values,
                                          values, testing::kHangLimit, cancelled.Setter());
  link.client->Cancel(id);
  REQUIRE(cancelled.Get().status.code() == absl::StatusCode::kCancelled);
  link.client->Push(link.address, ShardPush(2), Encoding::kFloat32, *values, values,
                    testing::kHangLimit, orphan.Setter());
  link.client.reset();
  REQUIRE(orphan.Get().status.code() == absl::StatusCode::kCancelled);
  REQUIRE(orphan.calls() == 1);
  REQUIRE(cancelled.calls() == 1);
}

TEST_CASE("paced ends keep to their pace") {
  TensorClientOptions slow = SmallChunks();
  slow.bandwidth_limit_bytes_per_s = 1e6;
  TestLink link({.bandwidth_limit_bytes_per_s = 1e6}, slow);
  link.handler.Hold(1, RandomValues(50'000), 0);
  std::vector<float> pulled(50'000);
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(link.Push(ShardPush(1), RandomValues(50'000)).status.ok());
  REQUIRE(link.Pull({"job-1", 0, 1}, pulled).status.ok());
  REQUIRE(Seconds(std::chrono::steady_clock::now() - start) > 0.38);
}

TEST_CASE(
    "keys: a known client is admitted, an unknown one gets the reason, a wrong server key is no "
    "link") {
  const KeyPair server_keys = GenerateKeyPair().value();
  const KeyPair known = GenerateKeyPair().value();
  const KeyPair stranger = GenerateKeyPair().value();
  const TensorServerOptions secured{
      .security = {.keys = server_keys, .allowed_client_keys = {known.public_key}}};
  const Values values = RandomValues(300'000);

  TestLink link(secured, {.security = {.keys = known}});
  REQUIRE(link.Push(ShardPush(1), values).status.ok());
  REQUIRE(*link.handler.Staged(ShardPush(1)) == *values);

  link.client = TensorClient::Create({.security = {.keys = stranger}}).value();
  const PushResult refused = link.Push(ShardPush(2), values);
  REQUIRE(refused.status.code() == absl::StatusCode::kUnauthenticated);
  REQUIRE(Says(refused.status, "the server does not know our key"));

  link.client = TensorClient::Create({.security = {.keys = known}}).value();
  link.address.public_key = stranger.public_key;
  REQUIRE(
      link.Push(ShardPush(3), values, Encoding::kFloat32, testing::kNothingComes).status.code() ==
      absl::StatusCode::kDeadlineExceeded);

  link.address.public_key = "";  // plaintext to a server that wants keys
  REQUIRE_FALSE(
      link.Push(ShardPush(4), values, Encoding::kFloat32, testing::kNothingComes).status.ok());
  REQUIRE(link.handler.deliveries() == 1);
}

TEST_CASE("without keys only loopback is used, unless it is allowed by name") {
  TestHandler handler;
  const auto refused = TensorServer::Create({.endpoint = "tcp://0.0.0.0:*"}, &handler).status();
  REQUIRE(refused.code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(Says(refused, "tcp://0.0.0.0:*: without keys only loopback"));
  REQUIRE(TensorServer::Create({.endpoint = "tcp://0.0.0.0:*",
                                .security = {.allow_plaintext_beyond_loopback = true}},
                               &handler)
              .ok());
  REQUIRE(IsLoopback("tcp://127.1.2.3:80"));
  REQUIRE(IsLoopback("tcp://[::1]:80"));
  REQUIRE_FALSE(IsLoopback("tcp://127.evil.example:80"));
  REQUIRE_FALSE(IsLoopback("tcp://10.0.0.1:80"));
}

}  // namespace
}  // namespace atl
