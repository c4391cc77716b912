// The state of one job on this server: shards, version, staged pushes, and how log records change
// them. The same code runs when a record is written and when it is replayed after a crash, so a
// restarted server reaches the same bits. Pure; one thread.

#ifndef ATOLL_PARAMSERVER_CORE_JOB_STATE_H_
#define ATOLL_PARAMSERVER_CORE_JOB_STATE_H_

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/element_ranges.h"
#include "common/protocol/outer_optimizer.h"
#include "common/protocol/round_limit.h"
#include "common/thread_pool.h"
#include "paramserver/core/outer_optimizer.h"
#include "paramserver/core/push_gate.h"
#include "paramserver/core/records.h"

namespace atl::ps {

// Names a contribution in messages.
std::string ContributionText(const ContributionId& id);

class JobState {
 public:
  static constexpr int64_t kMaxIslands = 4096;

  // OK if the assignment makes sense by itself. The memory it takes is another question.
  static absl::Status Check(const AssignShards& assignment);
  // 4 bytes of parameter and 4 of each slot an element.
  static int64_t ParameterBytes(const AssignShards& assignment);

  // A job with nothing in it. `pool` outlives the state.
  JobState(JobId job, ThreadPool* pool);
  // The state at the snapshot; its staged pushes come from the log (Replay). Takes over the
  // snapshot's tensors: shared while the snapshot exists, copied before they change.
  static absl::StatusOr<std::unique_ptr<JobState>> FromSnapshot(const Snapshot& snapshot,
                                                                ThreadPool* pool);

  // Returns OK if Apply may be called with this record now, else the reason against it.
  absl::Status Check(const LogRecord& record) const;
  // REQUIRES: Check(record). Pushes become durable with MarkDurable.
  void Apply(LogSequence sequence, const LogRecord& record);
  void MarkDurable(const PushId& id) { ChangeLedger(NotedPush{id, /*durable=*/true}); }
  void ExpectFills(ExpectedFills fills) { ChangeLedger(std::move(fills)); }
  // A committed round in parts, the same as Apply: so many elements of pseudo-gradients and tensors
  // at a time, one shard at least. True: it is applied. REQUIRES: Check(record), the same record
  // until it is applied, and no assignment, end or arriving shard meanwhile.
  bool ApplyPart(const CommittedRecord& record, int64_t elements);
  // Its tensors are those of the next version already: ApplyPart is at it.
  // With fragments also of a shard that the round leaves as it is.
  bool IsStepped(ShardId shard) const { return stepped_ && shard <= *stepped_; }
  // Memory that a push takes when it is staged: the first of a shard takes the whole shard's.
  // REQUIRES: HasShard(id.shard).
  int64_t BytesToStage(const PushId& id, Encoding encoding) const;

  // A consistent picture of now. `last_sequence`: of the newest record applied.
  std::shared_ptr<const Snapshot> TakeSnapshot(LogSequence last_sequence) const;

  // Per layer held here that the round making `version` concerns (of many contributions for all
  // together, see round_limit.h), the inner products of these contributions' staged
  // pseudo-gradients, and last of the outer optimizer's reference slot where it has one, summed
  // over shards in order, in double.
  struct GramSum {
    Version version = 0;
    std::vector<ContributionId> contributions;
    std::vector<ShardId> shards = {};  // of these; empty: of all
    std::optional<ShardId> last = {};  // that is in it
    std::map<int32_t, std::vector<double>> by_layer = {};
    // Digests that what is staged is compared with; contributions of which some has another one.
    std::map<ShardId, std::vector<std::pair<ContributionId, PartDigest>>> digests = {};
    std::set<ContributionId> unfit = {};
  };
  // Adds so many elements more, one shard at least. True: all is in it. NotFound names the first
  // pseudo-gradient that is missing.
  absl::StatusOr<bool> AddToGram(GramSum& sum, int64_t elements) const;

