// Whole models over real sockets on loopback.

#include "worker/outer/transfers.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "common/event_loop.h"
#include "common/net/testing/test_handler.h"
#include "common/trust/signed_push.h"
#include "kernels/add_delta.h"
#include "kernels/host_ops.h"
#include "worker/outer/outer_state.h"
#include "worker/outer/transfer_limits.h"

namespace atl::worker {
namespace {

class Fixture {
 public:
  Fixture() : transfers(link.client.get(), [this](Event e) { Post(std::move(e)); }) {
    for (int i = 0; i < 10; ++i) {
      shards.push_back({i, i / 5, (i % 5) * 100, 100, "ps1", link.address.endpoint});
      link.handler.Hold(i, std::make_shared<std::vector<float>>(100, static_cast<float>(i)), 7);
    }
  }
  template <typename T>
  T Next() {
    std::unique_lock lock(mutex_);
    posted_.wait(lock, [this] { return !events_.empty(); });
    const Event event = std::move(events_.front());
    events_.pop_front();
    REQUIRE(std::holds_alternative<T>(event));
    return std::get<T>(event);
  }
  std::thread::id posted_by() {  // the newest event
    const std::lock_guard lock(mutex_);
    return posted_by_;
  }
  bool IsIdle() {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }

  TestLink link;
  std::vector<ShardPlacement> shards;
  Transfers transfers;

