#include "worker/island/member/group_calls.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "common/event_loop.h"
#include "worker/island/messages/wire.h"

namespace atl::worker {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// Elements `begin` to `begin + count` of the parameters of the first call.
PeerDelivery Chunk(int64_t begin, size_t count) {
  PeerDelivery delivery;
  delivery.from = "w2";
  delivery.header = Serialize(ChunkHeader{.call = 1, .offset = static_cast<int64_t>(begin)});
  const std::vector<float> values(count, 2.5F);
  delivery.payload = BufferPool::Create(0)->Take(static_cast<int64_t>(4 * count));
  std::memcpy(delivery.payload.data(), values.data(), 4 * count);
  return delivery;
}

TEST_CASE("a member that does not answer is named, with its call and how long ago") {
  MemberState state("w1");
  GroupCalls calls(&state, {});
  GroupFrame frame{.body = GetLayerCall{LayerShard{3, 1, {1, 1}}}};
  const CallId id = calls.Begin("w2", Describe(frame));
  const auto reply = calls.Await(id, milliseconds(1));
  CHECK(absl::IsDeadlineExceeded(reply.status()));
  CHECK_THAT(std::string(reply.status().message()),
             Catch::StartsWith("w2 has not answered \"get rank 1 of layer 3\" within "));
  frame.body = StepCall{12};
  CHECK(Describe(frame) == "step 12");
}

TEST_CASE("a layer may take as long as it likes while its chunks come") {
  MemberState state("w1");
  GroupCalls calls(&state, {});
  std::vector<float> values(6);
  const CallId id = calls.Begin("w2", "layer 3", {{0, values}});
  // Late: by its patience alone the waiting would be over before the last one is there.
  calls.OnChunk(SteadyNow() + hours(1), Chunk(0, 4));
  std::thread sender([&] { calls.OnChunk(SteadyNow(), Chunk(4, 2)); });
  const absl::Status status = calls.AwaitChunks(id, Duration(1), SteadyNow() + hours(2));
  sender.join();
  CHECK(status.ToString() == "OK");
  CHECK(values == std::vector<float>(6, 2.5F));
}

TEST_CASE("missing or slow chunks are reported with their layer, sender and bytes") {
  MemberState state("w1");
  GroupCalls calls(&state, {});
  std::vector<float> values(6);
  const CallId id = calls.Begin("w2", "layer 3", {{0, values}});
  absl::Status status;
  SECTION("no more") {
    calls.OnChunk(SteadyNow(), Chunk(0, 4));
    status = calls.AwaitChunks(id, milliseconds(1), SteadyNow() + hours(2));
  }
  SECTION("too slowly") {
    calls.OnChunk(SteadyNow() + hours(1), Chunk(0, 4));
    status = calls.AwaitChunks(id, hours(1), SteadyNow() + milliseconds(1));
  }
  CHECK(absl::IsDeadlineExceeded(status));
  CHECK_THAT(std::string(status.message()),
             Catch::StartsWith("layer 3 from w2: 16 of 24 bytes have come after "));
}

}  // namespace
}  // namespace atl::worker
