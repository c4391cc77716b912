// Shards that move here from another server, or are filled by an island.

#include <algorithm>
#include <utility>

#include "paramserver/core/core.h"
#include "paramserver/core/turn.h"

namespace atl::ps {
namespace {

int64_t CountBytes(const ReceiveShards& message) {
  int64_t bytes = 0;
  for (const ShardSource& source : message.sources) {
    bytes += (1 + message.slots) * static_cast<int64_t>(sizeof(float)) * source.shard.elements;
  }
  return bytes;
}

// The version of the theta_base that islands fill from.
Version FilledFrom(const ReceiveShards& message) { return message.version - message.fill_age; }

// A user has said that what servers had of these shards is lost.
bool IsGivenUp(const ReceiveShards& message) {
  return std::any_of(message.sources.begin(), message.sources.end(),
                     [](const ShardSource& source) { return source.fill; });
}

}  // namespace

absl::Status ServerCore::MayReceive(const ReceiveShards& message) const {
  AssignShards as_assigned{message.job, {}, 0, 0, 0};
  for (const ShardSource& source : message.sources) as_assigned.shards.push_back(source.shard);
  if (absl::Status status = JobState::Check(as_assigned); !status.ok()) return status;
  if (message.slots > kMaxOuterSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("no outer optimizer has ", message.slots, " slots"));
  }
  if (message.version < 0 || message.newest.version != message.version || message.fill_age < 0 ||
      message.fill_age > message.version) {
    return absl::InvalidArgumentError(
        absl::StrCat("shards of version ", message.version, " cannot be received"));
  }
  const auto found = jobs_.find(message.job);
  if (found == jobs_.end() && jobs_.size() >= kMaxJobs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("server ", options_.name, " holds ", kMaxJobs, " jobs already"));
  }
  if (found != jobs_.end() && found->second.receiving &&
      found->second.receiving->sources == message.sources) {
    return absl::OkStatus();  // some of it has its memory already
  }
  const int64_t held = HeldBytes();
  if (CountBytes(message) <= options_.memory_bytes - held) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("server ", options_.name, " has no room for ", message.sources.size(),
                   " shards that move here: ", CountBytes(message), " bytes are needed, ",
                   options_.memory_bytes - held, " of --memory-bytes are free"));
}

void ServerCore::Execute(const ReceiveShards& message, Turn& turn) {
  if (HasLeft(message.job, message.placement)) return;
  if (const auto found = jobs_.find(message.job); found != jobs_.end()) {
    Job& job = found->second;
    if (job.removing) return;  // requested again when that is done
    if (job.state == nullptr && IsGivenUp(message)) return PutAside(message.job, job, turn);
    if (job.state == nullptr) return Fault(message.job, job.damage, turn);
    if (message.version < job.state->version() || message.placement < job.state->placement() ||
        job.state->ended() || job.committing) {
      return;
    }
  }
  if (const absl::Status status = MayReceive(message); !status.ok()) {
    return Fault(message.job, std::string(status.message()), turn);
  }
  Job& job = jobs_[message.job];
  if (job.state == nullptr) job.state = std::make_unique<JobState>(message.job, pool_);
  JobState& state = *job.state;
  if (state.shards() == 0 &&
      (state.version() != message.version || state.placement() < message.placement)) {
    JoinedRecord record{message.placement,
                        {message.version, message.newest.terms, message.newest.dropped,
                         message.newest.image, message.newest.step},
                        message.decided,
                        message.slots};
    if (absl::Status status = state.Check(LogRecord(record)); !status.ok()) {
      return Fault(message.job, std::string(status.message()), turn);
    }
    const LogSequence sequence = Append(message.job, job, record, turn);
    state.Apply(sequence, record);
  }
  if (state.version() != message.version) return;  // its rounds come first
  job.receiving = message;
  job.received = 0;  // it reports what has arrived
  std::map<ShardId, int64_t> fills;
  for (const ShardSource& source : message.sources) {
    if (source.fill) fills[source.shard.shard] = source.shard.elements;
  }
  state.ledger()->ExpectFills(FilledFrom(message), std::move(fills));
  gate_->SetLedger(message.job, state.ledger());
  Receive(message.job, job, turn);
}

namespace {

// As in PullRequest.
int32_t SlotToPull(ReceivedPart part) {
  const bool theta = part == ReceivedPart::kParameters || part == ReceivedPart::kAdopted;
  return theta ? kPullTheta : static_cast<int32_t>(SlotOfPart(part)) + 1;
}

}  // namespace

void ServerCore::PutAside(const JobId& id, Job& job, Turn& turn) {
  turn.actions.notes.push_back(absl::StrCat(
      "job ", id,
      ": its damaged folder is put aside, since its shards are to be filled: ", job.damage));
  job = Job();
  job.removing = job.put_aside = true;
  turn.actions.erasures.push_back({id, /*put_aside=*/true});
}

bool ServerCore::Receives(const Job& job) const {
  return job.state != nullptr && job.receiving && !job.committing && !job.state->ended() &&
         job.receiving->version == job.state->version();
}

