#include "cli/text/island_text.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/text/output.h"
#include "cli/text/render.h"
#include "common/bytes_text.h"
#include "common/number_text.h"
#include "common/plural.h"
#include "common/protocol/tensor_groups.h"

namespace atl::cli {
namespace {

// "stage 1 of replica 0, layers 3-5, on b/0; ..." of one worker.
std::string DescribeWorkerStages(const v1::PlannedIsland& plan, const std::string& worker) {
  std::string text;
  for (int r = 0; r < plan.replicas_size(); ++r) {
    for (int s = 0; s < plan.replicas(r).stages_size(); ++s) {
      const v1::Stage& stage = plan.replicas(r).stages(s);
      std::string devices;
      for (const std::string& device : stage.devices()) {
        if (device.rfind(worker + "/", 0) != 0) continue;
        absl::StrAppend(&devices, devices.empty() ? "" : " ", device);
      }
      if (devices.empty()) continue;
      absl::StrAppend(&text, text.empty() ? "" : "; ",
                      plan.replicas_size() > 1 ? absl::StrCat("replica ", r, " ") : "", "stage ", s,
                      ", layers ", stage.first_layer(), "-",
                      stage.first_layer() + stage.layers() - 1, ", on ", devices);
    }
  }
  return text.empty() ? "none" : text;
}

// "1 replica x 2 stages of two halves": a device with two stages of a replica has halves.
std::string DescribeLayout(const v1::PlannedIsland& plan) {
  std::string text = CountText(plan.replicas_size(), "replica");
  size_t least = SIZE_MAX, most = 0, parts = 0;
  for (const v1::Replica& replica : plan.replicas()) {
    std::set<std::string> devices;
    for (const v1::Stage& stage : replica.stages()) {
      if (stage.devices_size() > 0) devices.insert(stage.devices(0));
    }
    least = std::min(least, devices.size());
    most = std::max(most, devices.size());
    parts = std::max(parts, static_cast<size_t>(replica.stages_size()));
  }
  if (most == 0) return text;
  absl::StrAppend(&text, " x ", least == most ? "" : absl::StrCat(least, " to "),
                  CountText(static_cast<int64_t>(most), "stage"),
                  parts > most ? " of two halves" : "");
  return text;
}

// Describes the plan's prediction and what was measured.
std::string DescribePrediction(const v1::Island& island) {
  const v1::PlannedIsland& plan = island.plan();
  const v1::IslandProgress& progress = island.progress();
  const double predicted = 1e-9 * static_cast<double>(plan.step_ns());
  std::string text = absl::StrCat("predicted step ", SecondsText(predicted), ", at least ",
                                  SecondsText(1e-9 * static_cast<double>(plan.bound_ns())));
  if (progress.plan_number() != plan.number()) return text + "; not set up yet";
  const double measured = progress.step_seconds_idle_link();
  if (!(measured > 0) || predicted <= 0) return text + "; not measured yet";
  absl::StrAppend(&text, "; measured ", SecondsText(measured), " (", Fixed(measured / predicted, 1),
                  " times as long)");
  return text;
}

// The plan's layout, and why it was made, clause by clause. The reason may describe the layout,
// too, in more detail, and names the schedule: human-readable output has both once.
struct PlanText {
  std::string layout;
  std::vector<std::string> why;
};

PlanText DescribePlannedIsland(const v1::PlannedIsland& plan) {
  PlanText plan_text{DescribeLayout(plan), {}};
  const std::string shape = plan_text.layout;
  for (absl::string_view clause : absl::StrSplit(plan.reason(), "; ", absl::SkipEmpty())) {
    if (clause == absl::StrCat("schedule: ", plan.schedule())) continue;
    const size_t end = clause.find(": ");
    if (end != absl::string_view::npos && absl::StartsWith(clause, shape)) {
      plan_text.layout = std::string(clause.substr(0, end));
      clause.remove_prefix(end + 2);
    }
    plan_text.why.emplace_back(clause);
  }
  if (!plan.schedule().empty()) absl::StrAppend(&plan_text.layout, ", ", plan.schedule());
  return plan_text;
}

// Appends the reasons of the newest plans, and what going over to them has cost.
void AppendChanges(const v1::Island& island, std::string* out) {
  constexpr int kShown = 4;
  const int changes = island.plan_changes_size();
  if (changes > 0) absl::StrAppend(out, "  newest plans, since the coordinator's start:\n");
  for (int i = std::max(0, changes - kShown); i < changes; ++i) {
    const v1::PlanChange& change = island.plan_changes(i);
    absl::StrAppend(out, "    plan ", change.number(),
                    change.at_step_end() ? ", at a step's end: " : ", at once: ", change.reason(),
                    "\n");
  }
  absl::StrAppend(out, "  steps interrupted: ", island.steps_interrupted(),
                  ", replayed: ", island.steps_redone(), "\n");
}

// The stages that a stage link joins. Each device reports its stages in order, for each first
// what goes forward, then gradients: so several between the same two devices can be distinguished.
class StageLinkLabels {
 public:
  explicit StageLinkLabels(const v1::PlannedIsland& plan) {
    for (const v1::Replica& replica : plan.replicas()) {
      for (int s = 0; s < replica.stages_size(); ++s) {
        Join(replica, s, s + 1);
        Join(replica, s, s - 1);
      }
    }
  }
  // Returns the next message that goes this way.
  std::string Next(const std::string& from, const std::string& to) {
    const auto found = joined_.find({from, to});
    const size_t next = used_[{from, to}]++;
    return found == joined_.end() || next >= found->second.size() ? "-" : found->second[next];
  }