 private:
  void Post(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    posted_by_ = std::this_thread::get_id();
    posted_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Event> events_;   // guarded by mutex_
  std::thread::id posted_by_;  // guarded by mutex_
};

std::shared_ptr<const LayerParts> Layers() {
  return std::make_shared<const LayerParts>(LayerParts{{0, {0, 500}}, {1, {0, 500}}});
}

std::shared_ptr<LayerBuffers> Buffers(float value = 0) {
  return std::make_shared<LayerBuffers>(2, std::vector<float>(500, value));
}

std::shared_ptr<Delta> MakeTestDelta(float value = 0) {
  auto delta = std::make_shared<Delta>();
  delta->values = *Buffers(value);
  return delta;
}

std::vector<ShardPart> Whole(const std::vector<ShardPlacement>& shards) {
  std::vector<ShardPart> parts;
  for (const ShardPlacement& shard : shards) parts.push_back({shard});
  return parts;
}

TEST_CASE("A step is added to the version before; what a server has no step of comes in full") {
  const Encoding encoding = GENERATE(Encoding::kInt8, Encoding::kInt4);
  Fixture fixture;
  ThreadPool pool(1);
  const auto base = Buffers(2.0F);
  std::vector<float> expected(100);
  std::vector<float> words(static_cast<size_t>(EncodedWords(encoding, 100)));
  const auto bytes = std::as_writable_bytes(std::span(words))
                         .first(static_cast<size_t>(EncodedBytes(encoding, 100)));
  std::vector<float> step(100);
  for (size_t i = 0; i < step.size(); ++i) step[i] = 0.01F * static_cast<float>(i % 7) - 0.02F;
  EncodeDelta(encoding, step, {}, bytes, pool);
  AddDelta({words.data(), encoding, 100}, std::vector<float>(100, 2.0F), expected, pool);
  fixture.link.handler.HoldStep(3, std::make_shared<std::vector<float>>(words));
  const StartPull order{"job-1", 1, 7, Whole(fixture.shards), encoding};
  SECTION("added") {
    const auto into = Buffers();
    fixture.transfers.Pull(order, Layers(), into, base, 6);
    CHECK(fixture.Next<PullDone>().bytes == 9 * 400 + 4 * std::ssize(words));
    for (size_t i = 0; i < 100; ++i) CHECK((*into)[0][300 + i] == expected[i]);
    CHECK((*into)[0][400] == 4);
    CHECK((*base)[0][300] == 2);
  }
  SECTION("a worker that has not the version before") {
    const auto into = Buffers();
    if (GENERATE(false, true)) {
      fixture.transfers.Pull(order, Layers(), into);
    } else {
      fixture.transfers.Pull(order, Layers(), into, base, 5);
    }
    CHECK(fixture.Next<PullDone>().bytes == 10 * 400);
    CHECK((*into)[0][300] == 3);
  }
  SECTION("of fragments, to a layer that has had one turn since") {
    StartPull fragment = order;
    fragment.fragments = 2;  // layer 0 has the turns of odd versions
    const auto base_version = GENERATE(4, 5, 6);
    const auto into = Buffers();
    fixture.transfers.Pull(fragment, Layers(), into, base, base_version);
    const bool added = base_version > 4;
    CHECK(fixture.Next<PullDone>().bytes == (added ? 9 * 400 + 4 * std::ssize(words) : 10 * 400));
    CHECK((*into)[0][300] == (added ? expected[0] : 3));
  }
  SECTION("scales that no server makes") {
    words[0] = -1;
    fixture.link.handler.HoldStep(3, std::make_shared<std::vector<float>>(words));
    fixture.transfers.Pull(order, Layers(), Buffers(), base, 6);
    CHECK(fixture.Next<PullFailed>().failure == PullFailure::kError);
  }
  SECTION("a version that is not there yet") {
    StartPull later = order;
    later.version = 8;
    fixture.transfers.Pull(later, Layers(), Buffers(), base, 6);
    CHECK(fixture.Next<PullFailed>().failure == PullFailure::kNotYet);
  }
}

TEST_CASE("A pull fills every shard's place and ends in one event") {
  Fixture fixture;
  const auto into = Buffers();
  fixture.transfers.Pull({"job-1", 3, 7, Whole(fixture.shards)}, Layers(), into);
  const PullDone done = fixture.Next<PullDone>();
  CHECK(done.pull == 3);
  CHECK(done.bytes == 10 * 100 * 4);
  for (int i = 0; i < 10; ++i) {
    CHECK((*into)[i / 5][(i % 5) * 100] == static_cast<float>(i));
    CHECK((*into)[i / 5][(i % 5) * 100 + 99] == static_cast<float>(i));
  }
  CHECK(fixture.transfers.running() == 0);
  CHECK(fixture.transfers.started() == 10);
}

TEST_CASE("A pull of a version that is still to come, and of a shard that fits nowhere") {
  Fixture fixture;
  fixture.transfers.Pull({"job-1", 1, 8, Whole(fixture.shards)}, Layers(), Buffers());
  const PullFailed early = fixture.Next<PullFailed>();
  CHECK(early.failure == PullFailure::kNotYet);
  CHECK(early.newer == 7);
  fixture.shards[9].begin = 450;
  fixture.transfers.Pull({"job-1", 2, 7, Whole(fixture.shards)}, Layers(), Buffers());
  CHECK(fixture.Next<PullFailed>().reason.find("shard 9") != std::string::npos);
  CHECK(fixture.IsIdle());
}

TEST_CASE("A push stages every shard, and a refusal says why") {
  Fixture fixture;
  const ContributionId contribution{0, 1, 1, 7};
  fixture.transfers.Push({"job-1", contribution, Encoding::kBfloat16, Whole(fixture.shards)},
                         Layers(), MakeTestDelta(2.5f));
  for (int i = 0; i < 10; ++i) {
    const PushShardDone done = fixture.Next<PushShardDone>();
    CHECK(done.status == ShardPushStatus::kStaged);
    CHECK(done.bytes == 200);
    CHECK(fixture.link.handler.Staged(done.push)->at(99) == 2.5f);
  }
  fixture.link.handler.Refuse(absl::FailedPreconditionError("an old generation"));
  fixture.transfers.Push({"job-1", {0, 1, 2, 7}, Encoding::kFloat32, Whole({fixture.shards[0]})},
                         Layers(), MakeTestDelta());
  const PushShardDone refused = fixture.Next<PushShardDone>();
  CHECK(refused.status == ShardPushStatus::kRefused);
  CHECK(refused.reason.find("an old generation") != std::string::npos);
}

TEST_CASE("A part of a shard is pushed with these elements alone, quantised or not") {
  Fixture fixture;
  fixture.shards = {{0, 0, 100, 400, "ps1", fixture.link.address.endpoint}};
  const auto delta = MakeTestDelta();
  for (size_t i = 0; i < 500; ++i) delta->values[0][i] = static_cast<float>(i);
  const ShardPart part{fixture.shards[0], 256, 144};
  fixture.transfers.Push({"job-1", {0, 1, 1, 7}, Encoding::kFloat32, {part}}, Layers(), delta);
  const PushShardDone done = fixture.Next<PushShardDone>();
  CHECK(done.status == ShardPushStatus::kStaged);
  CHECK(done.bytes == 4 * 144);
  CHECK(done.push.RangeIn(400) == ElementRange{256, 400});
  const Values staged = fixture.link.handler.Staged(done.push);
  REQUIRE(staged->size() == 144);
  CHECK(staged->front() == 356);
  CHECK(staged->back() == 499);

  LayerBuffers residual = *Buffers(0.1f);
  ThreadPool pool(1);
  REQUIRE(Quantize(Encoding::kInt8, fixture.shards, *Layers(), &residual, pool, delta.get()).ok());
  fixture.transfers.Push({"job-1", {0, 1, 2, 7}, Encoding::kInt8, {part}}, Layers(), delta);
  const PushId id = fixture.Next<PushShardDone>().push;
  const std::vector<std::byte>& whole = delta->encoded.at(0);
  CHECK(fixture.link.handler.StagedBytes(id) ==
        std::vector<std::byte>(whole.begin() + EncodedBytes(Encoding::kInt8, 256), whole.end()));
}

TEST_CASE("digests_are_of_the_bytes_that_are_pushed_in_each_encoding") {
  for (const Encoding encoding :
       {Encoding::kFloat32, Encoding::kBfloat16, Encoding::kInt8, Encoding::kTopK}) {
    INFO("encoding " << static_cast<int>(encoding));
    Fixture fixture;
    OuterSpec spec;
    spec.push_encoding = encoding;
    OuterState state("w1", LayoutOfOne("w1", {{"a", 500}, {"b", 500}}), spec);
    state.set_tag({0});
    CaptureDelta capture{{0, 1, 1, 0}, encoding, fixture.shards};
    capture.digests = true;
    const auto read = [](int32_t layer, ElementRange range, std::span<float> out) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        out[static_cast<size_t>(i - range.begin)] = std::sin(static_cast<float>(i + 1000 * layer));
      }
      return absl::OkStatus();
    };
    REQUIRE(state.ReadAll(fixture.shards, read).ok());
    REQUIRE(state.MakeDelta(capture).ok());
    const std::vector<PartDigest> digests = state.digests();
    REQUIRE(digests.size() == 10);
    fixture.transfers.Push({"job-1", capture.contribution, encoding, Whole(fixture.shards)},
                           state.parts(), state.delta());
    ThreadPool pool(1);
    for (int i = 0; i < 10; ++i) {
      const PushId push = fixture.Next<PushShardDone>().push;
      const PartDigest& digest = digests[static_cast<size_t>(push.shard)];
      CHECK(digest.shard == push.shard);
      CHECK(digest.begin == 0);
      CHECK(digest.elements == 100);
      if (IsQuantized(encoding)) {
        CHECK(digest.digest == DigestPart(encoding, fixture.link.handler.StagedBytes(push)));
        continue;
      }
      const Values staged = fixture.link.handler.Staged(push);
      std::vector<Bfloat16> narrow(staged->size());
      ToBfloat16(*staged, narrow, pool);
      CHECK(digest.digest == DigestPart(encoding, encoding == Encoding::kBfloat16
                                                      ? std::as_bytes(std::span(narrow))
                                                      : std::as_bytes(std::span(*staged))));
    }
    // Where none are wanted none are made, also of what was captured before.
    capture.digests = false;
    REQUIRE(state.ReadAll(fixture.shards, read).ok());
    REQUIRE(state.MakeDelta(capture).ok());
    CHECK(state.digests().empty());
  }
}

TEST_CASE("A quantised push sends the bytes that were made at its capture, or nothing") {
  Fixture fixture;
  const auto delta = MakeTestDelta(2.5f);
  LayerBuffers residual = *Buffers(0.1f);
  ThreadPool pool(1);
  REQUIRE(Quantize(Encoding::kInt4, fixture.shards, *Layers(), &residual, pool, delta.get()).ok());
  for (int again = 0; again < 2; ++again) {
    fixture.transfers.Push({"job-1", {0, 1, 1 + again, 7}, Encoding::kInt4, Whole(fixture.shards)},
                           Layers(), delta);
    for (int i = 0; i < 10; ++i) {
      const PushShardDone done = fixture.Next<PushShardDone>();
      CHECK(done.status == ShardPushStatus::kStaged);
      CHECK(done.bytes == 54);
      CHECK(fixture.link.handler.StagedBytes(done.push) == delta->encoded.at(done.push.shard));
    }
  }
  // Shards that were not captured so, or elements that are not of this shard.
  fixture.transfers.Push({"job-1", {0, 1, 3, 7}, Encoding::kInt8, Whole({fixture.shards[0]})},
                         Layers(), delta);
  CHECK(fixture.Next<PushShardDone>().status == ShardPushStatus::kRefused);
  fixture.shards[0].elements = 98;
  fixture.transfers.Push({"job-1", {0, 1, 3, 7}, Encoding::kInt4, Whole({fixture.shards[0]})},
                         Layers(), delta);
  CHECK(fixture.Next<PushShardDone>().status == ShardPushStatus::kRefused);
  CHECK_FALSE(
      Quantize(Encoding::kInt4, {{0, 1, 450, 100}}, *Layers(), &residual, pool, delta.get()).ok());
}

TEST_CASE("small_shards_are_moved_all_at_once_and_large_ones_a_few_at_a_time") {
  const bool large = GENERATE(false, true);
  const int64_t elements = large ? int64_t{1} << 20 : 100;
  Fixture fixture;
  fixture.shards.clear();
  for (int i = 0; i < 6; ++i) {
    fixture.shards.push_back({i, 0, i * elements, elements, "ps1", fixture.link.address.endpoint});
  }
  const auto delta = std::make_shared<Delta>();
  delta->values = {std::vector<float>(static_cast<size_t>(6 * elements))};
  fixture.link.handler.HoldAnswers(true);
  const auto parts = std::make_shared<const LayerParts>(LayerParts{{0, {0, 6 * elements}}});
  fixture.transfers.Push({"job-1", {0, 1, 1, 7}, Encoding::kFloat32, Whole(fixture.shards)}, parts,
                         delta);
  CHECK(fixture.transfers.started() == (large ? kShardsAtOnce : 6));
  fixture.transfers.CancelAll();
}

TEST_CASE("Cancelled transfers end at once, report nothing, and release their memory") {
  Fixture fixture;
  fixture.link.handler.HoldAnswers(true);
  const auto delta = MakeTestDelta(1);
  fixture.transfers.Push({"job-1", {0, 1, 1, 7}, Encoding::kFloat32, Whole(fixture.shards)},
                         Layers(), delta);
  fixture.link.handler.AwaitHeld();
  CHECK(fixture.transfers.running() > 0);
  fixture.transfers.CancelAll();
  CHECK(fixture.transfers.running() == 0);
  CHECK(fixture.IsIdle());
  // And the link still works.
  fixture.link.handler.HoldAnswers(false);
  fixture.transfers.Pull({"job-1", 1, 7, Whole(fixture.shards)}, Layers(), Buffers());
  fixture.Next<PullDone>();
}

TEST_CASE("transfers_that_end_within_the_step_of_a_loop_with_a_full_queue_are_answered") {
  TestLink link;
  link.handler.Hold(0, std::make_shared<std::vector<float>>(100, 1.0f), 7);
  EventLoop<Event> loop(1);
  Transfers transfers(link.client.get(), [&](Event event) { loop.PostAnswer(std::move(event)); });
  const ShardPlacement here{0, 0, 0, 100, "ps1", link.address.endpoint};
  const ShardPlacement nowhere{1, 0, 450, 100, "ps1", link.address.endpoint};
  int refused = 0, pulled = 0;
  loop.Run([&](Instant, std::optional<Event> event) {
    if (!event) {
      while (loop.TryPost(Tick{})) {
      }
      transfers.Push({"job-1", {0, 1, 1, 7}, Encoding::kFloat32, Whole({nowhere, nowhere})},
                     Layers(), MakeTestDelta());
      transfers.Pull({"job-1", 1, 7, Whole({here})}, Layers(), Buffers());
      while (transfers.running() > 0) std::this_thread::yield();
      transfers.CancelAll();
      return kNever;
    }
    if (const auto* done = std::get_if<PushShardDone>(&*event)) {
      refused += done->status == ShardPushStatus::kRefused ? 1 : 0;
    }
    pulled += std::holds_alternative<PullDone>(*event) ? 1 : 0;
    if (refused == 2 && pulled == 1) loop.Stop();
    return kNever;
  });
  CHECK(refused == 2);
  CHECK(pulled == 1);
}

TEST_CASE("steps_are_added_on_another_thread_than_the_network_s") {
  Fixture fixture;
  ThreadPool pool(1);
  std::vector<float> words(static_cast<size_t>(EncodedWords(Encoding::kInt8, 100)));
  const auto bytes = std::as_writable_bytes(std::span(words))
                         .first(static_cast<size_t>(EncodedBytes(Encoding::kInt8, 100)));
  EncodeDelta(Encoding::kInt8, std::vector<float>(100, 0.5f), {}, bytes, pool);
  fixture.link.handler.HoldStep(0, std::make_shared<std::vector<float>>(words));
  const auto base = Buffers(2.0F);
  StartPull order{"job-1", 1, 7, Whole({fixture.shards[0]}), Encoding::kFloat32};
  fixture.transfers.Pull(order, Layers(), Buffers(), base, 6);
  fixture.Next<PullDone>();
  const std::thread::id network = fixture.posted_by();
  order.encoding = Encoding::kInt8;
  fixture.transfers.Pull(order, Layers(), Buffers(), base, 6);
  fixture.Next<PullDone>();
  CHECK(fixture.posted_by() != network);
}

}  // namespace
}  // namespace atl::worker
