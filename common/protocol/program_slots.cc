#include "common/protocol/program_slots.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/check.h"

namespace atl {
namespace {

// Returns whether every B is directly followed by its W, and nothing is ever between two of them.
bool IsFused(const PlanProgram& program, const std::vector<StageSlots>& slots) {
  for (const StageSlots& stage : slots) {
    if (stage.backward > 1) return false;
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const PlanOp& op = program.ops[i];
    if (op.kind != PlanOpKind::kInputGradient) continue;
    if (i + 1 == program.ops.size()) return false;
    const PlanOp& next = program.ops[i + 1];
    if (next.kind != PlanOpKind::kWeightGradient || next.stage != op.stage ||
        next.micro_batch != op.micro_batch) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<StageSlots> ComputeStageSlots(const PlanProgram& program,
                                          const std::vector<int32_t>& stages) {
  std::vector<StageSlots> slots;
  for (const int32_t stage : stages) slots.push_back({stage});
  const auto find = [&](int32_t stage) {
    return std::find_if(slots.begin(), slots.end(),
                        [stage](const StageSlots& s) { return s.stage == stage; });
  };
  std::map<int32_t, std::set<int32_t>> forward, backward;  // by stage: micro-batches
  const auto open = [&](int32_t s, int32_t m, bool back) {
    const auto stage = find(s);
    if (stage == slots.end()) return;  // on another device
    std::set<int32_t>& held = (back ? backward : forward)[s];
    held.insert(m);
    int& most = back ? stage->backward : stage->forward;
    most = std::max(most, static_cast<int>(held.size()));
  };
  for (const PlanOp& op : program.ops) {
    if (op.kind == PlanOpKind::kForward) {
      ATOLL_CHECK(find(op.stage) != slots.end(), program.device, " does not hold stage ", op.stage);
      open(op.stage, op.micro_batch, false);
      open(op.stage + 1, op.micro_batch, false);  // its output is written where that reads it
    } else if (op.kind == PlanOpKind::kInputGradient) {
      open(op.stage, op.micro_batch, true);
      open(op.stage - 1, op.micro_batch, true);
    } else if (op.kind == PlanOpKind::kWeightGradient) {
      forward[op.stage].erase(op.micro_batch);
      backward[op.stage].erase(op.micro_batch);
    }
  }
  const bool fused = IsFused(program, slots);
  for (StageSlots& stage : slots) stage.fused = fused;
  return slots;
}

}  // namespace atl
