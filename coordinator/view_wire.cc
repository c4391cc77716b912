#include "absl/strings/str_cat.h"
#include "coordinator/wire.h"
#include "proto/control.fields.h"
#include "proto/coordinator.pb.h"

namespace atl {
namespace {

template <class S, class M>
void Encode(const S& s, M* m) {
  Encoder encoder;
  Fields(encoder, s, *m);
}

const char* KindText(MemberKind kind) {
  return kind == MemberKind::kWorker ? "worker" : "paramserver";
}

void Encode(const IslandView& view, v1::Island* m) {
  const IslandRecord& s = view.record;
  m->set_island(s.island);
  m->set_worker(s.site.empty() ? s.worker : absl::StrCat("site ", s.site));
  m->set_generation(s.generation);
  m->set_incarnation(s.incarnation);
  m->set_attached(view.attached);
  m->set_ready(s.ready);
  m->set_activity(view.activity);
  m->set_reason(s.reason);
  if (view.progress) Encode(*view.progress, m->mutable_progress());
  m->set_steps_this_round(s.steps_this_round);
  m->set_rounds_accepted(s.rounds_accepted);
  m->set_rounds_rejected(s.rounds_rejected);
  m->set_tokens_committed(s.tokens_committed);
  m->set_evictions(s.evictions);
  m->set_leased_sequences(view.leased_sequences);
  for (const IslandWorkerView& worker : view.workers) {
    v1::IslandWorker* w = m->add_workers();
    w->set_worker(worker.worker);
    w->set_incarnation(worker.incarnation);
    w->set_leads(worker.leads);
    w->set_in_plan(worker.in_plan);
    w->set_attached(worker.attached);
    w->set_activity(worker.activity);
    w->set_plan_number(worker.plan_number);
  }
  if (view.plan.number != 0) {
    Encode(view.plan, m->mutable_plan());
    m->mutable_plan()->clear_programs();  // thousands of operations, which no client reads
    m->mutable_plan()->clear_link_orders();
  }
  m->set_planning(view.planning);
  for (const PlanChange& change : view.plan_changes) {
    v1::PlanChange* c = m->add_plan_changes();
    c->set_number(change.number);
    c->set_at_step_end(change.at_step_end);
    c->set_reason(change.reason);
  }
  m->set_steps_interrupted(view.steps_interrupted);
  m->set_steps_redone(view.steps_redone);
  m->set_site(s.site);
  m->set_site_job(view.site_job);
}

void Encode(const SiteJob& site, const JobId& above, v1::SiteExchange* m) {
  m->set_site(site.site);
  m->set_job_above(above);
  m->set_island(site.island);
  m->set_base_version(site.base);
  m->set_based_at(site.based_at);
  m->set_contributing(site.contribution.has_value());
  m->set_contributed_at(site.contributed_at);
}

void Encode(const RoundView& s, v1::Round* m) {
  m->set_phase(Name(s.phase));
  m->set_next_version(s.next_version);
  m->set_reason(s.reason);
  m->set_opened_by(s.opened_by);
  m->set_closes_in_s(Seconds(s.closes_in));
  for (const PendingContribution& pending : s.contributions) {
    v1::PendingContribution* c = m->add_contributions();
    c->set_island(pending.record.contribution.island);
    c->set_base_version(pending.record.contribution.base_version);
    c->set_tokens(pending.record.tokens);
    c->set_shards_staged(pending.shards_staged);
    c->set_shards(pending.shards);
  }
}

void Encode(const LedgerView& s, v1::Ledger* m) {
  m->set_budget(s.budget);
  m->set_committed(s.committed);
  m->set_pushed(s.pushed);
  m->set_leased(s.leased);
  m->set_free(s.free);
}

void Encode(const DecisionParticipant& s, v1::Participant* m) {
  m->set_island(s.contribution.island);
  m->set_worker(s.worker);
  m->set_base_version(s.contribution.base_version);
  m->set_generation(s.contribution.generation);
  m->set_incarnation(s.contribution.incarnation);
  m->set_inner_steps(s.inner_steps);
  m->set_tokens(s.tokens);
  m->set_train_loss(s.train_loss);
  m->set_norm(s.norm);
  m->set_score(s.score);
  m->set_limit(s.limit);
  m->set_clip(s.clip);
  m->set_weight(s.weight);
  m->set_accepted(s.accepted);
  m->set_reason(s.reason);
}

void Encode(const DecisionRecord& s, v1::Decision* m) {
  m->set_round(s.round);
  m->set_version(s.version);
  for (const DecisionParticipant& p : s.participants) Encode(p, m->add_participants());
  m->set_norm(s.norm);
  m->set_clip_scale(s.clip_scale);
  m->set_rho(s.rho);
  m->set_gain(s.gain);
  m->set_cosine(s.cosine);
  m->set_staleness(s.staleness);
  m->set_learning_rate(s.step.learning_rate);
  m->set_tokens(s.tokens);
  m->set_tokens_committed_after(s.tokens_committed_after);
  m->set_opened_by(s.opened_by);
  m->set_closed_because(s.closed_because);
}

void Encode(const ServerHeartbeat& s, v1::ServerHeartbeat* m) {
  m->set_parameter_bytes(s.parameter_bytes);
  m->set_staged_bytes(s.staged_bytes);
  m->set_log_bytes(s.log_bytes);
  m->set_received_bytes(s.received_bytes);
  m->set_sent_bytes(s.sent_bytes);
  for (const HeldJob& held : s.jobs) {
    v1::HeldJob* job = m->add_jobs();
    job->set_job(held.job);
    job->set_version(held.version);
    job->set_snapshot_version(held.snapshot_version);
  }
}

}  // namespace

v1::JobSummary* EncodeView(const JobSummary& view, v1::JobSummary* wire) {
  wire->set_job(view.job);
  wire->set_state(static_cast<v1::JobState>(static_cast<int>(view.state) + 1));
  wire->set_reason(view.reason);
  wire->set_waiting_for(view.waiting_for);
  wire->set_version(view.version);
  wire->set_tokens_committed(view.tokens_committed);
  wire->set_tokens_budget(view.tokens_budget);
  wire->set_tokens_per_s(view.tokens_per_s);
  wire->set_train_loss(view.train_loss);
  wire->set_validated_version(view.validated_version);
  wire->set_validation_loss(view.validation_loss);
  wire->set_validation_accuracy(view.validation_accuracy);
  wire->set_first_validation_loss(view.first_validation_loss);
  for (const ValidationLoss& set : view.validation_sets) Encode(set, wire->add_validation_sets());
  wire->set_active_islands(view.active_islands);
  wire->set_contributes_to(view.contributes_to);
  wire->set_token_unit(view.token_unit);
  return wire;
}

void EncodeView(const JobView& view, v1::Job* wire) {
  EncodeView(view.summary, wire->mutable_summary());
  Encode(view.spec, wire->mutable_spec());
  if (view.facts) Encode(*view.facts, wire->mutable_facts());
  for (const ShardPlacement& shard : view.shards) Encode(shard, wire->add_shards());
  for (const ShardPlacement& copy : view.copies) Encode(copy, wire->add_copies());
  wire->set_placement_max_over_mean(view.placement_max_over_mean);
  for (const IslandView& island : view.islands) Encode(island, wire->add_islands());
  Encode(view.round, wire->mutable_round());
  Encode(view.ledger, wire->mutable_ledger());
  for (const DecisionRecord& decision : view.decisions) Encode(decision, wire->add_decisions());
  wire->set_grouping(view.grouping);
  wire->set_moves(view.moves);
  wire->set_placement(view.placement);
  if (view.exchange) {
    Encode(*view.exchange, view.summary.contributes_to, wire->mutable_exchange());
  }
}

void EncodeView(const OrphanView& view, v1::Orphan* wire) {
  wire->set_job(view.job);
  wire->set_version(view.version);
  for (const NodeId& name : view.servers) wire->add_servers(name);
  for (const NodeId& name : view.workers) wire->add_workers(name);
  wire->set_missing(view.missing);
}

void EncodeView(const ForeignMemberView& view, v1::ForeignMember* wire) {
  wire->set_kind(KindText(view.kind));
  wire->set_name(view.name);
  wire->set_cluster(view.cluster);
  wire->set_since_seen_s(Seconds(view.since_seen));
}

void EncodeView(const MemberView& view, v1::Member* wire) {
  wire->set_kind(KindText(view.kind));
  wire->set_name(view.name);
  wire->set_incarnation(view.incarnation);
  wire->set_attached(view.attached);
  wire->set_reason(view.reason);
  wire->set_since_heartbeat_s(Seconds(view.since_heartbeat));
  wire->set_software_version(view.software_version);
  for (const DeviceInfo& device : view.devices) Encode(device, wire->add_devices());
  wire->set_job(view.job);
  wire->set_endpoint(view.endpoint);
  wire->set_memory_bytes(view.memory_bytes);
  wire->set_peer_endpoint(view.peer_endpoint);
  for (const std::string& endpoint : view.more_peer_endpoints) {
    wire->add_more_peer_endpoints(endpoint);
  }
  wire->set_site(view.site);
  wire->set_site_source(view.site_source);
  wire->set_measuring(view.measuring);
  wire->set_public_key(view.public_key);
  wire->set_draining(view.draining);
  wire->set_site_only(view.site_only);
  if (view.kind == MemberKind::kServer) Encode(view.load, wire->mutable_load());
}

}  // namespace atl
