#include "coordinator/core/shards/transfer_order.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/check.h"

namespace atl {
namespace {

struct Sender {
  int64_t slots = 0;                      // transfers begun
  std::vector<std::vector<size_t>> todo;  // by server: indices of its transfers
  std::vector<size_t> begun;              // of todo, by server
  std::vector<int64_t> bytes;             // left, by server
  size_t left = 0;
};

// Simulates the transfers. A sender waits in the queues of all servers that it needs, so that a
// server that becomes idle examines only its own queue, however many senders there are.
class OpenShop {
 public:
  OpenShop(const std::vector<std::vector<Transfer>>& by_sender, int32_t servers)
      : by_sender_(by_sender), idle_(servers, true), lines_(servers) {
    for (const std::vector<Transfer>& transfers : by_sender) {
      Sender& sender = senders_.emplace_back();
      sender.todo.resize(servers);
      sender.begun.resize(servers, 0);
      sender.bytes.resize(servers, 0);
      sender.left = transfers.size();
      for (size_t i = 0; i < transfers.size(); ++i) {
        const Transfer& transfer = transfers[i];
        ATOLL_CHECK(transfer.server >= 0 && transfer.server < servers && transfer.bytes > 0);
        sender.todo[transfer.server].push_back(i);
        sender.bytes[transfer.server] += transfer.bytes;
      }
      if (sender.left > 0) free_senders_.emplace(0, static_cast<int32_t>(senders_.size()) - 1);
    }
  }

  std::vector<ScheduledTransfer> Play() {
    while (!free_senders_.empty() || !busy_servers_.empty()) {
      int64_t now = INT64_MAX;
      if (!free_senders_.empty()) now = free_senders_.begin()->first;
      if (!busy_servers_.empty()) now = std::min(now, busy_servers_.begin()->first);
      while (!busy_servers_.empty() && busy_servers_.begin()->first == now) {
        idle_[busy_servers_.begin()->second] = true;
        busy_servers_.erase(busy_servers_.begin());
      }
      for (int32_t next = Next(now); next >= 0; next = Next(now)) Begin(next, now);
    }
    return std::move(order_);
  }

 private:
  // The first sender that may begin something, taken from where it waits; -1: none.
  int32_t Next(int64_t now) {
    int32_t next = -1;
    const bool is_free = !free_senders_.empty() && free_senders_.begin()->first == now;
    if (is_free) next = free_senders_.begin()->second;
    for (size_t server = 0; server < lines_.size(); ++server) {
      if (!idle_[server] || lines_[server].empty()) continue;
      const int32_t first = *lines_[server].begin();
      if (next < 0 || first < next) next = first;
    }
    if (is_free && next == free_senders_.begin()->second) {
      free_senders_.erase(free_senders_.begin());
    } else if (next >= 0) {
      for (auto& line : lines_) line.erase(next);
    }
    return next;
  }

  // The idle server with the most bytes left for this sender, the Latin square's choice among
  // equals; -1: every server that it needs is busy.
  int32_t Choose(const Sender& sender, int32_t number) const {
    const auto n = static_cast<int32_t>(idle_.size());
    int32_t best = -1;
    for (int32_t step = 0; step < n; ++step) {
      const auto server = static_cast<int32_t>((number + sender.slots + step) % n);
      if (sender.bytes[server] == 0 || !idle_[server]) continue;
      if (best < 0 || sender.bytes[server] > sender.bytes[best]) best = server;
    }
    return best;
  }

  void Begin(int32_t number, int64_t now) {
    Sender& sender = senders_[number];
    const int32_t server = Choose(sender, number);
    if (server < 0) {
      for (size_t busy = 0; busy < lines_.size(); ++busy) {
        if (sender.bytes[busy] > 0) lines_[busy].insert(number);
      }
      return;
    }
    const size_t index = sender.todo[server][sender.begun[server]++];
    const int64_t bytes = by_sender_[number][index].bytes;
    sender.bytes[server] -= bytes;
    ++sender.slots;
    order_.push_back({number, index});
    idle_[server] = false;
    busy_servers_.emplace(now + bytes, server);
    if (--sender.left > 0) free_senders_.emplace(now + bytes, number);
  }

  const std::vector<std::vector<Transfer>>& by_sender_;
  std::vector<Sender> senders_;
  std::vector<bool> idle_;                              // by server
  std::vector<std::set<int32_t>> lines_;                // by server: senders that wait for it
  std::set<std::pair<int64_t, int32_t>> free_senders_;  // when, sender
  std::set<std::pair<int64_t, int32_t>> busy_servers_;  // until when, server
  std::vector<ScheduledTransfer> order_;
};

}  // namespace

std::vector<ScheduledTransfer> ScheduleTransfers(
    const std::vector<std::vector<Transfer>>& by_sender, int32_t servers) {
  return OpenShop(by_sender, servers).Play();
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
