// Senders on a shared link go one at a time, in the plan's send order, and never get stuck.

#include "worker/island/shared_link_scheduler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/rng.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;
using Grant = SendOrder::Grant;

Instant At(Duration d) { return Instant(d); }
SendPart Part(int32_t position, int64_t step = 1, int32_t chunk = 0) {
  return {step, position, 0, chunk};
}

// ---- the order ----

TEST_CASE("the first that is ready goes at once, the others in the plan's order") {
  SendOrder order(10s);
  REQUIRE(order.Ready("w2", Part(5)));
  REQUIRE(order.Next(At(0s)) == Grant{"w2", Part(5)});
  REQUIRE(order.Ready("w1", Part(4)));
  REQUIRE(order.Ready("w3", Part(2)));
  REQUIRE(order.Ready("w1", Part(3, /*step=*/0)));
  REQUIRE(!order.Next(At(0s)).has_value());  // the link is not free
  order.Left("w1", Part(5));                 // not its own
  REQUIRE(!order.Next(At(0s)).has_value());
  order.Left("w2", Part(5));
  REQUIRE(order.Next(At(1s)) == Grant{"w1", Part(3, 0)});  // of the step before
  order.Left("w1", Part(3, 0));
  REQUIRE(order.Next(At(1s)) == Grant{"w3", Part(2)});
  order.Left("w3", Part(2));
  REQUIRE(order.Next(At(1s)) == Grant{"w1", Part(4)});
}

TEST_CASE("chunks of a message follow each other, and others go between while one is not ready") {
  SendOrder order(10s);
  order.Ready("w1", Part(0, 1, 0));
  REQUIRE(order.Next(At(0s)) == Grant{"w1", Part(0, 1, 0)});
  order.Ready("w2", Part(1, 1, 0));
  order.Ready("w1", Part(0, 1, 1));
  order.Left("w1", Part(0, 1, 0));
  REQUIRE(order.Next(At(0s)) == Grant{"w1", Part(0, 1, 1)});
  order.Left("w1", Part(0, 1, 1));
  REQUIRE(order.Next(At(0s)) == Grant{"w2", Part(1, 1, 0)});  // chunk 2 of the first is not ready
}

TEST_CASE("a silent sender loses its turn when another one waits") {
  SendOrder order(10s);
  order.Ready("w1", Part(0));
  REQUIRE(order.Next(At(1s)) == Grant{"w1", Part(0)});
  REQUIRE(!order.deadline().has_value());  // no sender waits
  order.Ready("w2", Part(1));
  REQUIRE(order.deadline() == At(11s));
  REQUIRE(!order.Next(At(10s)).has_value());
  REQUIRE(order.Next(At(11s)) == Grant{"w2", Part(1)});
  order.Left("w1", Part(0));  // after all
  REQUIRE(!order.Next(At(12s)).has_value());
}

TEST_CASE("a message sent without a turn does not wait any more, and the queue is bounded") {
  SendOrder order(10s);
  order.Ready("w1", Part(0));
  order.Left("w1", Part(0));
  REQUIRE(!order.Next(At(0s)).has_value());
  for (size_t i = 0; i < SendOrder::kReadyMax; ++i) {
    REQUIRE(order.Ready("w1", Part(static_cast<int32_t>(i))));
  }
  REQUIRE(!order.Ready("w1", Part(-1)));
  REQUIRE(!order.Ready("w1", Part(0)));
}

// ---- workers that talk to each other, in one thread, with calls that take their time ----

// Two stages each of some replicas, replica r from w<r % workers> to a far worker.
IslandPlan MakeTestPlan(int replicas, int workers, int micro_batches) {
  IslandPlan plan;
  plan.link_orders = {{"here", "there", {}}};
  for (int r = 0; r < replicas; ++r) {
    plan.replicas.push_back({{{0, 1, {absl::StrCat("w", r % workers, "/", r)}, {}},
                              {1, 1, {absl::StrCat("far/", r)}, {}}},
                             1,
                             micro_batches});
  }
  for (int m = 0; m < micro_batches; ++m) {
    for (int r = 0; r < replicas; ++r) plan.link_orders[0].messages.push_back({r, 0, m, false});
  }
  return plan;
}

MessageTag MakeTag(int replica, int micro_batch, int chunk, int chunks) {
  MessageTag tag;
  tag.step = 1;
  tag.replica = replica;
  tag.stage = 1;
  tag.micro_batch = micro_batch;
  tag.chunk = chunk;
  tag.chunks = chunks;
  return tag;
}

