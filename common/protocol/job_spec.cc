#include "common/protocol/job_spec.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "common/protocol/outer_optimizer.h"
#include "common/status.h"

namespace atl {
namespace {

absl::Status Bad(absl::string_view field, const absl::AlphaNum& value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", rule));
}

// [low, high)
absl::Status InRange(absl::string_view field, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value < high) return absl::OkStatus();
  if (high == std::numeric_limits<double>::infinity()) {
    return Bad(field, value, absl::StrCat("at least ", low));
  }
  return Bad(field, value, absl::StrCat("at least ", low, " and below ", high));
}

absl::Status IntInRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Bad(field, value, absl::StrCat("between ", low, " and ", high));
}

absl::Status Required(absl::string_view field, const std::string& value) {
  if (!value.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is missing: the job needs it"));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kWeightMax = 1e6;
constexpr int64_t kMany = int64_t{1} << 40;

absl::Status ValidateName(absl::string_view field, const std::string& name) {
  ATOLL_RETURN_IF_ERROR(Required(field, name));
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool fits = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c == '-' && i > 0);
    if (!fits || i >= 48) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " = \"", name,
                       "\": must be at most 48 of a-z, 0-9 and '-', and not begin with '-'"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateModel(const ModelSpec& m) {
  if (!m.config_path.empty() && !m.config_json.empty()) {
    return absl::InvalidArgumentError(
        "model.config_path is given together with model.config_json: give one of the two");
  }
  if (!m.config_path.empty() || !m.config_json.empty()) {
    if (m.hidden != 0 || m.layers != 0 || m.heads != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          m.config_path.empty() ? "model.config_json" : "model.config_path",
          " is given together with model.hidden, layers or heads: give one of the two"));
    }
    return absl::OkStatus();
  }
  if (!m.initial_weights_path.empty() && m.hidden == 0 && m.layers == 0 && m.heads == 0) {
    return absl::OkStatus();  // the folder's config.json has the shape
  }
  ATOLL_RETURN_IF_ERROR(IntInRange("model.vocabulary", m.vocabulary, 2, 1 << 24));
  ATOLL_RETURN_IF_ERROR(IntInRange("model.hidden", m.hidden, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(IntInRange("model.layers", m.layers, 1, 10000));
  ATOLL_RETURN_IF_ERROR(IntInRange("model.heads", m.heads, 1, 1 << 16));
  ATOLL_RETURN_IF_ERROR(IntInRange("model.key_value_heads", m.key_value_heads, 0, m.heads));
  ATOLL_RETURN_IF_ERROR(IntInRange("model.feed_forward", m.feed_forward, 0, 1 << 22));
  if (m.hidden % m.heads != 0) {
    return Bad("model.hidden", m.hidden, absl::StrCat("a multiple of model.heads = ", m.heads));
  }
  if (m.key_value_heads != 0 && m.heads % m.key_value_heads != 0) {
    return Bad("model.heads", m.heads,
               absl::StrCat("a multiple of model.key_value_heads = ", m.key_value_heads));
  }
  return absl::OkStatus();
}

absl::Status ValidateImages(const DataSpec& d) {
  if (d.format == DataFormat::kImageFolder) {
    ATOLL_RETURN_IF_ERROR(IntInRange("data.image_size", d.image_size, 1, kImageSideMax));
  } else if (d.image_size != 0) {
    return absl::InvalidArgumentError(
        "data.image_size is given, but data.format is not \"image_folder\": leave it out");
  }
  if (!IsImages(d.format)) {
    if (d.crop_padding == 0 && !d.flip) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "data.crop_padding or data.flip is given, but data.format is none of images: leave both "
        "out, or set data.format to \"cifar10\", \"cifar100\", \"idx\" or \"image_folder\"");
  }
  ATOLL_RETURN_IF_ERROR(IntInRange("data.crop_padding", d.crop_padding, 0, 256));
  if (d.sequence_length == 1) return absl::OkStatus();
  return Bad("data.sequence_length", d.sequence_length,
             "1 where data.format is one of images: each is a sequence of one");
}

absl::Status ValidateDocuments(const DataSpec& d) {
  absl::CivilDay day;
  if (!d.chat_date.empty() &&
      (d.format != DataFormat::kChat || !absl::ParseCivilTime(d.chat_date, &day) ||
       absl::FormatCivilTime(day) != d.chat_date)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.chat_date = \"", d.chat_date, "\": must be a day, \"2026-03-04\", of ",
                     "data.format = \"chat\"; leave it out for the day on which it is submitted"));
  }
  const bool has_lines = d.format == DataFormat::kJsonl || d.format == DataFormat::kChat;
  if (d.on_bad_document == OnBadDocument::kSkip && !has_lines) {
    return absl::InvalidArgumentError(
        "data.on_bad_document = \"skip\": data.format must be \"jsonl\" or \"chat\"; leave it out");
  }
  if (!d.pad_documents) return absl::OkStatus();
  if (d.format != DataFormat::kText && d.format != DataFormat::kJsonl &&
      d.format != DataFormat::kShards) {
    return absl::InvalidArgumentError(
        "data.pad_documents = true: documents end where data.format is \"text\", \"jsonl\" or "
        "\"shards\" alone; use one of these, or leave it out");
  }
  if (d.sequence_length >= 3) return absl::OkStatus();
  return Bad("data.sequence_length", d.sequence_length,
             "at least 3 with data.pad_documents: [CLS], a token and [SEP]");
}

