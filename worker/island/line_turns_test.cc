// Senders take turns on a shared line: in the plan's order, one at a time, never stuck.

#include "worker/island/line_turns.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/rng.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;
using Turn = LineOrder::Turn;

Instant At(Duration d) { return Instant(d); }
LinePart Part(int32_t place, int64_t step = 1, int32_t chunk = 0) {
  return {step, place, 0, chunk};
}

// ---- the order ----

TEST_CASE("the first that is ready goes at once, the others in the plan's order") {
  LineOrder order(10s);
  REQUIRE(order.Ready("w2", Part(5)));
  REQUIRE(order.Next(At(0s)) == Turn{"w2", Part(5)});
  REQUIRE(order.Ready("w1", Part(4)));
  REQUIRE(order.Ready("w3", Part(2)));
  REQUIRE(order.Ready("w1", Part(3, /*step=*/0)));
  REQUIRE(!order.Next(At(0s)).has_value());  // the line is not free
  order.Left("w1", Part(5));                 // not its own
  REQUIRE(!order.Next(At(0s)).has_value());
  order.Left("w2", Part(5));
  REQUIRE(order.Next(At(1s)) == Turn{"w1", Part(3, 0)});  // of the step before
  order.Left("w1", Part(3, 0));
  REQUIRE(order.Next(At(1s)) == Turn{"w3", Part(2)});
  order.Left("w3", Part(2));
  REQUIRE(order.Next(At(1s)) == Turn{"w1", Part(4)});
}

TEST_CASE("chunks of a message follow each other, and others go between while one is not ready") {
  LineOrder order(10s);
  order.Ready("w1", Part(0, 1, 0));
  REQUIRE(order.Next(At(0s)) == Turn{"w1", Part(0, 1, 0)});
  order.Ready("w2", Part(1, 1, 0));
  order.Ready("w1", Part(0, 1, 1));
  order.Left("w1", Part(0, 1, 0));
  REQUIRE(order.Next(At(0s)) == Turn{"w1", Part(0, 1, 1)});
  order.Left("w1", Part(0, 1, 1));
  REQUIRE(order.Next(At(0s)) == Turn{"w2", Part(1, 1, 0)});  // chunk 2 of the first is not ready
}

TEST_CASE("a silent sender loses its turn when another one waits") {
  LineOrder order(10s);
  order.Ready("w1", Part(0));
  REQUIRE(order.Next(At(1s)) == Turn{"w1", Part(0)});
  REQUIRE(!order.deadline().has_value());  // no sender waits
  order.Ready("w2", Part(1));
  REQUIRE(order.deadline() == At(11s));
  REQUIRE(!order.Next(At(10s)).has_value());
  REQUIRE(order.Next(At(11s)) == Turn{"w2", Part(1)});
  order.Left("w1", Part(0));  // after all
  REQUIRE(!order.Next(At(12s)).has_value());
}

TEST_CASE("a message sent without a turn does not wait any more, and the queue is bounded") {
  LineOrder order(10s);
  order.Ready("w1", Part(0));
  order.Left("w1", Part(0));
  REQUIRE(!order.Next(At(0s)).has_value());
  for (size_t i = 0; i < LineOrder::kReadyMax; ++i) {
    REQUIRE(order.Ready("w1", Part(static_cast<int32_t>(i))));
  }
  REQUIRE(!order.Ready("w1", Part(-1)));
  REQUIRE(!order.Ready("w1", Part(0)));
}

// ---- workers that talk to each other, in one thread, with calls that take their time ----

