#include "cli/pictures/step_picture.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atl::cli {
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

namespace {

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

constexpr int kLeft = 230;
constexpr int kWidth = 1400;
constexpr int kTop = 34;
constexpr int kRow = 24;
constexpr int kLinkRow = 12;
constexpr double kLeast = 0.5;  // width of what is too short to be seen
constexpr int kGap = 8;         // between devices, where each has several rows

struct Colour {
  TraceKind kind;
  const char* fill;
  const char* name;
};
constexpr Colour kColours[] = {{TraceKind::kForward, "#4a90d9", "forward"},
                               {TraceKind::kInputGradient, "#57a773", "backward"},
                               {TraceKind::kWeightGradient, "#c9d86a", "weight gradient"},
                               {TraceKind::kOptimizer, "#e07a5f", "optimizer"},
                               {TraceKind::kWait, "#e6e6e6", "waiting for a message"},
                               {TraceKind::kSync, "#9b72b0", "all-reduce"},
                               {TraceKind::kSyncWait, "#cfc0da", "waiting for all-reduces"},
                               {TraceKind::kCommit, "#a8a8a8", "commit"}};

const char* GetFillColour(TraceKind kind) {
  for (const Colour& colour : kColours) {
    if (colour.kind == kind) return colour.fill;
  }
  return "black";
}

constexpr char kIdleFill[] = "#f4f4f4";
constexpr double kLaterStage = 0.6, kMessage = 0.5;  // opacities
constexpr int kLegendWidth = 165;                    // of an entry

// The largest of 1, 2 and 5 times a power of ten that cuts `whole` into at most 10 parts, or the
// smallest that does.
int64_t RoundTick(int64_t whole) {
  constexpr int kMostTicks = 10;
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t tick : {power, 2 * power, 5 * power}) {
      if (whole / tick <= kMostTicks) return tick;
    }
  }
}

// One chart, from `top` of the image on.
class Chart {
 public:
  Chart(const StepChart& chart, int64_t step_ns, int top)
      : views_(chart.views), step_ns_(step_ns), top_(top + kTop), y_(top_) {
    Text(6, top + 20, chart.title, " font-size=\"14\"");
    std::vector<std::string> devices;
    for (const StepView& view : views_) {
      for (const TraceDevice& device : view.trace->devices) {
        if (std::find(devices.begin(), devices.end(), device.device) == devices.end()) {
          devices.push_back(device.device);
        }
      }
    }
    for (const std::string& device : devices) Device(device);
    if (views_.size() > 1) Messages();
    Ends();
    Scale();
    Legend();
  }

  const std::string& svg() const { return svg_; }
  int bottom() const { return y_; }

 private:
  double X(int64_t ns) const {
    return kLeft + static_cast<double>(ns) * kWidth / static_cast<double>(step_ns_);
  }

  void Text(int x, int y, const std::string& text, const char* more = "") {
    absl::StrAppendFormat(&svg_, "<text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, y, more,
                          XmlText(text));
  }

  void Bar(int64_t start_ns, int64_t end_ns, int y, int height, const char* fill, double opacity,
           const std::string& title) {
    absl::StrAppendFormat(&svg_,
                          "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"",
                          X(start_ns), y, std::max(kLeast, X(end_ns) - X(start_ns)), height, fill);
    if (opacity < 1) absl::StrAppendFormat(&svg_, " fill-opacity=\"%.1f\"", opacity);
    absl::StrAppendFormat(&svg_,
                          " stroke=\"white\" stroke-width=\"0.3\"><title>%s, %.3f ms</title>"
                          "</rect>\n",
                          XmlText(title), static_cast<double>(end_ns - start_ns) * 1e-6);
  }

  // Where waiting contains work, the work is drawn over it.
  void Spans(const TraceDevice& device) {
    int32_t first_stage = INT32_MAX;
    for (const TraceSpan& span : device.spans) {
      if (span.kind == TraceKind::kForward) first_stage = std::min(first_stage, span.stage);
    }
    for (const bool waiting : {true, false}) {
      for (const TraceSpan& span : device.spans) {
        if ((span.kind == TraceKind::kWait) != waiting) continue;
        const bool sync = span.kind == TraceKind::kSync;
        const bool compute = span.kind <= TraceKind::kWeightGradient;
        used_.insert(span.kind);
        has_later_stage_ = has_later_stage_ || (compute && span.stage != first_stage);
        Bar(span.start_ns, span.end_ns, sync ? y_ + kRow - 8 : y_, sync ? 4 : kRow - 4,
            GetFillColour(span.kind), compute && span.stage != first_stage ? kLaterStage : 1,
            absl::StrCat(GetDisplayName(span), " ", span.micro_batch, " of stage ", span.stage));
      }
    }
  }

