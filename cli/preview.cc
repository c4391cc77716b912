#include "cli/preview.h"

#include <algorithm>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/text/output.h"
#include "cli/text/table.h"
#include "common/bytes_text.h"
#include "common/model/job_model.h"
#include "common/model/layout.h"
#include "common/number_text.h"
#include "common/protocol/wire.h"
#include "proto/control.pb.h"

namespace atl::cli {
namespace {

std::string StepText(int64_t ns) { return SecondsText(static_cast<double>(ns) * 1e-9); }

int64_t GetMemoryPeak(const v1::PlannedIsland& plan, const std::string& device) {
  for (const v1::DeviceProgram& program : plan.programs()) {
    if (program.device() == device) return program.memory_peak_bytes();
  }
  return 0;
}

std::string StagesText(const v1::PlannedIsland& plan) {
  Table table({"replica", "stage", "layers", "devices", "micro-batches", "memory"});
  for (int r = 0; r < plan.replicas_size(); ++r) {
    const v1::Replica& replica = plan.replicas(r);
    for (int s = 0; s < replica.stages_size(); ++s) {
      const v1::Stage& stage = replica.stages(s);
      int64_t peak = 0;
      for (const std::string& device : stage.devices()) {
        peak = std::max(peak, GetMemoryPeak(plan, device));
      }
      table.Add({absl::StrCat(r), absl::StrCat(s),
                 absl::StrCat(stage.first_layer(), "-", stage.first_layer() + stage.layers() - 1),
                 absl::StrJoin(stage.devices(), " "),
                 absl::StrCat(replica.micro_batches(), " of ", replica.micro_batch_sequences()),
                 peak == 0 ? "-" : BytesText(peak)});
    }
  }
  return table.Text();
}

std::string IslandText(const v1::PreviewedIsland& island) {
  std::string text = absl::StrCat("island ", island.island(), ": ");
  if (!island.trouble().empty()) return absl::StrCat(text, "no plan: ", island.trouble(), "\n");
  const v1::PlannedIsland& plan = island.plan();
  absl::StrAppend(&text, StepText(plan.step_ns()), " a step, at least ", StepText(plan.bound_ns()),
                  "\n");
  absl::StrAppend(&text, StagesText(plan));
  if (plan.hosts_size() > 0) {
    absl::StrAppend(&text, "host memory: ",
                    absl::StrJoin(plan.hosts(), ", ",
                                  [](std::string* out, const v1::HostMemory& host) {
                                    absl::StrAppend(out, host.worker(), " ",
                                                    BytesText(host.bytes()));
                                  }),
                    "\n");
  }
  absl::StrAppend(&text, "why: ", plan.reason(), "\n");
  if (!island.idle_devices().empty()) {
    absl::StrAppend(&text, "idle: ", absl::StrJoin(island.idle_devices(), " "), "\n");
  }
  for (const std::string& worker : island.left_out()) {
    absl::StrAppend(&text, "left out: ", worker, "\n");
  }
  if (island.current_number() == 0) return text;
  absl::StrAppend(&text, "plan ", island.current_number(), " in force takes ");
  absl::StrAppend(&text, island.current_step_ns() == 0
                             ? "a time that is not known"
                             : StepText(island.current_step_ns()) + " a step");
  absl::StrAppend(&text,
                  island.kept().empty() ? " and would be replaced"
                                        : absl::StrCat(" and is kept: ", island.kept()),
                  "\n");
  return text;
}

// The form that [layout] plan takes.
v1::Plan ToPlan(const v1::PreviewReply& reply) {
  v1::Plan plan;
  std::vector<std::string> troubles;
  for (const v1::PreviewedIsland& island : reply.islands()) {
    for (const std::string& device : island.idle_devices()) plan.add_idle_devices(device);
    if (!island.has_plan()) {
      troubles.push_back(absl::StrCat("island ", island.island(), ": ", island.trouble()));
      continue;
    }
    v1::PlannedIsland* added = plan.add_islands();
    *added = island.plan();
    added->set_island(island.island());
    if (added->step_ns() > plan.step_ns()) {
      plan.set_step_ns(added->step_ns());
      plan.set_bound_ns(added->bound_ns());
    }
  }
  if (plan.bound_ns() > 0) plan.set_gap_ratio(1.0 * plan.step_ns() / plan.bound_ns() - 1);
  if (!reply.grouping().empty()) troubles.push_back(reply.grouping());
  plan.set_reason(absl::StrJoin(troubles, "; "));
  return plan;
}

absl::Status Show(const Global& global, const v1::PreviewReply& reply) {
  std::cout << (global.structured ? Document(ToPlan(reply)) : PreviewText(reply));
  const bool any = std::any_of(reply.islands().begin(), reply.islands().end(),
                               [](const v1::PreviewedIsland& island) { return island.has_plan(); });
  if (any) return absl::OkStatus();
  return absl::FailedPreconditionError(reply.islands().empty() ? "no island"
                                                               : reply.islands(0).trouble());
}

}  // namespace

std::string PreviewText(const v1::PreviewReply& reply) {
  std::string text;
  for (const v1::PreviewedIsland& island : reply.islands()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", IslandText(island));
  }
  if (!reply.grouping().empty()) absl::StrAppend(&text, "\nislands: ", reply.grouping(), "\n");
  return text;
}

absl::Status PreviewJob(const Global& global, const std::string& job, int timeout_s) {
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  v1::PreviewRequest request;
  request.set_timeout_ms(1000 * timeout_s);
  ATOLL_ASSIGN_OR_RETURN(*request.mutable_job(), client->FindJob(job));
  ATOLL_ASSIGN_OR_RETURN(const v1::PreviewReply reply, client->Preview(request));
  return Show(global, reply);
}

absl::Status PreviewSpec(const Global& global, const JobSpec& spec, int timeout_s) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOfJob(spec));
  JobDefinition definition{spec, {}};
  definition.facts.model = ToSpec(config);
  for (const LayerLayout& layout : MakeLayouts(config)) {
    definition.facts.layers.push_back({layout.name, layout.size});
  }
  v1::JobDefinition wire;
  ATOLL_RETURN_IF_ERROR(Encode(definition, &wire));
  v1::PreviewRequest request;
  request.set_timeout_ms(1000 * timeout_s);
  request.mutable_spec()->Swap(wire.mutable_spec());
  request.mutable_facts()->Swap(wire.mutable_facts());
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  ATOLL_ASSIGN_OR_RETURN(const v1::PreviewReply reply, client->Preview(request));
  return Show(global, reply);
}

}  // namespace atl::cli
