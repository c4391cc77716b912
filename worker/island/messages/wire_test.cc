// Messages between members: what is sent comes back, and what breaks a rule is refused.

#include "worker/island/messages/wire.h"

#include <catch2/catch.hpp>

#include "common/rng.h"

namespace atl::worker {
namespace {

HeldLayer Held(int64_t step) {
  return {{}, "d", 10, step, /*written=*/true, {0, 10}, /*whole=*/true};
}

GroupFrame Frame(GroupBody body) { return {.call = 5, .epoch = 1, .body = std::move(body)}; }

TEST_CASE("frames_of_every_kind_come_back_as_they_were_sent") {
  const LayerShard shard{1, 1, {3, 5}};
  const std::vector<ShardPlacement> shards = {{0, 1, 0, 64, "s", "tcp://127.0.0.1:1"}};
  const OuterTag tag{4, ContributionId{1, 2, 3, 4}, {5, 6}};
  const std::vector<ShardPart> parts = {{shards[0], 8, 16}};
  GroupReply reply;
  reply.held = {Held(1)};
  reply.saves = {{1, 2, {{{shard, {0, 4}}, 4, Tier::kDisk}}}};
  reply.outer = {tag, {{1, {0, 8}, {}}}, Encoding::kInt4, shards};
  reply.commit = {{1, 2, {0.5}}, {1, 3, {}}};
  reply.handover.emplace();
  reply.handover->leadership.local = {3, 20, 1.5, {{0, 8}}, 4};
  for (const GroupBody& body : std::vector<GroupBody>{
           ConfigureCall{{{"tensor/0", std::string("\0\xff", 2)}}},
           FetchCall{{{shard, {{shard, "b", kAllParts, {0, 9}, 7}}}}, 3, 7},
           DropSurplusCall(),
           StepCall{3, {{0, 8}}, 0.1, true},
           EvaluateCall{3, 1, 2, {0.5, -1}},
           ReferenceCall{3, {{0, 8}}, true},
           GetLayerCall{shard, 1, false, {0, 9}, 0},
           SetStepsCall{2},
           Interruption{"x"},
           reply,
           TraceCall{3},
           ClockCall{9},
           SharedLinkCall{SharedLinkEvent::kGo, 2, {3, 0, 1, 0}},
           TakeOverCall(),
           SnapshotCall(),
           DrainCall{StepSums{1, 2, {0.5}}},
           AdditionCall{true},
           SaveCall{2, {{{shard, {0, 4}}}, {{{shard, {0, 4}}, "b", 8}}}, Tier::kRemote, 5, 1},
           SaveDone{2, false, "x", Tier::kDisk},
           ForgetSaves{1, Tier::kMemory},
           GoOnSaving{2},
           OuterLayoutCall{
               {{1, {0, 8}, {"a", "b"}}}, tag, Encoding::kInt8, shards, {{1, {0, 8}, {"a"}}}},
           CaptureCall{shards},
           CaptureDelta{*tag.captured, Encoding::kBfloat16, shards, true},
           ApplyCall{OuterKind::kAddition, OuterTarget::kAdded, false, shards},
           FinishCall{tag, true, shards},
           PutBaseInCall{.reference = true},
           PutBackCall(),
           FetchTablesCall(),
           InitialWeightsCall(),
           PushShards{"j-1", {1, 2, 3, FillBase(4)}, Encoding::kFloat32, parts},
           StartPull{"j-1", 3, 4, parts, Encoding::kInt4, 2, 1},
           PushShardDone{{"j-1", 1, 2, 3, FillBase(4), 5, 0, 64}, ShardPushStatus::kFailed, "x", 1},
           PullDone{3, 5, 1},
           PullFailed{3, PullFailure::kSuperseded, 9, "x", 1},
           CancelTransfersCall()}) {
    const GroupFrame frame = Frame(body);
    const absl::StatusOr<GroupFrame> back = ParseGroupFrame(Serialize(frame));
    INFO(body.index() << ": " << back.status().ToString());
    REQUIRE(back.ok());
    CHECK(*back == frame);
    CHECK(!Describe(frame).empty());
  }
}

TEST_CASE("frames_that_break_a_rule_are_refused") {
  const auto refused = [](GroupBody body) {
    return absl::IsInvalidArgument(ParseGroupFrame(Serialize(Frame(std::move(body)))).status());
  };
  CHECK(!ParseGroupFrame("").ok());
  CHECK(refused(StepCall{3, {}}));
  CHECK(refused(StepCall{3, {{5, 4}}}));
  CHECK(refused(StepCall{3, {{4, 4}}}));
  CHECK(refused(EvaluateCall()));
  CHECK(refused(ReferenceCall{3, {{5, 4}}}));
  const LayerShard whole{0, 0, {1}};
  CHECK(!refused(GetLayerCall{whole, 1, false, {0, 5}}));
  for (const int32_t parts : {0, 9, 1 << kPartsMax, 24}) {
    CHECK(refused(GetLayerCall{whole, parts, false, {0, 5}}));
  }
  CHECK(refused(GetLayerCall{{0, 0, {}}, 1, false, {0, 5}}));
  CHECK(refused(GetLayerCall{{0, 2, {1, 1}}, 1, false, {0, 5}}));
  CHECK(refused(GetLayerCall{{0, 0, {0}}, 1, false, {0, 5}}));
  CHECK(refused(GetLayerCall{whole, 1, false, {5, 5}}));
  CHECK(refused(GetLayerCall{whole, 8, true, {0, 5}}));
  CHECK(refused(GetLayerCall{whole, 8, false, {0, 5}, 3}));
  GroupReply reply;
  reply.held = {Held(1)};
  reply.held[0].owned.end = reply.held[0].elements + 1;
  CHECK(refused(reply));
  reply.held = {Held(INT64_MAX)};
  CHECK(refused(reply));
  CHECK(refused(GroupReply{.code = 99}));
  CHECK(refused(GroupReply{.last_number = INT64_MAX}));
  reply.held.clear();
  reply.handover.emplace().known_steps = INT64_MAX;
  CHECK(refused(reply));
  CHECK(refused(SetStepsCall{-1}));
  CHECK(refused(ConfigureCall{{{"", std::string(70'000, 'k')}}}));
  CHECK(!ParseChunkHeader("", 3).ok());
  CHECK(!ParseChunkHeader("", 4 * kChunkElements + 4).ok());
  CHECK(!ParseChunkHeader(Serialize(ChunkHeader{.part = kPartsMax}), 4).ok());
  CHECK(!ParseTensorHeader("").ok());
}

TEST_CASE("mangled frames do no harm") {
  Rng rng(20261121);
  const LayerShard shard{1, 1, {1, 2}};
  const std::string whole =
      Serialize(Frame(FetchCall{{{shard, {{LayerShard{1, 0, {1}}, "b", kAllParts, {0, 5}}}}}, 1}));
  REQUIRE(ParseGroupFrame(whole).ok());
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (uint64_t k = rng.Below(4); k > 0; --k) {
      bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Next());
    }
    (void)ParseGroupFrame(bytes);
    (void)ParseTensorHeader(bytes);
    (void)ParseChunkHeader(bytes, 4);
  }
}

}  // namespace
}  // namespace atl::worker
