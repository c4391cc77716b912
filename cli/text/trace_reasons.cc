#include "cli/text/trace_reasons.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/text/trace_text.h"
#include "common/number_text.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/tensor_groups.h"

namespace atl::cli {
namespace {

constexpr double kLeastShare = 0.005;  // of the step: smaller differences are none
constexpr double kClear = 0.1;         // a message's time differs if it does by this share

// Mean times of the messages from one device to another.
struct Messages {
  int64_t count = 0;
  double queued_ns = 0;     // handed over, but not begun
  double travelled_ns = 0;  // from the first byte's departure to the last one's arrival
  double bytes = 0;
};

Messages AverageMessages(const StepTrace& trace, const std::string& from, const std::string& to,
                         bool gradient) {
  Messages mean;
  for (const TraceMessage& message : trace.messages) {
    if (message.from != from || message.to != to || message.gradient != gradient) continue;
    ++mean.count;
    mean.queued_ns += static_cast<double>(message.start_ns - message.ready_ns);
    mean.travelled_ns += static_cast<double>(message.arrive_ns - message.start_ns);
    mean.bytes += static_cast<double>(message.bytes);
  }
  if (mean.count == 0) return mean;
  const auto count = static_cast<double>(mean.count);
  mean.queued_ns /= count;
  mean.travelled_ns /= count;
  mean.bytes /= count;
  return mean;
}

std::string Short(double ns) { return SecondsText(ns * 1e-9); }
std::string Mbit(double bytes_per_s) { return NumberText(bytes_per_s * 8e-6, 3); }

class Comparison {
 public:
  Comparison(const StepTrace& predicted, const StepTrace& measured)
      : predicted_(predicted), measured_(measured) {}

  std::vector<std::string> Largest(size_t most) {
    for (const TraceDevice& device : measured_.devices) {
      if (const TraceDevice* plan = FindDevice(predicted_, device.device)) Compare(device, *plan);
    }
    std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
      return std::abs(a.ns) > std::abs(b.ns);
    });
    std::vector<std::string> lines;
    for (const Found& found : found_) {
      const double share =
          static_cast<double>(std::abs(found.ns)) / static_cast<double>(measured_.step_ns);
      if (share < kLeastShare || lines.size() == most) break;
      lines.push_back(found.line());
    }
    return lines;
  }

 private:
  struct Found {
    int64_t ns = 0;  // measured less predicted
    std::function<std::string()> line;
  };
  using Source = std::pair<int32_t, bool>;  // stage that waits, for a gradient

  static std::string Longer(int64_t ns) {
    return absl::StrCat(Ms(std::abs(ns)), " ms ", ns < 0 ? "shorter" : "longer");
  }

  void Compare(const TraceDevice& device, const TraceDevice& plan) {
    const bool joined = JoinsWeights(device) || JoinsWeights(plan);
    const PartTimes had = ComputePartTimes(predicted_, plan, joined);
    const PartTimes has = ComputePartTimes(measured_, device, joined);
    const auto add = [&](StepPart part, std::function<std::string(int64_t)> line) {
      const int64_t ns = has.of(part) - had.of(part);
      found_.push_back({ns, [&device, ns, line = std::move(line)] {
                          return absl::StrCat(device.device, " ", line(ns));
                        }});
    };
    for (const auto& [part, kind, name] :
         {std::tuple(StepPart::kForward, TraceKind::kForward, "F"),
          std::tuple(StepPart::kBackward, TraceKind::kInputGradient, joined ? "B and W" : "B"),
          std::tuple(StepPart::kWeights, TraceKind::kWeightGradient, "W")}) {
      const int64_t count = Passes(device, kind);
      const int64_t ns = has.of(part), planned_ns = had.of(part);
      add(part, [=, name = name](int64_t difference) {
        return absl::StrCat("computes ", name, " ", Longer(difference), ": ",
                            Short(Each(ns, count)), " a micro-batch, planned ",
                            Short(Each(planned_ns, count)));
      });
    }
    add(StepPart::kOptimizer, [ns = has.of(StepPart::kOptimizer)](int64_t difference) {
      return absl::StrCat("takes its optimizer step ", Longer(difference), ": ", Ms(ns), " ms");
    });
    add(StepPart::kAllReduce, [this, &device](int64_t difference) {
      return absl::StrCat("waits ", Longer(difference),
                          " for its all-reduces: ", DescribeAllReduces(device));
    });
    // The others wait for the last one, too: why that is late is said of what it did.
    if (&device == LastToWork()) {
      add(StepPart::kCommit, [](int64_t difference) {
        return absl::StrCat("is the last one to be done with its work, and waits ",
                            Longer(difference), " for the exchange that commits the step");
      });
    }
    add(StepPart::kOther, [&device](int64_t difference) {
      return absl::StrCat("spends ", Longer(difference),
                          " on what the plan does not count (starting the step, sending, between "
                          "operations); it began ",
                          Ms(device.begin_ns), " ms after the leader's call");
    });
    CompareWaits(device, plan);
  }

