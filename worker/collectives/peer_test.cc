#include "worker/collectives/peer.h"

#include <catch2/catch.hpp>
#include <thread>

#include "absl/strings/str_join.h"
#include "common/net/codec.h"
#include "common/rng.h"
#include "kernels/testing/communicator_cases.h"
#include "kernels/testing/reference/reference.h"
#include "worker/collectives/group_sites.h"
#include "worker/collectives/testing/peer_members.h"

namespace atl::worker {
namespace {

using testing::NewPeerMembers;
using testing::PeerCluster;

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

absl::Status Sum(Communicator& member, std::vector<float>& x) {
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  return member.AllReduceSum(*backend, *stream,
                             {x.data(), DType::kFloat32, 1, static_cast<int64_t>(x.size())});
}

// Sums of all members at once, each in a thread of its own: Catch2's assertions are of one thread.
void SumAll(const std::vector<std::unique_ptr<Communicator>>& members,
            std::vector<std::vector<float>>& x) {
  std::vector<absl::Status> statuses(members.size());
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < members.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = Sum(*members[rank], x[rank]); });
    }
  }
  for (const absl::Status& status : statuses) CHECK(status.ToString() == "OK");
}

PeerDelivery Message(const NodeId& from, const std::string& header, Payload payload = {}) {
  PeerDelivery delivery;
  delivery.from = from;
  delivery.channel = PeerChannel::kCollective;
  delivery.header = header;
  delivery.payload = std::move(payload);
  return delivery;
}

TEST_CASE("peer links keep the contract of communicators, with keys and without") {
  for (const bool encrypted : {true, false}) {
    for (const atl::testing::CommunicatorCase& communicator_case :
         atl::testing::CommunicatorCases()) {
      DYNAMIC_SECTION(communicator_case.name << (encrypted ? ", encrypted" : "")) {
        communicator_case.run(
            [&](int size, Duration timeout) { return NewPeerMembers(size, timeout, encrypted); });
      }
    }
  }
}

TEST_CASE("and where a worker has several devices of a group") {
  for (const atl::testing::CommunicatorCase& communicator_case :
       atl::testing::CommunicatorCases()) {
    DYNAMIC_SECTION(communicator_case.name) {
      communicator_case.run([&](int size, Duration timeout) {
        return NewPeerMembers(size, timeout, false, /*devices_per_worker=*/2);
      });
    }
  }
}

TEST_CASE("and where members are at several sites") {
  const std::vector<std::vector<std::string>> all_sites = {
      {"a", "a", "b", "b", "b"}, {"a", "b", "a", "c", "b"}, {"", "a", "", "", ""}};
  for (const std::vector<std::string>& sites : all_sites) {
    for (const atl::testing::CommunicatorCase& communicator_case :
         atl::testing::CommunicatorCases()) {
      DYNAMIC_SECTION(communicator_case.name << " at " << absl::StrJoin(sites, ",")) {
        communicator_case.run([&](int size, Duration timeout) {
          return NewPeerMembers(size, timeout, false, 1, {sites.begin(), sites.begin() + size});
        });
      }
    }
  }
}

TEST_CASE("a_part_has_one_agent_at_each_site_and_its_owner_at_its_own") {
  const std::vector<std::string> sites = {"a", "b", "a", "b", "b", "c"};
  std::vector<int> served(sites.size());
  for (int rank = 0; rank < 6; ++rank) {
    const GroupSites group(sites, 6, rank);
    CHECK(group.count() == 3);
    for (int owner = 0; owner < 6; ++owner) {
      for (int site = 0; site < 3; ++site) {
        const int agent = group.Agent(owner, site);
        CHECK(agent == GroupSites(sites, 6, 0).Agent(owner, site));
        CHECK(sites[agent] == sites[group.members(site)[0]]);
        if (sites[owner] == sites[agent]) CHECK(agent == owner);
      }
      CHECK(group.IsOwn(owner) == (sites[owner] == sites[rank]));
    }
    served[rank] = static_cast<int>(group.served().size());
  }
  CHECK(served == std::vector<int>{2, 1, 2, 1, 1, 5});
  CHECK(GroupSites({}, 3, 1).own() == std::vector<int>{0, 1, 2});
}

