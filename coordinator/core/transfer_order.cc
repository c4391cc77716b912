#include "coordinator/core/transfer_order.h"

#include <algorithm>
#include <deque>

#include "common/check.h"

namespace atl {
namespace {

struct Sender {
  int64_t free_at = 0;
  int64_t slots = 0;                     // transfers begun
  std::vector<std::deque<size_t>> todo;  // by server: indices of its transfers
  std::vector<int64_t> bytes;            // of todo, by server
  size_t left = 0;
};

// The idle server with the most bytes left for this sender, the Latin square's choice among equals.
// -1: every server that it needs is busy; then `idle_at` is when the first of them is not.
int32_t Choose(const Sender& sender, int32_t number, const std::vector<int64_t>& server_free_at,
               int64_t& idle_at) {
  const int32_t n = static_cast<int32_t>(server_free_at.size());
  int32_t best = -1;
  idle_at = INT64_MAX;
  for (int32_t step = 0; step < n; ++step) {
    const int32_t server = static_cast<int32_t>((number + sender.slots + step) % n);
    if (sender.todo[server].empty()) continue;
    idle_at = std::min(idle_at, server_free_at[server]);
    if (server_free_at[server] > sender.free_at) continue;
    if (best < 0 || sender.bytes[server] > sender.bytes[best]) best = server;
  }
  return best;
}

}  // namespace

std::vector<ScheduledTransfer> ScheduleTransfers(
    const std::vector<std::vector<Transfer>>& by_sender, int32_t servers) {
  const auto senders = static_cast<int32_t>(by_sender.size());
  std::vector<Sender> all(by_sender.size());
  for (int32_t w = 0; w < senders; ++w) {
    Sender& sender = all[w];
    sender.todo.resize(servers);
    sender.bytes.resize(servers, 0);
    sender.left = by_sender[w].size();
    for (size_t i = 0; i < by_sender[w].size(); ++i) {
      const Transfer& transfer = by_sender[w][i];
      ATOLL_CHECK(transfer.server >= 0 && transfer.server < servers && transfer.bytes > 0);
      sender.todo[transfer.server].push_back(i);
      sender.bytes[transfer.server] += transfer.bytes;
    }
  }
  std::vector<int64_t> server_free_at(servers, 0);
  std::vector<ScheduledTransfer> order;
  for (;;) {
    int32_t next = -1;
    for (int32_t w = 0; w < senders; ++w) {
      if (all[w].left > 0 && (next < 0 || all[w].free_at < all[next].free_at)) next = w;
    }
    if (next < 0) return order;
    Sender& sender = all[next];
    int64_t idle_at = 0;
    const int32_t server = Choose(sender, next, server_free_at, idle_at);
    if (server < 0) {
      sender.free_at = idle_at;
      continue;
    }
    const size_t index = sender.todo[server].front();
    const int64_t bytes = by_sender[next][index].bytes;
    sender.todo[server].pop_front();
    sender.bytes[server] -= bytes;
    --sender.left;
    ++sender.slots;
    order.push_back({next, index});
    sender.free_at += bytes;
    server_free_at[server] = sender.free_at;
  }
}

std::vector<std::vector<ShardId>> PlanTransfers(const std::vector<Transfer>& shards,
                                                int32_t servers, int32_t senders) {
  const std::vector<std::vector<Transfer>> by_sender(senders, shards);
  std::vector<std::vector<ShardId>> orders(senders);
  for (const ScheduledTransfer& next : ScheduleTransfers(by_sender, servers)) {
    orders[next.sender].push_back(shards[next.transfer].shard);
  }
  return orders;
}

}  // namespace atl
