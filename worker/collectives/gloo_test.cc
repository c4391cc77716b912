#include "worker/collectives/gloo.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <map>
#include <thread>

#include "common/event_loop.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/communicator_cases.h"
#include "worker/collectives/communicators.h"

namespace atl::worker {
namespace {

using testing::Members;

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs
constexpr Duration kShort = std::chrono::milliseconds(60);

// ---- vocabulary of these tests ----

// Of the members in this process.
class MapRendezvous final : public Rendezvous {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    if (!values_.emplace(key, value).second) return absl::AlreadyExistsError(key);
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, Instant deadline) override {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, deadline - SteadyNow(), [&] { return values_.count(key) != 0; });
    if (!there) return absl::DeadlineExceededError(absl::StrCat(key, " is not set"));
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

std::shared_ptr<GlooDevice> Loopback() {
  auto device = GlooDevice::Create("127.0.0.1", false);
  INFO(device.status());
  REQUIRE(device.ok());
  return *device;
}

Members MakeMembers(int size, Duration timeout) {
  MapRendezvous rendezvous;
  std::vector<std::unique_ptr<GlooCommunicator>> joining;
  for (int rank = 0; rank < size; ++rank) {
    // A group for all its time joins slowly enough on a busy machine.
    joining.push_back(GlooCommunicator::Create(
        Loopback(), {.name = "group", .rank = rank, .size = size, .timeout = timeout}));
  }
  std::vector<absl::Status> joined(size);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] { joined[rank] = joining[rank]->Join(rendezvous); });
    }
  }
  Members members;
  for (int rank = 0; rank < size; ++rank) {
    INFO(joined[rank]);
    REQUIRE(joined[rank].ok());
    members.push_back(std::move(joining[rank]));
  }
  return members;
}

absl::Status SumOfOnes(Communicator& member, std::vector<float>* x) {
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  x->assign(100, 1.0f);
  return member.AllReduceSum(*backend, *stream, {x->data(), DType::kFloat32, 1, 100});
}

// ---- the contract of every communicator ----

TEST_CASE("Gloo keeps the contract of communicators") {
  for (const testing::CommunicatorCase& communicator_case : testing::CommunicatorCases()) {
    DYNAMIC_SECTION(communicator_case.name) { communicator_case.run(MakeMembers); }
  }
}

TEST_CASE("what is wrong names the group and the rank") {
  Members members = MakeMembers(2, kLong);
  members[1].reset();
  std::vector<float> x;
  const absl::Status status = SumOfOnes(*members[0], &x);
  REQUIRE(status.code() == absl::StatusCode::kUnavailable);
  REQUIRE(status.message().substr(0, 26) == "rank 0 of 2 in group group");
}

// ---- joining ----

