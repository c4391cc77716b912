// A shard of a contribution that comes in parts, from several senders.

#include <algorithm>
#include <catch2/catch.hpp>

#include "common/rng.h"
#include "paramserver/core/server_story.h"

namespace atl::ps {
namespace {

constexpr int64_t kElements = 1000;  // the last block has 232

std::vector<float> Drawn(uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(kElements);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

SharedBytes Encoded(Encoding encoding, const std::vector<float>& values) {
  return encoding == Encoding::kFloat32 ? BytesOf(values) : Quantized(encoding, values);
}

// Elements [begin, end) of a push of all, as their sender sends them.
Token PushPart(ServerStory& story, PushId id, Encoding encoding, const std::vector<float>& values,
               int64_t begin, int64_t end) {
  id.begin = begin;
  id.elements = end - begin;
  const std::vector<float> part(values.begin() + begin, values.begin() + end);
  return story.Push(id, encoding, end - begin, Encoded(encoding, part));
}

void Initialize(ServerStory& story) {
  story.Assign({{0, 0, kElements}}, /*snapshot_every=*/2);
  story.Push(story.Id(0, -1, 0), Drawn(1));
  story.Sync();
  story.Commit(0, {{story.By(0, -1), 1.0}});
  story.Sync();
  story.told.clear();
}

TEST_CASE("parts of a shard in any order make the bits that the whole push makes") {
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt8, Encoding::kE3m0);
  ServerStory whole, parts;
  for (ServerStory* story : {&whole, &parts}) Initialize(*story);
  const std::vector<float> values = Drawn(7);
  whole.Push(whole.Id(0, 0, 0), encoding, kElements, Encoded(encoding, values));
  const PushId id = parts.Id(0, 0, 0);
  for (const auto& [begin, end] : {std::pair(512, 1000), std::pair(0, 256), std::pair(256, 512)}) {
    PushPart(parts, id, encoding, values, begin, end);
  }
  const auto gram = [&](ServerStory& story) {
    story.Sync();
    story.told.clear();
    story.Says(CollectStatistics{kJob, 1, {story.By(0, 0)}});
    const auto told = story.Told<Statistics>();
    REQUIRE(told.size() == 1);
    story.Commit(1, {{story.By(0, 0), 1.0}});
    story.Sync();
    return told[0].layers[0].values;
  };
  CHECK(gram(whole) == gram(parts));
  CHECK(whole.version() == 1);
  CHECK(whole.Theta(0) == parts.Theta(0));
}

TEST_CASE(
    "each part is acknowledged and announced when it is durable, and no round uses some of "
    "them") {
  ServerStory story;
  Initialize(story);
  const std::vector<float> values = Drawn(2);
  const PushId id = story.Id(0, 0, 0);
  const Token first = PushPart(story, id, Encoding::kFloat32, values, 0, 512);
  CHECK(story.pushes.count(first) == 0);
  story.Sync();
  CHECK(story.Answered(first, PushStatus::kStaged));
  const auto staged = story.Told<PushStaged>();
  REQUIRE(staged.size() == 1);
  CHECK(staged[0].push.RangeIn(kElements) == ElementRange{0, 512});
  story.Says(CollectStatistics{kJob, 1, {story.By(0, 0)}});
  CHECK(story.Told<Statistics>().empty());
  story.Commit(1, {{story.By(0, 0), 1.0}});
  CHECK(story.version() == 0);

  PushPart(story, id, Encoding::kFloat32, values, 512, kElements);
  story.Sync();
  story.Commit(1, {{story.By(0, 0), 1.0}});
  story.Sync();
  CHECK(story.version() == 1);
}

TEST_CASE("what other pushes have staged is a duplicate; of an overlap the first bits stay") {
  ServerStory story;
  Initialize(story);
  const std::vector<float> values = Drawn(3), others = Drawn(4);
  const PushId id = story.Id(0, 0, 0);
  PushPart(story, id, Encoding::kFloat32, values, 0, 256);
  PushPart(story, id, Encoding::kFloat32, values, 256, 768);
  story.Sync();
  const size_t records = story.log_records();
  CHECK(story.Answered(PushPart(story, id, Encoding::kFloat32, others, 0, 512),
                       PushStatus::kDuplicate));
  CHECK(story.log_records() == records);
  PushPart(story, id, Encoding::kFloat32, others, 512, kElements);  // cut for another plan
  story.Sync();
  story.Commit(1, {{story.By(0, 0), 1.0}});
  story.Sync();
  ServerStory twin;
  Initialize(twin);
  std::vector<float> expected = values;
  std::copy(others.begin() + 768, others.end(), expected.begin() + 768);
  twin.Push(twin.Id(0, 0, 0), expected);
  twin.Sync();
  twin.Commit(1, {{twin.By(0, 0), 1.0}});
  twin.Sync();
  CHECK(story.Theta(0) == twin.Theta(0));
}

TEST_CASE(
    "durable parts survive a crash at any moment, before and after a snapshot, and others "
    "are pushed again") {
  ServerStory story, twin;
  for (ServerStory* s : {&story, &twin}) Initialize(*s);
  for (Version version = 0; version < 6; ++version) {
    const std::vector<float> values = Drawn(10 + static_cast<uint64_t>(version));
    const PushId id = story.Id(0, version, 0);
    PushPart(story, id, Encoding::kFloat32, values, 256, 512);
    story.Sync();
    PushPart(story, id, Encoding::kFloat32, values, 512, kElements);  // not synced: lost
    story.Crash();
    const auto hello = story.Told<ServerHello>();
    REQUIRE(hello.back().jobs.size() == 1);
    REQUIRE(hello.back().jobs[0].staged.size() == 1);
    CHECK(hello.back().jobs[0].staged[0].RangeIn(kElements) == ElementRange{256, 512});
    PushPart(story, id, Encoding::kFloat32, values, 512, kElements);
    PushPart(story, id, Encoding::kFloat32, values, 0, 256);
    story.Sync();
    story.Crash();
    story.Commit(version + 1, {{story.By(0, version), 1.0}});
    story.Sync();
    twin.Push(id, values);
    twin.Sync();
    twin.Commit(version + 1, {{twin.By(0, version), 1.0}});
    twin.Sync();
    REQUIRE(story.version() == version + 1);
    REQUIRE(story.Theta(0) == twin.Theta(0));
  }
}

TEST_CASE("a part that cuts a block, lies outside its shard or is fenced off is refused") {
  ServerStory story;
  Initialize(story);
  const auto refused = [&](int64_t begin, int64_t elements) {
    PushId id = story.Id(0, 0, 0);
    id.begin = begin;
    id.elements = elements;
    const auto size = static_cast<size_t>(std::max<int64_t>(0, elements));
    const Token token =
        story.Push(id, Encoding::kFloat32, elements, BytesOf(std::vector<float>(size)));
    return story.Answered(token, PushStatus::kRefused);
  };
  CHECK(refused(100, 256));
  CHECK(refused(0, 300));
  CHECK(refused(768, 256));
  CHECK(refused(1024, 256));
  CHECK(refused(-256, 256));
  CHECK(refused(int64_t{1} << 62, 256));
  CHECK_FALSE(refused(768, 232));
  story.Says(FenceIslands{kJob, {{0, 2, 1}}});
  CHECK(refused(0, 256));
}

TEST_CASE("a shard takes its room once, with its first part; another encoding is refused") {
  ServerStory story(8 * kElements + 4 * kElements);
  Initialize(story);
  const std::vector<float> values = Drawn(5);
  PushPart(story, story.Id(0, 0, 0), Encoding::kFloat32, values, 0, 256);
  CHECK(story.Answered(PushPart(story, story.Id(1, 0, 0), Encoding::kFloat32, values, 0, 256),
                       PushStatus::kRefused));
  CHECK(story.Answered(PushPart(story, story.Id(0, 0, 0), Encoding::kInt8, values, 256, 512),
                       PushStatus::kRefused));
  const Token rest = PushPart(story, story.Id(0, 0, 0), Encoding::kFloat32, values, 256, kElements);
  story.Sync();
  CHECK(story.Answered(rest, PushStatus::kStaged));
}

TEST_CASE("parts of a push that cut a chunk of its encoding are refused, others make the whole") {
  constexpr int64_t kLong = 2 * kTopKChunk + 300;
  std::vector<float> values(kLong);
  Rng rng(3);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  ServerStory story;
  story.Assign({{0, 0, kLong}});
  story.Push(story.Id(0, -1, 0), values);
  story.Sync();
  story.Commit(0, {{story.By(0, -1), 1.0}});
  story.Sync();
  const auto push = [&](int64_t begin, int64_t end) {
    return PushPart(story, story.Id(0, 0, 0), Encoding::kTopK, values, begin, end);
  };
  CHECK(story.Answered(push(0, 256), PushStatus::kRefused));
  CHECK(story.Answered(push(256, kLong), PushStatus::kRefused));
  const Token last = push(kTopKChunk, kLong), first = push(0, kTopKChunk);
  story.Sync();
  CHECK(story.Answered(last, PushStatus::kStaged));
  CHECK(story.Answered(first, PushStatus::kStaged));
}

TEST_CASE("a pull of some elements of a shard gets these alone") {
  ServerStory story;
  Initialize(story);
  const std::vector<float> values = Drawn(1);
  story.Do(PullAsked{kJob, 0, 0, 77, 256, 100});
  REQUIRE(story.replies.contains(77));
  const std::span<const float> got = story.replies.at(77).values;
  CHECK(std::vector<float>(got.begin(), got.end()) ==
        std::vector<float>(values.begin() + 256, values.begin() + 356));
  story.Do(PullAsked{kJob, 0, 0, 78, 990, 11});
  CHECK(story.refusals.contains(78));
}

}  // namespace
}  // namespace atl::ps
