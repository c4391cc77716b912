#include "common/protocol/wire_visitor.h"
#include "coordinator/plan_io/plan_message.h"
#include "proto/plan.fields.h"

namespace atl {

void EncodePlan(const IslandPlan& plan, v1::PlannedIsland* wire) {
  MessageWriter encoder;
  Fields(encoder, plan, *wire);
}

}  // namespace atl