TEST_CASE("a member that no other joins times out") {
  MapRendezvous rendezvous;
  const auto alone = GlooCommunicator::Create(
      Loopback(), {.name = "group", .rank = 1, .size = 3, .timeout = kShort});
  REQUIRE(alone->Join(rendezvous).message() == "rank 1 of 3 in group group: group/0 is not set");
  std::vector<float> x;
  REQUIRE(SumOfOnes(*alone, &x).code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("an Abort ends a Join that waits for another member to come, or to connect") {
  MapRendezvous rendezvous;
  const bool published = GENERATE(false, true);
  CAPTURE(published);
  const auto first = GlooCommunicator::Create(
      Loopback(), {.name = "group", .rank = 0, .size = 2, .timeout = kLong});
  // A member that has published its address, and never connects.
  const auto second = GlooCommunicator::Create(
      Loopback(), {.name = "group", .rank = 1, .size = 2, .timeout = kLong});
  absl::Status joined, other;
  {
    MapRendezvous deaf;  // which never has the first one's entry
    std::jthread joins([&] { joined = first->Join(rendezvous); });
    std::jthread listens([&] {
      if (published) other = second->Join(deaf);
    });
    REQUIRE(rendezvous.Get("group/0", SteadyNow() + kLong).ok());
    if (published) {
      REQUIRE(rendezvous.Set("group/1", *deaf.Get("group/1", SteadyNow() + kLong)).ok());
    }
    first->Abort("a new plan");
    second->Abort("a new plan");
  }
  REQUIRE(joined == absl::AbortedError("a new plan"));
  if (published) REQUIRE(other == absl::AbortedError("a new plan"));
}

TEST_CASE("addresses of another size than ours are refused") {
  MapRendezvous rendezvous;
  REQUIRE(rendezvous.Set("group/1", "nonsense").ok());
  const auto first = GlooCommunicator::Create(
      Loopback(), {.name = "group", .rank = 0, .size = 2, .timeout = kLong});
  const absl::Status status = first->Join(rendezvous);
  REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(status.message().find("rank 1 sent addresses of 8 bytes") != absl::string_view::npos);
}

TEST_CASE("plaintext stays on loopback unless it is allowed") {
  const auto device = GlooDevice::Create("10.1.2.3", false);
  REQUIRE(device.status().code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(device.status().message().substr(0, 37) == "10.1.2.3: collectives between workers");
  // Allowed, but not ours: a network for documents (RFC 5737).
  REQUIRE(GlooDevice::Create("192.0.2.1", true).status() ==
          absl::UnavailableError("cannot listen at 192.0.2.1 for collectives: Cannot assign "
                                 "requested address"));
}

// ---- a worker's communicators ----

TEST_CASE("a worker's own devices are threads, those of others are reached by Gloo") {
  MapRendezvous rendezvous;
  Communicators one({.worker = "w1", .scope = "plan 3"}, &rendezvous);
  Communicators two({.worker = "w2", .scope = "plan 3"}, &rendezvous);
  const std::vector<std::string> ours = {"w1/1", "w1/0"}, all = {"w1/0", "w2/0", "w1/1"};
  struct Device {
    Communicators* from;
    std::string name;
  };
  const std::vector<Device> devices = {{&one, "w1/0"}, {&two, "w2/0"}, {&one, "w1/1"}};
  std::vector<absl::Status> statuses(3);
  std::vector<std::vector<float>> sums(3, std::vector<float>(2));
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < devices.size(); ++i) {
      threads.emplace_back([&, i] {
        statuses[i] = [&]() -> absl::Status {
          const auto& [from, name] = devices[i];
          ATOLL_ASSIGN_OR_RETURN(const auto island, from->Create("all", all, name));
          ATOLL_CHECK(all[island->rank()] == name && island->size() == 3);
          std::vector<float> x;
          ATOLL_RETURN_IF_ERROR(SumOfOnes(*island, &x));
          sums[i][0] = x[0];
          if (name == "w2/0") return absl::OkStatus();
          ATOLL_ASSIGN_OR_RETURN(const auto own, from->Create("w1", ours, name));
          ATOLL_CHECK(ours[own->rank()] == name);
          ATOLL_RETURN_IF_ERROR(SumOfOnes(*own, &x));
          sums[i][1] = x[0];
          return absl::OkStatus();
        }();
      });
    }
  }
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(status.ok());
  }
  REQUIRE(sums == std::vector<std::vector<float>>{{3, 2}, {3, 0}, {3, 2}});
}

TEST_CASE("a worker's communicators are aborted while they join") {
  MapRendezvous rendezvous;
  Communicators one({.worker = "w1", .scope = "plan 3"}, &rendezvous);
  absl::Status created;
  {
    std::jthread joins([&] { created = one.Create("all", {"w1/0", "w2/0"}, "w1/0").status(); });
    REQUIRE(rendezvous.Get("plan 3/all/0", SteadyNow() + kLong).ok());
    one.Abort("a new plan");
  }
  REQUIRE(created == absl::AbortedError("a new plan"));
  REQUIRE(one.Create("own", {"w1/0"}, "w1/0").status() == absl::AbortedError("a new plan"));
}

}  // namespace
}  // namespace atl::worker