TEST_CASE("large tensors are added up in the order of ranks, in chunks") {
  constexpr int kSize = 3;
  constexpr size_t kCount = 1'000'003;
  auto members = NewPeerMembers(kSize, kLong, true);
  std::vector<std::vector<float>> numbers(kSize, std::vector<float>(kCount));
  Rng rng(1);
  std::vector<float> expected(kCount);
  for (auto& of_member : numbers) {
    for (size_t i = 0; i < kCount; ++i) {
      of_member[i] = static_cast<float>(rng.Normal());
      expected[i] += of_member[i];
    }
  }
  SumAll(members, numbers);
  for (const auto& of_member : numbers) REQUIRE(of_member == expected);
}

TEST_CASE("two_members_have_the_same_bits_whatever_the_size") {
  for (const bool encrypted : {true, false}) {
    auto members = NewPeerMembers(2, kLong, encrypted);
    // Sizes of one chunk, of several, and of more than may wait to be sent at a time.
    for (const size_t count : {1, 70'001, 200'003, 2'000'011}) {
      CAPTURE(encrypted, count);
      Rng rng(count);
      std::vector<std::vector<float>> x(2, std::vector<float>(count));
      std::vector<float> expected(count);
      for (size_t i = 0; i < count; ++i) {
        for (auto& of_member : x) of_member[i] = static_cast<float>(rng.Normal());
        expected[i] = x[0][i] + x[1][i];
      }
      SumAll(members, x);
      for (const auto& of_member : x) REQUIRE(of_member == expected);
    }
  }
}

TEST_CASE("a_small_all_reduce_sends_each_other_member_one_message") {
  const auto cluster = std::make_shared<PeerCluster>(4, false);
  std::vector<std::unique_ptr<Communicator>> members;
  for (int rank = 0; rank < 4; ++rank) {
    members.push_back(NewPeerCommunicator(
        &cluster->peer(rank).blocks,
        {.name = "group", .rank = rank, .workers = {"w0", "w1", "w2", "w3"}, .timeout = kLong}));
  }
  const auto sent = [&] {
    int64_t messages = 0;
    for (const PeerCounters& peer : cluster->peer(0).link->counters()) {
      messages += peer.messages_sent;
    }
    return messages;
  };
  const auto sum = [&](size_t count) {
    const int64_t before = sent();
    std::vector<std::vector<float>> x(4, std::vector<float>(count, 1.0f));
    SumAll(members, x);
    CHECK(x == std::vector<std::vector<float>>(4, std::vector<float>(count, 4.0f)));
    return sent() - before;
  };
  CHECK(sum(1000) == 3);
  CHECK(sum(100'000) == 6);  // a part and a result
}

TEST_CASE("a_block_with_a_wrong_checksum_fails_the_call_and_its_sender_is_lost") {
  for (const int size : {2, 3}) {
    PeerCluster cluster(size, /*encrypted=*/false);  // blocks of encrypted links have no checksums
    PeerBlocks& blocks = cluster.peer(0).blocks;
    std::vector<NodeId> workers;
    for (int rank = 0; rank < size; ++rank) workers.push_back(absl::StrCat("w", rank));
    const auto member =
        NewPeerCommunicator(&blocks, {.name = "group", .workers = workers, .timeout = kLong});
    std::vector<float> x(1);
    for (int from = 1; from < size; ++from) {
      PeerDelivery delivery = Message(workers[from], absl::StrCat("sum ", from, " 0 1 0 0 group"),
                                      BufferPool::Create(0)->Take(4));
      const bool changed = from == size - 1;
      delivery.checksum = Hash(delivery.payload.bytes()) + (changed ? 1 : 0);
      blocks.OnMessage(std::move(delivery));
    }
    CHECK(absl::IsDataLoss(Sum(*member, x)));
    const PeerLink& link = *cluster.peer(0).link;
    for (const Instant limit = SteadyNow() + kLong; !link.IsLost(workers.back());) {
      REQUIRE(SteadyNow() < limit);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (int rank = 1; rank < size - 1; ++rank) CHECK_FALSE(link.IsLost(workers[rank]));
  }
}

TEST_CASE("a member that has done its part may leave; the others finish what it was part of") {
  auto members = NewPeerMembers(3, kLong, true);
  std::vector<std::vector<float>> x(3, std::vector<float>(200'000, 1.0f));
  std::vector<absl::Status> statuses(3);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        statuses[rank] = Sum(*members[rank], x[rank]);
        if (rank == 2) members[rank].reset();
      });
    }
  }
  for (int rank = 0; rank < 3; ++rank) {
    INFO(statuses[rank]);
    REQUIRE(statuses[rank].ok());
    REQUIRE(x[rank][199'999] == 3.0f);
  }
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = Sum(*members[rank], x[rank]); });
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(statuses[rank].code() == absl::StatusCode::kUnavailable);
    REQUIRE(statuses[rank].message().substr(0, 26) ==
            absl::StrCat("rank ", rank, " of 3 in group group"));
  }
}

