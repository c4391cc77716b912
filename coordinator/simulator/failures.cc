#include "coordinator/simulator/failures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace atl::sim {
namespace {

absl::Status Validate(const Problem& problem, const std::vector<Failure>& failures) {
  for (size_t i = 0; i < failures.size(); ++i) {
    const Failure& failure = failures[i];
    const bool device = failure.what == Failure::What::kDevice;
    const size_t count = device ? problem.devices.size() : problem.network.links.size();
    if (failure.index < 0 || failure.index >= static_cast<int>(count)) {
      return absl::InvalidArgumentError(absl::StrCat("failure ", i, ": there is no ",
                                                     device ? "device " : "link ", failure.index));
    }
    if (failure.at_ns < 0 || failure.back_ns <= failure.at_ns) {
      return absl::InvalidArgumentError(absl::StrCat("failure ", i, ": from ", failure.at_ns,
                                                     " to ", failure.back_ns, " ns is no time"));
    }
  }
  return absl::OkStatus();
}

// Adds the links' failures to their outages.
void AddOutages(const std::vector<Failure>& failures, Network& network) {
  for (const Failure& failure : failures) {
    if (failure.what != Failure::What::kLink) continue;
    network.links[failure.index].outages.push_back({failure.at_ns, failure.back_ns});
  }
  for (Link& link : network.links) JoinOutages(link.outages);
}

// Failures of devices that have work, by the time they happen.
std::vector<Failure> DeviceFailures(const Schedule& schedule,
                                    const std::vector<Failure>& failures) {
  std::vector<Failure> kept;
  for (const Failure& failure : failures) {
    if (failure.what != Failure::What::kDevice || schedule.device_ops[failure.index].empty()) {
      continue;
    }
    kept.push_back(failure);
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Failure& a, const Failure& b) { return a.at_ns < b.at_ns; });
  return kept;
}

// From `start_ns` on, the first moment at which all devices are up and restored.
Nanos AllUp(const std::vector<Failure>& failures, Nanos restore_ns, Nanos start_ns,
            const Failure** never) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const Failure& failure : failures) {
      if (failure.at_ns > start_ns) continue;
      if (failure.back_ns == kForever) {
        *never = &failure;
        return kForever;
      }
      if (failure.back_ns + restore_ns <= start_ns) continue;
      start_ns = failure.back_ns + restore_ns;
      moved = true;
    }
  }
  return start_ns;
}

FailedStep Lost(FailedStep step, const Failure& failure, const FailureRule& rule) {
  step.total_ns = std::max(step.total_ns, failure.at_ns + rule.detect_ns);
  step.failed_device = failure.index;
  step.reason = absl::StrCat("device ", failure.index, " fails at ", failure.at_ns,
                             " ns and never comes back");
  return step;
}

std::string LinksLost(const Network& network) {
  std::string text;
  for (size_t l = 0; l < network.links.size(); ++l) {
    const std::vector<Outage>& outages = network.links[l].outages;
    if (outages.empty() || outages.back().until_ns < kForever) continue;
    absl::StrAppend(&text, "; link ", l, " fails at ", outages.back().from_ns,
                    " ns and never comes back");
  }
  return text;
}

}  // namespace

absl::StatusOr<FailedStep> SimulateWithFailures(const Problem& problem, const Schedule& schedule,
                                                const std::vector<Failure>& failures,
                                                const FailureRule& rule, const Options& options) {
  ATOLL_RETURN_IF_ERROR(Validate(problem));
  ATOLL_RETURN_IF_ERROR(Validate(problem, schedule));
  ATOLL_RETURN_IF_ERROR(Validate(problem, failures));
  Problem here = problem;
  AddOutages(failures, here.network);
  const Network network = here.network;
  const std::vector<Failure> devices = DeviceFailures(schedule, failures);
  FailedStep step;
  Nanos start_ns = 0;
  while (static_cast<int>(step.redone.size()) < rule.attempts_max) {
    const Failure* never = nullptr;
    start_ns = AllUp(devices, rule.restore_ns, start_ns, &never);
    if (never != nullptr) return Lost(std::move(step), *never, rule);
    const auto next = std::find_if(devices.begin(), devices.end(),
                                   [&](const Failure& f) { return f.at_ns > start_ns; });
    here.network = From(start_ns, network);
    Options limited = options;
    if (next != devices.end()) {
      limited.until_ns = std::min(options.until_ns, next->at_ns - start_ns);
    }
    step.last_start_ns = start_ns;
    step.last = SimulateUnchecked(here, schedule, limited);
    if (step.last.verdict != Verdict::kStopped || next == devices.end() ||
        limited.until_ns == options.until_ns) {
      step.done = step.last.verdict == Verdict::kFits || step.last.verdict == Verdict::kOutOfMemory;
      step.total_ns = start_ns + step.last.makespan_ns;
      step.reason = step.last.reason;
      if (step.last.verdict == Verdict::kStuck) step.reason += LinksLost(here.network);
      return step;
    }
    Attempt attempt{start_ns, next->at_ns, next->index, step.last.operations, 0};
    for (const DeviceUse& use : step.last.devices) attempt.busy_ns += use.busy_ns;
    step.redone.push_back(attempt);
    step.total_ns = next->at_ns + rule.detect_ns;
    if (next->back_ns == kForever) return Lost(std::move(step), *next, rule);
    start_ns = std::max(next->at_ns + rule.detect_ns, next->back_ns) + rule.restore_ns;
  }
  step.reason = absl::StrCat("failed after ", rule.attempts_max, " attempts");
  return step;
}

}  // namespace atl::sim
