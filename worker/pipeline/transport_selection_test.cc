#include "worker/pipeline/transport_selection.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

IslandPlan Workers(std::vector<IslandMember> members) {
  IslandPlan plan;
  plan.members = std::move(members);
  return plan;
}

IslandMember Member(const std::string& name, const std::string& site, const std::string& nccl) {
  IslandMember member;
  member.worker = name;
  member.site = site;
  member.nccl = nccl;
  return member;
}

TEST_CASE("GPUs of one site are joined by NCCL, all others by the link, and it is said why") {
  const IslandPlan plan = Workers({Member("a", "north", "2.27"), Member("b", "north", "2.27"),
                                   Member("c", "south", "2.27"), Member("d", "north", ""),
                                   Member("e", "north", "2.26"), Member("f", "", "2.27")});
  const auto select = [&](const std::string& from, const std::string& to) {
    const TransportChoice found = SelectTransport(plan, from, to);
    REQUIRE(found.kind == SelectTransport(plan, to, from).kind);
    return std::pair(found.kind, found.reason);
  };
  REQUIRE(select("a/0", "b/3") ==
          std::pair(TransportKind::kNccl, std::string("GPUs of site north")));
  REQUIRE(select("a/0", "a/1").first == TransportKind::kWithin);
  REQUIRE(select("a/0", "c/0") ==
          std::pair(TransportKind::kLink, std::string("the sites north and south")));
  REQUIRE(select("a/0", "d/0") ==
          std::pair(TransportKind::kLink, std::string("d has no GPUs that NCCL joins")));
  REQUIRE(select("a/0", "e/0") ==
          std::pair(TransportKind::kLink, std::string("NCCL 2.27 and 2.26")));
  REQUIRE(select("a/0", "f/0") ==
          std::pair(TransportKind::kLink, std::string("the site of f is not known")));
}

TEST_CASE("a group is NCCL's where all of it is near") {
  const IslandPlan plan =
      Workers({Member("a", "north", "2.27"), Member("b", "north", "2.27"),
               Member("c", "south", "2.27"), Member("d", "", "2.27"), Member("e", "north", "")});
  REQUIRE(SharesNccl(plan, {"a/0", "b/1", "a/1"}));
  REQUIRE(SharesNccl(plan, {"d/0", "d/1"}));
  REQUIRE_FALSE(SharesNccl(plan, {"a/0", "b/1", "c/0"}));
  REQUIRE_FALSE(SharesNccl(plan, {"a/0", "e/0"}));
  REQUIRE_FALSE(SharesNccl(plan, {"e/0", "e/1"}));
}

TEST_CASE("stage links lie between neighbours of one rank, both ways") {
  IslandPlan plan;
  PlanReplica replica;
  replica.stages.resize(3);
  replica.stages[0].devices = {"a/0", "a/1"};
  replica.stages[1].devices = {"b/0", "b/1"};
  replica.stages[2].devices = {"b/0", "a/1"};
  plan.replicas = {replica};
  REQUIRE(ListStageLinks(plan) ==
          std::vector<StageLink>{{"a/0", "b/0"}, {"a/1", "b/1"}, {"b/0", "a/0"}, {"b/1", "a/1"}});
}

}  // namespace
}  // namespace atl::worker
