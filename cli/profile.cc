#include "cli/profile.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/text/output.h"
#include "cli/text/render.h"
#include "common/bytes_text.h"
#include "coordinator/plan_io/profile_file.h"

namespace atl::cli {
namespace {

std::string MsText(int64_t ns) { return absl::StrFormat("%.3f", static_cast<double>(ns) * 1e-6); }

int CountLayers(const v1::ClusterProfile& profile) {
  int layers = 0;
  for (const v1::LayerTime& time : profile.times()) layers = std::max(layers, time.layer() + 1);
  return layers;
}

std::string DevicesText(const v1::ClusterProfile& profile) {
  Table table({"device", "type", "site", "memory"});
  for (const v1::Device& device : profile.cluster().devices()) {
    table.Add({device.id(), device.type(), device.site(), BytesText(device.memory_bytes())});
  }
  const auto& devices = profile.cluster().devices();
  const bool numbered = std::any_of(devices.begin(), devices.end(), [](const v1::Device& device) {
    return absl::StrContains(device.type(), " #");
  });
  return absl::StrCat("devices\n", table.Text(),
                      numbered ? "  \"#2\": of the same kind, but what was measured differs: the "
                                 "planner takes it for another type\n"
                               : "");
}

// Sites, and in each the devices that are alike: SpanTrain's two levels.
std::string GroupsText(const v1::ClusterProfile& profile) {
  plan::Model model;
  model.layers.resize(CountLayers(profile));
  plan::CostOptions options;
  const auto profiled = ToProfiled(profile, &model, &options);
  if (!profiled.ok()) return absl::StrCat("no groups: ", profiled.status().message(), "\n");
  const plan::Grouping grouping = plan::GroupDevices(profiled->cluster, {});
  std::string text = "groups (by links; within each, devices that are alike)\n";
  for (size_t g = 0; g < grouping.sites.size(); ++g) {
    std::vector<std::string> classes;
    for (const std::vector<int>& alike : grouping.classes[g]) {
      std::vector<std::string> ids;
      for (const int d : alike) ids.push_back(profiled->cluster.devices[d].id);
      classes.push_back(absl::StrJoin(ids, " "));
    }
    absl::StrAppend(&text, "  ", g + 1, ": ", absl::StrJoin(classes, " | "), "\n");
  }
  return text;
}

std::string SitesText(const v1::ClusterProfile& profile) {
  std::string text;
  for (const v1::SiteOfWorkers& site : profile.sites()) {
    absl::StrAppend(&text, "  ", site.name(), " (", site.source(),
                    "): ", absl::StrJoin(site.workers(), " "), "\n");
  }
  return text.empty() ? "sites: none known\n" : absl::StrCat("sites\n", text);
}

// The embedding, a block and the head: all blocks are alike.
std::string TimesText(const v1::ClusterProfile& profile) {
  const int layers = CountLayers(profile);
  Table table({"type", "layer", "shared by", "sequences", "F ms", "B ms", "W ms", "optimizer ms",
               "spread"});
  for (const v1::LayerTime& time : profile.times()) {
    const bool block = time.layer() > 0 && time.layer() + 1 < layers;
    if (block && time.layer() != 1) continue;
    table.Add({time.type(),
               time.layer() == 0 ? "embedding"
               : block           ? "block"
                                 : "head",
               absl::StrCat(time.tensor_parallel()), absl::StrCat(time.micro_batch_sequences()),
               MsText(time.forward_ns()), MsText(time.input_gradient_ns()),
               MsText(time.weight_gradient_ns()), MsText(time.optimizer_ns()),
               absl::StrFormat("%.0f%%", 100 * time.spread_ratio())});
  }
  if (table.empty()) return "layer times: none measured\n";
  return absl::StrCat("layer times of ", profile.job(), " (model ", profile.model_digest(), ")\n",
                      table.Text());
}

// Per pair of workers: their devices share the link.
std::string LinksText(const v1::ClusterProfile& profile) {
  std::map<std::string, std::string> node_of;
  for (const v1::Device& device : profile.cluster().devices()) {
    node_of[device.id()] = device.node();
  }
  Table table({"from", "to", "latency ms", "Mbit/s", "residual", "measured"});
  std::set<std::pair<std::string, std::string>> seen;
  for (const v1::Link& link : profile.cluster().links()) {
    const std::string from = node_of[link.from()], to = node_of[link.to()];
    if (link.edges_size() != 1 || !seen.insert({from, to}).second) continue;
    table.Add({from, to, MsText(link.edges(0).latency_ns()),
               absl::StrFormat("%.1f", link.edges(0).bandwidth_bytes_per_s() * 8e-6),
               absl::StrFormat("%.1f%%", 100 * link.residual_ratio()),
               link.age_s() == 0 ? "taken from the opposite direction"
                                 : absl::StrCat(Seconds(link.age_s()), " ago",
                                                link.live() ? ", by training" : ", at rest")});
  }
  if (table.empty()) return "links: none measured\n";
  return absl::StrCat("links\n", table.Text());
}

}  // namespace

std::string ProfileText(const v1::ClusterProfile& profile) {
  std::string text;
  for (const std::string& what : profile.measuring()) absl::StrAppend(&text, "  ", what, "\n");
  if (!text.empty()) text = absl::StrCat("not complete yet\n", text, "\n");
  absl::StrAppend(&text, DevicesText(profile), "\n", SitesText(profile), "\n", GroupsText(profile),
                  "\n", TimesText(profile), "\n", LinksText(profile));
  if (profile.troubles_size() > 0) {
    absl::StrAppend(&text, "\nnot as measured (times and links above are as they are now)\n");
  }
  for (const std::string& trouble : profile.troubles()) absl::StrAppend(&text, "  ", trouble, "\n");
  if (!profile.assumptions().empty()) {
    absl::StrAppend(&text, "\nplans assume: ", profile.assumptions(), "\n");
  }
  return text;
}

int Profile(const Global& global, const std::string& job) {
  auto client = Client::Dial(global.tls, global.coordinator);
  const auto fetch = [&]() -> absl::StatusOr<v1::ClusterProfile> {
    ATOLL_RETURN_IF_ERROR(client.status());
    if (job.empty()) return (*client)->Profile(job);
    ATOLL_ASSIGN_OR_RETURN(const std::string id, (*client)->FindJob(job));
    return (*client)->Profile(id);
  };
  const auto profile = fetch();
  if (!profile.ok()) return Fail(profile.status());
  std::cout << (global.structured ? Document(*profile) : ProfileText(*profile)) << std::flush;
  return 0;
}

}  // namespace atl::cli
