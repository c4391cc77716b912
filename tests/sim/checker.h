// Watches a simulated cluster from outside and fails at the first broken promise (README.md,
// "What is promised"). It sees what a perfect witness would see: every decision as it is persisted,
// every pseudo-gradient as it is captured, every tensor that a server hands out.
//
// A broken promise is recorded, not thrown: the simulation stops and prints seed and reason.

#ifndef ATOLL_TESTS_SIM_CHECKER_H_
#define ATOLL_TESTS_SIM_CHECKER_H_

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/thread_pool.h"
#include "coordinator/core/records.h"
#include "tests/sim/toy_trainer.h"

namespace atl::sim {

class Checkers;

inline constexpr char kHostileWorker[] = "worker-0";  // where a history has one

// The checker of one job.
class Checker {
 public:
  Checker(JobSpec spec, ThreadPool* pool, Checkers* all)
      : spec_(std::move(spec)), pool_(*pool), all_(*all) {}

  // A worker fixed the pseudo-gradient of a contribution, and as they are pushed its moments, where
  // it has them.
  void DeltaCaptured(const ContributionId& id, const LayerValues& delta,
                     std::vector<PositionRange> trained_on, const LayerValues& ratios = {},
                     const LayerValues& second = {});
  // The coordinator persisted a record.
  void Persisted(const StoreRecord& record);
  // Its store was replaced by an older copy, or by an empty one. What it had decided since may be
  // decided otherwise, unless a server has said that it has applied it.
  void StoreReplaced() {
    replaced_ = true;
    newest_committed_ = kNoVersion;
  }
  // A server said that it has applied the version.
  void Applied(Version version) { newest_applied_ = std::max(newest_applied_, version); }
  // A person has requested the job's removal; before that nothing of it may be deleted.
  void NoteRemovalRequest() { removal_requested_ = true; }
  void Deleted(const NodeId& member);
  // Notes that the end of a site's job is persisted.
  void EndPersisted() { end_persisted_ = true; }
  const JobSpec& spec() const { return spec_; }
  // Notes that the job above does not take a contribution of a site's job. Its data is free again.
  void NotTaken(const ContributionId& contribution);
  // By the newest placement that was ever stored.
  bool Holds(const NodeId& server) const;
  // Shards that were lost and filled.
  size_t refilled() const { return refilled_.size(); }
  // How often a server was done without, since others had copies; and whether there are two of each
  // shard now.
  int64_t dropped() const { return dropped_; }
  bool HasTwoOfEach() const;
  // A server has freed the momentum.
  void Ended(const NodeId& server);
  // The coordinator sent a round to a server.
  void CommitSent(const CommitRound& commit, const std::vector<ShardPlacement>& shards);
  // A server, at this version and with these fences, wrote a push to its log.
  void Staged(const NodeId& server, const PushId& push, Version version,
              const std::map<IslandId, IslandFence>& fences);
  // A server handed out a shard.
  void Served(const NodeId& server, Version version, const ShardPlacement& shard,
              std::span<const float> values);
  // A worker adopted a version; `base` is what it now counts its pseudo-gradient from.
  void Adopted(const NodeId& worker, Version version, const LayerValues& base);
  // Likewise, averaged moments.
  void AdoptedMoments(const NodeId& worker, Version version, const LayerValues& first);

  // A worker has made a step: it has trained on these sequences in no captured pseudo-gradient yet,
  // and loses them if it dies now. `carried` of them it had already when it adopted its base.
  // `captured`: it has captured a pseudo-gradient since.
  void AtRisk(const NodeId& worker, const std::vector<PositionRange>& trained_on, int64_t carried,
              bool captured);

  // At the end of a finished job.
  void Finished(const ProgressRecord& progress, int64_t budget_positions);

  void Fail(std::string what);

  int64_t rounds() const { return static_cast<int64_t>(expected_.size()); }
  int64_t rejected() const { return rejected_; }
  bool Committed(const ContributionId& id) const { return used_.contains(id); }
  // Returns the versions of the job above that a site's job took later than its version 0.
  int64_t adopted() const { return adopted_; }
  // Returns the contributions of a site's job that the job above has taken.
  int64_t contributed() const;