  // Null for an unknown shard and before version 0.
  std::shared_ptr<SharedTensor> Theta(ShardId shard) const;
  // Likewise, and when the job has ended.
  std::shared_ptr<SharedTensor> Slot(ShardId shard, size_t slot) const;
  // The parameters as islands hold them. Null as Theta.
  std::shared_ptr<SharedTensor> Served(ShardId shard) const;
  // The moving average of the parameters, also when the job has ended. Null as Theta, and where
  // none is kept.
  std::shared_ptr<SharedTensor> Average(ShardId shard) const;
  // Returns the step from the parameters of the version before to those of version(), encoded, in
  // words as in PullRequest. Null where pulls are not quantised, and until this server has made a
  // round.
  std::shared_ptr<const std::vector<float>> EncodedStep(ShardId shard) const;
  // Returns the newest average of moments, likewise. Null where none are averaged.
  std::shared_ptr<const std::vector<float>> EncodedMoments(ShardId shard) const;
  // Returns the number of slots as ListServerSlots has them; 0 before the first assignment or order
  // to receive shards.
  size_t slots() const { return slots_; }
  bool HasShard(ShardId shard) const { return shards_.contains(shard); }
  size_t shards() const { return shards_.size(); }
  // Lists the shards that are here or were received whole: with their momentum, or filled by an
  // island.
  std::vector<ShardId> ShardsHere(bool filled) const;

  // A shard that is received at version(), under this placement: what of a part has not arrived.
  std::vector<ElementRange> ListMissingRanges(const OwnedShard& shard, int64_t placement,
                                              ReceivedPart part, int32_t slot) const;
  // The newest record of a shard that has arrived whole; nullopt: it has not.
  // A shard that is to be filled has no momentum: what its holder had sent of it before is of no
  // use.
  std::optional<LogSequence> ReceivedWhole(ShardId shard, int64_t placement, bool fill) const;

  // The job is of a site's servers: it has an exchange with the job above (RoundStep).
  bool IsOfSite() const { return !assignment_.definition.spec.outer.contributes_to.empty(); }
  // The job whose versions it may adopt: the one above a site's, or, for version 0, that of
  // model.initial_job. Empty: none.
  JobId GetAdoptedJob() const;
  const SiteExchange& exchange() const { return exchange_; }
  // Returns the newest version of the job above that was adopted, or that some has arrived of.
  Version newest_base() const { return std::max(exchange_.base, base_version_); }
  // Returns the ranges of a shard that have not arrived of the parameters that the job above had at
  // `version`. What is the base already is there. REQUIRES: HasShard(shard).
  std::vector<ElementRange> MissingBase(ShardId shard, Version version) const;
  // The newest record of them when all shards held have them, 0 if that are none; nullopt: some
  // miss. A round may adopt the version then.
  std::optional<LogSequence> HasBase(Version version) const;
  // Memory that all of them take, beyond what has arrived of this or an older version.
  int64_t BytesToFetchBase(Version version) const;
  // Elements of base - contributed, in this encoding. Nullopt: the shard does not have such
  // elements. REQUIRES: exchange().contributes(), an encoding that is not quantised.
  std::optional<SharedBytes> Contribution(ShardId shard, const ElementRange& range,
                                          Encoding encoding) const;

  const JobId& job() const { return job_; }
  Version version() const { return version_; }
  int64_t epoch() const { return epoch_; }
  bool assigned() const { return assigned_; }
  bool ended() const { return ended_; }
  const AssignShards& assignment() const { return assignment_; }
  // That made version(); version kNoVersion: none.
  const CommittedRecord& newest() const { return newest_; }
  // The newest that an assignment, or an order to receive shards, came with.
  int64_t placement() const { return std::max(placement_, assignment_.definition.placement); }
  const PushLedger& ledger() const { return ledger_; }
  // Returns what has changed in it since the last call.
  std::vector<LedgerChange> TakeLedgerChanges() { return std::exchange(ledger_changes_, {}); }
  std::vector<PushId> Staged() const;
  // The content of a push, as it was encoded; nullopt: it is not staged. Shared with what is
  // staged: other parts of the shard may be added to it meanwhile.
  struct StagedPush {
    Encoding encoding = Encoding::kFloat32;
    int64_t elements = 0;
    SharedBytes payload;
  };
  std::optional<StagedPush> FindPush(const PushId& id) const;
  int64_t staged_bytes() const { return staged_bytes_; }
  // Returns the bytes of parameters and slots, and of what has arrived; an ended job keeps no
  // slots but the average.
  int64_t parameter_bytes() const {
    const auto tensors = static_cast<int64_t>(1 + slots_);
    const int64_t kept = keeps_average() ? 2 : 1;
    return (ended_ ? parameter_bytes_ / tensors * kept : parameter_bytes_) + incoming_bytes_ +
           base_bytes_;
  }
  // Returns the bytes of tensors that have been replaced by newer ones and are still leased.
  int64_t stale_bytes() const;

