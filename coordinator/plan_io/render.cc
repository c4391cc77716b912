#include "coordinator/plan_io/render.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atl {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

const plan::Replica& ReplicaOf(const plan::Plan& plan, const plan::ReplicaOutcome& kind) {
  return plan.layout.replicas[kind.replicas[0]];
}

std::string DevicesOf(const plan::Cluster& cluster, const plan::Stage& stage) {
  const plan::Device& first = cluster.devices[stage.devices[0]];
  if (stage.devices.size() == 1) return first.id;
  return absl::StrCat(first.id, " +", stage.devices.size() - 1);
}

// The step of one kind of replica, played again with its timeline.
sim::Result Timeline(const plan::ReplicaOutcome& kind) {
  return sim::SimulateUnchecked(kind.problem, kind.found.schedule, {.record = true});
}

std::string JsonString(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string XmlText(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

const char* NameOf(sim::OpKind kind) {
  constexpr const char* kNames[] = {"forward", "backward", "weight gradient", "optimizer"};
  return kNames[static_cast<int>(kind)];
}

const char* ColourOf(sim::OpKind kind) {
  constexpr const char* kColours[] = {"#4a90d9", "#57a773", "#c9d86a", "#e07a5f"};
  return kColours[static_cast<int>(kind)];
}

}  // namespace

std::string RenderTable(const plan::Cluster& cluster, const plan::Plan& plan) {
  std::string text =
      absl::StrCat(plan::Describe(plan.layout), "; times: ", plan.times_from, "\n\n");
  absl::StrAppendFormat(&text, "%-9s %5s  %-24s %-12s %-9s %17s %6s\n", "replicas", "stage",
                        "devices", "type", "layers", "memory GiB", "busy");
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    const plan::Replica& replica = ReplicaOf(plan, kind);
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const plan::Stage& stage = replica.stages[s];
      const sim::DeviceUse& use = kind.found.result.devices[s];
      const double used = static_cast<double>(kind.state_bytes[s] + use.peak_bytes) / kGiB;
      absl::StrAppendFormat(&text, "%-9s %5d  %-24s %-12s %-9s %7.1f of %6.1f %5.1f%%\n",
                            s == 0 ? absl::StrCat("x", kind.replicas.size()) : "", s,
                            DevicesOf(cluster, stage),
                            cluster.types[cluster.devices[stage.devices[0]].type].name,
                            absl::StrCat(stage.first_layer, "-", stage.last_layer - 1), used,
                            static_cast<double>(kind.memory_bytes[s]) / kGiB,
                            100.0 * static_cast<double>(use.busy_ns) * 1e-9 / plan.outcome.step_s);
    }
    absl::StrAppendFormat(&text, "%-9s        %d micro-batches, schedule: %s\n", "",
                          replica.micro_batches, kind.found.how);
  }
  absl::StrAppendFormat(
      &text,
      "\nstep %.4g s, of it %.4g s gradient synchronisation; this layout takes at "
      "least %.4g s,\nthese devices at least %.4g s if nothing were ever sent\n",
      plan.outcome.step_s, plan.outcome.sync_s, plan.outcome.bound_s, plan.cluster_bound_s);
  if (!plan.alternatives.empty()) absl::StrAppend(&text, "\nwhat lost:\n");
  for (const plan::Alternative& other : plan.alternatives) {
    absl::StrAppendFormat(&text, "  %+6.1f%%  %s%s\n",
                          100 * (other.step_s / plan.outcome.step_s - 1), other.what,
                          other.simulated ? "" : " (estimated)");
  }
  absl::StrAppend(&text, "\n", plan.reason, " (seed ", plan.seed, ")\n");
  return text;
}

