// Handling of the coordinator's orders about a job.

#include <algorithm>
#include <utility>

#include "paramserver/core/job_driver.h"

namespace atl::ps {
namespace {

bool SameAssignment(const AssignShards& a, const AssignShards& b) {
  return a.shards == b.shards && a.outer_learning_rate == b.outer_learning_rate &&
         a.outer_momentum == b.outer_momentum &&
         a.snapshot_every_rounds == b.snapshot_every_rounds && a.definition == b.definition;
}

bool HasTerm(const CommittedRecord& commit, const ContributionId& contribution) {
  return std::any_of(commit.terms.begin(), commit.terms.end(),
                     [&](const RoundTerm& term) { return term.contribution == contribution; });
}

std::vector<ContributionId> ListContributions(const std::vector<RoundTerm>& terms) {
  std::vector<ContributionId> contributions;
  for (const RoundTerm& term : terms) contributions.push_back(term.contribution);
  return contributions;
}

}  // namespace

void JobDriver::Execute(const AssignShards& message, Turn& turn) {
  const JobState& state = *state_;
  const bool changed = !state.assigned() || !SameAssignment(state.assignment(), message);
  // New rates must not get before a round that was logged under the old ones; it comes again.
  if (changed && committing_) return;
  const int64_t epoch = server_->mark.epoch;
  if (!state.ended() && (changed || state.epoch() < epoch)) {
    AssignedRecord record{epoch, message};
    record.assignment.forwards.clear();
    Take(record, turn);
    // The staged pushes of shards that have left are lost, even if the shards come back.
    std::erase_if(announced_,
                  [&](const auto& entry) { return !state.HasShard(entry.first.shard); });
    statistics_.reset();
    gathering_.reset();
    MaybeSnapshot(turn);
  }
  SetForwards(message, turn);
  turn.Say(ShardsAssigned{message.job, message.definition.placement});
}

void JobDriver::Execute(const FenceIslands& message, Turn& turn) {
  FencedRecord record{message.islands};
  if (const absl::Status status = state_->Check(LogRecord(record)); !status.ok()) {
    return turn.Fault(id(), std::string(status.message()));
  }
  const auto before = state_->ledger().Fences();
  state_->Apply(0, record);
  if (state_->ledger().Fences() != before) Append(std::move(record), turn);
}

void JobDriver::Execute(const CollectStatistics& message, Turn& turn) {
  if (state_->ended() || message.version != state_->version() + 1) return;
  Known(message.contributions);
  // A request from before the coordinator dropped one of them.
  const PushLedger& ledger = state_->ledger();
  if (std::any_of(message.contributions.begin(), message.contributions.end(),
                  [&](const ContributionId& id) { return ledger.IsDecided(id); })) {
    return;
  }
  const auto same = [&](Version version, const auto& contributions, const auto& shards) {
    return version == message.version && contributions == message.contributions &&
           shards == message.shards;
  };
  const std::optional<Statistics>& made = statistics_;
  if (made && same(made->version, made->contributions, made->shards)) return turn.Say(*made);
  const std::optional<Gathering>& making = gathering_;
  if (making && same(making->version, making->sum.contributions, making->sum.shards)) return;
  statistics_.reset();
  gathering_ = {message.version, {message.version, message.contributions, message.shards}};
  for (const ContributionParts& of : message.parts) {
    for (const PartDigest& part : of.parts) {
      gathering_->sum.digests[part.shard].emplace_back(of.contribution, part);
    }
  }
}

void JobDriver::Execute(const CommitRound& message, Turn& turn) {
  const Version current = state_->version();
  if (message.version >= 0 && message.version <= current) {
    return turn.Say(RoundApplied{message.job, message.version});
  }
  // A gap: the coordinator sees our version in heartbeats and sends what is missing first.
  if (message.version != current + 1) return;
  if (committing_) {
    if (committing_->terms != message.terms || committing_->step != message.step) {
      turn.Fault(id(), absl::StrCat("two different decisions for round ", message.version,
                                    " have arrived"));
    }
    return;
  }
  Known(ListContributions(message.terms));
  CommittedRecord record{message.version, message.terms, message.dropped, message.image,
                         message.step};
  std::erase_if(record.dropped, [&](const auto& id) { return HasTerm(record, id); });
  if (const absl::Status status = state_->Check(LogRecord(record)); !status.ok()) {
    return turn.Fault(id(), std::string(status.message()));
  }
  gathering_.reset();
  committing_sequence_ = Append(record, turn);
  committing_ = std::move(record);
  PushContributionParts(turn);  // they may be over
}

void JobDriver::Execute(const DropContributions& message, Turn& turn) {
  if (state_->ended()) return;
  DroppedRecord record{message.contributions};
  std::erase_if(record.contributions, [&](const ContributionId& id) {
    return state_->ledger().IsDecided(id) || (committing_ && HasTerm(*committing_, id));
  });
  if (record.contributions.empty()) return;
  Take(record, turn);
  gathering_.reset();  // requested again without them
  Known(record.contributions);
  turn.Note(id(),
            absl::StrCat(record.contributions.size(), " contributions dropped: ", message.reason));
}

void JobDriver::Execute(const EndJob&, Turn& turn) {
  if (state_->ended()) return;
  if (committing_) {
    end_after_commit_ = true;
    return;
  }
  End(turn);
  MaybeSnapshot(turn);
}

void JobDriver::Execute(const DescribeJob&, Turn& turn) const {
  const CommittedRecord& newest = state_->newest();
  turn.Say(JobDescribed{
      Describe(),
      state_->assignment(),
      {id(), newest.version, newest.terms, newest.dropped, newest.image, newest.step}});
}

void JobDriver::End(Turn& turn) {
  gathering_.reset();
  Take(EndedRecord{}, turn);
  announced_.clear();
  next_announcement_ = kNever;
  turn.Note(id(), absl::StrCat("ended at version ", state_->version()));
}

// The coordinator knows these contributions; their staging is not announced again.
void JobDriver::Known(const std::vector<ContributionId>& contributions) {
  std::erase_if(announced_, [&](const auto& entry) {
    return std::find(contributions.begin(), contributions.end(), ToContributionId(entry.first)) !=
           contributions.end();
  });
  if (announced_.empty()) next_announcement_ = kNever;
}

}  // namespace atl::ps
