#include "coordinator/wire.h"

#include "common/check.h"
#include "common/status.h"
#include "coordinator/records.pb.h"
#include "proto/control.fields.h"

// Not in unnamed namespaces: the visitors find Fields by its arguments' namespace.
namespace atl {

template <class V>
void Fields(V& v, Plain<V, EpochRecord>& s, v1::stored::Epoch& m) {
  ATOLL_WIRE_COUNT(epoch);
  ATOLL_WIRE_COPY(cluster);
  ATOLL_WIRE_COUNT(sequence);
  ATOLL_WIRE_COPY(restored);
}

template <class V>
void Fields(V& v, Plain<V, MemberRecord>& s, v1::stored::Member& m) {
  ATOLL_WIRE_ENUM(kind, stored::MemberKind);
  ATOLL_WIRE_COPY(name);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_COPY(site);
  ATOLL_WIRE_COPY(site_source);
  ATOLL_WIRE_COPY(draining);
}

template <class V>
void Fields(V& v, Plain<V, ShardMove>& s, v1::stored::ShardMove& m) {
  ATOLL_WIRE_INT(shard, 0, kMaxShards);
  ATOLL_WIRE_COPY(to);
  ATOLL_WIRE_COPY(fill);
}

template <class V>
void Fields(V& v, Plain<V, RefilledShard>& s, v1::stored::RefilledShard& m) {
  ATOLL_WIRE_INT(shard, 0, kMaxShards);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_COUNT(age);
}

template <class V>
void Fields(V& v, Plain<V, ReleasedServer>& s, v1::stored::ReleasedServer& m) {
  ATOLL_WIRE_COPY(server);
  ATOLL_WIRE_COUNT(placement);
}

template <class V>
void Fields(V& v, Plain<V, SiteFacts>& s, v1::stored::SiteFacts& m) {
  ATOLL_WIRE_COPY(site);
  ATOLL_WIRE_COUNT(train_sequences);
  ATOLL_WIRE_COUNT(validation_sequences);
  ATOLL_WIRE_COPY(data_digest);
}

template <class V>
void Fields(V& v, Plain<V, SiteJob>& s, v1::stored::SiteJob& m) {
  ATOLL_WIRE_COPY(site);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_VERSION(base);
  ATOLL_WIRE_VERSION(based_at);
  ATOLL_WIRE_MAYBE(contribution);
  ATOLL_WIRE_VERSION(contributed_at);
  ATOLL_WIRE_COUNT(generation);
}

template <class V>
void Fields(V& v, Plain<V, JobRecord>& s, v1::stored::Job& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(number);
  ATOLL_WIRE_MESSAGE(spec);
  ATOLL_WIRE_MAYBE(facts);
  ATOLL_WIRE_MESSAGES(shards, kMaxListLength);
  ATOLL_WIRE_COPY(removed);
  ATOLL_WIRE_OPTIONAL_ENUM(extent, IslandScope);
  ATOLL_WIRE_COPY(grouping);
  ATOLL_WIRE_COUNT(placement);
  ATOLL_WIRE_MESSAGES(moves, kMaxListLength);
  ATOLL_WIRE_MESSAGES(releasing, kMaxListLength);
  ATOLL_WIRE_MESSAGES(refilled, kMaxListLength);
  ATOLL_WIRE_COPY(moves_reason);
  ATOLL_WIRE_MESSAGES(copies, kMaxListLength);
  ATOLL_WIRE_MESSAGES(site_facts, kDataSitesMax);
  ATOLL_WIRE_COUNT(fill_version);
  ATOLL_WIRE_COUNT(fill_base);
  ATOLL_WIRE_COPY(lost_update);
  ATOLL_WIRE_MAYBE(site);
}

template <class V>
void Fields(V& v, Plain<V, ProgressRecord>& s, v1::stored::Progress& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_ENUM(state, JobState);
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_COUNT(plan_generation);
  ATOLL_WIRE_VERSION(version);
  ATOLL_WIRE_COUNT(tokens_committed);
  ATOLL_WIRE_COUNT(round);
  ATOLL_WIRE_INT(initializer, -1, kMaxIsland);
  ATOLL_WIRE_VERSION(validate_version);
  ATOLL_WIRE_VALUES(validators, kDataSitesMax);
  ATOLL_WIRE_VERSION(validated_version);
  ATOLL_WIRE_COPY(validation_loss);
  ATOLL_WIRE_COPY(validation_accuracy);
  ATOLL_WIRE_COPY(first_validation_loss);
  ATOLL_WIRE_COPY(validated_final);
  ATOLL_WIRE_COPY(outdated);
  ATOLL_WIRE_COPY(restored);
  ATOLL_WIRE_MESSAGES(validation_sets, kValidationLossesMax);
  ATOLL_WIRE_COUNT(rounds_since);
  ATOLL_WIRE_COUNT(steps_since);
  ATOLL_WIRE_COUNT(masked_since);
  ATOLL_WIRE_COPY(loss_since);
}

template <class V>
void Fields(V& v, Plain<V, IslandRecord>& s, v1::stored::Island& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COPY(worker);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_COPY(ready);
  ATOLL_WIRE_COUNT(steps_this_round);
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_VERSION(last_push_base);
  ATOLL_WIRE_INT(lease_request, -1, kMaxInt);
  ATOLL_WIRE_MESSAGES(lease_ranges, kMaxListLength);
  ATOLL_WIRE_MAYBE(outcome);
  ATOLL_WIRE_COUNT(rounds_accepted);
  ATOLL_WIRE_COUNT(rounds_rejected);
  ATOLL_WIRE_COUNT(tokens_committed);
  ATOLL_WIRE_COUNT(evictions);
  ATOLL_WIRE_MESSAGES(followers, kMaxPlanMembers);
  ATOLL_WIRE_COUNT(plan_number);
  ATOLL_WIRE_COUNT(author);
  ATOLL_WIRE_COPY(takes_over_from);
  ATOLL_WIRE_COUNT(steps_redone);
  ATOLL_WIRE_COUNT(steps_interrupted);
  ATOLL_WIRE_MESSAGES(saved, kSavedStatesMax);
  ATOLL_WIRE_MAYBE(resume);
  ATOLL_WIRE_COPY(site);
}

template <class V>
void Fields(V& v, Plain<V, PlanRecord>& s, v1::stored::IslandPlan& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_MESSAGE(plan);
}

template <class V>
void Fields(V& v, Plain<V, ContributionRecord>& s, v1::stored::Contribution& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGE(contribution);
  ATOLL_WIRE_COUNT(inner_steps);
  ATOLL_WIRE_COUNT(tokens);
  ATOLL_WIRE_COPY(train_loss);
  ATOLL_WIRE_MESSAGES(consumed, kMaxListLength);
  ATOLL_WIRE_COPY(dropped);
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_COUNT(masked_tokens);
}

template <class V>
void Fields(V& v, Plain<V, DecisionParticipant>& s, v1::stored::DecisionParticipant& m) {
  ATOLL_WIRE_MESSAGE(contribution);
  ATOLL_WIRE_COPY(worker);
  ATOLL_WIRE_COUNT(inner_steps);
  ATOLL_WIRE_COUNT(tokens);
  ATOLL_WIRE_COPY(train_loss);
  ATOLL_WIRE_COPY(norm);
  ATOLL_WIRE_COPY(score);
  ATOLL_WIRE_COPY(limit);
  ATOLL_WIRE_COPY(clip);
  ATOLL_WIRE_COPY(weight);
  ATOLL_WIRE_COPY(accepted);
  ATOLL_WIRE_COPY(reason);
}

template <class V>
void Fields(V& v, Plain<V, DecisionRecord>& s, v1::stored::Decision& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(round);
  ATOLL_WIRE_VERSION(version);
  ATOLL_WIRE_VERSION(previous);
  ATOLL_WIRE_MESSAGES(participants, kMaxListLength);
  ATOLL_WIRE_MESSAGES(dropped, kMaxListLength);
  ATOLL_WIRE_VALUES(gram, 1 << 24);
  ATOLL_WIRE_COPY(norm);
  ATOLL_WIRE_COPY(clip_scale);
  ATOLL_WIRE_COUNT(tokens);
  ATOLL_WIRE_COUNT(tokens_committed_after);
  ATOLL_WIRE_INT(opened_by, -1, kMaxIsland);
  ATOLL_WIRE_COPY(closed_because);
  ATOLL_WIRE_MESSAGE(step);
  ATOLL_WIRE_COPY(rho);
  ATOLL_WIRE_COPY(gain);
  ATOLL_WIRE_COPY(cosine);
  ATOLL_WIRE_COPY(staleness);
}

template <class V>
void Fields(V& v, Plain<V, PenaltyRecord>& s, v1::stored::Penalty& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_MESSAGE(state);
}

template <class V>
void Fields(V& v, Plain<V, LedgerRecord>& s, v1::stored::Ledger& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGE(range);
  ATOLL_WIRE_ENUM(use, stored::LedgerUse);
  ATOLL_WIRE_INT(island, -1, kMaxIsland);
  ATOLL_WIRE_MESSAGE(contribution);
}

template <class V>
void Fields(V& v, Plain<V, RemovedRecord>& s, v1::stored::Removed& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(sequence);
}

template <class V>
void Fields(V& v, Plain<V, LinkRecord>& s, v1::stored::LiveLink& m) {
  ATOLL_WIRE_MESSAGE(link);
  ATOLL_WIRE_ANY_INT(unix_time_ms);
}

template <class V>
void Fields(V& v, Plain<V, DeviceRecord>& s, v1::stored::LiveDevice& m) {
  ATOLL_WIRE_COPY(device);
  ATOLL_WIRE_COPY(model_digest);
  ATOLL_WIRE_COPY(factor);
  ATOLL_WIRE_ANY_INT(unix_time_ms);
}

namespace {

// The kinds of record with their field in v1::stored::Record.
template <class V, class Variant>
void RecordFields(V& v, Variant& record, v1::stored::Record& m) {
  struct {
    Variant& message;
  } s{record};
  ATOLL_WIRE_CASE(EpochRecord, epoch);
  ATOLL_WIRE_CASE(MemberRecord, member);
  ATOLL_WIRE_CASE(JobRecord, job);
  ATOLL_WIRE_CASE(ProgressRecord, progress);
  ATOLL_WIRE_CASE(IslandRecord, island);
  ATOLL_WIRE_CASE(ContributionRecord, contribution);
  ATOLL_WIRE_CASE(DecisionRecord, decision);
  ATOLL_WIRE_CASE(PenaltyRecord, penalty);
  ATOLL_WIRE_CASE(LedgerRecord, ledger);
  ATOLL_WIRE_CASE(PlanRecord, plan);
  ATOLL_WIRE_CASE(LinkRecord, link);
  ATOLL_WIRE_CASE(DeviceRecord, device);
  ATOLL_WIRE_CASE(RemovedRecord, removed);
}

}  // namespace

std::string EncodeRecord(const StoreRecord& record) {
  v1::stored::Record wire;
  Encoder encoder;
  RecordFields(encoder, record, wire);
  ATOLL_CHECK(wire.record_case() != v1::stored::Record::RECORD_NOT_SET);
  return wire.SerializeAsString();
}

absl::StatusOr<StoreRecord> DecodeRecord(absl::string_view bytes) {
  v1::stored::Record wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      wire.record_case() == v1::stored::Record::RECORD_NOT_SET) {
    return absl::DataLossError("not a record");
  }
  StoreRecord record;
  Decoder decoder;
  RecordFields(decoder, record, wire);
  ATOLL_RETURN_IF_ERROR(decoder.status());
  return record;
}

}  // namespace atl