// Two stages each of some replicas, replica r from w<r % workers> to a far worker.
IslandPlan PlanOf(int replicas, int workers, int micro_batches) {
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

MessageTag TagOf(int replica, int micro_batch, int chunk, int chunks) {
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
      : plan_(PlanOf(replicas, workers, micro_batches)) {
    for (int w = 0; w < workers; ++w) {
      const NodeId name = absl::StrCat("w", w);
      turns_[name] = std::make_unique<LineTurns>(
          name,
          [this, name](const NodeId& to, const LineCall& call) {
            const std::lock_guard lock(mutex_);
            calls_[{name, to}].push_back(call);
          },
          patience);
      turns_[name]->SetPlan(plan_);
    }
  }

  void Send(const MessageTag& tag) {
    const NodeId from = WorkerOfDevice(plan_.replicas[tag.replica].stages[0].devices[0]);
    REQUIRE(turns_[from]->Has(tag));
    REQUIRE(turns_[from]
                ->Send(tag,
                       [this, tag](std::function<void()> left) {
                         const std::lock_guard lock(mutex_);
                         sent_.push_back(tag);
                         on_line_.push_back(std::move(left));
                         most_ = std::max(most_, on_line_.size());
                       })
                .ok());
  }

  // One thing happens: a call arrives, or a message has left. False: nothing can.
  bool Turn(Rng& rng) {
    std::unique_lock lock(mutex_);
    std::vector<std::pair<NodeId, NodeId>> ways;
    for (const auto& [way, calls] : calls_) {
      if (!calls.empty() && way.second != frozen_) ways.push_back(way);
    }
    const uint64_t choices = ways.size() + on_line_.size();
    if (choices == 0) return false;
    const uint64_t choice = rng.Below(choices);
    if (choice < ways.size()) {
      const auto way = ways[choice];
      const LineCall call = calls_[way].front();
      calls_[way].pop_front();
      lock.unlock();
      turns_[way.second]->OnCall(way.first, call);
    } else {
      const auto left = on_line_.begin() + static_cast<std::ptrdiff_t>(choice - ways.size());
      const std::function<void()> done = std::move(*left);
      on_line_.erase(left);
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
  size_t most_on_line() {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  const IslandPlan plan_;
  std::mutex mutex_;
  std::map<std::pair<NodeId, NodeId>, std::deque<LineCall>> calls_;  // all guarded by mutex_
  std::vector<std::function<void()>> on_line_;
  std::vector<MessageTag> sent_;
  size_t most_ = 0;
  NodeId frozen_;
  std::map<NodeId, std::unique_ptr<LineTurns>> turns_;  // ends first: its threads use the above
};

TEST_CASE("what an earlier plan's threads still send is refused") {
  LineTurns turns("w0", [](const NodeId&, const LineCall&) {});
  turns.SetPlan(PlanOf(/*replicas=*/2, /*workers=*/2, /*micro_batches=*/2));
  const auto never = [](std::function<void()>) { FAIL("it was sent"); };
  REQUIRE(absl::IsAborted(turns.Send(TagOf(1, 0, 0, 1), never)));  // w1's under this plan
  REQUIRE(turns.Has(TagOf(0, 1, 0, 1)));
  turns.SetPlan(PlanOf(1, 1, 1));
  REQUIRE(absl::IsAborted(turns.Send(TagOf(0, 1, 0, 1), never)));  // there is none now
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
        for (int p = 0; p < chunks; ++p) coming.push_back(TagOf(r, m, p, chunks));
      }
    }
    const size_t all = coming.size();
    for (size_t i = all; i > 1; --i) std::swap(coming[i - 1], coming[rng.Below(i)]);
    while (!coming.empty() || site.sent() < all) {
      if (!coming.empty() && rng.Chance(0.3)) {
        site.Send(coming.back());
        coming.pop_back();
      } else if (!site.Turn(rng)) {
        REQUIRE(!coming.empty());  // else it would block for ever
        site.Send(coming.back());
        coming.pop_back();
      }
    }
    while (site.Turn(rng)) {
    }
    std::set<MessageTag> once;
    for (const MessageTag& tag : site.order()) once.insert(tag);
    REQUIRE(once.size() == all);
    REQUIRE(site.sent() == all);
    REQUIRE(site.most_on_line() <= 1);
  }
}

TEST_CASE("what is all ready goes in the plan's order, but for the first") {
  Site site(3, 2, 4, 1h);
  Rng rng(1);
  for (int m = 3; m >= 0; --m) {
    for (int r = 2; r >= 0; --r) site.Send(TagOf(r, m, 0, 1));
  }
  while (site.Turn(rng)) {
  }
  std::vector<MessageTag> order = site.order();
  REQUIRE(order.size() == 12);
  // Those that their keeper knew before the others: at most one of each sender.
  order.erase(order.begin(), order.begin() + 2);
  const auto rank = [](const MessageTag& tag) { return std::pair(tag.micro_batch, tag.replica); };
  REQUIRE(std::is_sorted(order.begin(), order.end(),
                         [&](const auto& a, const auto& b) { return rank(a) < rank(b); }));
}

TEST_CASE("whose keeper is silent goes all the same") {
  Site site(2, 2, 3, 1ms);
  Rng rng(1);
  site.Freeze("w0");  // keeps the order
  for (int m = 0; m < 3; ++m) site.Send(TagOf(1, m, 0, 1));
  while (site.sent() < 3) std::this_thread::yield();
  SUCCEED();
}

TEST_CASE("what belongs to no line has no order, and nonsense is ignored") {
  LineTurns turns("w0", [](const NodeId&, const LineCall&) { FAIL("there is nothing to say"); });
  turns.SetPlan(PlanOf(2, 2, 3));
  MessageTag gradient = TagOf(0, 0, 0, 1);
  gradient.gradient = true;
  gradient.stage = 0;
  REQUIRE(!turns.Has(gradient));
  REQUIRE(turns.Has(TagOf(0, 2, 0, 1)));
  for (const auto what : {LineCall::What::kReady, LineCall::What::kGo, LineCall::What::kLeft}) {
    turns.OnCall("w7", {what, 0, {1, 0, 0, 0}});   // a stranger
    turns.OnCall("w1", {what, 0, {1, 0, 0, 0}});   // w0's message
    turns.OnCall("w1", {what, 0, {1, 99, 0, 0}});  // no such place
    turns.OnCall("w1", {what, 0, {1, -1, 0, 0}});
    turns.OnCall("w1", {what, 1, {1, 1, 0, 0}});  // no such line
    turns.OnCall("w1", {what, -1, {1, 1, 0, 0}});
  }
}

TEST_CASE("what waits is forgotten with its plan") {
  int sent = 0;
  LineTurns turns("w0", [](const NodeId&, const LineCall&) {});
  turns.SetPlan(PlanOf(2, 1, 2));
  std::function<void()> left;
  REQUIRE(turns.Send(TagOf(0, 0, 0, 1), [&](std::function<void()> l) { left = l, ++sent; }).ok());
  REQUIRE(turns.Send(TagOf(1, 0, 0, 1), [&](std::function<void()>) { ++sent; }).ok());
  REQUIRE(sent == 1);
  turns.Forget();
  REQUIRE(turns.Send(TagOf(0, 1, 0, 1), [&](std::function<void()>) { ++sent; }).ok());
  REQUIRE(sent == 2);  // the line is free
  left();              // of before
  REQUIRE(turns.Send(TagOf(1, 1, 0, 1), [&](std::function<void()>) { ++sent; }).ok());
  REQUIRE(sent == 2);
  turns.SetPlan(IslandPlan());
  REQUIRE(!turns.Has(TagOf(0, 0, 0, 1)));
}

}  // namespace
}  // namespace atl::worker