  void Device(const std::string& name) {
    bool labelled = false;
    for (const StepView& view : views_) {
      for (const TraceDevice& device : view.trace->devices) {
        if (device.device != name) continue;
        if (!std::exchange(labelled, true)) Text(6, y_ + 15, MakeDeviceLabel(*view.trace, name));
        Bar(0, view.trace->step_ns, y_, kRow - 4, kIdleFill, 1, "idle");
        Spans(device);
      }
      Row(view, kRow);
    }
    y_ += views_.size() > 1 ? kGap : 0;
  }

  void Row(const StepView& view, int height) {
    if (views_.size() > 1) {
      Text(kLeft - 8, y_ + height - 9 + (height < kRow ? 6 : 0), view.name,
           " text-anchor=\"end\" font-size=\"10\" fill=\"#666\"");
    }
    y_ += height;
  }

  void Messages() {
    std::set<std::pair<std::string, std::string>> stage_links;
    // The links that only one view has cannot be compared: those within a worker.
    for (const auto& [ends, messages] : ByStageLink(*views_.back().trace)) stage_links.insert(ends);
    for (const auto& ends : stage_links) {
      Text(6, y_ + 14, absl::StrCat(ends.first, " > ", ends.second));
      for (const StepView& view : views_) {
        for (const TraceMessage& message : view.trace->messages) {
          if (message.from != ends.first || message.to != ends.second) continue;
          has_messages_ = true;
          Bar(message.start_ns, message.arrive_ns, y_ + 1, kLinkRow - 2,
              GetFillColour(message.gradient ? TraceKind::kInputGradient : TraceKind::kForward),
              kMessage, absl::StrCat(GetDisplayName(message), " ", message.micro_batch));
        }
        Row(view, kLinkRow);
      }
      y_ += kGap;
    }
  }

  // Where each view's step ends.
  void Ends() {
    for (size_t i = 0; views_.size() > 1 && i < views_.size(); ++i) {
      const double x = X(views_[i].trace->step_ns);
      absl::StrAppendFormat(&svg_,
                            "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\" stroke=\"#444\" "
                            "stroke-dasharray=\"%s\"/>\n",
                            x, top_ - 4, x, y_, i == 0 ? "2,3" : "6,2");
    }
  }

  // Ticks below the rows.
  void Scale() {
    const bool short_step = step_ns_ < 1'000'000'000;
    const int64_t tick_ns = RoundTick(step_ns_);
    for (int64_t at_ns = 0; at_ns <= step_ns_; at_ns += tick_ns) {
      const double x = X(at_ns);
      absl::StrAppendFormat(&svg_,
                            "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\" stroke=\"#888\"/>"
                            "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%.6g %s</text>\n",
                            x, y_, x, y_ + 5, x, y_ + 18,
                            static_cast<double>(at_ns) * (short_step ? 1e-6 : 1e-9),
                            short_step ? "ms" : "s");
    }
    y_ += 30;
  }

  // Draws the meaning of the colours.
  void Legend() {
    int x = kLeft;
    const auto entry = [&](const char* fill, double opacity, const std::string& name) {
      if (x + kLegendWidth > kLeft + kWidth) x = kLeft, y_ += 20;
      absl::StrAppendFormat(&svg_,
                            "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\" "
                            "fill-opacity=\"%.1f\"/><text x=\"%d\" y=\"%d\">%s</text>\n",
                            x, y_, fill, opacity, x + 20, y_ + 12, name);
      x += kLegendWidth;
    };
    for (const Colour& colour : kColours) {
      if (used_.count(colour.kind) > 0) entry(colour.fill, 1, colour.name);
    }
    entry(kIdleFill, 1, "idle");
    if (has_later_stage_) {
      entry(GetFillColour(TraceKind::kForward), kLaterStage, "paler: later stage");
    }
    if (has_messages_) {
      entry(GetFillColour(TraceKind::kForward), kMessage, "activation sent");
      entry(GetFillColour(TraceKind::kInputGradient), kMessage, "gradient sent");
    }
    y_ += 20;
    if (views_.size() > 1) {
      Text(kLeft, y_ + 14,
           absl::StrCat("dashed lines: the ends of the steps; ", views_[0].name, " is dotted"));
      y_ += 20;
    }
    y_ += 10;
  }

  const std::vector<StepView>& views_;
  const int64_t step_ns_;
  const int top_;  // of the rows
  int y_;
  std::set<TraceKind> used_;
  bool has_later_stage_ = false, has_messages_ = false;
  std::string svg_;
};

}  // namespace

std::string StepsAsSvg(const std::vector<StepChart>& charts) {
  int64_t step_ns = 1;
  for (const StepChart& chart : charts) {
    for (const StepView& view : chart.views) step_ns = std::max(step_ns, view.trace->step_ns);
  }
  int height = 0;
  std::string svg;
  for (const StepChart& chart : charts) {
    const Chart drawn(chart, step_ns, height);
    svg += drawn.svg();
    height = drawn.bottom();
  }
  return absl::StrFormat(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
             "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" "
             "height=\"100%%\" fill=\"white\"/>\n",
             kLeft + kWidth + 40, height) +
         svg + "</svg>\n";
}

}  // namespace atl::cli
