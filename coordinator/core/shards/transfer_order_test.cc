#include "coordinator/core/shards/transfer_order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "common/rng.h"

namespace atl {
namespace {

std::vector<Transfer> Even(int32_t servers, int32_t shards_each) {
  std::vector<Transfer> shards;
  for (int32_t i = 0; i < servers * shards_each; ++i) {
    shards.push_back({i, i % servers, 100});
  }
  return shards;
}

// Carries the orders out: each sender sends its shards in order, each server takes one at a time.
struct Replay {
  int64_t makespan = 0;
  int64_t waits_with_idle_server = 0;  // a sender waited while a server that it needed was idle

  Replay(const std::vector<Transfer>& shards, int32_t servers,
         const std::vector<std::vector<ShardId>>& orders) {
    std::map<ShardId, Transfer> by_id;
    for (const Transfer& t : shards) by_id[t.shard] = t;
    const size_t n = orders.size();
    std::vector<size_t> next(n, 0);
    std::vector<int64_t> sender_free(n, 0), server_free(servers, 0);
    for (;;) {
      // The transfer that can begin first.
      size_t best = n;
      int64_t begin = 0;
      for (size_t w = 0; w < n; ++w) {
        if (next[w] == orders[w].size()) continue;
        const int64_t at =
            std::max(sender_free[w], server_free[by_id.at(orders[w][next[w]]).server]);
        if (best == n || at < begin) best = w, begin = at;
      }
      if (best == n) return;
      const Transfer& t = by_id.at(orders[best][next[best]]);
      if (begin > sender_free[best]) {
        for (size_t i = next[best]; i < orders[best].size(); ++i) {
          if (server_free[by_id.at(orders[best][i]).server] <= sender_free[best]) {
            ++waits_with_idle_server;
            break;
          }
        }
      }
      ++next[best];
      sender_free[best] = server_free[t.server] = begin + t.bytes;
      makespan = std::max(makespan, begin + t.bytes);
    }
  }
};

TEST_CASE("equal loads make a Latin square: in slot s sender w talks to server (w + s) mod n") {
  const std::vector<Transfer> shards = Even(3, 1);
  const auto orders = PlanTransfers(shards, 3, 3);
  for (int32_t w = 0; w < 3; ++w) {
    for (int32_t s = 0; s < 3; ++s) CHECK(shards[orders[w][s]].server == (w + s) % 3);
  }
}

TEST_CASE("every sender sends every shard once") {
  const auto orders = PlanTransfers(Even(4, 5), 4, 3);
  for (std::vector<ShardId> order : orders) {
    std::sort(order.begin(), order.end());
    for (ShardId i = 0; i < 20; ++i) CHECK(order[i] == i);
  }
}

TEST_CASE("equal loads on no more senders than servers take no longer than one sender needs") {
  for (int32_t senders = 1; senders <= 4; ++senders) {
    const std::vector<Transfer> shards = Even(4, 3);
    const auto orders = PlanTransfers(shards, 4, senders);
    const Replay replay(shards, 4, orders);
    CHECK(replay.makespan == 300 * 4);
    CHECK(replay.waits_with_idle_server == 0);
  }
}

TEST_CASE("with unequal shards no sender waits while a server that it needs is idle") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const int32_t servers = 1 + static_cast<int32_t>(rng.Below(5));
    const int32_t senders = 1 + static_cast<int32_t>(rng.Below(6));
    std::vector<Transfer> shards;
    const int32_t count = 1 + static_cast<int32_t>(rng.Below(20));
    int64_t total = 0;
    std::vector<int64_t> load(servers, 0);
    for (int32_t i = 0; i < count; ++i) {
      shards.push_back(
          {i, static_cast<int32_t>(rng.Below(servers)), 1 + static_cast<int64_t>(rng.Below(1000))});
      total += shards.back().bytes;
      load[shards.back().server] += shards.back().bytes;
    }
    const Replay replay(shards, servers, PlanTransfers(shards, servers, senders));
    INFO("seed " << seed);
    CHECK(replay.waits_with_idle_server == 0);
    // Greedy open-shop schedules end within the sum of the two bounds.
    const int64_t busiest = senders * *std::max_element(load.begin(), load.end());
    CHECK(replay.makespan <= busiest + total);
  }
}

TEST_CASE("senders with transfers of their own: each begins its own once, at idle servers") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const int32_t servers = 1 + static_cast<int32_t>(rng.Below(5));
    std::vector<std::vector<Transfer>> own(1 + rng.Below(6));
    for (std::vector<Transfer>& transfers : own) {
      for (uint64_t i = rng.Below(20); i > 0; --i) {
        transfers.push_back({0, static_cast<int32_t>(rng.Below(servers)),
                             1 + static_cast<int64_t>(rng.Below(1000))});
      }
    }
    INFO("seed " << seed);
    std::vector<std::vector<bool>> begun;
    for (const auto& transfers : own) begun.emplace_back(transfers.size(), false);
    std::vector<int64_t> sender_free(own.size(), 0), server_free(servers, 0);
    int64_t last = 0;
    for (const ScheduledTransfer& next : ScheduleTransfers(own, servers)) {
      CHECK_FALSE(begun[next.sender][next.transfer]);
      begun[next.sender][next.transfer] = true;
      const Transfer& transfer = own[next.sender][next.transfer];
      const int64_t begin = std::max(sender_free[next.sender], server_free[transfer.server]);
      CHECK(begin >= last);
      last = begin;
      // A sender that waits has nothing for a server that is idle.
      if (begin > sender_free[next.sender]) {
        for (size_t i = 0; i < own[next.sender].size(); ++i) {
          const int32_t other = own[next.sender][i].server;
          CHECK((begun[next.sender][i] || server_free[other] > sender_free[next.sender]));
        }
      }
      sender_free[next.sender] = server_free[transfer.server] = begin + transfer.bytes;
    }
    for (const std::vector<bool>& all : begun) {
      CHECK(std::all_of(all.begin(), all.end(), [](bool done) { return done; }));
    }
  }
}

TEST_CASE("ten thousand senders") {
  std::vector<Transfer> own;
  for (ShardId shard = 0; shard < 18; ++shard) own.push_back({shard, shard % 2, 100 + shard});
  const std::vector<std::vector<Transfer>> all(10'000, own);
  CHECK(ScheduleTransfers(all, 2).size() == 180'000);
}

TEST_CASE("nothing to send") { CHECK(PlanTransfers({}, 0, 2).size() == 2); }

}  // namespace
}  // namespace atl
