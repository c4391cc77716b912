// Workers that reach each other over sockets give the losses, gradients and weights of one device,
// with the same bits in every run: in plaintext, and with keys, where all bytes are encrypted.

#include <catch2/catch.hpp>

#include "common/logging.h"
#include "tests/island/exactness.h"
#include "tests/island/peer_network.h"

namespace atl::worker {
namespace {

IslandLayout On(int workers, IslandLayout layout) {
  layout.workers = workers;
  layout.name += absl::StrCat(", ", workers, " workers");
  return layout;
}

struct WorkerLayout {
  IslandLayout layout;
  bool all_reduces = false;  // between workers
  int chunks = 1;
};

std::vector<WorkerLayout> Layouts() {
  IslandLayout shares, combined;
  shares.name = "unequal replicas";
  shares.replicas = {{{6}, 2, 3}, {{6}, 2, 2}, {{6}, 2, 1}};
  combined.name = "two replicas of two stages of two devices, uneven";
  combined.schedule = "zb-h1";
  combined.replicas = {{{2, 4}, 4, 2}, {{3, 3}, 2, 2}};
  combined.tensor_parallel = 2;
  combined.tensor_split_ratios = {3, 1};
  const std::vector<IslandLayout> replicas = Replicas(), tensor = TensorParallel();
  const std::vector<IslandLayout> owners = Owners(), by_stage = TensorParallelByStage();
  return {{On(3, Pipeline("zb-h1", {2, 2, 2}, 4))},
          {On(2, Pipeline("zb-v", {1, 2, 2, 1}, 6, 2, true))},
          {On(3, shares), true},
          {On(2, tensor[0]), true},  // one device on each worker
          {On(2, tensor[2])},        // a stage, and its two devices, on each worker
          {On(4, combined), true},
          {On(4, replicas[1]), true},  // cut unlike
          {On(3, replicas[2]), true},  // all different, recomputation
          {On(3, owners[0]), true},    // one copy of the optimizer's state
          {On(3, by_stage[0]), true},
          {On(4, by_stage[2]), true, 2},
          {On(2, replicas[0]), true, 4}};  // in chunks
}

// The bytes went over sockets, and the all-reduces as they should. Layouts take turns with
// families: which sockets tensors take does not depend on them.
void CheckOverSockets(bool with_keys) {
  REQUIRE(SetLogLevel("warning").ok());
  size_t turn = 0;
  for (const WorkerLayout& worker_layout : Layouts()) {
    PeerNetwork::Seen seen;
    const auto network = [&](const IslandPlan& plan) {
      return std::make_unique<PeerNetwork>(plan, with_keys, &seen);
    };
    CheckExact(kFamilies[turn++ % std::size(kFamilies)], worker_layout.layout,
               {.chunks = worker_layout.chunks, .network = network});
    CAPTURE(worker_layout.layout.name);
    CHECK(seen.tensors > 0);
    // A tied head's too, where its embedding is elsewhere.
    CHECK((seen.all_reduces > 0 || !worker_layout.all_reduces));
  }
}

TEST_CASE("workers_over_sockets_train_as_one_device_does", "[plain]") { CheckOverSockets(false); }

TEST_CASE("workers_over_encrypted_links_train_as_one_device_does", "[keys]") {
  CheckOverSockets(true);
}

// Returns a layout of so many replicas of one stage each at each of two sites.
IslandLayout AtTwoSites(int replicas, int optimizer_copies) {
  IslandLayout layout;
  layout.name =
      absl::StrCat(replicas, " replicas at each of two sites, ",
                   optimizer_copies == 0 ? "all" : "one", " with the state of an element");
  int64_t left = kBatch;
  for (int r = 2 * replicas; r > 0; --r) {
    const auto sequences = static_cast<int32_t>(left / r);
    layout.replicas.push_back({{6}, sequences, 1});
    left -= sequences;
  }
  layout.workers = 2 * replicas;
  layout.sites = 2;
  layout.optimizer_copies = optimizer_copies;
  return layout;
}

TEST_CASE("bytes_between_sites_do_not_grow_with_the_replicas_at_a_site", "[keys]") {
  REQUIRE(SetLogLevel("warning").ok());
  for (const int copies : {0, 1}) {
    int64_t bytes = 0;
    for (int replicas = 1; replicas <= 4; ++replicas) {
      const IslandLayout layout = AtTwoSites(replicas, copies);
      CAPTURE(layout.name);
      PeerNetwork::Seen seen;
      const auto network = [&](const IslandPlan& plan) {
        return std::make_unique<PeerNetwork>(plan, /*with_keys=*/true, &seen);
      };
      CheckExact(Kind::kLlama, layout, {.network = network});
      if (replicas == 1) bytes = seen.all_reduce_bytes_between_sites;
      REQUIRE(bytes > 0);
      CHECK(seen.all_reduce_bytes_between_sites == bytes);
    }
  }
}

}  // namespace
}  // namespace atl::worker
