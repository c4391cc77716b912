#include "common/protocol/commit_exchange.h"

#include <bit>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <utility>

#include "common/rng.h"

namespace atl {
namespace {

// The table of a device: a number, and how often each device's part is in it.
struct Table {
  double sum = 0;
  std::vector<int> counts;

  Table& operator+=(const Table& other) {
    sum += other.sum;
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    return *this;
  }
};

struct Move {
  enum class What { kSend, kAdd, kStartSum, kAddOwn, kTake, kDone } what;
  int device = -1;
};

// A device's part of the exchange, one send or receive at a time.
std::vector<Move> ListExchangeSteps(const CommitPosition& position, int own) {
  std::vector<Move> moves;
  for (const int from : position.below) moves.push_back({Move::What::kAdd, from});
  if (position.above >= 0) {
    moves.push_back({Move::What::kSend, position.above});
    moves.push_back({Move::What::kTake, position.above});
  }
  for (const int head : position.heads) {
    if (head != own) moves.push_back({Move::What::kSend, head});
  }
  if (!position.heads.empty()) moves.push_back({Move::What::kStartSum});
  for (const int head : position.heads) {
    moves.push_back({head == own ? Move::What::kAddOwn : Move::What::kAdd, head});
  }
  moves.push_back({Move::What::kDone});
  for (size_t i = position.below.size(); i-- > 0;) {
    moves.push_back({Move::What::kSend, position.below[i]});
  }
  return moves;
}

class Exchange {
 public:
  Exchange(std::vector<std::string> sites, uint64_t seed)
      : sites_(std::move(sites)), positions_(PlanCommitExchange(sites_)), order_(seed) {
    Rng numbers(7);
    for (size_t d = 0; d < sites_.size(); ++d) {
      Table table{numbers.Normal(), std::vector<int>(sites_.size())};
      table.counts[d] = 1;
      tables_.push_back(table);
      own_.emplace_back();
      moves_.push_back(ListExchangeSteps(positions_[d], static_cast<int>(d)));
    }
    next_.resize(sites_.size());
    known_.resize(sites_.size());
    sent_.resize(sites_.size());
  }

  // In a random order, until no device can go on.
  void Run() {
    for (bool moved = true; moved;) {
      moved = false;
      const size_t first = order_.Below(sites_.size());
      for (size_t i = 0; i < sites_.size(); ++i) {
        const size_t d = (first + i) % sites_.size();
        while (Do(static_cast<int>(d))) moved = true;
      }
    }
  }

  const std::vector<std::optional<Table>>& known() const { return known_; }
  const std::vector<int>& sent() const { return sent_; }
  int between_sites() const { return between_sites_; }
  bool all_received() const {
    for (const auto& [ends, table] : messages_) {
      if (table.has_value()) return false;
    }
    return true;
  }

 private:
  bool Do(int d) {
    if (next_[d] == moves_[d].size()) return false;
    const Move move = moves_[d][next_[d]];
    Table& table = tables_[d];
    if (move.what == Move::What::kAdd || move.what == Move::What::kTake) {
      const auto message = messages_.find({move.device, d});
      if (message == messages_.end() || !message->second.has_value()) return false;
      if (move.what == Move::What::kAdd) table += *message->second;
      if (move.what == Move::What::kTake) table = *message->second;
      message->second.reset();
    } else if (move.what == Move::What::kSend) {
      REQUIRE(!messages_.contains({d, move.device}));  // once from one device to another
      messages_[{d, move.device}] = table;
      ++sent_[d];
      between_sites_ += sites_[d] != sites_[move.device];
    } else if (move.what == Move::What::kStartSum) {
      own_[d] = std::exchange(table, {0, std::vector<int>(sites_.size())});
    } else if (move.what == Move::What::kAddOwn) {
      table += own_[d];
    } else {
      known_[d] = table;
    }
    ++next_[d];
    return true;
  }

