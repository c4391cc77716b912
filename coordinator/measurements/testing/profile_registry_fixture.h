// The fixture of the profile registry's tests: workers that answer on command, and a registry whose
// requests are collected.

#ifndef ATOLL_COORDINATOR_MEASUREMENTS_TESTING_PROFILE_REGISTRY_FIXTURE_H_
#define ATOLL_COORDINATOR_MEASUREMENTS_TESTING_PROFILE_REGISTRY_FIXTURE_H_

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/measurements/profile_registry.h"

namespace atl {

inline ModelSpec Shape() {
  ModelSpec model;
  model.hidden = 64;
  model.layers = 2;
  model.heads = 4;
  return model;
}

// Workers that answer on command, and a registry that sends the requests.
struct Fixture {
  ProfileRegistry registry;
  Instant now = Instant() + std::chrono::seconds(100);
  std::vector<std::pair<ProfileRegistry::PlanKey, PlanRequest>> planned;
  std::vector<ProfileRegistry::Message> sent;
  std::vector<ProfileChanged> changes;
  std::map<std::string, StoreRecord> store;  // what the registry has had stored, by key
  std::map<NodeId, std::string> sites;       // as found
  std::map<int64_t, MeasureLinks> turns;     // that were ordered and not answered, by number
  Instant deadline = kNever;

  void Advances() {
    ProfileRegistry::Work work = registry.Advance(now);
    sent = std::move(work.send);
    for (ProfileChanged& change : work.changes) changes.push_back(std::move(change));
    for (auto& plan : work.plan) planned.push_back(std::move(plan));
    deadline = work.deadline;
    for (const auto& [worker, found] : work.sites) sites[worker] = found.site;
    for (const auto& message : sent) {
      if (!message.message.probe) turns[message.message.request] = message.message;
    }
    for (StoreWrite& write : work.persist) {
      const std::string key = MakeRecordKey(write.record);
      if (write.erase) {
        CHECK(store.erase(key) == 1);
      } else {
        store.insert_or_assign(key, std::move(write.record));
      }
    }
  }
  void RequestPlan(const std::vector<std::string>& workers, bool busy = false, int64_t request = 1,
                   const std::set<NodeId>& joined = {}) {
    PlanRequest plan;
    plan.spec.data.sequence_length = 32;
    plan.facts.model = Shape();
    for (const std::string& worker : workers) {
      PlanMember member;
      member.member = {worker, 5, absl::StrCat("tcp://", worker), ""};
      member.devices = {{"cpu", 1 << 30, 1}};
      plan.members.push_back(std::move(member));
    }
    registry.Want({"job-1", 0, request}, std::move(plan), busy, joined);
    Advances();
  }
  // The measurer of the newest messages; all of them name the same one.
  NodeId Measurer() const {
    REQUIRE_FALSE(sent.empty());
    for (const auto& message : sent) CHECK(message.message.measurer == sent[0].message.measurer);
    return sent[0].message.measurer;
  }
  void Deliver(const NodeId& worker, WorkerMessage message) {
    registry.OnMessage(now, {worker, 5, std::move(message)});
    Advances();
  }
  // The measurer reports links to these.
  void Measures(const std::vector<NodeId>& others, double bytes_per_s = 1e8) {
    LinksMeasured report{"job-1", sent[0].message.request, {}, ""};
    const NodeId from = Measurer();
    for (const NodeId& to : others) report.links.push_back({from, to, 1'000'000, bytes_per_s});
    Deliver(from, report);
  }
  // The oldest turn that goes on is answered with links as `link` says; returns it.
  MeasureLinks AnswerTurn(const std::function<LinkProfile(const NodeId&, const NodeId&)>& link) {
    REQUIRE_FALSE(turns.empty());
    const MeasureLinks turn = std::move(turns.extract(turns.begin()).mapped());
    LinksMeasured report{"job-1", turn.request, {}, ""};
    for (const NodeId& to : turn.to) report.links.push_back(link(turn.measurer, to));
    Deliver(turn.measurer, report);
    return turn;
  }
  void StandsAt(const NodeId& worker, const std::string& site) {
    WorkerHello hello;
    hello.site = site;
    Deliver(worker, hello);
  }
};

// A fixture in which two workers send heartbeats about themselves.
struct Running : Fixture {
  explicit Running(bool measured = true) {
    if (!measured) return;
    RequestPlan({"a", "b"});
    Measures({"b"});
    Measures({"a"});
    now += std::chrono::seconds(60);
  }
  // A window of messages whose quickest took so long; `again`: the same window once more.
  LinkReport Sees(double seconds, int64_t bytes, bool again = false) {
    StageLinkState state;
    state.from = "a/0";
    state.to = "b/1";
    state.window = again ? window : ++window;
    state.quickest_bytes = bytes;
    state.quickest_seconds = seconds;
    IslandProgress progress;
    progress.stage_links = {state};
    Deliver("a", WorkerHeartbeat{progress, {}});
    return registry.Links()[0];
  }
  // A window of steps of b/0, `times` as long as its profile says.
  void Works(double times, bool again = false, int ranks = 1) {
    DeviceWork work{
        "b/0", again ? window : ++window, ComputeModelDigest(Shape(), 32), 2, 0, 6, 0, 0, 0, 0};
    work.tensor_parallel = ranks;
    work.forward_seconds = times * 6 * 0.010;
    work.backward_seconds = times * 6 * 0.020;
    Deliver("b", WorkerHeartbeat{std::nullopt, std::nullopt, {work}});
  }
  // Records a measurement of b/0.
  void KnowsDevice() {
    DeviceProfile profile{"b/0", "cpu", "1", ComputeModelDigest(Shape(), 32), {}};
    LayerCost block;
    block.kind = LayerKind::kBlock;
    block.micro_batch_sequences = 1;
    block.forward_ns = block.input_gradient_ns = block.weight_gradient_ns = 5'000'000;
    profile.layers = {block};
    Deliver("b", JobPrepared{"job-1", {}, {profile}});
  }
  std::string TakeChanges() {
    std::string text;
    for (const ProfileChanged& change : std::exchange(changes, {})) text += change.reason + "\n";
    return text;
  }
  int64_t window = 0;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MEASUREMENTS_TESTING_PROFILE_REGISTRY_FIXTURE_H_