std::string RenderTrace(const plan::Cluster& cluster, const plan::Plan& plan) {
  std::string json = "{\"traceEvents\":[";
  bool first = true;
  const auto add = [&](const std::string& event) {
    absl::StrAppend(&json, first ? "\n" : ",\n", event);
    first = false;
  };
  for (size_t k = 0; k < plan.outcome.kinds.size(); ++k) {
    const plan::ReplicaOutcome& kind = plan.outcome.kinds[k];
    const plan::Replica& replica = ReplicaOf(plan, kind);
    add(absl::StrFormat(
        "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"%d replicas\"}}",
        k, kind.replicas.size()));
    const sim::Result result = Timeline(kind);
    for (size_t s = 0; s < result.timeline.size(); ++s) {
      const std::string name =
          absl::StrCat("stage ", s, ": ", DevicesOf(cluster, replica.stages[s]));
      add(
          absl::StrFormat("{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                          "\"args\":{\"name\":%s}}",
                          k, 2 * s, JsonString(name)));
      for (const sim::OpSpan& span : result.timeline[s]) {
        add(
            absl::StrFormat("{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                            "\"name\":\"%s\",\"args\":{\"micro_batch\":%d}}",
                            k, 2 * s, static_cast<double>(span.start_ns) / 1e3,
                            static_cast<double>(span.end_ns - span.start_ns) / 1e3,
                            NameOf(span.op.kind), span.op.micro_batch));
      }
    }
    for (const sim::MessageSpan& message : result.messages) {
      add(
          absl::StrFormat("{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                          "\"name\":\"send %s\",\"args\":{\"micro_batch\":%d,\"arrives_us\":%.3f}}",
                          k, 2 * message.chunk + 1, static_cast<double>(message.start_ns) / 1e3,
                          static_cast<double>(message.sent_ns - message.start_ns) / 1e3,
                          message.forward ? "activation" : "gradient", message.micro_batch,
                          static_cast<double>(message.arrive_ns) / 1e3));
    }
  }
  return json + "\n],\"displayTimeUnit\":\"ms\"}\n";
}

std::string RenderSvg(const plan::Cluster& cluster, const plan::Plan& plan) {
  const plan::ReplicaOutcome* kind = &plan.outcome.kinds[0];
  for (const plan::ReplicaOutcome& other : plan.outcome.kinds) {
    if (other.found.result.makespan_ns > kind->found.result.makespan_ns) kind = &other;
  }
  const plan::Replica& replica = ReplicaOf(plan, *kind);
  const sim::Result result = Timeline(*kind);
  constexpr int kLeft = 170;
  constexpr int kWidth = 1400;
  constexpr int kRow = 24;
  const double scale = kWidth / static_cast<double>(std::max<sim::Nanos>(1, result.makespan_ns));
  const int height = kRow * static_cast<int>(result.timeline.size()) + 50;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n",
      kLeft + kWidth + 20, height);
  for (size_t s = 0; s < result.timeline.size(); ++s) {
    const int y = 10 + kRow * static_cast<int>(s);
    absl::StrAppendFormat(&svg, "<text x=\"6\" y=\"%d\">%s</text>\n", y + 15,
                          XmlText(DevicesOf(cluster, replica.stages[s])));
    for (const sim::OpSpan& span : result.timeline[s]) {
      absl::StrAppendFormat(
          &svg,
          "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"white\" "
          "stroke-width=\"0.3\"><title>%s</title></rect>\n",
          kLeft + static_cast<double>(span.start_ns) * scale, y,
          static_cast<double>(span.end_ns - span.start_ns) * scale, kRow - 4,
          ColourOf(span.op.kind), absl::StrCat(NameOf(span.op.kind), " ", span.op.micro_batch));
    }
  }
  absl::StrAppendFormat(&svg,
                        "<text x=\"%d\" y=\"%d\">0 to %.4g s; forward blue, backward green, "
                        "weight gradient yellow, optimizer red</text>\n</svg>\n",
                        kLeft, height - 14, static_cast<double>(result.makespan_ns) * 1e-9);
  return svg;
}

}  // namespace atl