  const std::vector<std::string> sites_;
  const std::vector<CommitPosition> positions_;
  Rng order_;
  std::vector<Table> tables_, own_;
  std::vector<std::vector<Move>> moves_;
  std::vector<size_t> next_;
  std::map<std::pair<int, int>, std::optional<Table>> messages_;
  std::vector<std::optional<Table>> known_;
  std::vector<int> sent_;
  int between_sites_ = 0;
};

int MostMessages(size_t devices) {
  return 2 * static_cast<int>(std::bit_width(devices - 1)) + 2;  // 2 ceil(log2 n) + 2
}

std::vector<std::string> Sites(size_t devices, size_t sites, bool in_runs) {
  std::vector<std::string> result;
  for (size_t d = 0; d < devices; ++d) {
    result.push_back(absl::StrCat("s", in_runs ? d * sites / devices : d % sites));
  }
  return result;
}

void Check(const std::vector<std::string>& sites, int between_sites) {
  Exchange exchange(sites, 1), again(sites, 2);
  exchange.Run();
  again.Run();
  REQUIRE(exchange.all_received());
  REQUIRE(exchange.between_sites() == between_sites);
  for (size_t d = 0; d < sites.size(); ++d) {
    REQUIRE(exchange.known()[d].has_value());
    REQUIRE(exchange.known()[d]->counts == std::vector<int>(sites.size(), 1));
    REQUIRE(exchange.known()[d]->sum == exchange.known()[0]->sum);
    REQUIRE(exchange.known()[d]->sum == again.known()[d]->sum);
    REQUIRE(exchange.sent()[d] <= MostMessages(sites.size()));
  }
}

TEST_CASE("every_part_is_counted_once_with_the_same_bits_in_few_messages") {
  for (size_t devices = 1; devices <= 70; ++devices) {
    for (size_t sites = 1; sites <= 5 && sites <= devices; ++sites) {
      for (const bool in_runs : {true, false}) {
        INFO(devices << " devices at " << sites << " sites" << (in_runs ? ", in runs" : ""));
        Check(Sites(devices, sites, in_runs), static_cast<int>(sites * (sites - 1)));
      }
    }
  }
}

TEST_CASE("with_many_sites_their_heads_make_a_tree") {
  for (const size_t devices : {7, 8, 33, 70}) {
    for (size_t sites = 7; sites <= devices; ++sites) {
      INFO(devices << " devices at " << sites << " sites");
      Check(Sites(devices, sites, true), static_cast<int>(2 * (sites - 1)));
    }
  }
}

TEST_CASE("few_devices_of_one_site_and_heads_of_few_sites_exchange_directly") {
  CHECK(PlanCommitExchange({"a"}) == std::vector<CommitPosition>(1));
  for (size_t devices = 2; devices <= 4; ++devices) {
    for (const CommitPosition& position : PlanCommitExchange(Sites(devices, 1, true))) {
      CHECK(position.heads.size() == devices);
    }
  }
  const std::vector<CommitPosition> positions = PlanCommitExchange({"a", "b", "b", "a", "a"});
  CHECK(positions[0] == CommitPosition{{3, 4}, -1, {0, 1}});
  CHECK(positions[1] == CommitPosition{{2}, -1, {0, 1}});
  CHECK(positions[2] == CommitPosition{{}, 1, {}});
  CHECK(positions[4] == CommitPosition{{}, 0, {}});
}

TEST_CASE("a_sum_is_known_a_latency_between_sites_after_the_last_part") {
  const std::vector<std::string> sites = {"a", "a", "b", "b", "c"};
  const auto message_s = [&](int from, int to) { return sites[from] == sites[to] ? 0.0 : 0.5; };
  const std::vector<double> known_s =
      CommitSeconds(PlanCommitExchange(sites), {1, 2, 1, 4, 1}, message_s);
  CHECK(known_s == std::vector<double>{4.5, 4.5, 4, 4, 4.5});
}

TEST_CASE("devices_are_at_the_sites_of_their_workers") {
  IslandPlan plan;
  plan.members = {{.worker = "w1", .site = "north"}, {.worker = "w2"}};
  CHECK(ListDeviceSites(plan, {"w2/0", "w1/1"}) == std::vector<std::string>{"", "north"});
}

}  // namespace
}  // namespace atl