absl::Status ValidateSources(const DataSpec& d) {
  if (d.sources.empty()) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(
      IntInRange("the number of data.sources", std::ssize(d.sources), 1, kDataSourcesMax));
  for (const DataSource& source : d.sources) {
    ATOLL_RETURN_IF_ERROR(Required("data.sources.path", source.path));
    if (source.weight > 0 && source.weight < kWeightMax) continue;
    return Bad("data.sources.weight", source.weight,
               absl::StrCat("above 0 and below ", kWeightMax));
  }
  return absl::OkStatus();
}

absl::Status ValidateSites(const DataSpec& d, std::set<std::string> names) {
  if (d.sites.empty()) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(
      IntInRange("the number of data.sites", std::ssize(d.sites), 1, kDataSitesMax));
  if (!d.validation_path.empty()) {
    return absl::InvalidArgumentError(
        "data.validation_path is given together with data.sites: give each site its own, "
        "data.sites.validation_path");
  }
  for (const SiteData& site : d.sites) {
    ATOLL_RETURN_IF_ERROR(Required("data.sites.site", site.site));
    ATOLL_RETURN_IF_ERROR(Required("data.sites.path", site.path));
    if (names.insert(site.site).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("data.sites.site = \"", site.site,
                     "\": another site or set of data.validation has this name"));
  }
  return absl::OkStatus();
}

// Where the sequences come from: one of three ways.
absl::Status ValidateOrigin(const DataSpec& d) {
  std::set<std::string> names;
  ATOLL_RETURN_IF_ERROR(IntInRange("the number of data.validation sets", std::ssize(d.validation),
                                   0, kValidationSetsMax));
  for (const ValidationSet& set : d.validation) {
    ATOLL_RETURN_IF_ERROR(ValidateName("data.validation.name", set.name));
    ATOLL_RETURN_IF_ERROR(Required("data.validation.path", set.path));
    if (names.insert(set.name).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("data.validation.name = \"", set.name, "\": two sets have this name"));
  }
  ATOLL_RETURN_IF_ERROR(ValidateSources(d));
  ATOLL_RETURN_IF_ERROR(ValidateSites(d, names));
  const int ways =
      (d.path.empty() ? 0 : 1) + (d.sources.empty() ? 0 : 1) + (d.sites.empty() ? 0 : 1);
  if (ways <= 1) return ways == 1 ? absl::OkStatus() : Required("data.path", d.path);
  return absl::InvalidArgumentError(
      absl::StrCat(d.path.empty() ? "data.sources" : "data.path", " is given together with ",
                   d.sites.empty() ? "data.sources" : "data.sites", ": give one of the two"));
}

absl::Status ValidateData(const DataSpec& d) {
  ATOLL_RETURN_IF_ERROR(ValidateOrigin(d));
  ATOLL_RETURN_IF_ERROR(InRange("data.validation_fraction", d.validation_fraction, 0, 1));
  const bool sites_have_theirs =
      !d.sites.empty() && std::all_of(d.sites.begin(), d.sites.end(),
                                      [](const SiteData& s) { return !s.validation_path.empty(); });
  if (d.validation_path.empty() && d.validation_fraction == 0 && !sites_have_theirs) {
    return Bad("data.validation_fraction", 0, "above 0, or data.validation_path given");
  }
  const bool is_text = d.format == DataFormat::kText || d.format == DataFormat::kJsonl ||
                       d.format == DataFormat::kChat;
  if (!d.tokenizer_path.empty() && !is_text && d.format != DataFormat::kShards) {
    return absl::InvalidArgumentError(
        "data.tokenizer_path is given, but data.format already holds tokens: leave it out, or set "
        "data.format to \"text\", \"jsonl\", \"chat\" or \"shards\"");
  }
  if (d.format == DataFormat::kJsonl) ATOLL_RETURN_IF_ERROR(Required("data.field", d.field));
  ATOLL_RETURN_IF_ERROR(ValidateImages(d));
  ATOLL_RETURN_IF_ERROR(ValidateDocuments(d));
  return IntInRange("data.sequence_length", d.sequence_length, 1, 1 << 20);
}

