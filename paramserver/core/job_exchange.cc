// The exchange of a site's server with the servers of the job above: it fetches versions of that
// job, and pushes contributions to it. Versions are in the log before BaseFetched is sent; a
// contribution is made of what the job keeps, part by part, until those servers have all of it.

#include <algorithm>
#include <utility>

#include "paramserver/core/job_driver.h"

namespace atl::ps {
namespace {

static_assert(JobDriver::kPartElements % kQuantBlock == 0);

bool Exchanges(const CommittedRecord& commit) {
  return commit.step.adopts != kNoVersion || commit.step.contributes;
}

absl::Status CheckOrder(const FetchBase& message, const JobState& state) {
  if (message.from_job.empty() || state.GetAdoptedJob() != message.from_job ||
      message.version < 0) {
    return absl::InvalidArgumentError(absl::StrCat("version ", message.version, " of job ",
                                                   message.from_job,
                                                   " is nothing that the job can adopt"));
  }
  std::set<ShardId> named;
  for (const ShardSource& source : message.sources) named.insert(source.shard.shard);
  for (const OwnedShard& shard : state.assignment().shards) {
    if (named.contains(shard.shard)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "shard ", shard.shard, " of job ", message.from_job, " has no server to fetch it from"));
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(const PushContribution& message, const JobState& state) {
  const OuterSpec& outer = state.assignment().definition.spec.outer;
  if (!state.IsOfSite() || outer.contributes_to != message.to_job) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job does not contribute to job ", message.to_job));
  }
  if (IsQuantized(outer.push_encoding)) {
    return absl::InvalidArgumentError(absl::StrCat("a contribution cannot be pushed as ",
                                                   GetEncodingInfo(outer.push_encoding).name,
                                                   ": a site's servers keep no error feedback"));
  }
  std::set<ShardId> targets;
  for (const ShardSource& target : message.targets) targets.insert(target.shard.shard);
  for (const GrantedPush& push : message.order) {
    const auto theta = state.Theta(push.shard);
    if (theta != nullptr && targets.contains(push.shard) && push.begin >= 0 && push.elements >= 0 &&
        push.elements <= theta->elements() && push.begin <= theta->elements() - push.elements) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("elements ", push.begin, " to ",
                                                   push.begin + push.elements, " of shard ",
                                                   push.shard, " cannot be pushed from here"));
  }
  return absl::OkStatus();
}

bool IsSame(const PushContribution& a, const PushContribution& b) {
  return a.version == b.version && a.contribution == b.contribution && a.targets == b.targets &&
         a.order == b.order;
}

}  // namespace

void JobDriver::Execute(const FetchBase& message, Turn& turn) {
  if (state_->ended()) return;
  if (absl::Status status = CheckOrder(message, *state_); !status.ok()) {
    return turn.Fault(id(), std::string(status.message()));
  }
  if (message.version < state_->newest_base()) return;  // a late one
  fetching_ = message;
  base_retry_.at = kNever;
  FetchBaseParts(turn);
}

// Fetches what is missing, or says that all is durable.
void JobDriver::FetchBaseParts(Turn& turn) {
  const bool waits = base_retry_.Waits(turn.now);
  if (!fetching_) return;
  if (state_->ended()) return fetching_.reset();
  // Parameters that the round adopts stay until then.
  if (committing_ && committing_->step.adopts != kNoVersion) return;
  const FetchBase& order = *fetching_;
  if (const auto last = state_->HasBase(order.version)) {
    if (*last > synced_) return;
    turn.Say(BaseFetched{id(), order.version});
    return fetching_.reset();
  }
  if (waits) return;
  if (const absl::Status room =
          server_->CheckFree(state_->BytesToFetchBase(order.version),
                             absl::StrCat("version ", order.version, " of job ", order.from_job));
      !room.ok()) {
    const std::string why(room.message());
    if (base_retry_.Fail(turn.now, why)) turn.Fault(id(), why, /*passing=*/true);
    return;
  }
  for (const ShardSource& source : order.sources) {
    const ShardId shard = source.shard.shard;
    if (!state_->HasShard(shard)) continue;
    FetchGaps({0, order.version, source.shard, ReceivedPart::kAdopted},
              state_->MissingBase(shard, order.version), order.from_job, source, turn);
  }
}

void JobDriver::RetryBase(const std::string& why, Turn& turn) {
  if (base_retry_.Fail(turn.now, why)) turn.Note(id(), why);
}