 private:
  struct Shard {
    OwnedShard info;
    std::shared_ptr<SharedTensor> theta;
    std::vector<std::shared_ptr<SharedTensor>> slots;
    std::shared_ptr<const std::vector<float>> step;             // as EncodedStep
    mutable std::shared_ptr<const std::vector<float>> moments;  // once they were pulled
  };
  // The staged part of one shard of a contribution.
  struct StagedShard {
    LogSequence first = 0;    // of its pushes' records
    std::set<PushId> pushes;  // that were taken
    ElementRanges covered;
    Encoding encoding = Encoding::kFloat32;
    SharedBytes payload;         // of the whole shard; elements not covered yet are 0
    std::span<std::byte> parts;  // the same while parts are put together; empty: it came whole
  };
  using StagedKey = std::pair<ContributionId, ShardId>;
  // A shard that is being received, at version_.
  struct Incoming {
    OwnedShard info;
    int64_t placement = 0;
    LogSequence first = 0, last = 0;  // its records
    bool fill = false;
    std::shared_ptr<SharedTensor> theta;
    std::vector<std::shared_ptr<SharedTensor>> slots;
    ElementRanges has_theta;
    std::vector<ElementRanges> has_slots;  // as `slots`

    bool whole() const {
      const ElementRange all{0, info.elements};
      return has_theta.Covers(all) &&
             std::all_of(has_slots.begin(), has_slots.end(),
                         [&](const ElementRanges& has) { return has.Covers(all); });
    }
  };

  absl::Status CheckRecord(const AssignedRecord& record) const;
  absl::Status CheckRecord(const FencedRecord& record) const;
  absl::Status CheckRecord(const PushedRecord& record) const;
  absl::Status CheckRecord(const CommittedRecord& record) const;
  absl::Status CheckRecord(const DroppedRecord& record) const;
  absl::Status CheckRecord(const EndedRecord& record) const;
  absl::Status CheckRecord(const JoinedRecord& record) const;
  absl::Status CheckRecord(const ReceivedRecord& record) const;
  absl::Status CheckStep(const CommittedRecord& record) const;
  absl::Status CheckExchange(const CommittedRecord& record) const;
  absl::Status CheckAdopted(const ReceivedRecord& record) const;
  // Checks that its payload is elements of its shard.
  absl::Status CheckPart(const ReceivedRecord& record) const;
  void ApplyRecord(LogSequence sequence, const AssignedRecord& record);
  void ApplyRecord(LogSequence sequence, const FencedRecord& record);
  void ApplyRecord(LogSequence sequence, const PushedRecord& record);
  void ApplyRecord(LogSequence sequence, const CommittedRecord& record);
  void ApplyRecord(LogSequence sequence, const DroppedRecord& record);
  void ApplyRecord(LogSequence sequence, const EndedRecord& record);
  void ApplyRecord(LogSequence sequence, const JoinedRecord& record);
  void ApplyRecord(LogSequence sequence, const ReceivedRecord& record);
  void ChangeLedger(LedgerChange change);
  void ChangeShards(const std::vector<OwnedShard>& shards);
  void DropIncoming(ShardId shard);
  void DropAllIncoming();
  void ReceiveBase(LogSequence sequence, const ReceivedRecord& record);
  void DropBase();
  // Makes one shard's part of the exchange of a round, after its step.
  void ExchangeShard(Shard& shard, const CommittedRecord& round);
  void AdoptBase(Shard& shard, Version version);
  std::shared_ptr<SharedTensor>& GetBase(Shard& shard) const { return shard.slots[slots_ - 2]; }
  std::shared_ptr<SharedTensor>& GetContributed(Shard& shard) const { return shard.slots.back(); }
  bool keeps_average() const { return KeepsAverage(assignment_.definition.spec); }
  size_t average_slot() const { return AverageSlotIndex(assignment_.definition.spec); }
  // REQUIRES: keeps_average(), not ended.
  std::shared_ptr<SharedTensor>& GetAverage(Shard& shard) const {
    return shard.slots[average_slot()];
  }