absl::Status ValidateInner(const InnerSpec& i) {
  ATOLL_RETURN_IF_ERROR(InRange("inner.learning_rate", i.learning_rate, 0, 100));
  ATOLL_RETURN_IF_ERROR(
      InRange("inner.final_learning_rate_ratio", i.final_learning_rate_ratio, 0, 1.0000001));
  ATOLL_RETURN_IF_ERROR(InRange("inner.warmup_fraction", i.warmup_fraction, 0, 1.0000001));
  ATOLL_RETURN_IF_ERROR(InRange("inner.beta1", i.beta1, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("inner.beta2", i.beta2, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("inner.epsilon", i.epsilon, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("inner.weight_decay", i.weight_decay, 0, 10));
  ATOLL_RETURN_IF_ERROR(InRange("inner.clip_norm", i.clip_norm, 0, kInfinity));
  ATOLL_RETURN_IF_ERROR(IntInRange("inner.batch_sequences", i.batch_sequences, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(InRange("inner.momentum", i.momentum, 0, 1));
  return IntInRange("inner.micro_batch_sequences", i.micro_batch_sequences, 0, i.batch_sequences);
}

absl::Status ValidateFragments(const OuterSpec& o) {
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.fragments", o.fragments, 1, kFragmentsMax));
  ATOLL_RETURN_IF_ERROR(InRange("outer.fragment_blend", o.fragment_blend, 0.01, 1.0000001));
  if (o.steps_per_round % o.fragments != 0) {
    return Bad("outer.steps_per_round", o.steps_per_round,
               absl::StrCat("a multiple of outer.fragments = ", o.fragments));
  }
  if (o.steps_per_round == 0 && o.fragment_delay_steps > 0) {
    return Bad("outer.fragment_delay_steps", o.fragment_delay_steps,
               "0 without outer.steps_per_round: a delay is a part of a given round");
  }
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.fragment_delay_steps", o.fragment_delay_steps, 0,
                                   o.steps_per_round / o.fragments));
  if (o.fragment_delay_steps > 0 && o.overlap != Overlap::kCarry) {
    return Bad("outer.fragment_delay_steps", o.fragment_delay_steps,
               "0 with outer.overlap = \"none\": islands make no steps during an exchange");
  }
  if (o.fragments == 1) return absl::OkStatus();
  if (HasSinglePushRounds(o)) {
    return Bad("outer.fragments", o.fragments,
               "1 with an outer.optimizer for which every push is a round");
  }
  return absl::OkStatus();
}

absl::Status ValidateSiteServers(const OuterSpec& o) {
  const SiteServersSpec& site = o.site;
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.site.rounds", site.rounds, 0, 1 << 20));
  ATOLL_RETURN_IF_ERROR(ValidateSiteChoice(site));
  ATOLL_RETURN_IF_ERROR(InRange("outer.site.learning_rate", site.learning_rate, 0, 100));
  ATOLL_RETURN_IF_ERROR(InRange("outer.site.momentum", site.momentum, 0, 1));
  if (site.rounds == 0) return absl::OkStatus();
  if (o.fragments > 1) {
    return Bad("outer.fragments", o.fragments,
               "1 with outer.site.rounds above 0: a site contributes the whole model");
  }
  if (IsQuantized(o.push_encoding)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "outer.push_encoding = \"", GetEncodingInfo(o.push_encoding).name,
        "\": must be \"float32\" or \"bfloat16\" with outer.site.rounds above 0: a site's servers "
        "keep no error feedback"));
  }
  return absl::OkStatus();
}

absl::Status ValidateOuter(const OuterSpec& o) {
  ATOLL_RETURN_IF_ERROR(
      IntInRange("outer.steps_per_round", o.steps_per_round, 0, kStepsPerRoundMax));
  ATOLL_RETURN_IF_ERROR(InRange("outer.learning_rate", o.learning_rate, 0, 100));
  ATOLL_RETURN_IF_ERROR(InRange("outer.momentum", o.momentum, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("outer.clip_norm", o.clip_norm, 0, kInfinity));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.steps_min", o.steps_min, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(InRange("outer.grace_seconds", o.grace_seconds, 0, 86400));
  if (o.adaptive_grace && (o.overlap != Overlap::kCarry || o.wait_for_all)) {
    return absl::InvalidArgumentError(
        "outer.adaptive_grace = true: islands must train on while a round waits; set "
        "outer.overlap = \"carry\" and outer.wait_for_all = false");
  }
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.min_islands", o.min_islands, 1, 4096));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.max_islands", o.max_islands, o.min_islands, 4096));
  ATOLL_RETURN_IF_ERROR(ValidateOuterChoice(o));
  // Pullers of a step want every element, and parts of it begin at any block of kQuantBlock.
  const EncodingInfo& pulls = GetEncodingInfo(o.pull_encoding);
  const bool all = pulls.quantized && pulls.block == kQuantBlock;
  if (o.pull_encoding != Encoding::kFloat32 && !all) {
    return absl::InvalidArgumentError(
        absl::StrCat("outer.pull_encoding = \"", pulls.name,
                     "\": must be \"float32\", \"int8\", \"int4\" or \"e3m0\""));
  }
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.shard_copies", o.shard_copies, 1, 2));
  ATOLL_RETURN_IF_ERROR(ValidateFragments(o));
  ATOLL_RETURN_IF_ERROR(ValidateSiteServers(o));
  if (!o.contributes_to.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("outer.contributes_to = \"", absl::CHexEscape(o.contributes_to.substr(0, 40)),
                     "\": must be left out: the coordinator sets it in jobs of a site's servers"));
  }
  return IntInRange("outer.min_servers", o.min_servers, 1, 4096);
}

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

