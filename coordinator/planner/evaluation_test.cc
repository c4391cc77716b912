#include "coordinator/planner/evaluation.h"

#include <catch2/catch.hpp>

#include "coordinator/planner/testing/clusters.h"

namespace atl::plan {
namespace {

TEST_CASE("A transfer over two edges is as fast as both together, unless they exclude each other") {
  Cluster cluster = MakeCluster({{"a100-80", 4, "a"}, {"a100-80", 4, "b"}});
  const Costs costs = MakeCosts("gpt3-6.7b");
  const auto step_s = [&](const std::vector<LinkEdge>& edges) {
    const auto link = MakeLink(edges, cluster.trunks);
    REQUIRE(link.ok());
    cluster.site_to_site[{"a", "b"}] = cluster.site_to_site[{"b", "a"}] = *link;
    // A pipeline of one stage per site.
    Layout layout{4, 1, "1f1b", {}};
    layout.replicas = {{{{{0, 1, 2, 3}, 0, 17}, {{4, 5, 6, 7}, 17, 34}}, 32}};
    const auto outcome = EvaluateLayout(cluster, costs, layout, {});
    INFO(outcome.status().ToString());
    REQUIRE(outcome.ok());
    return outcome->step_s;
  };
  const LinkEdge slow{1e-3, 0.2e9};
  const LinkEdge slow_too{1e-3, 0.2e9, -1, 7};
  const LinkEdge either{1e-3, 0.2e9, -1, 7};
  const double one = step_s({slow});
  CHECK(step_s({slow, slow}) == Approx(step_s({{1e-3, 0.4e9}})).epsilon(0.01));
  CHECK(step_s({slow, slow}) < 0.8 * one);
  CHECK(step_s({slow_too, either}) == Approx(one));
  // One trunk below both edges: no more than it carries.
  cluster.trunks = {{"sea", 0.2e9, {}}};
  CHECK(step_s({{1e-3, 1e9, 0}}) >= one);
  // A bandwidth that doubles soon after the start.
  CHECK(step_s({{1e-3, 0.2e9, -1, -1, {{0.01, 2}}}}) < 0.8 * one);
}

TEST_CASE("Gradients are summed while slower stages still compute") {
  Cluster cluster = MakeCluster({{"a100-80", 2, "a"}, {"a100-80", 2, "b"}});
  cluster.wan_link = {1e-3, 20e9};
  const Costs costs = MakeCosts("gpt2-large");
  Layout layout{1, 1, "1f1b", {}};
  layout.split_backward = false;
  layout.replicas = {{{{{0}, 0, 19}, {{1}, 19, 38}}, 8}, {{{{2}, 0, 19}, {{3}, 19, 38}}, 8}};
  const auto outcome = EvaluateLayout(cluster, costs, layout, {});
  REQUIRE(outcome.ok());
  const double makespan_s =
      static_cast<double>(SlowestKind(*outcome).found.result.makespan_ns) * 1e-9;
  CHECK(outcome->sync_s > 0);
  CHECK(outcome->step_s == Approx(makespan_s + outcome->sync_s + outcome->commit_s));
  CHECK(outcome->commit_s == Approx(1e-3));
  CHECK(outcome->bound_s <= outcome->step_s);
  // The bound counts what the operations alone, or a bound of theirs, would not exclude.
  CHECK(makespan_s < outcome->bound_s);
  const auto no_better = EvaluateLayout(cluster, costs, layout, {.step_limit_s = outcome->bound_s});
  CHECK(absl::IsCancelled(no_better.status()));
  const auto maybe_better =
      EvaluateLayout(cluster, costs, layout, {.step_limit_s = 1.001 * outcome->bound_s});
  REQUIRE(maybe_better.ok());
  CHECK(maybe_better->step_s == outcome->step_s);
  // Two rings share the link: one after the other it would have taken twice as long.
  layout.replicas.resize(1);
  const auto alone = EvaluateLayout(cluster, costs, layout, {});
  CHECK(alone->sync_s == 0);
}

TEST_CASE("A step counts when all sites know of each other: only who is done with the last waits") {
  Cluster cluster = MakeCluster({{"a100-80", 1, "a"}, {"a100-80", 1, "b"}});
  const Costs costs = MakeCosts("gpt2-large");
  const auto evaluate = [&](double latency_s, const char* schedule, int layers) {
    cluster.wan_link = {latency_s, 100e9};
    Layout layout{1, 1, schedule, {}};
    layout.replicas = {{{{{0}, 0, layers}, {{1}, layers, 38}}, 8}};
    const auto outcome = EvaluateLayout(cluster, costs, layout, {});
    REQUIRE(outcome.ok());
    CHECK(outcome->bound_s <= outcome->step_s);
    return *outcome;
  };
  // 1F1B ends with the first stage's backward: the last one's commit vote is there long before.
  CHECK(evaluate(5e-3, "1f1b", 19).commit_s == 0);
  // Both stages end with W at about the same time: each waits for the other's vote.
  const double near = evaluate(0, "zb-h2", 19).commit_s;
  const double far = evaluate(5e-3, "zb-h2", 19).commit_s;
  CHECK(far > near + 3e-3);
  CHECK(far <= near + 5.001e-3);
  // A leader at another site learns of the first stage's end and announces it: two latencies.
  cluster.leader = cluster.devices[1].node;
  CHECK(evaluate(5e-3, "1f1b", 19).commit_s > 8e-3);
  cluster.leader = cluster.devices[0].node;
  CHECK(evaluate(5e-3, "1f1b", 19).commit_s == 0);
  cluster.leader.clear();
  // The bound has it too: the last stage alone takes most of the step.
  const Outcome late = evaluate(50e-3, "best", 4);
  CHECK(late.commit_s > 30e-3);
  CHECK(late.step_s < 1.1 * late.bound_s);
}

}  // namespace
}  // namespace atl::plan
