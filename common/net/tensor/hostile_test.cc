// A server against senders that keep no rule: raw ZeroMQ sockets with crafted frames.

#include <catch2/catch.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/frame.h"
#include "common/net/testing/hostile_peer.h"
#include "common/net/testing/test_handler.h"
#include "common/rng.h"

namespace atl {
namespace {

using namespace std::chrono_literals;

v1::Frame OpenPush(uint64_t transfer, ShardId shard, int64_t elements) {
  v1::Frame frame = MakeFrame(transfer);
  SetPushId({"job-1", 0, 1, 1, 0, shard}, frame.mutable_push_open());
  frame.mutable_push_open()->set_encoding(v1::TENSOR_ENCODING_FLOAT32);
  frame.mutable_push_open()->set_element_count(elements);
  frame.mutable_push_open()->set_chunk_bytes(1024);
  return frame;
}

void RequireStillServing(TestLink& link) {
  const auto values = std::make_shared<std::vector<float>>(5000, 1.0f);
  REQUIRE(link.Push({"job-1", 1, 1, 1, 0, 99}, values).status.ok());
  REQUIRE(*link.handler.Staged({"job-1", 1, 1, 1, 0, 99}) == *values);
}

void AwaitRefused(TestLink& link, int64_t frames) {
  while (link.server->counters().frames_refused < frames) std::this_thread::yield();
}

TEST_CASE("a description that breaks a rule is refused with the rule, and no memory is taken") {
  TestLink link;
  HostileSender attacker(link.address.endpoint);
  const auto refused = [&](uint64_t transfer, auto change, absl::string_view reason) {
    v1::Frame frame = OpenPush(transfer, 1, 100);
    change(*frame.mutable_push_open());
    attacker.Send(frame);
    const v1::Frame answer = attacker.Receive();
    INFO(answer.ShortDebugString());
    REQUIRE(answer.transfer() == transfer);
    REQUIRE(answer.transfer_end().outcome() == v1::TransferEnd::REFUSED);
    REQUIRE(absl::StrContains(answer.transfer_end().reason(), reason));
  };
  refused(
      1, [](auto& open) { open.set_element_count(-1); }, "element_count -1");
  refused(
      2, [](auto& open) { open.set_element_count(INT64_MAX); }, "element_count");
  refused(
      3, [](auto& open) { open.set_element_count(int64_t{1} << 39); }, "at most");
  refused(
      4, [](auto& open) { open.set_encoding(v1::TENSOR_ENCODING_UNSPECIFIED); }, "encoding 0");
  refused(
      5, [](auto& open) { open.set_encoding(static_cast<v1::TensorEncoding>(77)); }, "encoding 77");
  refused(
      6, [](auto& open) { open.set_chunk_bytes(0); }, "chunk_bytes 0");
  refused(
      7, [](auto& open) { open.set_chunk_bytes(1 << 30); }, "chunk_bytes");
  refused(
      8, [](auto& open) { open.set_chunk_bytes(1026); }, "chunk_bytes 1026");
  refused(
      9, [](auto& open) { open.set_job("../etc"); }, "job's name");
  refused(
      10, [](auto& open) { open.set_shard(-4); }, "shard -4");
  refused(
      11,
      [](auto& open) {
        open.set_encoding(v1::TENSOR_ENCODING_INT4);
        open.set_element_count(int64_t{1} << 39);
      },
      "at most");
  REQUIRE(link.handler.admissions() == 0);
  REQUIRE(link.server->assembly_bytes() == 0);

  v1::Frame future = OpenPush(12, 1, 100);
  future.set_protocol_version(9);
  attacker.Send(future);
  REQUIRE(absl::StrContains(attacker.Receive().transfer_end().reason(),
                            absl::StrCat("version 9 is not ", kProtocolVersion)));
  RequireStillServing(link);
}

TEST_CASE("quantised pushes have the bytes of their elements and scales") {
  TestLink link;
  HostileSender attacker(link.address.endpoint);
  uint64_t transfer = 0;
  for (const auto& [encoding, bytes] :
       {std::pair(v1::TENSOR_ENCODING_INT8, 308), std::pair(v1::TENSOR_ENCODING_INT4, 158),
        std::pair(v1::TENSOR_ENCODING_E3M0, 158), std::pair(v1::TENSOR_ENCODING_TOPK, 18)}) {
    for (const int length : {bytes - 1, bytes + 1, 300, 4}) {
      ++transfer;
      v1::Frame frame = OpenPush(transfer, static_cast<ShardId>(transfer), 300);
      frame.mutable_push_open()->set_encoding(encoding);
      attacker.Send(frame);
      REQUIRE(attacker.Receive().has_transfer_start());
      attacker.SendChunk(transfer, 0, std::string(length, 'x'));
      const v1::Frame answer = attacker.Receive();
      REQUIRE(absl::StrContains(answer.transfer_end().reason(),
                                absl::StrCat(length, " bytes instead of ", bytes)));
    }
  }
  RequireStillServing(link);
}

TEST_CASE("chunks of a wrong place, length or checksum end the attempt") {
  TestLink link;
  HostileSender attacker(link.address.endpoint);
  const std::string chunk(1024, 'x');
  uint64_t transfer = 0;
  ShardId shard = 0;
  const auto refused = [&](auto send, absl::string_view reason) {
    attacker.Send(OpenPush(++transfer, ++shard, 1024));
    REQUIRE(attacker.Receive().has_transfer_start());
    send(transfer);
    const v1::Frame answer = attacker.Receive();
    INFO(answer.ShortDebugString());
    REQUIRE(answer.transfer_end().outcome() == v1::TransferEnd::TRY_AGAIN);
    REQUIRE(absl::StrContains(answer.transfer_end().reason(), reason));
  };
  refused([&](uint64_t t) { attacker.SendChunk(t, 2, chunk); }, "chunk 2 came instead of 0");
  refused([&](uint64_t t) { attacker.SendChunk(t, 1, chunk); }, "chunk 1 came instead of 0");
  refused([&](uint64_t t) { attacker.SendChunk(t, 0, "short"); }, "5 bytes instead of 1024");
  refused([&](uint64_t t) { attacker.SendChunk(t, 0, chunk + "x"); }, "1025 bytes");
  refused([&](uint64_t t) { attacker.SendChunk(t, 0, chunk, false); }, "wrong checksum");
  REQUIRE(link.handler.deliveries() == 0);
  RequireStillServing(link);
}

TEST_CASE("after a corrupt chunk the next attempt goes on behind the last good one") {
  TestLink link;
  HostileSender attacker(link.address.endpoint);
  const std::string chunk(1024, '\0');
  attacker.Send(OpenPush(1, 1, 512));
  REQUIRE(attacker.Receive().has_transfer_start());
  attacker.SendChunk(1, 0, chunk);
  attacker.SendChunk(1, 1, chunk, /*honest=*/false);
  REQUIRE(attacker.Receive().transfer_end().outcome() == v1::TransferEnd::TRY_AGAIN);
  attacker.Send(OpenPush(2, 1, 512));
  REQUIRE(attacker.Receive().transfer_start().first_chunk() == 1);
  attacker.SendChunk(2, 1, chunk);
  REQUIRE(attacker.Receive().transfer_end().outcome() == v1::TransferEnd::STAGED);
  REQUIRE(*link.handler.Staged({"job-1", 0, 1, 1, 0, 1}) == std::vector<float>(512));
}

TEST_CASE("frames out of place are dropped and counted") {
  TestLink link;
  HostileSender attacker(link.address.endpoint);
  attacker.SendChunk(5, 0, "of no transfer");
  attacker.Send({""});
  attacker.Send({std::string(5000, 'h')});
  attacker.Send({MakeFrame(6).SerializeAsString()});
  attacker.Send({OpenPush(7, 1, 10).SerializeAsString(), "a payload that must not be"});
  attacker.Send({"a", "b", "c", "d"});
  v1::Frame start = MakeFrame(8);
  start.mutable_transfer_start();
  attacker.Send(start);
  const std::string whole = OpenPush(9, 1, 10).SerializeAsString();
  attacker.Send({whole.substr(0, whole.size() - 3)});
  AwaitRefused(link, 8);
  REQUIRE(link.handler.admissions() == 0);
  RequireStillServing(link);
}

TEST_CASE("a message above the limit costs its sender the connection") {
  TestLink link;
  HostileSender attacker(link.address.endpoint);
  attacker.Send({"h", std::string(kChunkBytesMax + 1, 'x')});
  RequireStillServing(link);
  REQUIRE(link.server->counters().frames_refused == 0);
}

TEST_CASE("a sender that falls silent loses its memory to others") {
  TestLink link({.assembly_bytes_max = 21'000, .idle_timeout = 300ms});
  HostileSender attacker(link.address.endpoint);
  attacker.Send(OpenPush(1, 1, 5000));
  REQUIRE(attacker.Receive().has_transfer_start());
  // Where the machine is slow, it has been dropped by now.
  const int64_t bytes = link.server->assembly_bytes();
  REQUIRE((bytes == 20'000 || bytes == 0));
  RequireStillServing(link);  // 20,000 bytes more do not fit until the silent push is dropped
  REQUIRE(link.server->counters().transfers_failed >= 1);
}

TEST_CASE("a puller that reads nothing pins no more than its window") {
  TestLink link({.send_bytes_max = 8192});
  link.handler.Hold(1, std::make_shared<std::vector<float>>(8 << 20), 0);
  HostileSender attacker(link.address.endpoint);
  for (uint64_t transfer = 1; transfer <= 20; ++transfer) {
    v1::Frame frame = MakeFrame(transfer);
    SetRequest({"job-1", 0, 1}, frame.mutable_pull_open());
    frame.mutable_pull_open()->set_chunk_bytes(4096);
    attacker.Send(frame);
  }
  link.handler.AwaitPulls(20);
  std::vector<float> pulled(8 << 20, 1.0f);
  REQUIRE(link.Pull({"job-1", 0, 1}, pulled).status.ok());
  REQUIRE(pulled == std::vector<float>(8 << 20));
  // The kernel's buffers took what they hold of the 320 MiB that the silent one requested.
  REQUIRE(link.server->counters().payload_bytes_sent < 128 << 20);
}

TEST_CASE("a puller that reads nothing is dropped as idle") {
  TestLink link({.idle_timeout = 300ms});
  link.handler.Hold(1, std::make_shared<std::vector<float>>(64 << 20), 0);
  HostileSender attacker(link.address.endpoint);
  v1::Frame frame = MakeFrame(1);
  SetRequest({"job-1", 0, 1}, frame.mutable_pull_open());
  frame.mutable_pull_open()->set_chunk_bytes(1 << 20);
  attacker.Send(frame);
  while (link.server->counters().transfers_failed == 0) std::this_thread::yield();
  RequireStillServing(link);
}

TEST_CASE("random bytes and mangled frames do no harm") {
  TestLink link;
  HostileSender attacker(link.address.endpoint);
  constexpr uint64_t kSeed = 20261121;
  Rng rng(kSeed);
  for (int i = 0; i < 3000; ++i) {
    std::string header = i % 3 == 0
                             ? std::string(rng.Below(200), '\0')
                             : OpenPush(1 + rng.Below(50), rng.Below(9), 300).SerializeAsString();
    const uint64_t changes = i % 3 == 0 ? header.size() : rng.Below(4);
    for (uint64_t k = 0; k < changes && !header.empty(); ++k) {
      header[rng.Below(header.size())] = static_cast<char>(rng.Next());
    }
    std::vector<std::string> parts = {header};
    if (rng.Chance(0.3)) parts.push_back(std::string(rng.Below(3000), 'p'));
    attacker.Send(parts);
  }
  INFO("seed " << kSeed);
  AwaitRefused(link, 500);
  RequireStillServing(link);
}

}  // namespace
}  // namespace atl