class Site {
 public:
  Site(int replicas, int workers, int micro_batches, Duration patience)
      : plan_(MakeTestPlan(replicas, workers, micro_batches)) {
    for (int w = 0; w < workers; ++w) {
      const NodeId name = absl::StrCat("w", w);
      schedulers_[name] = std::make_unique<SharedLinkScheduler>(
          name,
          [this, name](const NodeId& to, const SharedLinkCall& call) {
            const std::lock_guard lock(mutex_);
            calls_[{name, to}].push_back(call);
          },
          patience);
      schedulers_[name]->SetPlan(plan_);
    }
  }

  void Send(const MessageTag& tag) {
    const NodeId from = WorkerFromDevice(plan_.replicas[tag.replica].stages[0].devices[0]);
    REQUIRE(schedulers_[from]->Has(tag));
    REQUIRE(schedulers_[from]
                ->Send(tag,
                       [this, tag](std::function<void()> left) {
                         const std::lock_guard lock(mutex_);
                         sent_.push_back(tag);
                         on_link_.push_back(std::move(left));
                         most_ = std::max(most_, on_link_.size());
                       })
                .ok());
  }

  // One thing happens: a call arrives, or a message has left. False: nothing can.
  bool Step(Rng& rng) {
    std::unique_lock lock(mutex_);
    std::vector<std::pair<NodeId, NodeId>> links;
    for (const auto& [link, calls] : calls_) {
      if (!calls.empty() && link.second != frozen_) links.push_back(link);
    }
    const uint64_t choices = links.size() + on_link_.size();
    if (choices == 0) return false;
    const uint64_t choice = rng.Below(choices);
    if (choice < links.size()) {
      const auto link = links[choice];
      const SharedLinkCall call = calls_[link].front();
      calls_[link].pop_front();
      lock.unlock();
      schedulers_[link.second]->OnCall(link.first, call);
    } else {
      const auto left = on_link_.begin() + static_cast<std::ptrdiff_t>(choice - links.size());
      const std::function<void()> done = std::move(*left);
      on_link_.erase(left);
      lock.unlock();
      done();
    }
    return true;
  }

  void Freeze(const NodeId& worker) { frozen_ = worker; }  // it receives nothing any more
  size_t sent() {
    const std::lock_guard lock(mutex_);
    return sent_.size();
  }
  std::vector<MessageTag> order() {
    const std::lock_guard lock(mutex_);
    return sent_;
  }
  size_t most_on_link() {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  const IslandPlan plan_;
  std::mutex mutex_;
  std::map<std::pair<NodeId, NodeId>, std::deque<SharedLinkCall>> calls_;  // all guarded by mutex_
  std::vector<std::function<void()>> on_link_;
  std::vector<MessageTag> sent_;
  size_t most_ = 0;
  NodeId frozen_;
  std::map<NodeId, std::unique_ptr<SharedLinkScheduler>>
      schedulers_;  // ends first: its threads use the above
};

TEST_CASE("what an earlier plan's threads still send is refused") {
  SharedLinkScheduler scheduler("w0", [](const NodeId&, const SharedLinkCall&) {});
  scheduler.SetPlan(MakeTestPlan(/*replicas=*/2, /*workers=*/2, /*micro_batches=*/2));
  const auto never = [](std::function<void()>) { FAIL("it was sent"); };
  REQUIRE(absl::IsAborted(scheduler.Send(MakeTag(1, 0, 0, 1), never)));  // w1's under this plan
  REQUIRE(scheduler.Has(MakeTag(0, 1, 0, 1)));
  scheduler.SetPlan(MakeTestPlan(1, 1, 1));
  REQUIRE(absl::IsAborted(scheduler.Send(MakeTag(0, 1, 0, 1), never)));  // there is none now
}

TEST_CASE("whatever comes when, each message goes once and one at a time") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const int replicas = 1 + static_cast<int>(rng.Below(4));
    const int workers = 1 + static_cast<int>(rng.Below(static_cast<uint64_t>(replicas)));
    const int micro_batches = 1 + static_cast<int>(rng.Below(5));
    Site site(replicas, workers, micro_batches, 1h);
    std::vector<MessageTag> coming;
    for (int m = 0; m < micro_batches; ++m) {
      for (int r = 0; r < replicas; ++r) {
        if (rng.Chance(0.1)) continue;  // empty
        const int chunks = rng.Chance(0.3) ? 4 : 1;
        for (int p = 0; p < chunks; ++p) coming.push_back(MakeTag(r, m, p, chunks));
      }
    }
    const size_t all = coming.size();
    for (size_t i = all; i > 1; --i) std::swap(coming[i - 1], coming[rng.Below(i)]);
    while (!coming.empty() || site.sent() < all) {
      if (!coming.empty() && rng.Chance(0.3)) {
        site.Send(coming.back());
        coming.pop_back();
      } else if (!site.Step(rng)) {
        REQUIRE(!coming.empty());  // else it would block for ever
        site.Send(coming.back());
        coming.pop_back();
      }
    }
    while (site.Step(rng)) {
    }
    std::set<MessageTag> once;
    for (const MessageTag& tag : site.order()) once.insert(tag);
    REQUIRE(once.size() == all);
    REQUIRE(site.sent() == all);
    REQUIRE(site.most_on_link() <= 1);
  }
}

