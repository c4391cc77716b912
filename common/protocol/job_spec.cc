#include "common/protocol/job_spec.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "common/protocol/job_spec_impl.h"
#include "common/protocol/outer_optimizer.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kWeightMax = 1e6;
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
  ATOLL_RETURN_IF_ERROR(ParseInitialJob(m.initial_job).status());
  if (!m.config_path.empty() && !m.config_json.empty()) {
    return absl::InvalidArgumentError(
        "model.config_path is given together with model.config_json: give one of the two");
  }
  if (!m.config_path.empty() || !m.config_json.empty()) {
    if (m.hidden != 0 || m.layers != 0 || m.heads != 0 || m.experts != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          m.config_path.empty() ? "model.config_json" : "model.config_path",
          " is given together with model.hidden, layers, heads or experts: give one of the two"));
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
  ATOLL_RETURN_IF_ERROR(IntInRange("model.experts", m.experts, 0, 4096));
  ATOLL_RETURN_IF_ERROR(IntInRange("model.experts_per_token", m.experts_per_token, 0, 4096));
  ATOLL_RETURN_IF_ERROR(IntInRange("model.expert_hidden", m.expert_hidden, 0, 1 << 22));
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

absl::Status ValidatePacking(const DataSpec& d) {
  if (!IsPacked(d)) return absl::OkStatus();
  const bool ends_known = d.format == DataFormat::kJsonl || d.format == DataFormat::kChat ||
                          d.format == DataFormat::kShards;
  if (ends_known && !d.pad_documents) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data.documents = \"", DocumentsName(d.documents), "\": ",
      ends_known ? "with data.pad_documents each document has a sequence of its own; leave one of "
                   "them out"
                 : "documents end where data.format is \"jsonl\", \"chat\" or \"shards\" alone; "
                   "use one of these, or \"text\""));
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
  ATOLL_RETURN_IF_ERROR(ValidatePacking(d));
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

absl::Status ValidateEvaluations(const JobSpec& spec) {
  ATOLL_RETURN_IF_ERROR(
      IntInRange("the number of evaluations", std::ssize(spec.evaluation), 0, kEvaluationsMax));
  std::set<std::string> names;
  for (const EvaluationSpec& evaluation : spec.evaluation) {
    ATOLL_RETURN_IF_ERROR(ValidateName("evaluation.name", evaluation.name));
    ATOLL_RETURN_IF_ERROR(Required("evaluation.path", evaluation.path));
    ATOLL_RETURN_IF_ERROR(IntInRange("evaluation.every_rounds", evaluation.every_rounds, 0, kMany));
    ATOLL_RETURN_IF_ERROR(IntInRange("evaluation.limit", evaluation.limit, 0, kMany));
    if (names.insert(evaluation.name).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("evaluation.name = \"", evaluation.name,
                                                   "\": two evaluations have this name"));
  }
  const DataSpec& d = spec.data;
  if (spec.evaluation.empty()) return absl::OkStatus();
  if (IsImages(d.format)) {
    return absl::InvalidArgumentError(
        "evaluation is given, but data.format is of images: leave it out");
  }
  const bool is_text = d.format == DataFormat::kText || d.format == DataFormat::kJsonl ||
                       d.format == DataFormat::kChat;
  if (is_text || !d.tokenizer_path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "evaluation needs the tokenizer of the data's tokens: use data.format = \"shards\" (atoll "
      "tokenize) and data.tokenizer_path");
}

absl::Status ValidateSchedule(const InnerSpec& i) {
  ATOLL_RETURN_IF_ERROR(
      InRange("inner.final_learning_rate_ratio", i.final_learning_rate_ratio, 0, 1.0000001));
  ATOLL_RETURN_IF_ERROR(InRange("inner.warmup_fraction", i.warmup_fraction, 0, 1.0000001));
  ATOLL_RETURN_IF_ERROR(InRange("inner.decay_fraction", i.decay_fraction, 0, 1.0000001));
  if (i.schedule == RateSchedule::kWsd && i.warmup_fraction + i.decay_fraction > 1.0000001) {
    return Bad("inner.decay_fraction", i.decay_fraction,
               absl::StrCat("at most 1 - inner.warmup_fraction = ", 1 - i.warmup_fraction));
  }
  return absl::OkStatus();
}

