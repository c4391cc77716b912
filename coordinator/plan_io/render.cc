#include "coordinator/plan_io/render.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace atl {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

const plan::Replica& ReplicaOf(const plan::Plan& plan, const plan::ReplicaOutcome& kind) {
  return plan.layout.replicas[kind.replicas[0]];
}

// "0-4", or "0-4, 29-33" for an entity that holds two stages.
std::string LayersOf(const plan::Replica& replica, const std::vector<int>& stages) {
  std::string text;
  for (const int s : stages) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", replica.stages[s].first_layer, "-",
                    replica.stages[s].last_layer - 1);
  }
  return text;
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

size_t IdleDevices(const plan::Cluster& cluster, const plan::Layout& layout) {
  std::set<int> used;
  for (const plan::Replica& replica : layout.replicas) {
    for (const plan::Stage& stage : replica.stages) {
      used.insert(stage.devices.begin(), stage.devices.end());
    }
  }
  return cluster.devices.size() - used.size();
}

const char* NameOf(sim::OpKind kind) {
  constexpr const char* kNames[] = {"forward", "backward", "weight gradient", "optimizer"};
  return kNames[static_cast<int>(kind)];
}

const char* ColourOf(sim::OpKind kind) {
  constexpr const char* kColours[] = {"#4a90d9", "#57a773", "#c9d86a", "#e07a5f"};
  return kColours[static_cast<int>(kind)];
}

// Ticks below the rows, and what the colours mean.
void AppendScale(double seconds, int left, int width, int y, std::string* svg) {
  constexpr int kTicks = 10;
  for (int i = 0; i <= kTicks; ++i) {
    const int x = left + width * i / kTicks;
    absl::StrAppendFormat(svg,
                          "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#888\"/>"
                          "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.3g s</text>\n",
                          x, y, x, y + 5, x, y + 18, seconds * i / kTicks);
  }
  int x = left;
  for (const sim::OpKind kind : {sim::OpKind::kForward, sim::OpKind::kBackward,
                                 sim::OpKind::kWeight, sim::OpKind::kOptimizer}) {
    absl::StrAppendFormat(svg,
                          "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>"
                          "<text x=\"%d\" y=\"%d\">%s</text>\n",
                          x, y + 30, ColourOf(kind), x + 20, y + 42, NameOf(kind));
    x += 150;
  }
}

}  // namespace