TEST_CASE("what is all ready goes in the plan's order, but for the first") {
  Site site(3, 2, 4, 1h);
  Rng rng(1);
  for (int m = 3; m >= 0; --m) {
    for (int r = 2; r >= 0; --r) site.Send(MakeTag(r, m, 0, 1));
  }
  while (site.Step(rng)) {
  }
  std::vector<MessageTag> order = site.order();
  REQUIRE(order.size() == 12);
  // The scheduler may know at most one message of each sender before the others: these are left
  // out.
  order.erase(order.begin(), order.begin() + 2);
  const auto rank = [](const MessageTag& tag) { return std::pair(tag.micro_batch, tag.replica); };
  REQUIRE(std::is_sorted(order.begin(), order.end(),
                         [&](const auto& a, const auto& b) { return rank(a) < rank(b); }));
}

TEST_CASE("whose keeper is silent goes all the same") {
  Site site(2, 2, 3, 1ms);
  Rng rng(1);
  site.Freeze("w0");  // keeps the order
  for (int m = 0; m < 3; ++m) site.Send(MakeTag(1, m, 0, 1));
  while (site.sent() < 3) std::this_thread::yield();
  SUCCEED();
}

TEST_CASE("what belongs to no line has no order, and nonsense is ignored") {
  SharedLinkScheduler scheduler(
      "w0", [](const NodeId&, const SharedLinkCall&) { FAIL("there is nothing to say"); });
  scheduler.SetPlan(MakeTestPlan(2, 2, 3));
  MessageTag gradient = MakeTag(0, 0, 0, 1);
  gradient.gradient = true;
  gradient.stage = 0;
  REQUIRE(!scheduler.Has(gradient));
  REQUIRE(scheduler.Has(MakeTag(0, 2, 0, 1)));
  for (const auto what : {SharedLinkEvent::kReady, SharedLinkEvent::kGo, SharedLinkEvent::kLeft}) {
    scheduler.OnCall("w7", {what, 0, {1, 0, 0, 0}});   // a stranger
    scheduler.OnCall("w1", {what, 0, {1, 0, 0, 0}});   // w0's message
    scheduler.OnCall("w1", {what, 0, {1, 99, 0, 0}});  // no such position
    scheduler.OnCall("w1", {what, 0, {1, -1, 0, 0}});
    scheduler.OnCall("w1", {what, 1, {1, 1, 0, 0}});  // no such link
    scheduler.OnCall("w1", {what, -1, {1, 1, 0, 0}});
  }
}

TEST_CASE("what waits is forgotten with its plan") {
  int sent = 0;
  SharedLinkScheduler scheduler("w0", [](const NodeId&, const SharedLinkCall&) {});
  scheduler.SetPlan(MakeTestPlan(2, 1, 2));
  std::function<void()> left;
  REQUIRE(
      scheduler.Send(MakeTag(0, 0, 0, 1), [&](std::function<void()> l) { left = l, ++sent; }).ok());
  REQUIRE(scheduler.Send(MakeTag(1, 0, 0, 1), [&](std::function<void()>) { ++sent; }).ok());
  REQUIRE(sent == 1);
  scheduler.Forget();
  REQUIRE(scheduler.Send(MakeTag(0, 1, 0, 1), [&](std::function<void()>) { ++sent; }).ok());
  REQUIRE(sent == 2);  // the link is free
  left();              // of before
  REQUIRE(scheduler.Send(MakeTag(1, 1, 0, 1), [&](std::function<void()>) { ++sent; }).ok());
  REQUIRE(sent == 2);
  scheduler.SetPlan(IslandPlan());
  REQUIRE(!scheduler.Has(MakeTag(0, 0, 0, 1)));
}

}  // namespace
}  // namespace atl::worker
