#include "coordinator/wire.h"
#include "proto/coordinator.fields.h"
#include "proto/coordinator.pb.h"

namespace atl {
namespace {

// Views are never read into structs again: what a reader would refuse is shown all the same.
template <class Plain, class Wire>
Wire* Show(const Plain& plain, Wire* wire) {
  Encoder encoder;
  Fields(encoder, plain, *wire);
  return wire;
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

}  // namespace

void EncodeView(const JobSummary& view, v1::JobSummary* wire) { Show(view, wire); }
void EncodeView(const OrphanView& view, v1::Orphan* wire) { Show(view, wire); }
void EncodeView(const ForeignMemberView& view, v1::ForeignMember* wire) { Show(view, wire); }
void EncodeView(const MemberView& view, v1::Member* wire) { Show(view, wire); }

void EncodeView(const JobView& view, v1::Job* wire) {
  Show<JobWithoutDecisions>(view, wire);
  for (const DecisionRecord& decision : view.decisions) Encode(decision, wire->add_decisions());
}

}  // namespace atl