absl::Status ValidateBatchRamp(const InnerSpec& i) {
  ATOLL_RETURN_IF_ERROR(IntInRange("the number of stages of inner.batch_ramp",
                                   std::ssize(i.batch_ramp), 0, kBatchStagesMax));
  int64_t before = -1;
  for (const BatchStage& stage : i.batch_ramp) {
    ATOLL_RETURN_IF_ERROR(
        IntInRange("inner.batch_ramp.sequences", stage.sequences, 1, i.batch_sequences));
    ATOLL_RETURN_IF_ERROR(IntInRange("inner.batch_ramp.tokens", stage.tokens, before + 1,
                                     before < 0 ? 0 : kTrainTokensMax));
    before = stage.tokens;
  }
  return absl::OkStatus();
}

absl::Status ValidateInner(const InnerSpec& i) {
  ATOLL_RETURN_IF_ERROR(InRange("inner.learning_rate", i.learning_rate, 0, 100));
  ATOLL_RETURN_IF_ERROR(ValidateSchedule(i));
  ATOLL_RETURN_IF_ERROR(InRange("inner.beta1", i.beta1, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("inner.beta2", i.beta2, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("inner.epsilon", i.epsilon, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("inner.weight_decay", i.weight_decay, 0, 10));
  ATOLL_RETURN_IF_ERROR(InRange("inner.clip_norm", i.clip_norm, 0, kInfinity));
  ATOLL_RETURN_IF_ERROR(
      InRange("inner.skip_norm_deviations", i.skip_norm_deviations, 0, kInfinity));
  ATOLL_RETURN_IF_ERROR(InRange("inner.skipped_share_max", i.skipped_share_max, 0, 1.0000001));
  ATOLL_RETURN_IF_ERROR(IntInRange("inner.batch_sequences", i.batch_sequences, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(ValidateBatchRamp(i));
  ATOLL_RETURN_IF_ERROR(InRange("inner.momentum", i.momentum, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("inner.ema", i.ema, 0, 1));
  ATOLL_RETURN_IF_ERROR(InRange("inner.expert_bias_rate", i.expert_bias_rate, 0, 1));
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
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.expert_fragments", o.expert_fragments, 1, kFragmentsMax));
  if (o.fragments == 1 && o.expert_fragments == 1) return absl::OkStatus();
  if (o.fragments > 1 && o.expert_fragments > 1) {
    return Bad("outer.expert_fragments", o.expert_fragments,
               absl::StrCat("1 with outer.fragments = ", o.fragments,
                            ": experts have their turns with their layers"));
  }
  if (HasSinglePushRounds(o)) {
    return Bad(o.fragments > 1 ? "outer.fragments" : "outer.expert_fragments",
               o.fragments * o.expert_fragments,
               "1 with an outer.optimizer for which every push is a round");
  }
  return absl::OkStatus();
}

absl::Status ValidateMoments(const OuterSpec& o) {
  ATOLL_RETURN_IF_ERROR(
      IntInRange("outer.average_moments_steps", o.average_moments_steps, 0, kStepsPerRoundMax));
  if (HasMoments(o.push_encoding) || HasMoments(o.pull_encoding)) {
    return absl::InvalidArgumentError(
        "outer.push_encoding, outer.pull_encoding: must be without moments; set "
        "outer.average_moments_steps instead");
  }
  if (o.average_moments_steps == 0) return absl::OkStatus();
  if (o.fragments * o.expert_fragments > 1 || o.site.rounds > 0 || HasSinglePushRounds(o)) {
    return Bad("outer.average_moments_steps", o.average_moments_steps,
               "0 with outer.fragments or outer.expert_fragments above 1, with outer.site.rounds "
               "above 0, and with an "
               "outer.optimizer for which every push is a round");
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
  if (o.fragments * o.expert_fragments > 1) {
    return Bad(o.fragments > 1 ? "outer.fragments" : "outer.expert_fragments",
               o.fragments * o.expert_fragments,
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
  ATOLL_RETURN_IF_ERROR(InRange("outer.max_share", o.max_share, 0.01, 1.0000001));
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
  ATOLL_RETURN_IF_ERROR(ValidateMoments(o));
  if (!o.contributes_to.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("outer.contributes_to = \"", absl::CHexEscape(o.contributes_to.substr(0, 40)),
                     "\": must be left out: the coordinator sets it in jobs of a site's servers"));
  }
  return IntInRange("outer.min_servers", o.min_servers, 1, 4096);
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

absl::StatusOr<InitialJob> ParseInitialJob(const std::string& text) {
  const size_t at = text.find('@');
  InitialJob found{text.substr(0, at)};
  const bool plain = std::all_of(found.job.begin(), found.job.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  const bool is_version =
      at == std::string::npos ||
      (absl::SimpleAtoi(text.substr(at + 1), &found.version) && found.version >= 0);
  if (plain && is_version && found.job.empty() == text.empty()) return found;
  return absl::InvalidArgumentError(
      absl::StrCat("model.initial_job = \"", text, "\": must be the id of a job, or JOB@VERSION"));
}

absl::Status ValidateCounts(const JobSpec& spec) {
  const OuterSpec& o = spec.outer;
  ATOLL_RETURN_IF_ERROR(IntInRange("data.sequence_length", spec.data.sequence_length, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("inner.batch_sequences", spec.inner.batch_sequences, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(ValidateBatchRamp(spec.inner));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("outer.steps_per_round", o.steps_per_round, 0, kStepsPerRoundMax));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.steps_min", o.steps_min, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.fragments", o.fragments, 1, kFragmentsMax));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.expert_fragments", o.expert_fragments, 1, kFragmentsMax));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("outer.fragment_delay_steps", o.fragment_delay_steps, 0, 1 << 20));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("outer.average_moments_steps", o.average_moments_steps, 0, kStepsPerRoundMax));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.min_islands", o.min_islands, 1, 4096));
  ATOLL_RETURN_IF_ERROR(IntInRange("outer.max_islands", o.max_islands, 1, 4096));
  ATOLL_RETURN_IF_ERROR(InRange("outer.grace_seconds", o.grace_seconds, 0, 86400));
  const ScheduleSpec& s = spec.schedule;
  ATOLL_RETURN_IF_ERROR(IntInRange("schedule.train_tokens", s.train_tokens, 0, kTrainTokensMax));
  ATOLL_RETURN_IF_ERROR(
      IntInRange("schedule.snapshot_every_rounds", s.snapshot_every_rounds, 0, kMany));
  return IntInRange("schedule.checkpoint_every_steps", s.checkpoint_every_steps, 0, kMany);
}

absl::Status ValidateRehearsed(const RehearsedSpec& r) {
  ATOLL_RETURN_IF_ERROR(IntInRange("rehearsed.runs", r.runs, 0, kMany));
  const std::pair<const char*, const RehearsedSpread&> spreads[] = {
      {"rehearsed.finish_s", r.finish_s}, {"rehearsed.tokens_per_s", r.tokens_per_s}};
  for (const auto& [name, spread] : spreads) {
    for (const double value : {spread.low, spread.median, spread.high}) {
      ATOLL_RETURN_IF_ERROR(InRange(name, value, 0, 1e30));
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const JobSpec& spec) {
  ATOLL_RETURN_IF_ERROR(ValidateName("name", spec.name));
  ATOLL_RETURN_IF_ERROR(ValidateModel(spec.model));
  // An adapter's job begins with another's adapter, beside these weights.
  if (!spec.model.initial_job.empty() && !spec.model.initial_weights_path.empty() &&
      spec.adapter.kind != AdapterKind::kLora) {
    return absl::InvalidArgumentError(
        "model.initial_weights_path is given together with model.initial_job: give one of the two");
  }
  ATOLL_RETURN_IF_ERROR(ValidateData(spec.data));
  ATOLL_RETURN_IF_ERROR(ValidateInner(spec.inner));
  ATOLL_RETURN_IF_ERROR(ValidateOuter(spec.outer));
  if (spec.model.layers > 0 && spec.outer.fragments > spec.model.layers + 2) {
    return Bad("outer.fragments", spec.outer.fragments,
               absl::StrCat("at most ", spec.model.layers + 2,
                            ": the model's layers with embedding and head"));
  }
  ATOLL_RETURN_IF_ERROR(ValidateAdapter(spec.adapter, spec.model));
  ATOLL_RETURN_IF_ERROR(ValidateObjective(spec));
  ATOLL_RETURN_IF_ERROR(ValidateLayout(spec));
  ATOLL_RETURN_IF_ERROR(ValidateEvaluations(spec));
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
  ATOLL_RETURN_IF_ERROR(IntInRange("schedule.priority", s.priority, -1000, 1000));
  ATOLL_RETURN_IF_ERROR(IntInRange("schedule.weight", s.weight, 1, 1000));
  const CheckpointSpec& c = spec.checkpoint;
  ATOLL_RETURN_IF_ERROR(IntInRange("checkpoint.peer_copies", c.peer_copies, 0, 2));
  ATOLL_RETURN_IF_ERROR(IntInRange("checkpoint.peer_every_steps", c.peer_every_steps, 0, kMany));
  ATOLL_RETURN_IF_ERROR(ValidateRehearsed(spec.rehearsed));
  return ValidateRemote(c.remote);
}

}  // namespace atl