absl::Status ValidateRemote(const std::string& remote) {
  constexpr char kS3[] = "s3://";
  const bool bucket = absl::StartsWith(remote, kS3) && remote.size() > sizeof(kS3) - 1;
  if (remote.empty() || bucket || remote.front() == '/') return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("checkpoint.remote = \"", remote.substr(0, 80),
                   "\": must be s3://BUCKET/PREFIX or the absolute path of a folder that all "
                   "workers share, or left out"));
}

}  // namespace

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

absl::Status ValidateCounts(const JobSpec& spec) {
  const OuterSpec& o = spec.outer;
  ATOLL_RETURN_IF_ERROR(IntInRange("data.sequence_length", spec.data.sequence_length, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("inner.batch_sequences", spec.inner.batch_sequences, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("outer.steps_per_round", o.steps_per_round, 0, kStepsPerRoundMax));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.steps_min", o.steps_min, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.fragments", o.fragments, 1, kFragmentsMax));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("outer.fragment_delay_steps", o.fragment_delay_steps, 0, 1 << 20));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.min_islands", o.min_islands, 1, 4096));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.max_islands", o.max_islands, 1, 4096));
  ATOLL_RETURN_IF_ERROR(InRange("outer.grace_seconds", o.grace_seconds, 0, 86400));
  const ScheduleSpec& s = spec.schedule;
  ATOLL_RETURN_IF_ERROR(IntInRange("schedule.train_tokens", s.train_tokens, 0, kTrainTokensMax));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("schedule.snapshot_every_rounds", s.snapshot_every_rounds, 0, kMany));
  return IntInRange("schedule.checkpoint_every_steps", s.checkpoint_every_steps, 0, kMany);
}

absl::Status Validate(const JobSpec& spec) {
  ATOLL_RETURN_IF_ERROR(ValidateName("name", spec.name));
  ATOLL_RETURN_IF_ERROR(ValidateModel(spec.model));
  ATOLL_RETURN_IF_ERROR(ValidateData(spec.data));
  ATOLL_RETURN_IF_ERROR(ValidateInner(spec.inner));
  ATOLL_RETURN_IF_ERROR(ValidateOuter(spec.outer));
  if (spec.model.layers > 0 && spec.outer.fragments > spec.model.layers + 2) {
    return Bad("outer.fragments", spec.outer.fragments,
               absl::StrCat("at most ", spec.model.layers + 2,
                            ": the model's layers with embedding and head"));
  }
  ATOLL_RETURN_IF_ERROR(ValidateLayout(spec));
  const ScheduleSpec& s = spec.schedule;
  ATOLL_RETURN_IF_ERROR(IntInRange("schedule.train_tokens", s.train_tokens,
                                   spec.data.sequence_length, kTrainTokensMax));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("schedule.validate_every_rounds", s.validate_every_rounds, 0, kMany));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("schedule.validation_sequences", s.validation_sequences, 0, kMany));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("schedule.checkpoint_every_steps", s.checkpoint_every_steps, 0, kMany));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("schedule.snapshot_every_rounds", s.snapshot_every_rounds, 1, kMany));
  const CheckpointSpec& c = spec.checkpoint;
  ATOLL_RETURN_IF_ERROR(IntInRange("checkpoint.peer_copies", c.peer_copies, 0, 2));
  ATOLL_RETURN_IF_ERROR(IntInRange("checkpoint.peer_every_steps", c.peer_every_steps, 0, kMany));
  return ValidateRemote(c.remote);
}

}  // namespace atl
