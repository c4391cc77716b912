#include "common/protocol/wire_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/node_name.h"
#include "common/protocol/position_range.h"
#include "proto/control.pb.h"

namespace atl {

bool IsDeviceName(absl::string_view name) {
  return !name.empty() && name.size() <= 80 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) { return IsNodeLetter(c) || c == '/'; });
}

std::string FaultIn(const v1::DeviceProgram& m) {
  return IsDeviceName(m.device()) ? "" : "a program of a plan names no device";
}

std::string FaultIn(const v1::IslandMember& m) {
  return IsDeviceName(m.worker()) ? "" : "a member of a plan has no name";
}

std::string FaultIn(const v1::PlannedIsland& m) {
  int64_t stages = 0, operations = 0;
  for (const v1::Replica& replica : m.replicas()) stages += replica.stages_size();
  for (const v1::DeviceProgram& program : m.programs()) operations += program.operations_size();
  for (const v1::LinkOrder& order : m.link_orders()) operations += order.messages_size();
  if (stages > kMaxPlanStages) return absl::StrCat("a plan of ", stages, " stages");
  if (operations > kMaxPlanOperations) return absl::StrCat("a plan of ", operations, " operations");
  return "";
}

std::string FaultIn(const v1::PositionRange& m) {
  if (m.begin() > m.end()) return "a range of positions ends before it begins";
  const bool is_on_axis = m.begin() < 0 || m.end() - m.begin() <= kAxisPositions;
  return is_on_axis ? "" : "a range of positions is longer than all data";
}

std::string FaultIn(const v1::Statistics& m) {
  const int64_t k = m.contributions_size();
  for (const v1::LayerGram& layer : m.layers()) {
    if (layer.values_size() != k * k && layer.values_size() != (k + 1) * (k + 1)) {
      return "a Gram matrix is not square in the contributions";
    }
  }
  return "";
}

std::string FaultIn(const v1::StepTrace& m) {
  int64_t entries = m.messages_size();
  for (const v1::TraceDevice& device : m.devices()) entries += device.spans_size();
  if (entries <= kTraceEntriesMax) return "";
  return absl::StrCat("a trace of ", entries, " spans and messages");
}

std::string FaultIn(const v1::TraceDevice& m) {
  return IsDeviceName(m.device()) ? "" : "a device of a trace has no name";
}

std::string FaultIn(const v1::TraceMessage& m) {
  if (!IsDeviceName(m.from()) || !IsDeviceName(m.to())) return "a message has no ends";
  const bool ordered = m.ready_ns() <= m.start_ns() && m.start_ns() <= m.arrive_ns();
  return ordered ? "" : "a message arrives before it leaves";
}

std::string FaultIn(const v1::TraceSpan& m) {
  if (m.start_ns() > m.end_ns()) return "a span ends before it begins";
  return m.chunk() < m.chunks() ? "" : "a chunk that its micro-batch does not have";
}

}  // namespace atl
