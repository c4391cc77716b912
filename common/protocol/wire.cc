#include "common/protocol/wire.h"

#include "common/protocol/outer_optimizer.h"
#include "common/protocol/wire_fields.h"
#include "common/protocol/wire_trace_fields.h"
#include "common/status.h"

namespace atl {

// Not in an unnamed namespace: the visitors find Fields by its arguments' namespace.
inline constexpr int kMaxContributions = 4096;
inline constexpr int64_t kMaxShardElements = int64_t{1} << 42;

template <class V>
void Fields(V& v, Plain<V, PushId>& s, v1::PushId& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_VERSION(base_version);
  ATOLL_WIRE_INT(shard, 0, kMaxShards);
  ATOLL_WIRE_INT(begin, 0, kMaxShardElements);
  ATOLL_WIRE_INT(elements, 0, kMaxShardElements);
}

template <class V>
void Fields(V& v, Plain<V, ClusterMark>& s, v1::ClusterMark& m) {
  ATOLL_WIRE_COPY(cluster);
  ATOLL_WIRE_COUNT(epoch);
  ATOLL_WIRE_COUNT(sequence);
}

template <class V>
void Fields(V& v, Plain<V, Welcome>& s, v1::Welcome& m) {
  ATOLL_WIRE_NS(heartbeat_interval);
  ATOLL_WIRE_NS(lease);
}

template <class V>
void Fields(V& v, Plain<V, Refused>& s, v1::Refused& m) {
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_COPY(final);
}

// ------------------------------------------------------------------------------- workers -------

template <class V>
void Fields(V& v, Plain<V, WorkerHello>& s, v1::WorkerHello& m) {
  ATOLL_WIRE_COPY(software_version);
  ATOLL_WIRE_MESSAGES(devices, 1024);
  ATOLL_WIRE_COPY(peer_endpoint);
  ATOLL_WIRE_COPY(peer_public_key);
  ATOLL_WIRE_COPY(site);
  ATOLL_WIRE_MESSAGE(mark);
  ATOLL_WIRE_VALUES(held, 65536);
  ATOLL_WIRE_VALUES(more_peer_endpoints, kPeerEndpointsMax - 1);
}

template <class V>
void Fields(V& v, Plain<V, WorkerHeartbeat>& s, v1::WorkerHeartbeat& m) {
  ATOLL_WIRE_MAYBE(progress);
  ATOLL_WIRE_MAYBE(member);
  ATOLL_WIRE_MESSAGES(devices, 1024);
  ATOLL_WIRE_MESSAGES(unreachable, 4096);
  ATOLL_WIRE_COPY(measuring);
  ATOLL_WIRE_MESSAGES(sums, 4096);
  ATOLL_WIRE_MESSAGES(round_trips, 4096);
  ATOLL_WIRE_MESSAGES(pull_rates, 1024);
}

template <class V>
void Fields(V& v, Plain<V, JobPrepared>& s, v1::JobPrepared& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGE(facts);
  ATOLL_WIRE_MESSAGES(profiles, 1024);
}

template <class V>
void Fields(V& v, Plain<V, LinksMeasured>& s, v1::LinksMeasured& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(request);
  ATOLL_WIRE_MESSAGES(links, 4096);
  ATOLL_WIRE_COPY(trouble);
  ATOLL_WIRE_MESSAGES(unreachable, 4096);
  ATOLL_WIRE_MESSAGES(unmeasured, 4096);
  ATOLL_WIRE_COPY(probe);
  ATOLL_WIRE_VALUES(reached, 4096);
}

template <class V>
void Fields(V& v, Plain<V, StepTraced>& s, v1::StepTraced& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(request);
  ATOLL_WIRE_COPY(trouble);
  ATOLL_WIRE_MESSAGE(trace);
}

template <class V>
void Fields(V& v, Plain<V, JobRefused>& s, v1::JobRefused& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COPY(reason);
}

template <class V>
void Fields(V& v, Plain<V, LeaseRequest>& s, v1::LeaseRequest& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(request);
  ATOLL_WIRE_COUNT(wanted);
}

template <class V>
void Fields(V& v, Plain<V, PushRequest>& s, v1::PushRequest& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGE(contribution);
  ATOLL_WIRE_COUNT(inner_steps);
  ATOLL_WIRE_COUNT(tokens);
  ATOLL_WIRE_COPY(train_loss);
  ATOLL_WIRE_MESSAGES(consumed, kMaxListLength);
  ATOLL_WIRE_COUNT(masked_tokens);
}

template <class V>
void Fields(V& v, Plain<V, ValidationResult>& s, v1::ValidationResult& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_COPY(loss);
  ATOLL_WIRE_COUNT(tokens);
  ATOLL_WIRE_COPY(accuracy);
  ATOLL_WIRE_MESSAGES(sets, kValidationSetsMax);
}

template <class V>
void Fields(V& v, Plain<V, Leaving>& s, v1::Leaving& m) {
  ATOLL_WIRE_COPY(reason);
}

template <class V>
void Fields(V& v, Plain<V, WorkerLog>& s, v1::WorkerLog& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COPY(text);
}

template <class V>
void Fields(V& v, Plain<V, FromWorker>& s, v1::FromWorker& m) {
  ATOLL_WIRE_COPY(worker);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_CASE(WorkerHello, hello);
  ATOLL_WIRE_CASE(WorkerHeartbeat, heartbeat);
  ATOLL_WIRE_CASE(JobPrepared, job_prepared);
  ATOLL_WIRE_CASE(JobRefused, job_refused);
  ATOLL_WIRE_CASE(LeaseRequest, lease_request);
  ATOLL_WIRE_CASE(PushRequest, push_request);
  ATOLL_WIRE_CASE(ValidationResult, validation_result);
  ATOLL_WIRE_CASE(Leaving, leaving);
  ATOLL_WIRE_CASE(WorkerLog, log);
  ATOLL_WIRE_CASE(LinksMeasured, links_measured);
  ATOLL_WIRE_CASE(StepTraced, step_traced);
}

template <class V>
void Fields(V& v, Plain<V, PrepareJob>& s, v1::PrepareJob& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGE(spec);
}

template <class V>
void Fields(V& v, Plain<V, IslandOrder>& s, v1::IslandOrder& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGE(spec);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(sequence);
  ATOLL_WIRE_ENUM(run, RunState);
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_MESSAGES(layers, kMaxListLength);
  ATOLL_WIRE_MESSAGES(shards, kMaxListLength);
  ATOLL_WIRE_VALUES(pull_order, kMaxListLength);
  ATOLL_WIRE_COPY(initialize);
  ATOLL_WIRE_VERSION(committed_version);
  ATOLL_WIRE_MAYBE(outcome);
  ATOLL_WIRE_COUNT(steps_this_round);
  ATOLL_WIRE_COUNT(tokens_committed);
  ATOLL_WIRE_COUNT(active_islands);
  ATOLL_WIRE_VERSION(validate_version);
  ATOLL_WIRE_MESSAGE(plan);
  ATOLL_WIRE_COPY(at_boundary);
  ATOLL_WIRE_COUNT(author);
  ATOLL_WIRE_COPY(takes_over_from);
  ATOLL_WIRE_COPY(shared);
  ATOLL_WIRE_MAYBE(resume);
}

template <class V>
void Fields(V& v, Plain<V, MemberOrder>& s, v1::MemberOrder& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGE(spec);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(sequence);
  ATOLL_WIRE_ENUM(run, RunState);
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_MESSAGE(plan);
  ATOLL_WIRE_COPY(at_boundary);
}

template <class V>
void Fields(V& v, Plain<V, LeaseGrant>& s, v1::LeaseGrant& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(request);
  ATOLL_WIRE_MESSAGES(ranges, kMaxListLength);
  ATOLL_WIRE_COPY(exhausted);
}

template <class V>
void Fields(V& v, Plain<V, GrantedPush>& s, v1::GrantedPush& m) {
  ATOLL_WIRE_INT(shard, 0, kMaxShards);
  ATOLL_WIRE_INT(begin, 0, kMaxShardElements);
  ATOLL_WIRE_INT(elements, 0, kMaxShardElements);
  ATOLL_WIRE_COPY(sender);
}

template <class V>
void Fields(V& v, Plain<V, PushGrant>& s, v1::PushGrant& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGE(contribution);
  ATOLL_WIRE_MESSAGES(order, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, MeasureLinks>& s, v1::MeasureLinks& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(request);
  ATOLL_WIRE_MESSAGES(members, 4096);
  ATOLL_WIRE_COPY(measurer);
  ATOLL_WIRE_VALUES(to, 4096);
  ATOLL_WIRE_COPY(probe);
  ATOLL_WIRE_COPY(beside);
}

template <class V>
void Fields(V& v, Plain<V, TraceNextStep>& s, v1::TraceNextStep& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(request);
}

template <class V>
void Fields(V& v, Plain<V, ForgetJob>& s, v1::ForgetJob& m) {
  ATOLL_WIRE_COPY(job);
}

template <class V>
void Fields(V& v, Plain<V, FillShards>& s, v1::FillShards& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_MESSAGES(shards, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, ToWorker>& s, v1::ToWorker& m) {
  ATOLL_WIRE_COPY(worker);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_COUNT(epoch);
  ATOLL_WIRE_COPY(cluster);
  ATOLL_WIRE_COUNT(sequence);
  ATOLL_WIRE_CASE(Welcome, welcome);
  ATOLL_WIRE_CASE(Refused, refused);
  ATOLL_WIRE_CASE(PrepareJob, prepare_job);
  ATOLL_WIRE_CASE(IslandOrder, island_order);
  ATOLL_WIRE_CASE(LeaseGrant, lease_grant);
  ATOLL_WIRE_CASE(PushGrant, push_grant);
  ATOLL_WIRE_CASE(MemberOrder, member_order);
  ATOLL_WIRE_CASE(MeasureLinks, measure_links);
  ATOLL_WIRE_CASE(TraceNextStep, trace_next_step);
  ATOLL_WIRE_CASE(ForgetJob, forget_job);
  ATOLL_WIRE_CASE(FillShards, fill_shards);
}

// --------------------------------------------------------------------- parameter servers -------

template <class V>
void Fields(V& v, Plain<V, HeldJob>& s, v1::HeldJob& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_VERSION(version);
  ATOLL_WIRE_VERSION(snapshot_version);
  ATOLL_WIRE_MESSAGES(staged, kMaxListLength);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COPY(ended);
  ATOLL_WIRE_COUNT(placement);
  ATOLL_WIRE_VALUES(shards, kMaxListLength);
  ATOLL_WIRE_VALUES(filled, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, ServerHello>& s, v1::ServerHello& m) {
  ATOLL_WIRE_COPY(software_version);
  ATOLL_WIRE_COPY(endpoint);
  ATOLL_WIRE_COUNT(memory_bytes);
  ATOLL_WIRE_MESSAGES(jobs, 4096);
  ATOLL_WIRE_COPY(public_key);
  ATOLL_WIRE_MESSAGE(mark);
  ATOLL_WIRE_COPY(site);
  ATOLL_WIRE_COPY(site_only);
}

template <class V>
void Fields(V& v, Plain<V, ServerHeartbeat>& s, v1::ServerHeartbeat& m) {
  ATOLL_WIRE_COUNT(parameter_bytes);
  ATOLL_WIRE_COUNT(staged_bytes);
  ATOLL_WIRE_COUNT(log_bytes);
  ATOLL_WIRE_COUNT(received_bytes);
  ATOLL_WIRE_COUNT(sent_bytes);
  ATOLL_WIRE_MESSAGES(jobs, 4096);
}

template <class V>
void Fields(V& v, Plain<V, ShardsAssigned>& s, v1::ShardsAssigned& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COPY(placement);
}

template <class V>
void Fields(V& v, Plain<V, PushStaged>& s, v1::PushStaged& m) {
  ATOLL_WIRE_MESSAGE(push);
}

template <class V>
void Fields(V& v, Plain<V, LayerGram>& s, v1::LayerGram& m) {
  ATOLL_WIRE_INT(layer, 0, kMaxShards);
  ATOLL_WIRE_VALUES(values, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, Statistics>& s, v1::Statistics& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_MESSAGES(contributions, kMaxContributions);
  ATOLL_WIRE_MESSAGES(layers, kMaxListLength);
  ATOLL_WIRE_VALUES(shards, kMaxListLength);
  const int64_t k = m.contributions_size();
  for (const v1::LayerGram& layer : m.layers()) {
    v.Check(layer.values_size() == k * k || layer.values_size() == (k + 1) * (k + 1),
            "a Gram matrix is not square in the contributions");
  }
}

template <class V>
void Fields(V& v, Plain<V, RoundApplied>& s, v1::RoundApplied& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(version);
}

template <class V>
void Fields(V& v, Plain<V, ServerFault>& s, v1::ServerFault& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_COPY(passing);
}

template <class V>
void Fields(V& v, Plain<V, JobRemoved>& s, v1::JobRemoved& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(placement);
}

template <class V>
void Fields(V& v, Plain<V, ShardsReceived>& s, v1::ShardsReceived& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_VALUES(shards, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, JobCharter>& s, v1::JobCharter& m) {
  ATOLL_WIRE_MESSAGE(spec);
  ATOLL_WIRE_MESSAGE(facts);
  ATOLL_WIRE_OPTIONAL_ENUM(extent, IslandScope);
  ATOLL_WIRE_COPY(grouping);
  ATOLL_WIRE_COUNT(placement);
}

template <class V>
void Fields(V& v, Plain<V, IslandAccount>& s, v1::IslandAccount& m) {
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COPY(worker);
  ATOLL_WIRE_COUNT(rounds_accepted);
  ATOLL_WIRE_COUNT(rounds_rejected);
  ATOLL_WIRE_COUNT(tokens_committed);
  ATOLL_WIRE_MESSAGE(penalty);
}

template <class V>
void Fields(V& v, Plain<V, JobImage>& s, v1::JobImage& m) {
  ATOLL_WIRE_COUNT(round);
  ATOLL_WIRE_COUNT(tokens);
  ATOLL_WIRE_COUNT(tokens_committed);
  ATOLL_WIRE_COUNT(plan_generation);
  ATOLL_WIRE_MESSAGES(committed, kMaxListLength);
  ATOLL_WIRE_MESSAGES(islands, kMaxListLength);
  ATOLL_WIRE_VERSION(validated_version);
  ATOLL_WIRE_COPY(validation_loss);
  ATOLL_WIRE_COPY(first_validation_loss);
}

template <class V>
void Fields(V& v, Plain<V, OwnedShard>& s, v1::OwnedShard& m) {
  ATOLL_WIRE_INT(shard, 0, kMaxShards);
  ATOLL_WIRE_INT(layer, 0, kMaxShards);
  ATOLL_WIRE_INT(elements, 0, kMaxElements);
  ATOLL_WIRE_INT(begin, 0, kMaxElements);
}

template <class V>
void Fields(V& v, Plain<V, ForwardTo>& s, v1::ForwardTo& m) {
  ATOLL_WIRE_INT(shard, 0, kMaxShards);
  ATOLL_WIRE_COPY(endpoint);
  ATOLL_WIRE_COPY(public_key);
  ATOLL_WIRE_COUNT(incarnation);
}

template <class V>
void Fields(V& v, Plain<V, AssignShards>& s, v1::AssignShards& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGES(shards, kMaxListLength);
  ATOLL_WIRE_COPY(outer_learning_rate);
  ATOLL_WIRE_COPY(outer_momentum);
  ATOLL_WIRE_COUNT(snapshot_every_rounds);
  ATOLL_WIRE_MESSAGE(charter);
  ATOLL_WIRE_MESSAGES(forwards, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, RoundTerm>& s, v1::RoundTerm& m) {
  ATOLL_WIRE_MESSAGE(contribution);
  ATOLL_WIRE_COPY(weight);
}

template <class V>
void Fields(V& v, Plain<V, CommitRound>& s, v1::CommitRound& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_VERSION(version);
  ATOLL_WIRE_MESSAGES(terms, kMaxContributions);
  ATOLL_WIRE_MESSAGES(dropped, kMaxContributions);
  ATOLL_WIRE_MESSAGE(image);
  ATOLL_WIRE_MESSAGE(step);
}

template <class V>
void Fields(V& v, Plain<V, JobDescribed>& s, v1::JobDescribed& m) {
  ATOLL_WIRE_MESSAGE(held);
  ATOLL_WIRE_MESSAGE(assignment);
  ATOLL_WIRE_MESSAGE(newest);
}

template <class V>
void Fields(V& v, Plain<V, BaseFetched>& s, v1::BaseFetched& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(version);
}

template <class V>
void Fields(V& v, Plain<V, FromServer>& s, v1::FromServer& m) {
  ATOLL_WIRE_COPY(server);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_CASE(ServerHello, hello);
  ATOLL_WIRE_CASE(ServerHeartbeat, heartbeat);
  ATOLL_WIRE_CASE(ShardsAssigned, shards_assigned);
  ATOLL_WIRE_CASE(PushStaged, push_staged);
  ATOLL_WIRE_CASE(Statistics, statistics);
  ATOLL_WIRE_CASE(RoundApplied, round_applied);
  ATOLL_WIRE_CASE(ServerFault, fault);
  ATOLL_WIRE_CASE(JobRemoved, job_removed);
  ATOLL_WIRE_CASE(JobDescribed, job_described);
  ATOLL_WIRE_CASE(ShardsReceived, shards_received);
  ATOLL_WIRE_CASE(BaseFetched, base_fetched);
}

template <class V>
void Fields(V& v, Plain<V, IslandFence>& s, v1::IslandFence& m) {
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(incarnation);
}

template <class V>
void Fields(V& v, Plain<V, FenceIslands>& s, v1::FenceIslands& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGES(islands, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, CollectStatistics>& s, v1::CollectStatistics& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_MESSAGES(contributions, kMaxContributions);
  ATOLL_WIRE_VALUES(shards, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, DropContributions>& s, v1::DropContributions& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_MESSAGES(contributions, kMaxContributions);
  ATOLL_WIRE_COPY(reason);
}

template <class V>
void Fields(V& v, Plain<V, EndJob>& s, v1::EndJob& m) {
  ATOLL_WIRE_COPY(job);
}

template <class V>
void Fields(V& v, Plain<V, RemoveJob>& s, v1::RemoveJob& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(placement);
}

template <class V>
void Fields(V& v, Plain<V, ShardSource>& s, v1::ShardSource& m) {
  ATOLL_WIRE_MESSAGE(shard);
  ATOLL_WIRE_COPY(endpoint);
  ATOLL_WIRE_COPY(public_key);
  ATOLL_WIRE_COPY(fill);
}

template <class V>
void Fields(V& v, Plain<V, ReceiveShards>& s, v1::ReceiveShards& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(placement);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_MESSAGES(sources, kMaxListLength);
  ATOLL_WIRE_MESSAGE(newest);
  ATOLL_WIRE_MESSAGES(decided, kMaxListLength);
  ATOLL_WIRE_INT(slots, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(fill_age);
}

template <class V>
void Fields(V& v, Plain<V, FetchBase>& s, v1::FetchBase& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COPY(from_job);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_MESSAGES(sources, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, PushContribution>& s, v1::PushContribution& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_COPY(to_job);
  ATOLL_WIRE_MESSAGE(contribution);
  ATOLL_WIRE_MESSAGES(targets, kMaxListLength);
  ATOLL_WIRE_MESSAGES(order, kMaxListLength);
}

template <class V>
void Fields(V& v, Plain<V, DescribeJob>& s, v1::DescribeJob& m) {
  ATOLL_WIRE_COPY(job);
}

template <class V>
void Fields(V& v, Plain<V, ToServer>& s, v1::ToServer& m) {
  ATOLL_WIRE_COPY(server);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_COUNT(epoch);
  ATOLL_WIRE_COPY(cluster);
  ATOLL_WIRE_COUNT(sequence);
  ATOLL_WIRE_CASE(Welcome, welcome);
  ATOLL_WIRE_CASE(Refused, refused);
  ATOLL_WIRE_CASE(AssignShards, assign_shards);
  ATOLL_WIRE_CASE(FenceIslands, fence_islands);
  ATOLL_WIRE_CASE(CollectStatistics, collect_statistics);
  ATOLL_WIRE_CASE(CommitRound, commit_round);
  ATOLL_WIRE_CASE(DropContributions, drop_contributions);
  ATOLL_WIRE_CASE(EndJob, end_job);
  ATOLL_WIRE_CASE(RemoveJob, remove_job);
  ATOLL_WIRE_CASE(DescribeJob, describe_job);
  ATOLL_WIRE_CASE(ReceiveShards, receive_shards);
  ATOLL_WIRE_CASE(FetchBase, fetch_base);
  ATOLL_WIRE_CASE(PushContribution, push_contribution);
}

namespace {

template <class S, class M>
void EncodeInto(const S& message, M* wire) {
  Encoder encoder;
  Fields(encoder, message, *wire);
}

template <class S, class M>
absl::StatusOr<S> DecodeFrom(M* wire) {
  S message;
  Decoder decoder;
  Fields(decoder, message, *wire);
  ATOLL_RETURN_IF_ERROR(decoder.status());
  return message;
}

// An envelope: the addressee or sender has a good name, and there is a message in it.
template <class S, class M>
absl::StatusOr<S> DecodeEnvelope(const std::string& name, M* wire) {
  ATOLL_RETURN_IF_ERROR(CheckNodeName(name));
  if (wire->message_case() == M::MESSAGE_NOT_SET) {
    return absl::InvalidArgumentError("message: absent, or of a kind this version does not know");
  }
  return DecodeFrom<S>(wire);
}

}  // namespace

void Encode(const FromWorker& message, v1::FromWorker* wire) { EncodeInto(message, wire); }
void Encode(const ToWorker& message, v1::ToWorker* wire) { EncodeInto(message, wire); }
void Encode(const FromServer& message, v1::FromServer* wire) { EncodeInto(message, wire); }
void Encode(const ToServer& message, v1::ToServer* wire) { EncodeInto(message, wire); }
void Encode(const JobSpec& spec, v1::JobSpec* wire) { EncodeInto(spec, wire); }
void Encode(const DeviceProfile& profile, v1::DeviceProfile* wire) { EncodeInto(profile, wire); }
void Encode(const StepTrace& trace, v1::StepTrace* wire) { EncodeInto(trace, wire); }
void Encode(const JobCharter& charter, v1::JobCharter* wire) { EncodeInto(charter, wire); }
void Encode(const JobImage& image, v1::JobImage* wire) { EncodeInto(image, wire); }
void Encode(const RoundStep& step, v1::RoundStep* wire) { EncodeInto(step, wire); }

absl::StatusOr<FromWorker> Decode(v1::FromWorker* wire) {
  return DecodeEnvelope<FromWorker>(wire->worker(), wire);
}
absl::StatusOr<ToWorker> Decode(v1::ToWorker* wire) {
  return DecodeEnvelope<ToWorker>(wire->worker(), wire);
}
absl::StatusOr<FromServer> Decode(v1::FromServer* wire) {
  return DecodeEnvelope<FromServer>(wire->server(), wire);
}
absl::StatusOr<JobCharter> Decode(v1::JobCharter* wire) { return DecodeFrom<JobCharter>(wire); }
absl::StatusOr<JobImage> Decode(v1::JobImage* wire) { return DecodeFrom<JobImage>(wire); }
absl::StatusOr<RoundStep> Decode(v1::RoundStep* wire) { return DecodeFrom<RoundStep>(wire); }
absl::StatusOr<ToServer> Decode(v1::ToServer* wire) {
  return DecodeEnvelope<ToServer>(wire->server(), wire);
}
namespace {

void FillDefaults(v1::OuterSpec* outer) {
  OuterChoice choice{.merge = outer->merge()};
  if (outer->has_optimizer()) choice.optimizer = outer->optimizer();
  if (outer->has_learning_rate()) choice.learning_rate = outer->learning_rate();
  if (outer->has_momentum()) choice.momentum = outer->momentum();
  choice = WithDefaults(std::move(choice));
  outer->set_optimizer(*choice.optimizer);
  outer->set_learning_rate(*choice.learning_rate);
  outer->set_momentum(*choice.momentum);
}

}  // namespace

absl::StatusOr<JobSpec> Decode(v1::JobSpec* wire) {
  constexpr double kMuonMomentum = 0.95;  // its authors'; InnerSpec has what is usual with SGD
  if (wire->inner().optimizer() == v1::INNER_OPTIMIZER_MUON && !wire->inner().has_momentum()) {
    wire->mutable_inner()->set_momentum(kMuonMomentum);
  }
  FillDefaults(wire->mutable_outer());
  return DecodeFrom<JobSpec>(wire);
}
absl::StatusOr<DeviceProfile> Decode(v1::DeviceProfile* wire) {
  return DecodeFrom<DeviceProfile>(wire);
}
absl::StatusOr<StepTrace> Decode(v1::StepTrace* wire) { return DecodeFrom<StepTrace>(wire); }

absl::Status CheckNodeName(absl::string_view name) {
  bool good = !name.empty() && name.size() <= 63 && name[0] != '-';
  for (const char c : name) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("name \"", name.substr(0, 80),
                   "\": must be at most 63 of a-z, 0-9 and '-', and not begin with '-'"));
}

}  // namespace atl
