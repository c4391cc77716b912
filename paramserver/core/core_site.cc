// What a server of a site exchanges with the servers of the job above: it fetches versions of that
// job, and pushes contributions to it. Versions are in the log before BaseFetched is sent; a
// contribution is made of what the job keeps, part by part, until those servers have all of it.

#include <algorithm>
#include <utility>

#include "paramserver/core/core.h"
#include "paramserver/core/turn.h"

namespace atl::ps {
namespace {

static_assert(ServerCore::kPartElements % kQuantBlock == 0);

bool Exchanges(const CommittedRecord& commit) {
  return commit.step.adopts != kNoVersion || commit.step.contributes;
}

absl::Status CheckOrder(const FetchBase& message, const JobState& state) {
  const OuterSpec& outer = state.assignment().definition.spec.outer;
  if (!state.IsOfSite() || outer.contributes_to != message.from_job || message.version < 0) {
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

void ServerCore::Execute(const FetchBase& message, Turn& turn) {
  Job* job = Usable(message.job);
  if (job == nullptr || job->state->ended()) return;
  if (absl::Status status = CheckOrder(message, *job->state); !status.ok()) {
    return Fault(message.job, std::string(status.message()), turn);
  }
  if (message.version < job->state->newest_base()) return;  // a late one
  job->fetching = message;
  job->next_base = kNever;
  FetchBaseParts(message.job, *job, turn);
}

// Fetches what is missing, or says that all is durable.
void ServerCore::FetchBaseParts(const JobId& id, Job& job, Turn& turn) {
  if (turn.now >= job.next_base) job.next_base = kNever;
  if (!job.fetching || job.state == nullptr) return;
  if (job.state->ended()) return job.fetching.reset();
  // What that round adopts stays until then.
  if (job.committing && job.committing->step.adopts != kNoVersion) return;
  const FetchBase& order = *job.fetching;
  if (const auto last = job.state->HasBase(order.version)) {
    if (*last > job.synced) return;
    Say(BaseFetched{id, order.version}, turn);
    return job.fetching.reset();
  }
  if (job.next_base != kNever) return;
  if (absl::Status status = RoomForBase(job); !status.ok()) {
    const std::string why(status.message());
    if (job.base_trouble != why) Say(ServerFault{id, why, /*passing=*/true}, turn);
    return RetryBase(id, job, why, turn);
  }
  for (const ShardSource& source : order.sources) {
    const ShardId shard = source.shard.shard;
    if (!job.state->HasShard(shard)) continue;
    FetchGaps({id, 0, order.version, source.shard, ReceivedPart::kAdopted, {}},
              job.state->MissingBase(shard, order.version), order.from_job, source, turn);
  }
}

absl::Status ServerCore::RoomForBase(const Job& job) const {
  const int64_t held = HeldBytes();
  const int64_t needed = job.state->BytesToFetchBase(job.fetching->version);
  if (needed <= options_.memory_bytes - held) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "server ", options_.name, " has no room for version ", job.fetching->version, " of job ",
      job.fetching->from_job, ": ", needed, " bytes are needed, ", options_.memory_bytes - held,
      " of --memory-bytes ", options_.memory_bytes, " are free"));
}

void ServerCore::RetryBase(const JobId& id, Job& job, const std::string& why, Turn& turn) {
  job.next_base = turn.now + kRetryInterval;
  if (std::exchange(job.base_trouble, why) == why) return;
  turn.actions.notes.push_back(absl::StrCat("job ", id, ": ", why));
}

void ServerCore::TakeBase(const Fetch& fetch, const PartFetched& event, Turn& turn) {
  Job* job = Usable(fetch.job);
  if (job == nullptr || !job->fetching || job->fetching->version != fetch.version) return;
  if (job->committing && job->committing->step.adopts != kNoVersion) return;
  if (!event.status.ok()) {
    return RetryBase(fetch.job, *job,
                     absl::StrCat("version ", fetch.version, " of job ", job->fetching->from_job,
                                  " does not arrive: ", event.status.message()),
                     turn);
  }
  const ReceivedRecord record{fetch.shard,  0, fetch.version, fetch.part, fetch.range.begin,
                              event.payload};
  absl::Status status = job->state->Check(LogRecord(record));
  if (status.ok() && !job->log_full.empty()) status = absl::UnavailableError(job->log_full);
  if (!status.ok()) return RetryBase(fetch.job, *job, std::string(status.message()), turn);
  job->base_trouble.clear();
  const LogSequence sequence = Append(fetch.job, *job, record, turn);
  job->state->Apply(sequence, record);
  UpdateRoom();
}

void ServerCore::Execute(const PushContribution& message, Turn& turn) {
  Job* job = Usable(message.job);
  if (job == nullptr || job->state->ended()) return;
  const SiteExchange& exchange = job->state->exchange();
  if (!exchange.contributes() || exchange.contributed_at != message.version) return;
  if (job->committing && Exchanges(*job->committing)) return;  // that contribution is over
  if (absl::Status status = CheckOrder(message, *job->state); !status.ok()) {
    return Fault(message.job, std::string(status.message()), turn);
  }
  if (job->contributing && IsSame(job->contributing->order, message) &&
      (!job->contributing->left.empty() || job->contributing->running > 0)) {
    return;
  }
  Contributing& next = *(job->contributing = Contributing());
  next.order = message;
  next.number = next_transfer_++;
  next.left.assign(message.order.begin(), message.order.end());
  for (const ShardSource& target : message.targets) next.targets[target.shard.shard] = target;
  PushContributionParts(message.job, *job, turn);
}

// The first part of what is left, in the order's own words where that is not cut.
GrantedPush ServerCore::NextPart(const Job& job, Contributing& contributing) {
  const GrantedPush push = contributing.left.front();
  contributing.left.pop_front();
  const int64_t size = job.state->Theta(push.shard)->elements();
  const ElementRange range = push.elements == 0
                                 ? ElementRange{0, size}
                                 : ElementRange{push.begin, push.begin + push.elements};
  if (range.size() <= kPartElements) return push;
  contributing.left.push_front(
      {push.shard, range.begin + kPartElements, range.size() - kPartElements, {}});
  return {push.shard, range.begin, kPartElements, {}};
}

void ServerCore::PushContributionParts(const JobId& id, Job& job, Turn& turn) {
  if (!job.contributing) return;
  if (job.state->ended() || (job.committing && Exchanges(*job.committing))) {
    return job.contributing.reset();
  }
  Contributing& contributing = *job.contributing;
  if (turn.now >= contributing.next_try) contributing.next_try = kNever;
  if (contributing.next_try != kNever) return;
  const Encoding encoding = job.state->assignment().definition.spec.outer.push_encoding;
  while (contributing.running < kForwardsAtOnce && !contributing.left.empty()) {
    const GrantedPush part = NextPart(job, contributing);
    const ContributionId& by = contributing.order.contribution;
    const PushId push{contributing.order.to_job, by.island,  by.generation, by.incarnation,
                      by.base_version,           part.shard, part.begin,    part.elements};
    const ElementRange range = push.RangeIn(job.state->Theta(part.shard)->elements());
    auto payload = job.state->Contribution(part.shard, range, encoding);
    if (!payload) continue;  // the shard has left
    const ShardSource& target = contributing.targets.at(part.shard);
    const Token token = next_transfer_++;
    contributed_[token] = {id, contributing.number, part};
    ++contributing.running;
    turn.actions.forwards.push_back({token, push, encoding, range.size(), *std::move(payload),
                                     target.endpoint, target.public_key});
  }
}

void ServerCore::OnContributed(const ContributedPart& part, const absl::Status& status,
                               Turn& turn) {
  Job* job = Usable(part.job);
  if (job == nullptr || !job->contributing || job->contributing->number != part.number) return;
  Contributing& contributing = *job->contributing;
  --contributing.running;
  if (status.ok()) {
    contributing.trouble.clear();
  } else {
    contributing.left.push_back(part.push);
    contributing.next_try = turn.now + kRetryInterval;
    const std::string why(status.message());
    if (std::exchange(contributing.trouble, why) != why) {
      turn.actions.notes.push_back(absl::StrCat("job ", part.job, ": its contribution to job ",
                                                contributing.order.to_job, " cannot be pushed to ",
                                                contributing.targets.at(part.push.shard).endpoint,
                                                " and is retried: ", why));
    }
  }
  PushContributionParts(part.job, *job, turn);
}

}  // namespace atl::ps
