#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/pictures/step_picture.h"

namespace atl::cli {
namespace {

using Json = nlohmann::ordered_json;

double Micros(int64_t ns) { return static_cast<double>(ns) / 1e3; }

class TraceWriter {
 public:
  // `what`: "process" or "thread".
  void Name(const std::string& what, size_t process, size_t thread, const std::string& name) {
    Describe(what + "_name", process, thread, {{"name", name}});
    const size_t sort_index = what == "process" ? process : thread;
    Describe(what + "_sort_index", process, thread, {{"sort_index", sort_index}});
  }
  void Slice(size_t process, size_t thread, int64_t start_ns, int64_t end_ns, const char* category,
             const std::string& name, Json args) {
    events_.push_back({{"ph", "X"},
                       {"pid", process},
                       {"tid", thread},
                       {"ts", Micros(start_ns)},
                       {"dur", Micros(end_ns - start_ns)},
                       {"cat", category},
                       {"name", name},
                       {"args", std::move(args)}});
  }
  std::string Finish() {
    const Json json{{"traceEvents", std::move(events_)}, {"displayTimeUnit", "ms"}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }

 private:
  void Describe(const std::string& name, size_t process, size_t thread, Json args) {
    events_.push_back({{"ph", "M"},
                       {"pid", process},
                       {"tid", thread},
                       {"name", name},
                       {"args", std::move(args)}});
  }

  std::vector<Json> events_;
};

const char* GetCategory(TraceKind kind) {
  switch (kind) {
    case TraceKind::kForward:
    case TraceKind::kInputGradient:
    case TraceKind::kWeightGradient:
    case TraceKind::kOptimizer:
      return "work";
    case TraceKind::kSync:
      return "sum";
    case TraceKind::kWait:
    case TraceKind::kSyncWait:
    case TraceKind::kCommit:
      break;
  }
  return "wait";
}

Json MakeArgs(const TraceSpan& span) {
  Json args{{"micro_batch", span.micro_batch}, {"stage", span.stage}};
  if (span.layer >= 0) args["layer"] = span.layer;
  if (span.chunks > 1) args["chunk"] = span.chunk, args["chunks"] = span.chunks;
  if (span.with_weights) args["with_weights"] = true;
  return args;
}

Json MakeArgs(const TraceMessage& message) {
  Json args{{"micro_batch", message.micro_batch},
            {"stage", message.stage},
            {"bytes", message.bytes},
            {"ready_us", Micros(message.ready_ns)},
            {"arrives_us", Micros(message.arrive_ns)}};
  if (message.chunks > 1) args["chunk"] = message.chunk, args["chunks"] = message.chunks;
  return args;
}

void WriteDevice(size_t process, size_t thread, const StepTrace& trace, const TraceDevice& device,
                 TraceWriter& writer) {
  writer.Name("thread", process, thread, MakeDeviceLabel(trace, device.device));
  bool has_sync = false;
  for (const TraceSpan& span : device.spans) {
    const bool sync = span.kind == TraceKind::kSync;
    if (sync && !std::exchange(has_sync, true)) {
      writer.Name("thread", process, thread + 1, absl::StrCat("all-reduces of ", device.device));
    }
    writer.Slice(process, thread + (sync ? 1 : 0), span.start_ns, span.end_ns,
                 GetCategory(span.kind), GetDisplayName(span), MakeArgs(span));
  }
}

void WriteMessages(size_t process, size_t thread, const std::vector<const TraceMessage*>& messages,
                   TraceWriter& writer) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const TraceMessage& message = *messages[i];
    int64_t end_ns = message.arrive_ns;
    if (i + 1 < messages.size()) end_ns = std::min(end_ns, messages[i + 1]->start_ns);
    writer.Slice(process, thread, message.start_ns, end_ns, "message", GetDisplayName(message),
                 MakeArgs(message));
  }
}

}  // namespace

std::string StepsAsPerfetto(const std::vector<StepView>& views) {
  TraceWriter writer;
  for (size_t p = 0; p < views.size(); ++p) {
    const StepTrace& trace = *views[p].trace;
    writer.Name("process", p, 0, views[p].name);
    size_t thread = 0;
    for (const TraceDevice& device : trace.devices) {
      WriteDevice(p, thread, trace, device, writer);
      thread += 2;
    }
    for (const auto& [ends, messages] : ByStageLink(trace)) {
      writer.Name("thread", p, thread, absl::StrCat(ends.first, " > ", ends.second));
      WriteMessages(p, thread++, messages, writer);
    }
  }
  return writer.Finish();
}

}  // namespace atl::cli