TEST_CASE("a lost worker ends the wait at once") {
  const auto cluster = std::make_shared<PeerCluster>(2, true);
  const PeerGroup group{.name = "group", .workers = {"w0", "w1"}, .timeout = kLong};
  const auto member = NewPeerCommunicator(&cluster->peer(0).blocks, group);
  std::vector<float> x(100);
  absl::Status status;
  {
    const std::jthread waits([&] { status = Sum(*member, x); });
    cluster->peer(1).link.reset();
  }
  INFO(status);
  REQUIRE(status.code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("what is no block, too long, or of another is not taken") {
  testing::PeerCluster cluster(1, false);
  PeerBlocks& blocks = cluster.peer(0).blocks;
  blocks.Open("group", 0);
  REQUIRE(blocks.Admit("sum 1 0 1 0 0 group", kBlockBytesMax).ok());
  REQUIRE_FALSE(blocks.Admit("sum 1 0 1 0 0 group", kBlockBytesMax + 1).ok());
  for (const char* bad : {"sum ", "sum 1 0 1 0 0", "sum -1 0 1 0 0 g", "sum 1 0 1 9 0 g",
                          "sum 1 99999999999 1 0 0 g", "sum x 0 1 0 0 g", "add 1 0 1 0 0 g"}) {
    INFO(bad);
    REQUIRE_FALSE(blocks.Admit(bad, 4).ok());
  }
  const auto pool = BufferPool::Create(0);
  const auto take = [&](const NodeId& worker, int64_t call, int64_t bytes) {
    blocks.OnMessage(Message("w1", "sum 1 0 1 0 0 group", pool->Take(8)));
    return blocks.Take(worker, {"group", 1, 0, call, BlockKind::kPart, 0}, bytes, SteadyNow())
        .status();
  };
  REQUIRE(take("w1", 1, 8).ok());
  REQUIRE(absl::IsInvalidArgument(take("w2", 1, 8)));  // another worker's rank
  REQUIRE(absl::IsInvalidArgument(take("w1", 2, 8)));
  REQUIRE(absl::IsInvalidArgument(take("w1", 1, 12)));
  // Messages of an earlier attempt at the plan, and of a member that has failed.
  blocks.Open("old/group", 0);
  blocks.OnMessage(Message("w1", "sum 1 0 1 0 0 old/group", pool->Take(8)));
  blocks.BeginScope("new/");
  blocks.Open("new/group", 0);
  blocks.OnMessage(Message("w1", "sum 1 0 1 0 0 new/group", pool->Take(8)));
  blocks.Close("new/group", 0);
  for (const char* group : {"old/group", "new/group"}) {
    REQUIRE(absl::IsDeadlineExceeded(
        blocks.Take("w0", {group, 1, 0, 1, BlockKind::kPart, 0}, 8, SteadyNow()).status()));
  }
}

TEST_CASE("numbers are kept for members that are here, and for no others") {
  testing::PeerCluster cluster(1, false);
  PeerBlocks& blocks = cluster.peer(0).blocks;
  const auto member =
      NewPeerCommunicator(&blocks, {.name = "1/group", .workers = {"w0", "w1"}, .timeout = kLong});
  const auto admits = [&](const std::string& header) { return blocks.Admit(header, 4).ok(); };
  CHECK(admits("sum 1 0 1 0 0 1/group"));        // a part
  CHECK(admits("sum 1 0 1 1 0 1/group"));        // a result
  CHECK_FALSE(admits("sum 1 1 1 0 0 1/group"));  // another rank
  CHECK_FALSE(admits("sum 1 0 1 1 0 2/group"));  // a group that was not made
  // A member that may join it yet has to know.
  CHECK(admits("sum 1 0 0 2 0 2/group"));
  CHECK(admits("sum 1 0 0 3 0 2/group"));
  CHECK_FALSE(blocks.Admit("sum 1 0 0 3 0 2/group", kBlockBytesMax).ok());
  // A message that was admitted just before its member failed delays nothing.
  const auto credit = std::make_shared<int>();
  PeerDelivery late = Message("w1", "sum 1 0 1 0 0 1/group", BufferPool::Create(0)->Take(8));
  late.credit = credit;
  blocks.BeginScope("2/");
  CHECK_FALSE(admits("sum 1 0 1 0 0 1/group"));
  blocks.OnMessage(std::move(late));
  CHECK(credit.use_count() == 1);
}

}  // namespace
}  // namespace atl::worker