// Fetches what is missing, says what is whole and durable.
void ServerCore::Receive(const JobId& id, Job& job, Turn& turn) {
  job.next_fetch = kNever;
  if (!Receives(job)) return job.receiving.reset();
  ShardsReceived received{id, job.receiving->version, {}};
  for (const ShardSource& source : job.receiving->sources) {
    const auto last =
        job.state->ReceivedWhole(source.shard.shard, job.receiving->placement, source.fill);
    if (last && *last <= job.synced) {
      received.shards.push_back(source.shard.shard);
    } else if (!last && !source.fill && !job.state->HasShard(source.shard.shard)) {
      FetchMissing(id, job, source, turn);
    }
  }
  UpdateRoom();
  if (received.shards.size() == job.received) return;
  job.received = received.shards.size();
  if (!received.shards.empty()) Say(std::move(received), turn);
}

int64_t ServerCore::HeldBytes() const {
  int64_t bytes = 0;
  for (const auto& [id, job] : jobs_) {
    if (job.state != nullptr) bytes += job.state->parameter_bytes() + job.state->staged_bytes();
  }
  return bytes;
}

bool ServerCore::IsFetched(const Fetch& fetch) const {
  return std::any_of(fetches_.begin(), fetches_.end(), [&](const auto& entry) {
    const Fetch& other = entry.second;
    return other.job == fetch.job && other.shard == fetch.shard && other.part == fetch.part &&
           other.range.begin < fetch.range.end && fetch.range.begin < other.range.end;
  });
}

void ServerCore::FetchGaps(Fetch fetch, const std::vector<ElementRange>& gaps,
                           const JobId& from_job, const ShardSource& source, Turn& turn) {
  for (const ElementRange& gap : gaps) {
    for (int64_t begin = gap.begin; begin < gap.end; begin += kPartElements) {
      if (fetches_.size() >= kFetchesAtOnce) return;
      fetch.range = {begin, std::min(begin + kPartElements, gap.end)};
      if (IsFetched(fetch)) continue;
      const Token token = next_transfer_++;
      fetches_[token] = fetch;
      turn.actions.fetches.push_back({token, from_job, fetch.version, fetch.shard.shard,
                                      SlotToPull(fetch.part), fetch.range, source.endpoint,
                                      source.public_key});
    }
  }
}

void ServerCore::FetchMissing(const JobId& id, Job& job, const ShardSource& source, Turn& turn) {
  std::vector<ReceivedPart> parts = {ReceivedPart::kParameters};
  for (size_t i = 0; i < job.state->slots(); ++i) parts.push_back(PartOfSlot(i));
  for (const ReceivedPart part : parts) {
    FetchGaps({id, job.receiving->placement, job.receiving->version, source.shard, part, {}},
              job.state->ListMissingRanges(source.shard, job.receiving->placement, part), id,
              source, turn);
  }
}

void ServerCore::On(const PartFetched& event, Turn& turn) {
  const auto found = fetches_.find(event.token);
  if (found == fetches_.end()) return;
  const Fetch fetch = std::move(fetches_.extract(found).mapped());
  if (fetch.part == ReceivedPart::kAdopted) {
    TakeBase(fetch, event, turn);
  } else {
    TakeReceived(fetch, event, turn);
  }
  // Others wait for the place that it had among kFetchesAtOnce.
  for (auto& [id, job] : jobs_) {
    FetchBaseParts(id, job, turn);
    if (job.receiving && job.next_fetch == kNever) Receive(id, job, turn);
  }
}

void ServerCore::TakeReceived(const Fetch& fetch, const PartFetched& event, Turn& turn) {
  Job* job = Usable(fetch.job);
  if (job == nullptr || !Receives(*job) || job->receiving->version != fetch.version ||
      job->receiving->placement != fetch.placement) {
    return;
  }
  if (!event.status.ok()) {
    turn.actions.notes.push_back(absl::StrCat("job ", fetch.job, ": shard ", fetch.shard.shard,
                                              " does not arrive: ", event.status.message()));
    job->next_fetch = turn.now + kRetryInterval;
    return;
  }
  ReceivedRecord record{fetch.shard, fetch.placement,   fetch.version,
                        fetch.part,  fetch.range.begin, event.payload};
  if (job->state->Check(LogRecord(record)).ok() && job->log_full.empty()) {
    const LogSequence sequence = Append(fetch.job, *job, record, turn);
    job->state->Apply(sequence, record);
  }
  Receive(fetch.job, *job, turn);
}

void ServerCore::TakeFill(const PushArrived& event, Job& job, Turn& turn) {
  const auto refuse = [&](std::string reason) {
    turn.actions.pushes.push_back({event.token, PushStatus::kRefused, std::move(reason)});
  };
  const Verdict verdict = job.state->ledger()->Judge(event.id, event.elements);
  if (verdict.kind == Verdict::kRefuse) return refuse(verdict.reason);
  if (!Receives(job) || FillBase(FilledFrom(*job.receiving)) != event.id.base_version) {
    return refuse("no shard is to be filled now");
  }
  if (event.encoding != Encoding::kFloat32) return refuse("a shard is filled in fp32");
  if (!job.log_full.empty()) return refuse(job.log_full);
  for (const ShardSource& source : job.receiving->sources) {
    if (source.shard.shard != event.id.shard || !source.fill) continue;
    ReceivedRecord record{source.shard,        job.receiving->placement, job.state->version(),
                          ReceivedPart::kFill, event.id.begin,           event.payload};
    if (absl::Status status = job.state->Check(LogRecord(record)); !status.ok()) {
      return refuse(std::string(status.message()));
    }
    const LogSequence sequence = Append(event.id.job, job, record, turn);
    job.state->Apply(sequence, record);
    job.fills[sequence].push_back(event.token);
    return;
  }
  refuse("the shard is not to be filled here");
}

}  // namespace atl::ps