 private:
  using Ends = std::pair<std::string, std::string>;

  void Join(const v1::Replica& replica, int from, int to) {
    if (to < 0 || to >= replica.stages_size()) return;
    const v1::Stage& a = replica.stages(from);
    const v1::Stage& b = replica.stages(to);
    for (const auto& [sends, receives] : MessagePairs(a.devices_size(), b.devices_size())) {
      const std::string& sender = a.devices(static_cast<int>(sends));
      const std::string& receiver = b.devices(static_cast<int>(receives));
      if (sender == receiver) continue;
      joined_[{sender, receiver}].push_back(absl::StrCat(from, " > ", to));
    }
  }

  std::map<Ends, std::vector<std::string>> joined_;
  std::map<Ends, size_t> used_;
};

// Transports of messages; stage links that have carried nothing yet are left out.
void AppendStageLinks(const v1::Island& island, std::string* out) {
  const auto& stage_links = island.progress().stage_links();
  const bool has_transport =
      std::any_of(stage_links.begin(), stage_links.end(),
                  [](const v1::StageLinkState& b) { return !b.transport().empty(); });
  std::vector<std::string> header = {"from",         "to",     "stages", "chunks",
                                     "ms a message", "Mbit/s", "link",   "newest change"};
  if (has_transport) header.push_back("transport");
  Table links(std::move(header));
  StageLinkLabels stages(island.plan());
  for (const v1::StageLinkState& b : stage_links) {
    const std::string joined = stages.Next(b.from(), b.to());
    if (b.message_seconds() <= 0 && b.reason().empty() && b.transport().empty()) continue;
    std::vector<std::string> row = {
        b.from(),
        b.to(),
        joined,
        absl::StrCat(b.chunks()),
        b.message_seconds() > 0 ? Fixed(1e3 * b.message_seconds(), 2) : "-",
        b.bandwidth_bytes_per_s() > 0 ? Fixed(8e-6 * b.bandwidth_bytes_per_s(), 1) : "-",
        b.saturated() ? "SATURATED" : "fine",
        b.reason()};
    if (has_transport) row.push_back(b.transport());
    links.Add(std::move(row));
  }
  if (!links.empty()) absl::StrAppend(out, links.Text());
}

void AppendWorkers(const v1::Island& island, std::string* out) {
  Table workers({"worker", "role", "plan", "part", "activity"});
  for (const v1::IslandWorker& w : island.workers()) {
    workers.Add({w.worker(),
                 w.leads()     ? "leads"
                 : w.in_plan() ? "follows"
                               : "spare",
                 w.plan_number() == 0 ? "-" : absl::StrCat(w.plan_number()),
                 DescribeWorkerStages(island.plan(), w.worker()), w.activity()});
  }
  if (!workers.empty()) absl::StrAppend(out, workers.Text());
}

void AppendPlan(const v1::Island& island, std::string* out) {
  const v1::PlannedIsland& plan = island.plan();
  if (plan.number() == 0 && island.planning().empty()) return;
  absl::StrAppend(out, "\nisland ", island.island(), ": ");
  if (plan.number() == 0) {
    absl::StrAppend(out, "no plan\n");
  } else {
    const PlanText plan_text = DescribePlannedIsland(plan);
    absl::StrAppend(out, "plan ", plan.number(), ", ", plan_text.layout, "\n", "  ",
                    DescribePrediction(island), "\n");
    for (const std::string& clause : plan_text.why) {
      absl::StrAppend(out, &clause == &plan_text.why.front() ? "  why:      " : "            ",
                      clause, "\n");
    }
  }
  if (!island.reason().empty()) absl::StrAppend(out, "  island:   ", island.reason(), "\n");
  if (!island.progress().plan_wanted().empty()) {
    absl::StrAppend(out, "  replan request: ", island.progress().plan_wanted(), "\n");
  }
  if (!island.planning().empty()) absl::StrAppend(out, "  planning: ", island.planning(), "\n");
  AppendChanges(island, out);
  AppendWorkers(island, out);
  AppendStageLinks(island, out);
}

// Appends the memory of each device that the plan predicted, and what was measured.
void AppendMemory(const v1::Island& island, std::string* out) {
  Table devices({"device", "memory predicted", "measured", "ratio", "limit"});
  for (const v1::DeviceMemoryState& m : island.progress().memory()) {
    const bool predicted = m.predicted_bytes() > 0;
    const double ratio =
        static_cast<double>(m.peak_bytes()) / static_cast<double>(m.predicted_bytes());
    devices.Add({m.device(), predicted ? BytesText(m.predicted_bytes()) : "-",
                 BytesText(m.peak_bytes()), predicted ? Fixed(ratio, 3) : "-",
                 m.limit_bytes() > 0 ? BytesText(m.limit_bytes()) : "-"});
  }
  if (!devices.empty()) {
    absl::StrAppend(out, "\nisland ", island.island(), ": memory\n", devices.Text());
  }
}

// Appends the losses of routers and the load of experts by mixture, in shares of what each would
// have if all had the same; wide tables have the tokens of each expert.
void AppendExperts(const v1::Island& island, std::string* out) {
  const v1::IslandProgress& p = island.progress();
  const int mixtures = p.router_losses_size() / 2;
  const int experts = mixtures == 0 ? 0 : p.expert_tokens_size() / mixtures;
  if (experts == 0) return;
  std::vector<std::string> header = {"mixture", "balance loss", "z-loss",
                                     "unseen",  "least load",   "most load"};
  if (IsWide()) header.emplace_back("tokens");
  Table table(header, /*keys=*/1);
  for (int m = 0; m < mixtures; ++m) {
    const auto begin = p.expert_tokens().begin() + m * experts, end = begin + experts;
    const double mean = std::max(1.0, std::accumulate(begin, end, 0.0)) / experts;
    const auto load = [&](auto at) { return Fixed(static_cast<double>(*at) / mean, 2); };
    std::vector<std::string> row = {absl::StrCat(m),
                                    NumberText(p.router_losses(2 * m), 4),
                                    NumberText(p.router_losses(2 * m + 1), 4),
                                    absl::StrCat(std::count(begin, end, 0)),
                                    load(std::min_element(begin, end)),
                                    load(std::max_element(begin, end))};
    if (IsWide()) row.push_back(absl::StrJoin(begin, end, " "));
    table.Add(std::move(row));
  }
  absl::StrAppend(out, "\nisland ", island.island(), ": experts\n", table.Text());
}

std::string LossText(double nats) { return nats == 0 ? "-" : Fixed(nats, 4); }

// Returns a table of what each island did until the job's end.
std::string EndedIslandsText(const v1::Job& job) {
  Table table({"island", "worker", "steps", "loss", "accepted", "rejected",
               TokenUnit(job.summary()), "evicted", "last state"},
              /*keys=*/2);
  for (const v1::Island& i : job.islands()) {
    table.Add({absl::StrCat(i.island()), i.worker(), absl::StrCat(i.pushed_steps()),
               LossText(i.pushed_loss()), absl::StrCat(i.rounds_accepted()),
               absl::StrCat(i.rounds_rejected()), Count(static_cast<double>(i.tokens_committed())),
               absl::StrCat(i.evictions()), i.reason()});
  }
  return table.empty() ? "" : absl::StrCat("\n", table.Text());
}

}  // namespace

std::string DescribeActivity(const v1::Island& island) {
  if (!island.stalled().empty()) return absl::StrCat("STALLED: ", island.stalled());
  return island.attached() ? island.activity() : island.reason();
}

std::string IslandsText(const v1::Job& job) {
  if (Ended(job.summary().state())) return EndedIslandsText(job);
  const std::string unit = TokenUnit(job.summary());
  std::vector<std::string> header = {
      "island",           "worker",         "H",        "leader's step", "loss", unit + "/s",
      "step (idle link)", "with transfers", "accepted", "rejected",      unit,   "pushed",
      "pulled",           "evicted"};
  if (IsWide()) header.insert(header.end(), {"learning rate", "gradient norm"});
  header.emplace_back("activity");
  Table table(header, /*keys=*/2);
  for (const v1::Island& i : job.islands()) {
    const v1::IslandProgress& p = i.progress();
    std::vector<std::string> row = {
        absl::StrCat(i.island()),
        i.worker(),
        absl::StrCat(i.steps_this_round()),
        absl::StrCat(p.inner_step()),
        LossText(p.train_loss()),
        SpeedText(p.tokens_per_s()),
        p.step_seconds_idle_link() > 0 ? SecondsText(p.step_seconds_idle_link()) : "-",
        p.step_seconds_overlap() > 0 ? SecondsText(p.step_seconds_overlap()) : "-",
        absl::StrCat(i.rounds_accepted()),
        absl::StrCat(i.rounds_rejected()),
        Count(static_cast<double>(i.tokens_committed())),
        BytesText(p.pushed_bytes()),
        BytesText(p.pulled_bytes()),
        absl::StrCat(i.evictions())};
    if (IsWide()) {
      row.insert(row.end(), {NumberText(p.learning_rate(), 3), NumberText(p.gradient_norm(), 3)});
    }
    row.push_back(DescribeActivity(i));
    table.Add(std::move(row));
  }
  std::string out = table.empty() ? "" : absl::StrCat("\n", table.Text());
  for (const v1::Island& i : job.islands()) {
    AppendPlan(i, &out);
    AppendMemory(i, &out);
    AppendExperts(i, &out);
  }
  return out;
}

}  // namespace atl::cli
