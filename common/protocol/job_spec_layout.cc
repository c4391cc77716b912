#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/job_spec_impl.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr int64_t kSplitRatioMax = 1 << 20;

absl::Status ValidateTensorSplitRatios(const JobSpec& spec) {
  const LayoutSpec& l = spec.layout;
  if (l.tensor_split_ratios.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(l.tensor_split_ratios.size()) != l.tensor_parallel) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.tensor_split_ratios has ", l.tensor_split_ratios.size(),
        " numbers: must have layout.tensor_parallel = ", l.tensor_parallel,
        l.tensor_parallel == 0 ? " of them; say how many devices share each layer" : " of them"));
  }
  for (const int64_t share : l.tensor_split_ratios) {
    ATOLL_RETURN_IF_ERROR(IntInRange("layout.tensor_split_ratios", share, 1, kSplitRatioMax));
  }
  const ModelSpec& m = spec.model;
  const int64_t heads = m.key_value_heads > 0 ? m.key_value_heads : m.heads;
  return heads > 0 ? CheckTensorSplitRatios(l.tensor_split_ratios, heads) : absl::OkStatus();
}

constexpr absl::string_view kScheduleNames[] = {
    "gpipe", "1f1b",   "interleaved", "zb-h1",  "zb-h2",         "zb-1p",      "zb-2p",
    "zb-v",  "v-half", "v-min",       "jeeves", "jeeves-search", "compact-zb", "best"};

constexpr size_t kPlanBytesMax = 1 << 20;
constexpr size_t kNameBytesMax = 256;  // of a worker, device or site

// Fields that a plan states are not given again.
absl::Status ValidatePlan(const LayoutSpec& l) {
  if (l.plan.empty()) return absl::OkStatus();
  if (l.plan.size() > kPlanBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.plan has ", l.plan.size(), " bytes: at most ", kPlanBytesMax,
                     "; leave out its programs, and operations are put in order anew"));
  }
  for (const auto& [name, value] :
       {std::pair("layout.stages", l.stages), std::pair("layout.replicas", l.replicas),
        std::pair("layout.tensor_parallel", l.tensor_parallel),
        std::pair("layout.tensor_split_ratios",
                  static_cast<int64_t>(l.tensor_split_ratios.size()))}) {
    if (value == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " stands beside layout.plan, which says it: leave one of them out"));
  }
  return absl::OkStatus();
}