  // Null unless all of the shard is staged.
  const StagedShard* FindStaged(const ContributionId& contribution, ShardId shard) const;
  void Put(const PushedRecord& record, int64_t elements, StagedShard& staged);
  void Decide(const ContributionId& contribution);
  // Returns whether the round that makes `version` concerns the shard.
  bool HasTurn(Version version, const Shard& shard) const;
  void SetZero(Shard& shard);
  void SetInitial(Shard& shard, const RoundTerm& term);
  // Running statistics, of which a round takes the mean; see LayerSize.
  bool HoldsStatistics(const OwnedShard& shard) const;
  // Pseudo-gradients of a round with their weights, of the contributions that have the shard.
  std::vector<WeightedDelta> WeighTerms(const OwnedShard& shard,
                                        const CommittedRecord& round) const;
  void StepShard(Shard& shard, const CommittedRecord& round);
  void StepAverage(Shard& shard, double keep);
  void StepServed(Shard& shard);
  bool averages_moments() const {
    return assignment_.definition.spec.outer.average_moments_steps > 0;
  }
  size_t ratio_slot() const { return RatioSlotIndex(assignment_.definition.spec); }
  void AverageShard(Shard& shard, const CommittedRecord& round);
  bool serves_apart() const { return IsQuantized(pull_encoding_); }
  absl::Status AddShard(ShardId id, const Shard& shard, GramSum& sum) const;
  void CompareDigests(ShardId id, GramSum& sum) const;
  int64_t CountBytes(const OwnedShard& shard) const;
  void MakeWritable(std::shared_ptr<SharedTensor>& tensor);

  const JobId job_;
  ThreadPool* const pool_;
  PushLedger ledger_;
  std::vector<LedgerChange> ledger_changes_;
  bool assigned_ = false;
  AssignShards assignment_;
  std::unique_ptr<OuterOptimizer> optimizer_;  // of the assignment
  size_t slots_ = 0;                           // as ListServerSlots
  Encoding pull_encoding_ = Encoding::kFloat32;
  int64_t parameter_bytes_ = 0;
  int64_t epoch_ = 0;
  Version version_ = kNoVersion;
  CommittedRecord newest_;
  bool ended_ = false;
  std::map<ShardId, Shard> shards_;
  std::optional<ShardId> stepped_;  // the last one, of a round that is being applied
  std::map<ShardId, Incoming> incoming_;
  int64_t incoming_bytes_ = 0;
  SiteExchange exchange_;
  // The parameters of the job above at base_version_ that have arrived.
  struct IncomingBase {
    LogSequence first = 0, last = 0;  // its records
    std::shared_ptr<SharedTensor> theta;
    ElementRanges has;
  };
  Version base_version_ = kNoVersion;
  std::map<ShardId, IncomingBase> base_;
  int64_t base_bytes_ = 0;
  int64_t placement_ = 0;
  std::map<StagedKey, StagedShard> staged_;
  int64_t staged_bytes_ = 0;
  std::vector<std::weak_ptr<SharedTensor>> replaced_;  // by copies, while readers held them
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_JOB_STATE_H_