void JobDriver::TakeBase(const Fetch& fetch, const PartFetched& event, Turn& turn) {
  if (!fetching_ || fetching_->version != fetch.version) return;
  if (committing_ && committing_->step.adopts != kNoVersion) return;
  if (!event.status.ok()) {
    return RetryBase(absl::StrCat("version ", fetch.version, " of job ", fetching_->from_job,
                                  " does not arrive: ", event.status.message()),
                     turn);
  }
  const LogRecord record = ReceivedRecord{
      fetch.shard, 0, fetch.version, fetch.part, 0, fetch.range.begin, event.payload};
  absl::Status status = state_->Check(record);
  if (status.ok() && !log_full_.empty()) status = absl::UnavailableError(log_full_);
  if (!status.ok()) return RetryBase(std::string(status.message()), turn);
  base_retry_.trouble.clear();
  Take(record, turn);
}

void JobDriver::Execute(const PushContribution& message, Turn& turn) {
  if (state_->ended()) return;
  const SiteExchange& exchange = state_->exchange();
  if (!exchange.contributes() || exchange.contributed_at != message.version) return;
  if (committing_ && Exchanges(*committing_)) return;  // that contribution is over
  if (absl::Status status = CheckOrder(message, *state_); !status.ok()) {
    return turn.Fault(id(), std::string(status.message()));
  }
  if (contributing_ && IsSame(contributing_->order, message) &&
      (!contributing_->left.empty() || contributing_->running > 0)) {
    return;
  }
  Contributing& next = *(contributing_ = Contributing());
  next.order = message;
  next.number = server_->next_transfer++;
  next.left.assign(message.order.begin(), message.order.end());
  for (const ShardSource& target : message.targets) next.targets[target.shard.shard] = target;
  PushContributionParts(turn);
}

// The first part of what is left, in the order's own words where that is not cut.
GrantedPush JobDriver::NextPart() {
  Contributing& contributing = *contributing_;
  const GrantedPush push = contributing.left.front();
  contributing.left.pop_front();
  const int64_t size = state_->Theta(push.shard)->elements();
  const ElementRange range = push.elements == 0
                                 ? ElementRange{0, size}
                                 : ElementRange{push.begin, push.begin + push.elements};
  if (range.size() <= kPartElements) return push;
  contributing.left.push_front(
      {push.shard, range.begin + kPartElements, range.size() - kPartElements, {}});
  return {push.shard, range.begin, kPartElements, {}};
}

void JobDriver::PushContributionParts(Turn& turn) {
  if (!contributing_) return;
  if (state_->ended() || (committing_ && Exchanges(*committing_))) {
    return contributing_.reset();
  }
  Contributing& contributing = *contributing_;
  if (contributing.retry.Waits(turn.now)) return;
  const Encoding encoding = state_->assignment().definition.spec.outer.push_encoding;
  while (contributing.running < kForwardsAtOnce && !contributing.left.empty()) {
    const GrantedPush part = NextPart();
    const ContributionId& by = contributing.order.contribution;
    const PushId push{contributing.order.to_job, by.island,  by.generation, by.incarnation,
                      by.base_version,           part.shard, part.begin,    part.elements};
    const ElementRange range = push.RangeIn(state_->Theta(part.shard)->elements());
    auto payload = state_->Contribution(part.shard, range, encoding);
    if (!payload) continue;  // the shard has left
    const ShardSource& target = contributing.targets.at(part.shard);
    ++contributing.running;
    turn.actions.forwards.push_back(
        {server_->Begin({id(), ContributedPart{contributing.number, part}}), push, encoding,
         range.size(), *std::move(payload), target.endpoint, target.public_key});
  }
}

void JobDriver::OnTransferred(const ContributedPart& part, const PushForwarded& event, Turn& turn) {
  if (!contributing_ || contributing_->number != part.number) return;
  Contributing& contributing = *contributing_;
  --contributing.running;
  if (event.status.ok()) {
    contributing.retry.trouble.clear();
  } else {
    contributing.left.push_back(part.push);
    const std::string why(event.status.message());
    if (contributing.retry.Fail(turn.now, why)) {
      turn.Note(id(), absl::StrCat("its contribution to job ", contributing.order.to_job,
                                   " cannot be pushed to ",
                                   contributing.targets.at(part.push.shard).endpoint,
                                   " and is retried: ", why));
    }
  }
  PushContributionParts(turn);
}

}  // namespace atl::ps