absl::Status ValidateNames(absl::string_view field, const std::vector<std::string>& names,
                           int most) {
  ATOLL_RETURN_IF_ERROR(
      IntInRange(absl::StrCat("the number of ", field), std::ssize(names), 0, most));
  std::set<std::string> seen;
  for (const std::string& name : names) {
    const bool plain = std::none_of(name.begin(), name.end(),
                                    [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (name.empty() || name.size() > kNameBytesMax || !plain) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " has a name that is empty, longer than ", kNameBytesMax,
                       " bytes or not plain text: \"", absl::CHexEscape(name.substr(0, 40)), "\""));
    }
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " names \"", name, "\" twice: leave one of them out"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateLinkLimits(const LayoutSpec& l) {
  ATOLL_RETURN_IF_ERROR(
      IntInRange("the number of layout.link_limits", std::ssize(l.link_limits), 0, kLinkLimitsMax));
  std::set<std::pair<std::string, std::string>> seen;
  for (const LinkLimit& limit : l.link_limits) {
    ATOLL_RETURN_IF_ERROR(Required("layout.link_limits.from", limit.from));
    ATOLL_RETURN_IF_ERROR(Required("layout.link_limits.to", limit.to));
    ATOLL_RETURN_IF_ERROR(ValidateNames("layout.link_limits.from", {limit.from}, kLayoutSitesMax));
    ATOLL_RETURN_IF_ERROR(ValidateNames("layout.link_limits.to", {limit.to}, kLayoutSitesMax));
    if (limit.from == limit.to) {
      return absl::InvalidArgumentError(absl::StrCat("layout.link_limits.to = \"", limit.to,
                                                     "\": must be another site than from"));
    }
    if (!(limit.bytes_per_day > 0) || !std::isfinite(limit.bytes_per_day)) {
      return Bad("layout.link_limits.bytes_per_day", limit.bytes_per_day, "above 0");
    }
    if (!seen.insert({limit.from, limit.to}).second) {
      return absl::InvalidArgumentError(absl::StrCat("layout.link_limits.from = \"", limit.from,
                                                     "\", to = \"", limit.to,
                                                     "\": is given twice; leave one of them out"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateParticipation(const JobSpec& spec) {
  const LayoutSpec& l = spec.layout;
  ATOLL_RETURN_IF_ERROR(ValidateNames("layout.exclude", l.exclude, kExcludedMax));
  ATOLL_RETURN_IF_ERROR(ValidateNames("layout.sites", l.sites, kLayoutSitesMax));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("layout.memory_reserve_bytes", l.memory_reserve_bytes, 0, kMany));
  ATOLL_RETURN_IF_ERROR(ValidateLinkLimits(l));
  if (!l.link_limits.empty() && spec.outer.steps_per_round == 0) {
    return Bad("outer.steps_per_round", 0,
               "given with layout.link_limits: a day's rounds are counted");
  }
  const std::vector<SiteData>& data = spec.data.sites;
  for (const std::string& site : l.sites) {
    if (data.empty() ||
        std::any_of(data.begin(), data.end(), [&](const SiteData& d) { return d.site == site; })) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.sites names \"", site, "\", and data.sites has no data for it: add its data"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateLayout(const JobSpec& spec) {
  const LayoutSpec& l = spec.layout;
  ATOLL_RETURN_IF_ERROR(IntInRange("layout.workers_per_island", l.workers_per_island, 0, 4096));
  ATOLL_RETURN_IF_ERROR(IntInRange("layout.stages", l.stages, 0, 1024));
  ATOLL_RETURN_IF_ERROR(IntInRange("layout.replicas", l.replicas, 0, 1024));
  ATOLL_RETURN_IF_ERROR(IntInRange("layout.tensor_parallel", l.tensor_parallel, 0, 1024));
  ATOLL_RETURN_IF_ERROR(IntInRange("layout.chunks_max", l.chunks_max, 1, 64));
  ATOLL_RETURN_IF_ERROR(IntInRange("layout.optimizer_copies", l.optimizer_copies, 0, 1024));
  if ((l.chunks_max & (l.chunks_max - 1)) != 0) {
    return Bad("layout.chunks_max", l.chunks_max, "a power of two");
  }
  if (!spec.data.sites.empty() && l.island != IslandScope::kWorker &&
      l.island != IslandScope::kSite) {
    return absl::InvalidArgumentError(
        "layout.island: must be \"worker\" or \"site\" with data.sites: an island reads the data "
        "of "
        "one site");
  }
  if (l.island == IslandScope::kWorker && l.workers_per_island > 1) {
    return Bad("layout.workers_per_island", l.workers_per_island,
               "0 or 1 with layout.island = \"worker\"");
  }
  if (l.island == IslandScope::kAuto && l.workers_per_island > 0) {
    return Bad("layout.workers_per_island", l.workers_per_island,
               "0 with layout.island = \"auto\": the planner decides it");
  }
  const int64_t layers = spec.model.layers + 2;  // with embedding and head
  if (spec.model.layers > 0 && l.stages > layers) {
    return Bad("layout.stages", l.stages,
               absl::StrCat("at most ", layers, ": the model's layers with embedding and head"));
  }
  if (l.replicas > spec.inner.batch_sequences) {
    return Bad("layout.replicas", l.replicas,
               absl::StrCat("at most inner.batch_sequences = ", spec.inner.batch_sequences));
  }
  if (spec.model.heads > 0 && l.tensor_parallel > spec.model.heads) {
    return Bad("layout.tensor_parallel", l.tensor_parallel,
               absl::StrCat("at most model.heads = ", spec.model.heads));
  }
  // Every device that shares a layer has one of each at least.
  for (const auto& [name, count] : {std::pair("model.key_value_heads", spec.model.key_value_heads),
                                    std::pair("model.feed_forward", spec.model.feed_forward),
                                    std::pair("model.vocabulary", spec.model.vocabulary)}) {
    if (count <= 0 || l.tensor_parallel <= count) continue;
    return Bad("layout.tensor_parallel", l.tensor_parallel,
               absl::StrCat("at most ", name, " = ", count));
  }
  if (spec.inner.optimizer == InnerOptimizer::kMuon && l.tensor_parallel > 1) {
    return Bad("layout.tensor_parallel", l.tensor_parallel,
               "1 (or 0) with inner.optimizer = \"muon\", which steps whole matrices");
  }
  ATOLL_RETURN_IF_ERROR(ValidateTensorSplitRatios(spec));
  ATOLL_RETURN_IF_ERROR(ValidatePlan(l));
  ATOLL_RETURN_IF_ERROR(ValidateParticipation(spec));
  ATOLL_RETURN_IF_ERROR(InRange("layout.deadline_hours", l.deadline_hours, 0, 1e6));
  ATOLL_RETURN_IF_ERROR(InRange("layout.budget", l.budget, 0, 1e15));
  const bool known = l.schedule.empty() || std::count(std::begin(kScheduleNames),
                                                      std::end(kScheduleNames), l.schedule) > 0;
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.schedule = \"", l.schedule.substr(0, 40), "\": must be one of ",
                     absl::StrJoin(kScheduleNames, ", "), ", or left out"));
  }
  return absl::OkStatus();
}

std::string WhyNoPart(const LayoutSpec& layout, const std::string& worker, const std::string& site,
                      size_t devices) {
  const auto excludes = [&](const std::string& name) {
    return std::find(layout.exclude.begin(), layout.exclude.end(), name) != layout.exclude.end();
  };
  if (excludes(worker)) return "layout.exclude names it";
  size_t left = devices;
  for (size_t i = 0; i < devices && !layout.exclude.empty(); ++i) {
    left -= excludes(absl::StrCat(worker, "/", i)) ? 1 : 0;
  }
  if (devices > 0 && left == 0) return "layout.exclude names all of its devices";
  const std::vector<std::string>& sites = layout.sites;
  if (sites.empty() || std::find(sites.begin(), sites.end(), site) != sites.end()) return "";
  return absl::StrCat(site.empty() ? "its site is not known (start it with --site)"
                                   : absl::StrCat("it is at site ", site),
                      ", and layout.sites are ", absl::StrJoin(sites, ", "));
}

int64_t BytesForJob(const LayoutSpec& layout, int64_t memory_bytes) {
  if (memory_bytes == 0 || layout.memory_reserve_bytes == 0) return memory_bytes;
  return std::max<int64_t>(1, memory_bytes - layout.memory_reserve_bytes);
}

absl::Status CheckTensorSplitRatios(const std::vector<int64_t>& ratios, int64_t heads) {
  const int64_t sum = std::accumulate(ratios.begin(), ratios.end(), int64_t{0});
  const bool whole = std::all_of(ratios.begin(), ratios.end(), [&](int64_t share) {
    return share >= 1 && sum >= share && heads * share % sum == 0;
  });
  if (whole) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layout.tensor_split_ratios = [", absl::StrJoin(ratios, ", "), "]: the model's ", heads,
      " key-value heads cannot be cut so; give each device a whole number of them, at least 1, ",
      heads, " in all"));
}

}  // namespace atl
