// Contents for tests of stores.

#ifndef ATOLL_COORDINATOR_TESTING_STORE_CASES_H_
#define ATOLL_COORDINATOR_TESTING_STORE_CASES_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/records.h"

namespace atl {

// A fresh folder that goes with the test.
class StoreFolder {
 public:
  StoreFolder() {
    std::string name = absl::StrCat(std::getenv("TEST_TMPDIR"), "/store-XXXXXX");
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name + "/state";
  }
  std::string path;
};

inline ShardDescriptor OneShard() {
  const ShardReplica active{"p1", "e", "key", ReplicaRole::kActive, "", false, 0};
  const ShardReplica joining{"p2", "e2", "key2", ReplicaRole::kJoining, "p1", true, 0};
  const ShardReplica leaving{"p3", "", "", ReplicaRole::kLeaving, "", false, 4};
  return {0, 1, 2, 3, {active, joining, leaving}, 9, 3};
}

inline ProgressRecord OneProgress() {
  ProgressRecord progress;
  progress.job = "lm-1";
  progress.state = JobState::kFinishing;
  progress.reason = "why";
  progress.plan_generation = 2;
  progress.initializer = 1;
  progress.validate_version = 6;
  progress.validators = {1};
  progress.validated_version = 7;
  progress.validation_loss = 2.5;
  progress.validation_accuracy = 5.5;
  progress.validated_final = true;
  progress.version = 3;
  progress.tokens_committed = 4;
  progress.round = 5;
  return progress;
}

// One record of every kind, no field at its default.
inline std::vector<StoreRecord> OneOfEach() {
  const ContributionId id{1, 2, 3, 4};
  JobRecord job{"lm-1", 1, {}, JobFacts{{{"embedding", 64}}, 10, 2, 99}, {OneShard()}};
  job.spec.name = "lm";
  job.spec.outer.momentum = 0.25;
  job.fill_version = 12;
  job.fill_base = 8;
  job.lost_update = "version 9";
  IslandRecord island;
  island.job = "lm-1";
  island.island = 1;
  island.generation = 2;
  island.worker = "w1";
  island.incarnation = 3;
  island.ready = true;
  island.resume = LocalCheckpoint{"lm-1", 1, 4, 70, {{7, 8}}, 21, 1.5};
  island.saved = {{*island.resume, {{2, 1, {1, 2}, 3, 9}}, {{"w2", 4, Tier::kRemote, {5}}}}};
  island.steps_this_round = 64;
  island.reason = "joined";
  island.last_push_base = 5;
  island.lease_request = 6;
  island.lease_ranges = {{7, 8}};
  island.rounds_accepted = 9;
  island.rounds_rejected = 10;
  island.tokens_committed = 11;
  island.evictions = 12;
  island.followers = {{"w2", 4, "tcp://w2:1", "key"}};
  island.plan_number = 5;
  island.author = 13;
  island.takes_over_from = "w3";
  island.steps_redone = 14;
  island.steps_interrupted = 15;
  island.outcome = ContributionOutcome{id, 5, true, true, "fine"};
  DecisionRecord decision{
      "lm-1", 3,      2,   1,           {{id, "w1", 64, 512, 2.5, 1.5, .5, 3, .9, .8, true, "ok"}},
      {id},   {1.25}, 1.5, .7,          512,
      1024,   7.5,    1,   "all are in"};
  return {
      EpochRecord{7},
      MemberRecord{MemberKind::kServer, "p1", 3, "", ""},
      MemberRecord{MemberKind::kWorker, "w1", 4, "site-w1", "measured: alone"},
      job,
      OneProgress(),
      island,
      ContributionRecord{"lm-1", id, 64, 512, 2.5, {{0, 8}}, true, "fenced"},
      decision,
      PenaltyRecord{"lm-1", 1, {{{10, 1.5, .1, 2}, {3, 4, .4, 0}}, {.5, 1.5}}},
      LedgerRecord{"lm-1", {0, 8}, LedgerUse::kPushed, 1, id},
      PlanRecord{
          "lm-1",
          1,
          {5,
           {{"w1", 3, "tcp://w1:1", ""}},
           {{{{0, 3, {"w1/0"}, {1}}}, 2, 4}},
           {{"w1/0", {{PlanOpKind::kSend, 0, 1, 0, true}, {PlanOpKind::kSync, 0, 0, 2, false}}, 6}},
           {2, 1},
           {{"a", "b", {{0, 0, 1, false}, {0, 1, 0, true}}}},
           2,
           {{"w1", 6}},
           7,
           8,
           "1f1b",
           "best"}},
      LinkRecord{{"a", "b", 20'000'000, 1.5e7, 0.02, 20}, 1'700'000'000'123},
      DeviceRecord{"a/1", 0xff00ff00ff00ff00, 1.9, 1'700'000'000'124}};
}

inline std::vector<StoreWrite> Puts(const std::vector<StoreRecord>& records) {
  std::vector<StoreWrite> writes;
  for (const StoreRecord& record : records) writes.push_back({record});
  return writes;
}

// Sorts records into the order in which a store reads them.
inline std::vector<StoreRecord> Sorted(std::vector<StoreRecord> records) {
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return MakeRecordKey(a) < MakeRecordKey(b); });
  return records;
}

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TESTING_STORE_CASES_H_
