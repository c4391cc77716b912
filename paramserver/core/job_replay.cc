#include "paramserver/core/job_replay.h"

#include <utility>

#include "common/status.h"

namespace atl::ps {

JobReplay::JobReplay(JobId job, std::shared_ptr<const Snapshot> snapshot, ThreadPool* pool,
                     Version limit)
    : snapshot_(std::move(snapshot)), limit_(limit) {
  recovered_.job = job;
  if (snapshot_ == nullptr) {
    recovered_.state = std::make_unique<JobState>(std::move(job), pool);
    return;
  }
  auto state = JobState::FromSnapshot(*snapshot_, pool);
  if (!state.ok()) {
    status_ = state.status();
    return;
  }
  recovered_.state = *std::move(state);
  recovered_.next_sequence = snapshot_->replay_from;
  recovered_.snapshot_version = snapshot_->version;
  recovered_.snapshot_replay_from = snapshot_->replay_from;
  recovered_.snapshot_ended = snapshot_->ended;
}

absl::Status JobReplay::Add(LogSequence sequence, const LogRecord& record) {
  if (!status_.ok()) return status_;
  const bool covered = snapshot_ != nullptr && sequence > recovered_.next_sequence &&
                       sequence <= snapshot_->last_sequence + 1;
  if (covered) recovered_.next_sequence = sequence;
  if (sequence != recovered_.next_sequence) {
    return status_ = absl::DataLossError(absl::StrCat("record ", recovered_.next_sequence,
                                                      " is missing; ", sequence, " is next"));
  }
  ++recovered_.next_sequence;
  if (snapshot_ != nullptr && sequence <= snapshot_->last_sequence) {
    // The snapshot contains it, but for the bytes of what was staged or received.
    const auto* push = std::get_if<PushedRecord>(&record);
    const auto* received = std::get_if<ReceivedRecord>(&record);
    const bool staged = push != nullptr && std::binary_search(snapshot_->staged.begin(),
                                                              snapshot_->staged.end(), push->id);
    // Lists the records of a base that no round has adopted and later records do not replace.
    const bool base = received != nullptr && received->part == ReceivedPart::kAdopted;
    const bool incoming =
        received != nullptr &&
        (base ? received->version > snapshot_->exchange.base && recovered_.state->Check(record).ok()
              : received->version == snapshot_->version &&
                    !recovered_.state->HasShard(received->shard.shard));
    if (!staged && !incoming) return absl::OkStatus();
  }
  const auto* commit = std::get_if<CommittedRecord>(&record);
  beyond_ = beyond_ || (commit != nullptr && commit->version > limit_);
  if (beyond_) return absl::OkStatus();
  status_ = Annotate(recovered_.state->Check(record), absl::StrCat("record ", sequence));
  if (status_.ok()) recovered_.state->Apply(sequence, record);
  recovered_.state->TakeLedgerChanges();  // the whole ledger is published
  return status_;
}

absl::StatusOr<RecoveredJob> JobReplay::Finish() && {
  ATOLL_RETURN_IF_ERROR(status_);
  if (snapshot_ != nullptr && recovered_.next_sequence <= snapshot_->last_sequence) {
    return absl::DataLossError(absl::StrCat("the log ends with record ",
                                            recovered_.next_sequence - 1, ", the snapshot with ",
                                            snapshot_->last_sequence));
  }
  const std::vector<PushId> staged = recovered_.state->Staged();
  for (const PushId& id : snapshot_ == nullptr ? std::vector<PushId>() : snapshot_->staged) {
    if (std::binary_search(staged.begin(), staged.end(), id) ||
        !recovered_.state->HasShard(id.shard) ||
        recovered_.state->ledger().IsDecided(ToContributionId(id))) {
      continue;
    }
    return absl::DataLossError(absl::StrCat("the push of shard ", id.shard, " by ",
                                            ContributionText(ToContributionId(id)),
                                            " is not readable, which no round has used yet"));
  }
  for (const PushId& id : staged) recovered_.state->MarkDurable(id);
  recovered_.state->TakeLedgerChanges();
  return std::move(recovered_);
}

}  // namespace atl::ps
