// A shard of a contribution that comes in parts, from several senders.

#include <algorithm>
#include <catch2/catch.hpp>

#include "common/rng.h"
#include "paramserver/core/testing/server_fixture.h"

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
  return encoding == Encoding::kFloat32 ? ToSharedBytes(values) : Quantized(encoding, values);
}

// Elements [begin, end) of a push of all, as their sender sends them.
Token PushPart(ServerFixture& fixture, PushId id, Encoding encoding,
               const std::vector<float>& values, int64_t begin, int64_t end) {
  id.begin = begin;
  id.elements = end - begin;
  const std::vector<float> part(values.begin() + begin, values.begin() + end);
  return fixture.Push(id, encoding, end - begin, Encoded(encoding, part));
}

void Initialize(ServerFixture& fixture) {
  fixture.Assign({{0, 0, kElements}}, /*snapshot_every=*/2);
  fixture.Push(fixture.Id(0, -1, 0), Drawn(1));
  fixture.Apply(0, {{fixture.By(0, -1), 1.0}});
  fixture.sent.clear();
}

TEST_CASE("parts of a shard in any order make the bits that the whole push makes") {
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt8, Encoding::kE3m0);
  ServerFixture whole, parts;
  for (ServerFixture* fixture : {&whole, &parts}) Initialize(*fixture);
  const std::vector<float> values = Drawn(7);
  whole.Push(whole.Id(0, 0, 0), encoding, kElements, Encoded(encoding, values));
  const PushId id = parts.Id(0, 0, 0);
  for (const auto& [begin, end] : {std::pair(512, 1000), std::pair(0, 256), std::pair(256, 512)}) {
    PushPart(parts, id, encoding, values, begin, end);
  }
  const auto gram = [&](ServerFixture& fixture) {
    fixture.Sync();
    fixture.sent.clear();
    fixture.DeliverMessage(CollectStatistics{kJob, 1, {fixture.By(0, 0)}});
    const auto sent = fixture.TakeSent<Statistics>();
    REQUIRE(sent.size() == 1);
    fixture.Commit(1, {{fixture.By(0, 0), 1.0}});
    fixture.Sync();
    return sent[0].layers[0].values;
  };
  CHECK(gram(whole) == gram(parts));
  CHECK(whole.version() == 1);
  CHECK(whole.Theta(0) == parts.Theta(0));
}

TEST_CASE(
    "each part is acknowledged and announced when it is durable, and no round uses some of "
    "them") {
  ServerFixture fixture;
  Initialize(fixture);
  const std::vector<float> values = Drawn(2);
  const PushId id = fixture.Id(0, 0, 0);
  const Token first = PushPart(fixture, id, Encoding::kFloat32, values, 0, 512);
  CHECK(fixture.pushes.count(first) == 0);
  fixture.Sync();
  CHECK(fixture.Answered(first, PushStatus::kStaged));
  const auto staged = fixture.TakeSent<PushStaged>();
  REQUIRE(staged.size() == 1);
  CHECK(staged[0].push.RangeIn(kElements) == ElementRange{0, 512});
  fixture.DeliverMessage(CollectStatistics{kJob, 1, {fixture.By(0, 0)}});
  CHECK(fixture.TakeSent<Statistics>().empty());
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});
  CHECK(fixture.version() == 0);

  PushPart(fixture, id, Encoding::kFloat32, values, 512, kElements);
  fixture.Apply(1, {{fixture.By(0, 0), 1.0}});
  CHECK(fixture.version() == 1);
}

TEST_CASE("what other pushes have staged is a duplicate; of an overlap the first bits stay") {
  ServerFixture fixture;
  Initialize(fixture);
  const std::vector<float> values = Drawn(3), others = Drawn(4);
  const PushId id = fixture.Id(0, 0, 0);
  PushPart(fixture, id, Encoding::kFloat32, values, 0, 256);
  PushPart(fixture, id, Encoding::kFloat32, values, 256, 768);
  fixture.Sync();
  const size_t records = fixture.log_records();
  CHECK(fixture.Answered(PushPart(fixture, id, Encoding::kFloat32, others, 0, 512),
                         PushStatus::kDuplicate));
  CHECK(fixture.log_records() == records);
  PushPart(fixture, id, Encoding::kFloat32, others, 512, kElements);  // cut for another plan
  fixture.Apply(1, {{fixture.By(0, 0), 1.0}});
  ServerFixture reference;
  Initialize(reference);
  std::vector<float> expected = values;
  std::copy(others.begin() + 768, others.end(), expected.begin() + 768);
  reference.Push(reference.Id(0, 0, 0), expected);
  reference.Apply(1, {{reference.By(0, 0), 1.0}});
  CHECK(fixture.Theta(0) == reference.Theta(0));
}