std::string RenderTable(const plan::Cluster& cluster, const plan::Plan& plan) {
  std::string text =
      absl::StrCat(plan::Describe(plan.layout), "; times: ", plan.times_from, "\n\n");
  absl::StrAppendFormat(&text, "%-9s %5s  %-24s %-10s %-14s %17s %6s\n", "replicas", "stage",
                        "devices", "type", "layers", "memory GiB", "busy");
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    const plan::Replica& replica = ReplicaOf(plan, kind);
    const std::vector<std::vector<int>> stages = sim::ChunksOfDevices(kind.problem);
    for (size_t e = 0; e < stages.size(); ++e) {
      const plan::Stage& first = replica.stages[stages[e][0]];
      const sim::DeviceUse& use = kind.found.result.devices[e];
      const double used = static_cast<double>(kind.state_bytes[e] + use.peak_bytes) / kGiB;
      absl::StrAppendFormat(
          &text, "%-9s %5s  %-24s %-10s %-14s %7.1f of %6.1f %5.1f%%\n",
          e == 0 ? absl::StrCat("x", kind.replicas.size()) : "", absl::StrJoin(stages[e], ","),
          DevicesOf(cluster, first), cluster.types[cluster.devices[first.devices[0]].type].name,
          LayersOf(replica, stages[e]), used, static_cast<double>(kind.memory_bytes[e]) / kGiB,
          100.0 * static_cast<double>(use.busy_ns) * 1e-9 / plan.outcome.step_s);
    }
    absl::StrAppendFormat(&text, "%-9s        %d micro-batches, schedule: %s\n", "",
                          replica.micro_batches, kind.found.how);
  }
  const size_t idle = IdleDevices(cluster, plan.layout);
  if (idle > 0) absl::StrAppend(&text, "          ", idle, " devices stay idle\n");
  absl::StrAppendFormat(
      &text,
      "\nstep %.4g s, of it %.4g s of summing gradients that no work hides; this layout takes at "
      "least\n%.4g s (x%.3f), these devices at least %.4g s if nothing were ever sent\n",
      plan.outcome.step_s, plan.outcome.sync_s, plan.outcome.bound_s,
      plan.outcome.step_s / plan.outcome.bound_s, plan.cluster_bound_s);
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
    const std::vector<std::vector<int>> stages = sim::ChunksOfDevices(kind.problem);
    for (size_t s = 0; s < result.timeline.size(); ++s) {
      const std::string name = absl::StrCat("stage ", absl::StrJoin(stages[s], ", "), ": ",
                                            DevicesOf(cluster, replica.stages[stages[s][0]]));
      add(
          absl::StrFormat("{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                          "\"args\":{\"name\":%s}}",
                          k, 2 * s, JsonString(name)));
      for (const sim::OpSpan& span : result.timeline[s]) {
        add(
            absl::StrFormat("{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                            "\"name\":\"%s\",\"args\":{\"micro_batch\":%d,\"stage\":%d}}",
                            k, 2 * s, static_cast<double>(span.start_ns) / 1e3,
                            static_cast<double>(span.end_ns - span.start_ns) / 1e3,
                            NameOf(span.op.kind), span.op.micro_batch, span.op.chunk));
      }
      add(
          absl::StrFormat("{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                          "\"args\":{\"name\":%s}}",
                          k, 2 * s + 1, JsonString(absl::StrCat("messages of ", name))));
    }
    for (const sim::MessageSpan& message : result.messages) {
      add(
          absl::StrFormat("{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                          "\"name\":\"send %s\",\"args\":{\"micro_batch\":%d,\"arrives_us\":%.3f}}",
                          k, 2 * kind.problem.chunks[message.chunk].device + 1,
                          static_cast<double>(message.start_ns) / 1e3,
                          static_cast<double>(message.sent_ns - message.start_ns) / 1e3,
                          message.forward ? "activation" : "gradient", message.micro_batch,
                          static_cast<double>(message.arrive_ns) / 1e3));
    }
  }
  return json + "\n],\"displayTimeUnit\":\"ms\"}\n";
}

std::string RenderSvg(const plan::Cluster& cluster, const plan::Plan& plan) {
  const plan::ReplicaOutcome& kind = plan::SlowestKind(plan.outcome);
  const plan::Replica& replica = ReplicaOf(plan, kind);
  const sim::Result result = Timeline(kind);
  const std::vector<std::vector<int>> stages = sim::ChunksOfDevices(kind.problem);
  constexpr int kLeft = 230;
  constexpr int kWidth = 1400;
  constexpr int kRow = 24;
  constexpr int kTop = 34;
  const double scale = kWidth / static_cast<double>(std::max<sim::Nanos>(1, result.makespan_ns));
  const int bottom = kTop + kRow * static_cast<int>(result.timeline.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n<text x=\"6\" y=\"20\" font-size=\"14\">%s; step %.4g s; %s</text>\n",
      kLeft + kWidth + 40, bottom + 60, XmlText(plan::Describe(plan.layout)), plan.outcome.step_s,
      XmlText(kind.found.how));
  for (size_t e = 0; e < result.timeline.size(); ++e) {
    const int y = kTop + kRow * static_cast<int>(e);
    const plan::Stage& first = replica.stages[stages[e][0]];
    absl::StrAppendFormat(
        &svg, "<text x=\"6\" y=\"%d\">%s</text>\n", y + 15,
        XmlText(absl::StrCat(DevicesOf(cluster, first), ": ", LayersOf(replica, stages[e]))));
    for (const sim::OpSpan& span : result.timeline[e]) {
      // The later of two stages on a device is drawn paler.
      const bool later = span.op.chunk != stages[e][0];
      absl::StrAppendFormat(&svg,
                            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s "
                            "stroke=\"white\" stroke-width=\"0.3\"><title>%s</title></rect>\n",
                            kLeft + static_cast<double>(span.start_ns) * scale, y,
                            static_cast<double>(span.end_ns - span.start_ns) * scale, kRow - 4,
                            ColourOf(span.op.kind), later ? " fill-opacity=\"0.6\"" : "",
                            absl::StrCat(NameOf(span.op.kind), " ", span.op.micro_batch,
                                         " of stage ", span.op.chunk));
    }
  }
  AppendScale(static_cast<double>(result.makespan_ns) * 1e-9, kLeft, kWidth, bottom, &svg);
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace atl
