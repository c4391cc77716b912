#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/plan_io/step_picture.h"

namespace atl {
namespace {

// "0-4", or "0-4, 29-33" for a device that holds two stages.
std::string FormatLayers(const StepTrace& trace, const std::string& device) {
  std::string text;
  for (const TraceStage& stage : trace.stages) {
    if (std::find(stage.devices.begin(), stage.devices.end(), device) == stage.devices.end()) {
      continue;
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", stage.first_layer);
    if (stage.layers > 1) absl::StrAppend(&text, "-", stage.first_layer + stage.layers - 1);
  }
  return text;
}

}  // namespace

std::string GetDisplayName(const TraceSpan& span) {
  switch (span.kind) {
    case TraceKind::kForward:
      return "forward";
    case TraceKind::kInputGradient:
      return span.with_weights ? "backward and weight gradient" : "backward";
    case TraceKind::kWeightGradient:
      return "weight gradient";
    case TraceKind::kWait:
      return span.gradient ? "waiting for a gradient" : "waiting for an activation";
    case TraceKind::kSync:
      return "all-reduce";
    case TraceKind::kSyncWait:
      return "waiting for all-reduces";
    case TraceKind::kCommit:
      return "commit";
    case TraceKind::kOptimizer:
      return "optimizer";
  }
  return "";
}

std::string GetDisplayName(const TraceMessage& message) {
  return message.gradient ? "send gradient" : "send activation";
}

std::string MakeDeviceLabel(const StepTrace& trace, const std::string& device) {
  const std::string layers = FormatLayers(trace, device);
  return layers.empty() ? device : absl::StrCat(device, ": ", layers);
}

std::map<std::pair<std::string, std::string>, std::vector<const TraceMessage*>> ByStageLink(
    const StepTrace& trace) {
  std::map<std::pair<std::string, std::string>, std::vector<const TraceMessage*>> stage_links;
  for (const TraceMessage& message : trace.messages) {
    stage_links[{message.from, message.to}].push_back(&message);
  }
  for (auto& [ends, messages] : stage_links) {
    std::stable_sort(
        messages.begin(), messages.end(),
        [](const TraceMessage* a, const TraceMessage* b) { return a->start_ns < b->start_ns; });
  }
  return stage_links;
}

}  // namespace atl