TEST_CASE(
    "durable parts survive a crash at any moment, before and after a snapshot, and others "
    "are pushed again") {
  ServerFixture fixture, reference;
  for (ServerFixture* s : {&fixture, &reference}) Initialize(*s);
  for (Version version = 0; version < 6; ++version) {
    const std::vector<float> values = Drawn(10 + static_cast<uint64_t>(version));
    const PushId id = fixture.Id(0, version, 0);
    PushPart(fixture, id, Encoding::kFloat32, values, 256, 512);
    fixture.Sync();
    PushPart(fixture, id, Encoding::kFloat32, values, 512, kElements);  // not synced: lost
    fixture.Crash();
    const auto hello = fixture.TakeSent<ServerHello>();
    REQUIRE(hello.back().jobs.size() == 1);
    REQUIRE(hello.back().jobs[0].staged.size() == 1);
    CHECK(hello.back().jobs[0].staged[0].RangeIn(kElements) == ElementRange{256, 512});
    PushPart(fixture, id, Encoding::kFloat32, values, 512, kElements);
    PushPart(fixture, id, Encoding::kFloat32, values, 0, 256);
    fixture.Sync();
    fixture.Crash();
    fixture.Commit(version + 1, {{fixture.By(0, version), 1.0}});
    fixture.Sync();
    reference.Push(id, values);
    reference.Apply(version + 1, {{reference.By(0, version), 1.0}});
    REQUIRE(fixture.version() == version + 1);
    REQUIRE(fixture.Theta(0) == reference.Theta(0));
  }
}

TEST_CASE("a part that cuts a block, lies outside its shard or is fenced off is refused") {
  ServerFixture fixture;
  Initialize(fixture);
  const auto refused = [&](int64_t begin, int64_t elements) {
    PushId id = fixture.Id(0, 0, 0);
    id.begin = begin;
    id.elements = elements;
    const auto size = static_cast<size_t>(std::max<int64_t>(0, elements));
    const Token token =
        fixture.Push(id, Encoding::kFloat32, elements, ToSharedBytes(std::vector<float>(size)));
    return fixture.Answered(token, PushStatus::kRefused);
  };
  CHECK(refused(100, 256));
  CHECK(refused(0, 300));
  CHECK(refused(768, 256));
  CHECK(refused(1024, 256));
  CHECK(refused(-256, 256));
  CHECK(refused(int64_t{1} << 62, 256));
  CHECK_FALSE(refused(768, 232));
  fixture.DeliverMessage(FenceIslands{kJob, {{0, 2, 1}}});
  CHECK(refused(0, 256));
}

TEST_CASE("a shard takes its room once, with its first part; another encoding is refused") {
  ServerFixture fixture(8 * kElements + 4 * kElements);
  Initialize(fixture);
  const std::vector<float> values = Drawn(5);
  PushPart(fixture, fixture.Id(0, 0, 0), Encoding::kFloat32, values, 0, 256);
  CHECK(fixture.Answered(PushPart(fixture, fixture.Id(1, 0, 0), Encoding::kFloat32, values, 0, 256),
                         PushStatus::kRefused));
  CHECK(fixture.Answered(PushPart(fixture, fixture.Id(0, 0, 0), Encoding::kInt8, values, 256, 512),
                         PushStatus::kRefused));
  const Token rest =
      PushPart(fixture, fixture.Id(0, 0, 0), Encoding::kFloat32, values, 256, kElements);
  fixture.Sync();
  CHECK(fixture.Answered(rest, PushStatus::kStaged));
}

TEST_CASE("parts of a push that cut a chunk of its encoding are refused, others make the whole") {
  constexpr int64_t kLong = 2 * kTopKChunk + 300;
  std::vector<float> values(kLong);
  Rng rng(3);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  ServerFixture fixture;
  fixture.Assign({{0, 0, kLong}});
  fixture.Push(fixture.Id(0, -1, 0), values);
  fixture.Apply(0, {{fixture.By(0, -1), 1.0}});
  const auto push = [&](int64_t begin, int64_t end) {
    return PushPart(fixture, fixture.Id(0, 0, 0), Encoding::kTopK, values, begin, end);
  };
  CHECK(fixture.Answered(push(0, 256), PushStatus::kRefused));
  CHECK(fixture.Answered(push(256, kLong), PushStatus::kRefused));
  const Token last = push(kTopKChunk, kLong), first = push(0, kTopKChunk);
  fixture.Sync();
  CHECK(fixture.Answered(last, PushStatus::kStaged));
  CHECK(fixture.Answered(first, PushStatus::kStaged));
}

TEST_CASE("a pull of some elements of a shard gets these alone") {
  ServerFixture fixture;
  Initialize(fixture);
  const std::vector<float> values = Drawn(1);
  fixture.Do(PullArrived{kJob, 0, 0, 77, 256, 100});
  REQUIRE(fixture.replies.contains(77));
  const std::span<const float> got = fixture.replies.at(77).values;
  CHECK(std::vector<float>(got.begin(), got.end()) ==
        std::vector<float>(values.begin() + 256, values.begin() + 356));
  fixture.Do(PullArrived{kJob, 0, 0, 78, 990, 11});
  CHECK(fixture.refusals.contains(78));
}

}  // namespace
}  // namespace atl::ps