 private:
  struct Model {
    LayerValues theta;
    std::vector<LayerValues> slots;  // of the outer optimizer
    LayerValues served;              // as islands hold it
    LayerValues base, contributed;   // of a site's job; contributed: empty after an adoption
    LayerValues ratios, second;      // averaged moments
  };
  // A decision, and what is to be taken back of it if it turns out to be lost.
  struct Made {
    Version version = kNoVersion;
    std::vector<RoundTerm> terms;
    std::vector<int64_t> positions;
    int64_t tokens = 0;
    RoundStep step = {};
  };
  struct Captured {
    LayerValues delta;
    std::vector<PositionRange> trained_on;
    LayerValues ratios, second;  // moments; ratios empty: none
  };
  // By version of a site's job, which has made it.
  struct Contribution {
    std::optional<ContributionId> id;  // of the job above
    std::vector<PositionRange> trained_on;
    LayerValues delta;  // empty: the round is not sent yet
  };

  void Decided(const DecisionRecord& decision);
  // False: nothing more can be said of its round.
  bool Take(const DecisionParticipant& participant, Made& made);
  void ExpectAll();
  void OnPlaced(const JobRecord& record);
  void Serve(Version version, Model& model);
  void TakeBack(int64_t round);
  void CheckWeights(const DecisionRecord& decision);
  void CheckVouched(const DecisionRecord& decision, const DecisionParticipant& p);
  void Expect(const CommitRound& commit);
  void ExpectMoments(const CommitRound& commit, Model& model) const;
  std::vector<float> Encoded(const std::vector<float>& values) const;
  // ---- site_checker.cc: of a site's job ----
  bool IsOfSite() const { return !spec_.outer.contributes_to.empty(); }
  void ExpectAdopted(Version adopted, Model& model);
  void ExpectContributed(Version version, Model& model);
  void NoteContribution(const DecisionRecord& decision);
  void NameContribution(const SiteJob& site);
  void CaptureContribution(const Contribution& contribution);

  const JobSpec spec_;
  ThreadPool& pool_;
  Checkers& all_;
  std::map<ContributionId, Captured> captured_;
  std::set<ContributionId> used_;
  std::map<int64_t, Made> made_;                       // by round
  std::map<Version, std::vector<RoundTerm>> decided_;  // persisted
  std::map<Version, std::vector<RoundTerm>> terms_;    // sent
  std::map<Version, CommitRound> rounds_;              // persisted
  std::map<Version, Model> expected_;
  int64_t placement_ = -1;
  std::vector<ShardPlacement> shards_, copies_;
  int64_t dropped_ = 0;
  std::set<std::pair<ShardId, Version>> refilled_;
  std::map<int64_t, IslandId> committed_positions_;
  Version newest_decided_ = kNoVersion;
  Version newest_committed_ = kNoVersion;
  int64_t newest_round_ = 0;
  int64_t tokens_ = 0;
  bool replaced_ = false;  // the store
  bool removal_requested_ = false;
  Version newest_applied_ = kNoVersion;
  int64_t rejected_ = 0;
  std::map<Version, Contribution> contributions_;
  bool end_persisted_ = false;
  int64_t adopted_ = 0;
};

// The checkers of all jobs: a user's first one, those of sites' servers below it, and users'
// others.
class Checkers {
 public:
  // `lies`: the hostile worker vouches for other pushes than those that it makes.
  Checkers(JobSpec spec, ThreadPool* pool, bool lies)
      : pool_(*pool), lies_(lies), users_(std::move(spec), pool, this) {}

  bool lies() const { return lies_; }

  Checker& users() { return users_; }
  const Checker& users() const { return users_; }
  // The user's first one, if it is neither of a site nor another one.
  Checker& Of(const JobId& job);
  bool IsOfSite(const JobId& job) const { return sites_.contains(job); }
  // Returns whether it is a user's, and not the first one.
  bool IsOther(const JobId& job) const { return others_.contains(job); }
  // Returns whether another job of this name was stored.
  bool KnowsOther(const std::string& name) const;
  // Returns whether a job of a site that goes on has shards at the server.
  bool HoldsForSite(const NodeId& server) const;
  void Persisted(const StoreRecord& record);
  void StoreReplaced();
  void NoteRemovalRequest();
  // The job above does not take a site's contribution.
  void NotTaken(const ContributionId& contribution);
  int64_t adopted() const;
  int64_t contributed() const;
  int64_t site_jobs() const { return std::ssize(sites_); }

  void Fail(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
  }
  const std::string& failure() const { return failure_; }

 private:
  ThreadPool& pool_;
  const bool lies_;
  std::string failure_;
  Checker users_;
  std::map<JobId, Checker> sites_, others_;
  bool removal_requested_ = false;
};

std::string Describe(const ContributionId& id);

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_CHECKER_H_