  static double Each(int64_t ns, int64_t count) {
    return static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(1, count));
  }

  // Micro-batches with this operation, of all stages.
  static int64_t Passes(const TraceDevice& device, TraceKind kind) {
    std::set<std::pair<int32_t, int32_t>> passes;
    for (const TraceSpan& span : device.spans) {
      if (span.kind == kind) passes.insert({span.stage, span.micro_batch});
    }
    return static_cast<int64_t>(passes.size());
  }

  // By what they wait for. The part that work covers is taken off by ComputePartTimes on a device
  // that has only these waits.
  static std::map<Source, int64_t> Waits(const StepTrace& trace, const TraceDevice& device) {
    std::map<Source, int64_t> waits;
    std::set<Source> sources;
    for (const TraceSpan& span : device.spans) {
      if (span.kind == TraceKind::kWait) sources.insert({span.stage, span.gradient});
    }
    for (const Source& source : sources) {
      TraceDevice only = device;
      std::erase_if(only.spans, [&](const TraceSpan& span) {
        return span.kind == TraceKind::kWait && Source(span.stage, span.gradient) != source;
      });
      waits[source] = ComputePartTimes(trace, only, false).of(StepPart::kWait);
    }
    return waits;
  }

  void CompareWaits(const TraceDevice& device, const TraceDevice& plan) {
    std::map<Source, int64_t> difference = Waits(measured_, device);
    for (const auto& [source, ns] : Waits(predicted_, plan)) difference[source] -= ns;
    for (const auto& [source, ns] : difference) {
      found_.push_back({ns, [this, &device, source = source, ns = ns] {
                          return Wait(device.device, source, ns);
                        }});
    }
  }

  // The device whose message it is.
  std::string Sender(const std::string& device, const Source& source) const {
    for (const TraceStage& stage : measured_.stages) {
      const auto rank = std::find(stage.devices.begin(), stage.devices.end(), device);
      if (stage.stage != source.first || rank == stage.devices.end()) continue;
      for (const TraceStage& other : measured_.stages) {
        if (other.replica != stage.replica ||
            other.stage != stage.stage + (source.second ? 1 : -1)) {
          continue;
        }
        if (other.devices.empty()) continue;
        const auto index = static_cast<size_t>(rank - stage.devices.begin());
        return other.devices[SendingRank(index, other.devices.size())];
      }
    }
    return "";
  }

  std::string Wait(const std::string& device, const Source& source, int64_t ns) const {
    const std::string from = Sender(device, source);
    return absl::StrCat(device, " waits ", Longer(ns), " for ",
                        source.second ? "gradients" : "activations", from.empty() ? "" : " from ",
                        from, ": ", WaitReason(device, from, source, ns));
  }

  // A change of every message explains a wait that changed the same way, and by not much more than
  // all of them together.
  static bool Explains(double change_ns, const Messages& messages, int64_t wait_ns) {
    const double all_ns = change_ns * static_cast<double>(messages.count);
    const auto wait = static_cast<double>(wait_ns);
    return all_ns * wait > 0 && std::abs(all_ns) >= kClear * std::abs(wait);
  }

  std::string WaitReason(const std::string& device, const std::string& from, const Source& source,
                         int64_t ns) const {
    const Messages were = AverageMessages(predicted_, from, device, source.second);
    const Messages are = AverageMessages(measured_, from, device, source.second);
    if (were.count > 0 && are.count > 0) {
      const double each = static_cast<double>(were.count) / static_cast<double>(are.count);
      const double planned_ns = were.travelled_ns * each;  // of a chunk
      const double slower_ns = are.travelled_ns - planned_ns;
      if (std::abs(slower_ns) > kClear * planned_ns && Explains(slower_ns, are, ns)) {
        return absl::StrCat("messages take ", Short(are.travelled_ns), ", planned ",
                            Short(planned_ns), Bandwidths(device, from, are));
      }
      if (Explains(are.queued_ns - were.queued_ns, are, ns)) {
        return absl::StrCat("messages wait ", Short(are.queued_ns),
                            " for the link before they leave, planned ", Short(were.queued_ns));
      }
    }
    const std::optional<double> late_ns = Lateness(from, source);
    if (!late_ns || *late_ns * static_cast<double>(ns) <= 0) {
      return "nothing that was measured of them explains it";
    }
    return absl::StrCat("they are made ", Short(std::abs(*late_ns)), " ",
                        *late_ns < 0 ? "earlier" : "later", " than planned");
  }

  // Describes bandwidths: by what is left of a message's time when the link's latency is taken off.
  std::string Bandwidths(const std::string& device, const std::string& from,
                         const Messages& are) const {
    for (const TraceLink& link : predicted_.links) {
      if (link.from != WorkerFromDevice(from) || link.to != WorkerFromDevice(device)) continue;
      const double seconds = (are.travelled_ns - static_cast<double>(link.latency_ns)) * 1e-9;
      if (seconds <= 0) break;
      return absl::StrCat(" (", Mbit(are.bytes / seconds), " Mbit/s over ", link.from, " > ",
                          link.to, ", planned ", Mbit(link.bandwidth_bytes_per_s), ")");
    }
    return "";
  }

  // By how much later than predicted the sender's F or B end, in the mean.
  std::optional<double> Lateness(const std::string& from, const Source& source) const {
    const TraceDevice* made = FindDevice(measured_, from);
    const TraceDevice* planned = FindDevice(predicted_, from);
    if (made == nullptr || planned == nullptr) return std::nullopt;
    const int32_t stage = source.first + (source.second ? 1 : -1);
    const auto ends = [&](const TraceDevice& device) {
      std::map<int32_t, int64_t> by_micro_batch;
      for (const TraceSpan& span : device.spans) {
        const TraceKind kind = source.second ? TraceKind::kInputGradient : TraceKind::kForward;
        if (span.kind != kind || span.stage != stage) continue;
        int64_t& end = by_micro_batch[span.micro_batch];
        end = std::max(end, span.end_ns);
      }
      return by_micro_batch;
    };
    const std::map<int32_t, int64_t> was = ends(*planned);
    double sum = 0;
    int count = 0;
    for (const auto& [micro_batch, end_ns] : ends(*made)) {
      const auto found = was.find(micro_batch);
      if (found == was.end()) continue;
      sum += static_cast<double>(end_ns - found->second);
      ++count;
    }
    if (count == 0) return std::nullopt;
    return sum / count;
  }

  static std::string DescribeAllReduces(const TraceDevice& device) {
    int64_t total_ns = 0, count = 0;
    for (const TraceSpan& span : device.spans) {
      if (span.kind != TraceKind::kSync) continue;
      total_ns += span.end_ns - span.start_ns;
      ++count;
    }
    return absl::StrCat(count, " of them took ", Ms(total_ns), " ms");
  }

  static int64_t WorkedUntil(const TraceDevice& device) {
    int64_t until = 0;
    for (const TraceSpan& span : device.spans) {
      if (span.kind <= TraceKind::kWait || span.kind == TraceKind::kSyncWait) {
        until = std::max(until, span.end_ns);
      }
    }
    return until;
  }

  const TraceDevice* LastToWork() const {
    const TraceDevice* last = nullptr;
    for (const TraceDevice& device : measured_.devices) {
      if (last == nullptr || WorkedUntil(device) > WorkedUntil(*last)) last = &device;
    }
    return last;
  }

  const StepTrace& predicted_;
  const StepTrace& measured_;
  std::vector<Found> found_;
};

}  // namespace

const TraceDevice* FindDevice(const StepTrace& trace, const std::string& device) {
  for (const TraceDevice& candidate : trace.devices) {
    if (candidate.device == device) return &candidate;
  }
  return nullptr;
}

bool JoinsWeights(const TraceDevice& device) {
  return std::any_of(device.spans.begin(), device.spans.end(),
                     [](const TraceSpan& span) { return span.with_weights; });
}

std::string Ms(int64_t ns) { return absl::StrFormat("%.2f", static_cast<double>(ns) * 1e-6); }

std::vector<std::string> Differences(const StepTrace& predicted, const StepTrace& measured,
                                     size_t most) {
  return Comparison(predicted, measured).Largest(most);
}

}  // namespace atl::cli
