#include "worker/collectives/communicators.h"

#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "kernels/testing/reference/reference.h"
#include "worker/collectives/testing/peer_members.h"

namespace atl::worker {
namespace {

// The sum over a group's members of one each, as one of them gets it.
absl::StatusOr<float> SumOfOnes(Communicator* member) {
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  std::vector<float> x = {1};
  ATOLL_RETURN_IF_ERROR(
      member->AllReduceSum(*backend, *stream, Tensor(x.data(), DType::kFloat32, 1, 1)));
  return x[0];
}

TEST_CASE("own_devices_are_threads_and_those_of_other_workers_are_reached_by_the_peer_link") {
  testing::PeerCluster cluster(2, /*encrypted=*/false);
  const auto of_worker = [&](int worker) {
    return CommunicatorsOptions{.worker = absl::StrCat("w", worker),
                                .scope = "plan 3",
                                .peer_blocks = &cluster.peer(worker).blocks};
  };
  Communicators zero(of_worker(0)), one(of_worker(1));
  const std::vector<std::string> all = {"w0/0", "w1/0", "w0/1"}, ours = {"w0/1", "w0/0"};
  // All members are made before the first collective.
  std::vector<std::unique_ptr<Communicator>> members;
  for (const std::string& device : all) {
    Communicators& from = WorkerFromDevice(device) == "w0" ? zero : one;
    members.push_back(from.Create("all", all, device).value());
    REQUIRE(all[members.back()->rank()] == device);
  }
  for (const std::string& device : ours)
    members.push_back(zero.Create("own", ours, device).value());
  std::vector<absl::StatusOr<float>> sums(members.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back([&, i] { sums[i] = SumOfOnes(members[i].get()); });
    }
  }
  std::vector<float> values;
  for (const auto& sum : sums) values.push_back(sum.value());
  REQUIRE(values == std::vector<float>{3, 3, 3, 2, 2});
}

TEST_CASE("no_communicator_is_made_after_an_abort") {
  Communicators communicators({.worker = "w1", .scope = "plan 3"});
  communicators.Abort("a new plan");
  REQUIRE(communicators.Create("own", {"w1/0"}, "w1/0").status() ==
          absl::AbortedError("a new plan"));
}

}  // namespace
}  // namespace atl::worker
