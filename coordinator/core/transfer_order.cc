#include "coordinator/core/transfer_order.h"

#include <algorithm>
#include <deque>

#include "common/check.h"

namespace atl {
namespace {

struct Sender {
  int64_t free_at = 0;
  int64_t slots = 0;                       // transfers begun
  std::vector<std::deque<Transfer>> todo;  // by server
  std::vector<int64_t> bytes;              // of todo, by server
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

std::vector<std::vector<ShardId>> PlanTransfers(const std::vector<Transfer>& shards,
                                                int32_t servers, int32_t senders) {
  Sender fresh;
  fresh.todo.resize(servers);
  fresh.bytes.resize(servers, 0);
  fresh.left = shards.size();
  for (const Transfer& transfer : shards) {
    ATOLL_CHECK(transfer.server >= 0 && transfer.server < servers && transfer.bytes > 0);
    fresh.todo[transfer.server].push_back(transfer);
    fresh.bytes[transfer.server] += transfer.bytes;
  }
  std::vector<Sender> all(senders, fresh);
  std::vector<int64_t> server_free_at(servers, 0);
  std::vector<std::vector<ShardId>> orders(senders);
  for (;;) {
    int32_t next = -1;
    for (int32_t w = 0; w < senders; ++w) {
      if (all[w].left > 0 && (next < 0 || all[w].free_at < all[next].free_at)) next = w;
    }
    if (next < 0) return orders;
    Sender& sender = all[next];
    int64_t idle_at = 0;
    const int32_t server = Choose(sender, next, server_free_at, idle_at);
    if (server < 0) {
      sender.free_at = idle_at;
      continue;
    }
    const Transfer transfer = sender.todo[server].front();
    sender.todo[server].pop_front();
    sender.bytes[server] -= transfer.bytes;
    --sender.left;
    ++sender.slots;
    orders[next].push_back(transfer.shard);
    sender.free_at += transfer.bytes;
    server_free_at[server] = sender.free_at;
  }
}

}  // namespace atl
