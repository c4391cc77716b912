// Shards that move here from another server, or are filled by an island.

#include <algorithm>
#include <utility>

#include "common/protocol/outer_optimizer.h"
#include "paramserver/core/job_driver.h"

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

}  // namespace

bool JobDriver::IsLate(const ReceiveShards& message) const {
  return message.version < state_->version() || message.placement < state_->placement() ||
         state_->ended() || committing_;
}

absl::Status JobDriver::Check(const ReceiveShards& message, const JobDriver* job,
                              const Server& server) {
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
  if (job != nullptr && job->receiving_ && job->receiving_->sources == message.sources) {
    return absl::OkStatus();  // some of it has its memory already
  }
  return server.CheckFree(CountBytes(message),
                          absl::StrCat(message.sources.size(), " shards that move here"));
}

void JobDriver::Execute(const ReceiveShards& message, Turn& turn) {
  const JobState& state = *state_;
  if (state.shards() == 0 &&
      (state.version() != message.version || state.placement() < message.placement)) {
    JoinedRecord record{message.placement,
                        {message.version, message.newest.terms, message.newest.dropped,
                         message.newest.image, message.newest.step},
                        message.decided,
                        message.slots};
    if (absl::Status status = state.Check(LogRecord(record)); !status.ok()) {
      return turn.Fault(id(), std::string(status.message()));
    }
    Take(record, turn);
  }
  if (state.version() != message.version) return;  // its rounds come first
  receiving_ = message;
  received_ = 0;  // it reports what has arrived
  std::map<ShardId, int64_t> fills;
  for (const ShardSource& source : message.sources) {
    if (source.fill) fills[source.shard.shard] = source.shard.elements;
  }
  state_->ExpectFills({FilledFrom(message), std::move(fills)});
  Receive(turn);
}

bool JobDriver::Receives() const {
  return receiving_ && !committing_ && !state_->ended() && receiving_->version == state_->version();
}

// Fetches what is missing, says what is whole and durable.
void JobDriver::Receive(Turn& turn) {
  receive_retry_.at = kNever;
  if (!Receives()) return receiving_.reset();
  ShardsReceived received{id(), receiving_->version, {}};
  for (const ShardSource& source : receiving_->sources) {
    const auto last = state_->ReceivedWhole(source.shard.shard, receiving_->placement, source.fill);
    if (last && *last <= synced_) {
      received.shards.push_back(source.shard.shard);
    } else if (!last && !source.fill && !state_->HasShard(source.shard.shard)) {
      FetchMissing(source, turn);
    }
  }
  if (received.shards.size() == received_) return;
  received_ = received.shards.size();
  if (!received.shards.empty()) turn.Say(std::move(received));
}

bool JobDriver::IsFetched(const Fetch& fetch) const {
  const auto& transfers = server_->transfers;
  return std::any_of(transfers.begin(), transfers.end(), [&](const auto& entry) {
    const Fetch* other = std::get_if<Fetch>(&entry.second.what);
    return other != nullptr && entry.second.job == id() && other->shard == fetch.shard &&
           other->part == fetch.part && other->slot == fetch.slot &&
           other->range.begin < fetch.range.end && fetch.range.begin < other->range.end;
  });
}

void JobDriver::FetchGaps(Fetch fetch, const std::vector<ElementRange>& gaps, const JobId& from_job,
                          const ShardSource& source, Turn& turn) {
  for (const ElementRange& gap : gaps) {
    for (int64_t begin = gap.begin; begin < gap.end; begin += kPartElements) {
      if (server_->Count<Fetch>() >= kFetchesAtOnce) return;
      fetch.range = {begin, std::min(begin + kPartElements, gap.end)};
      if (IsFetched(fetch)) continue;
      const int32_t slot = fetch.part == ReceivedPart::kSlot ? fetch.slot + 1 : kPullTheta;
      turn.actions.fetches.push_back({server_->Begin({id(), fetch}), from_job, fetch.version,
                                      fetch.shard.shard, slot, fetch.range, source.endpoint,
                                      source.public_key});
    }
  }
}

void JobDriver::FetchMissing(const ShardSource& source, Turn& turn) {
  const auto slots = static_cast<int32_t>(state_->slots());
  for (int32_t slot = -1; slot < slots; ++slot) {
    const ReceivedPart part = slot < 0 ? ReceivedPart::kParameters : ReceivedPart::kSlot;
    FetchGaps({receiving_->placement, receiving_->version, source.shard, part, std::max(slot, 0)},
              state_->ListMissingRanges(source.shard, receiving_->placement, part, slot), id(),
              source, turn);
  }
}

void JobDriver::GoOnFetching(Turn& turn) {
  FetchBaseParts(turn);
  if (receiving_ && receive_retry_.at == kNever) Receive(turn);
}

void JobDriver::OnTransferred(const Fetch& fetch, const PartFetched& event, Turn& turn) {
  if (fetch.part == ReceivedPart::kAdopted) return TakeBase(fetch, event, turn);
  if (!Receives() || receiving_->version != fetch.version ||
      receiving_->placement != fetch.placement) {
    return;
  }
  if (!event.status.ok()) {
    const std::string why =
        absl::StrCat("shard ", fetch.shard.shard, " does not arrive: ", event.status.message());
    if (receive_retry_.Fail(turn.now, why)) turn.Note(id(), why);
    return;
  }
  receive_retry_.trouble.clear();
  const LogRecord record = ReceivedRecord{fetch.shard, fetch.placement,   fetch.version, fetch.part,
                                          fetch.slot,  fetch.range.begin, event.payload};
  if (state_->Check(record).ok() && log_full_.empty()) Take(record, turn);
  Receive(turn);
}

void JobDriver::TakeFill(const PushArrived& event, Turn& turn) {
  const auto refuse = [&](std::string reason) { turn.Refuse(event.token, std::move(reason)); };
  const Verdict verdict = state_->ledger().Judge(event.id, event.elements);
  if (verdict.kind == Verdict::kRefuse) return refuse(verdict.reason);
  if (!Receives() || FillBase(FilledFrom(*receiving_)) != event.id.base_version) {
    return refuse("no shard is to be filled now");
  }
  if (event.encoding != Encoding::kFloat32) return refuse("a shard is filled in fp32");
  if (!log_full_.empty()) return refuse(log_full_);
  for (const ShardSource& source : receiving_->sources) {
    if (source.shard.shard != event.id.shard || !source.fill) continue;
    const LogRecord record = ReceivedRecord{
        source.shard,   receiving_->placement, state_->version(), ReceivedPart::kFill, 0,
        event.id.begin, event.payload};
    if (absl::Status status = state_->Check(record); !status.ok()) {
      return refuse(std::string(status.message()));
    }
    fills_[Take(record, turn)].push_back(event.token);
    return;
  }
  refuse("the shard is not to be filled here");
}

}  // namespace atl::ps
