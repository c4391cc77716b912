#include "paramserver/core/outer_optimizer.h"

#include <catch2/catch.hpp>

#include "common/protocol/outer_optimizer.h"
#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

const OwnedShard kMoved{0, 0, 300};

AssignShards With(const OuterSpec& outer, int64_t placement = 1) {
  AssignShards assign{kJob, {kMoved}, 0.5, 0.9, 0};
  assign.definition.spec.outer = outer;
  assign.definition.placement = placement;
  return assign;
}

OuterSpec Named(const std::string& optimizer) {
  OuterSpec spec;
  spec.optimizer = optimizer;
  return spec;
}

// Version 0 and two rounds.
void Train(ServerFixture& server) {
  for (int version = 0; version < 3; ++version) {
    const ContributionId by = ServerFixture::By(0, version - 1);
    Rng rng(7, static_cast<uint64_t>(version));
    std::vector<float> values(static_cast<size_t>(kMoved.elements));
    for (float& value : values) value = static_cast<float>(rng.Normal());
    server.Push(ServerFixture::Id(0, version - 1, kMoved.shard), values);
    server.Apply(version, {{by, 1.0}});
  }
}

TEST_CASE("every_optimizer_of_the_table_is_made_and_moves_the_parameters") {
  for (const OuterOptimizerInfo& info : OuterOptimizers()) {
    INFO(info.name);
    ServerFixture server(1 << 20);
    server.DeliverMessage(With(Named(info.name)));
    server.Sync();
    Train(server);
    REQUIRE(server.version() == 2);
    // The same bits after a crash, from the log alone.
    const std::vector<float> before = server.Theta(kMoved.shard);
    server.Crash();
    CHECK(server.version() == 2);
    CHECK(server.Theta(kMoved.shard) == before);
  }
}

TEST_CASE("an_assignment_of_another_optimizer_is_refused_once_there_is_a_version") {
  ServerFixture server(1 << 20);
  server.DeliverMessage(With(Named("nesterov")));
  server.Sync();
  Train(server);
  server.TakeSent<ServerFault>();
  server.DeliverMessage(With(Named("delayed_nesterov")));
  server.Sync();
  CHECK(server.TakeSent<ServerFault>().size() == 1);
  server.DeliverMessage(With(Named("lion")));
  CHECK(server.TakeSent<ServerFault>().size() == 1);
}

TEST_CASE("a_round_with_a_step_of_its_own_uses_its_rate_and_its_weights") {
  ServerFixture server(1 << 20);
  server.DeliverMessage(With(Named("nesterov")));
  server.Sync();
  Train(server);
  const std::vector<float> before = server.Theta(kMoved.shard);
  const std::vector<float> ones(static_cast<size_t>(kMoved.elements), 1.0f);
  server.Push(ServerFixture::Id(0, 2, kMoved.shard), ones);
  server.Sync();
  CommitRound wrong{kJob, 3, {{ServerFixture::By(0, 2), 1.0}}, {}};
  wrong.step.layers = {{0, {1, 2}}};  // two weights of one term
  server.TakeSent<ServerFault>();
  server.DeliverMessage(wrong);
  CHECK(server.TakeSent<ServerFault>().size() == 1);
  CommitRound round = wrong;
  round.step = {0.25, {{0, {0.5}}}};
  server.DeliverMessage(round);
  server.Sync();
  REQUIRE(server.version() == 3);
  const std::vector<float> after = server.Theta(kMoved.shard);
  server.Crash();
  CHECK(server.Theta(kMoved.shard) == after);
  CHECK(after != before);
}

}  // namespace
}  // namespace atl::ps
