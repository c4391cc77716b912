#include "coordinator/wire.h"
#include "proto/coordinator.fields.h"
#include "proto/coordinator.pb.h"

namespace atl {
namespace {

// Views are never read into structs again: what a reader would refuse is shown all the same.
template <class Plain, class Wire>
Wire* Show(const Plain& plain, Wire* wire) {
  MessageWriter encoder;
  Fields(encoder, plain, *wire);
  return wire;
}

}  // namespace

void EncodeView(const JobSummary& view, v1::JobSummary* wire) { Show(view, wire); }
void EncodeView(const OrphanView& view, v1::Orphan* wire) { Show(view, wire); }
void EncodeView(const ForeignMemberView& view, v1::ForeignMember* wire) { Show(view, wire); }
void EncodeView(const MemberView& view, v1::Member* wire) { Show(view, wire); }

void EncodeView(const JobView& view, v1::Job* wire) {
  Show<JobWithoutDecisions>(view, wire);
  for (const DecisionRecord& decision : view.decisions) Show(decision, wire->add_decisions());
}

}  // namespace atl
