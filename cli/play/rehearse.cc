#include "cli/play/rehearse.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/job_file.h"
#include "cli/text/output.h"
#include "cli/text/table.h"
#include "cli/write_file.h"
#include "common/bounded_json.h"
#include "common/number_text.h"
#include "common/protocol/wire.h"
#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/read_text.h"
#include "rehearsal/answer.h"
#include "rehearsal/picture.h"

namespace atl::cli {
namespace {

using rehearsal::Answer;
using rehearsal::FailureCost;
using rehearsal::Spread;

constexpr int64_t kSeedsMax = 10'000;
constexpr size_t kSettingsMax = 64;
constexpr int64_t kFailuresBytesMax = 16 << 20;
constexpr int64_t kAnswerBytesMax = 64 << 20;
constexpr int kAnswerDepthMax = 8;

// One job, with one value of the compared key.
struct Setting {
  std::string value;
  JobSpec spec;
  Answer answer;
};

std::string BadRehearseFlag(const RehearseFlags& flags) {
  if (flags.seeds < 1 || flags.seeds > kSeedsMax) {
    return absl::StrCat("--seeds ", flags.seeds, ": at least 1, at most ", kSeedsMax);
  }
  if (!(flags.days > 0) || flags.days > 3650) return "--days: above 0 and at most 3650";
  if (!(flags.efficiency > 0) || flags.efficiency > 1) {
    return "--efficiency is above 0 and at most 1";
  }
  const size_t equals = flags.compare.find('=');
  if (!flags.compare.empty() &&
      (equals == std::string::npos || equals == 0 || equals + 1 == flags.compare.size())) {
    return absl::StrCat("--compare ", flags.compare,
                        ": write KEY=V1,V2,..., such as outer.steps_per_round=64,256");
  }
  return "";
}

absl::StatusOr<Answer> PlaySetting(const RehearseFlags& flags, const JobSpec& spec,
                                   const plan::Cluster& cluster,
                                   const rehearsal::Failures& failures) {
  ATOLL_ASSIGN_OR_RETURN(rehearsal::Scene scene,
                         rehearsal::MakeScene(spec, cluster, flags.efficiency));
  scene.times = failures.times;
  ATOLL_RETURN_IF_ERROR(
      Annotate(rehearsal::PlaceServices(failures.servers, failures.coordinator_site, scene),
               flags.failures));
  ATOLL_RETURN_IF_ERROR(Annotate(rehearsal::SetPrices(failures.prices, scene), flags.failures));
  return rehearsal::Rehearse(scene, failures, FromSeconds(flags.days * 86'400), flags.seed,
                             flags.seeds);
}

absl::StatusOr<std::vector<Setting>> ReadSettings(const RehearseFlags& flags) {
  std::vector<Setting> settings;
  if (flags.compare.empty()) {
    ATOLL_ASSIGN_OR_RETURN(JobSpec spec, ReadJobFile(flags.job));
    settings.push_back({"", std::move(spec), {}});
    return settings;
  }
  const size_t equals = flags.compare.find('=');
  const std::string key = flags.compare.substr(0, equals);
  const std::vector<std::string> values = absl::StrSplit(flags.compare.substr(equals + 1), ',');
  if (values.size() > kSettingsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--compare has ", values.size(), " values: at most ", kSettingsMax));
  }
  for (const std::string& value : values) {
    ATOLL_ASSIGN_OR_RETURN(JobSpec spec, ReadJobFile(flags.job, {absl::StrCat(key, "=", value)}));
    settings.push_back({value, std::move(spec), {}});
  }
  return settings;
}

// ------------------------------------------------------------------------------------- text ----

std::string ShareText(double share) { return absl::StrFormat("%.1f%%", 100 * share); }

std::string TimeText(double seconds) {
  if (std::isinf(seconds)) return "never seen";
  return seconds >= 86'400 ? absl::StrFormat("%.2f d", seconds / 86'400)
                           : absl::StrFormat("%.2f h", seconds / 3600);
}

std::string UseText(int use) { return rehearsal::ToWords(static_cast<rehearsal::Use>(use)); }

std::string CostText(const FailureCost& cost, const JobSpec& spec) {
  const rehearsal::Failure& failure = cost.failure;
  std::string parts;
  for (int u = 0; u < rehearsal::kUses; ++u) {
    const double hours = cost.uses[static_cast<size_t>(u)] / 3600;
    if (hours < 0.05 * cost.total() / 3600) continue;
    absl::StrAppendFormat(&parts, "%s%s %s", parts.empty() ? "" : ", ", NumberText(hours, 3),
                          UseText(u));
  }
  return absl::StrFormat(
      "  %s %s, %s into run %d: %s device-hours (%s); may help: %s\n",
      rehearsal::Name(failure.kind), failure.subject, TimeText(atl::Seconds(failure.at)), cost.seed,
      NumberText(cost.total() / 3600, 3), parts, rehearsal::Prevention(cost, spec));
}

std::string AnswerText(const RehearseFlags& flags, const JobSpec& spec, const Answer& answer) {
  Table table({"", "5%", "50%", "95%", "bound"});
  const auto add = [&](const char* what, const Spread& spread, const std::string& bound,
                       const auto& text) {
    table.Add({what, text(spread.low), text(spread.median), text(spread.high), bound});
  };
  const auto number = [](double value) { return NumberText(value); };
  const rehearsal::RunResult& bound = answer.bound;
  if (answer.finished > 0) {
    add("finish", answer.finish_s, bound.finished ? TimeText(atl::Seconds(bound.took)) : "-",
        TimeText);
  }
  add("price", answer.price, number(bound.price), number);
  add("tokens/s", answer.tokens_per_s, number(bound.tokens_per_s()), number);
  add("goodput", answer.goodput, ShareText(bound.goodput()), ShareText);
  std::string text = absl::StrFormat("%d of %d runs finish within %s days\n\n", answer.finished,
                                     std::ssize(answer.runs), NumberText(flags.days));
  absl::StrAppend(&text, table.Text(), "\ndevice-time:");
  for (int u = 0; u < rehearsal::kUses; ++u) {
    absl::StrAppend(&text, u == 0 ? " " : ", ", ShareText(answer.shares[static_cast<size_t>(u)]),
                    " ", UseText(u));
  }
  absl::StrAppend(&text, "\n");
  if (!answer.dearest.empty()) absl::StrAppend(&text, "\nwhat cost most:\n");
  for (const FailureCost& cost : answer.dearest) absl::StrAppend(&text, CostText(cost, spec));
  for (const rehearsal::RunResult& run : answer.runs) {
    if (run.finished || (run.tokens > 0 && !run.failed)) continue;
    absl::StrAppend(&text, "\nrun ", run.seed,
                    run.failed ? " failed: " : " trained nothing: ", run.state, "\n");
    break;
  }
  return text;
}

// Best first: ordered by the time that a token takes.
std::string ComparisonText(const std::string& key, const std::vector<Setting>& settings) {
  Table table({key, "finish", "tokens/s", "goodput", "price", "slower", "beyond noise"});
  for (const Setting& setting : settings) {
    const Answer& answer = setting.answer;
    const bool best = &setting == &settings.front();
    const rehearsal::Difference difference = rehearsal::Compare(settings.front().answer, answer);
    table.Add({setting.value, answer.finished > 0 ? TimeText(answer.finish_s.median) : "-",
               NumberText(answer.tokens_per_s.median), ShareText(answer.goodput.median),
               NumberText(answer.price.median), best ? "-" : ShareText(difference.share),
               best ? "-" : (difference.beyond_noise ? "yes" : "no")});
  }
  return table.Text();
}

// ------------------------------------------------------------------------------------- JSON ----

nlohmann::json SpreadJson(const Spread& spread) {
  return {{"low", spread.low}, {"median", spread.median}, {"high", spread.high}};
}

nlohmann::json UsesJson(const rehearsal::UseSums& uses) {
  nlohmann::json json;
  for (int u = 0; u < rehearsal::kUses; ++u) {
    json[rehearsal::Name(static_cast<rehearsal::Use>(u))] = uses[static_cast<size_t>(u)];
  }
  return json;
}

nlohmann::json RunJson(const rehearsal::RunResult& run) {
  return {{"seed", run.seed},
          {"finished", run.finished},
          {"failed", run.failed},
          {"state", run.state},
          {"seconds", atl::Seconds(run.took)},
          {"tokens", run.tokens},
          {"tokens_per_s", run.tokens_per_s()},
          {"price", run.price},
          {"goodput", run.goodput()},
          {"rounds", run.rounds},
          {"failures", run.failures},
          {"device_seconds", UsesJson(run.uses)}};
}

// Covers the whole job: an answer is of use for no other one.
absl::StatusOr<std::string> Fingerprint(JobSpec spec) {
  spec.rehearsed = {};
  v1::JobSpec wire;
  ATOLL_RETURN_IF_ERROR(Encode(spec, &wire));
  const std::string bytes = wire.SerializeAsString();
  return absl::StrCat(absl::Hex(XXH3_64bits(bytes.data(), bytes.size()), absl::kZeroPad16));
}

nlohmann::json AnswerJson(const JobSpec& spec, const Answer& answer) {
  nlohmann::json json = {
      {"seeds", answer.runs.size()},           {"finished", answer.finished},
      {"price", SpreadJson(answer.price)},     {"tokens_per_s", SpreadJson(answer.tokens_per_s)},
      {"goodput", SpreadJson(answer.goodput)}, {"device_time", UsesJson(answer.shares)},
      {"bound", RunJson(answer.bound)},        {"dearest", nlohmann::json::array()},
      {"runs", nlohmann::json::array()}};
  json["finish_seconds"] =
      answer.finished > 0 ? SpreadJson(answer.finish_s) : nlohmann::json(nullptr);
  for (const FailureCost& cost : answer.dearest) {
    json["dearest"].push_back({{"kind", rehearsal::Name(cost.failure.kind)},
                               {"subject", cost.failure.subject},
                               {"at_seconds", atl::Seconds(cost.failure.at)},
                               {"seed", cost.seed},
                               {"device_seconds", UsesJson(cost.uses)},
                               {"prevention", rehearsal::Prevention(cost, spec)}});
  }
  for (const rehearsal::RunResult& run : answer.runs) json["runs"].push_back(RunJson(run));
  return json;
}

nlohmann::json ComparisonJson(const std::string& key, const std::vector<Setting>& settings) {
  nlohmann::json json = {{"key", key}, {"settings", nlohmann::json::array()}};
  for (const Setting& setting : settings) {
    const rehearsal::Difference difference =
        rehearsal::Compare(settings.front().answer, setting.answer);
    nlohmann::json one = AnswerJson(setting.spec, setting.answer);
    one["value"] = setting.value;
    one["slower"] = difference.share;
    one["beyond_noise"] = difference.beyond_noise;
    json["settings"].push_back(std::move(one));
  }
  return json;
}

absl::Status RunRehearse(const Global& global, const RehearseFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(std::vector<Setting> settings, ReadSettings(flags));
  ATOLL_ASSIGN_OR_RETURN(const plan::Cluster cluster, LoadClusterFile(flags.cluster));
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(flags.failures, kFailuresBytesMax));
  ATOLL_ASSIGN_OR_RETURN(const rehearsal::Failures failures,
                         rehearsal::ParseFailures(text, flags.failures));
  for (Setting& setting : settings) {
    ATOLL_ASSIGN_OR_RETURN(setting.answer, PlaySetting(flags, setting.spec, cluster, failures));
  }
  if (!flags.svg.empty()) {
    std::vector<rehearsal::Drawn> drawn;
    for (const Setting& setting : settings) drawn.push_back({setting.value, &setting.answer});
    ATOLL_RETURN_IF_ERROR(WriteFile(flags.svg, rehearsal::RenderPicture(drawn)));
  }
  if (flags.compare.empty()) {
    const Setting& only = settings.front();
    nlohmann::json json = AnswerJson(only.spec, only.answer);
    ATOLL_ASSIGN_OR_RETURN(json["job"], Fingerprint(only.spec));
    std::cout << (global.structured ? Document(json.dump(2) + "\n")
                                    : AnswerText(flags, only.spec, only.answer));
    return absl::OkStatus();
  }
  std::stable_sort(settings.begin(), settings.end(), [](const Setting& a, const Setting& b) {
    return rehearsal::SecondsPerToken(a.answer) < rehearsal::SecondsPerToken(b.answer);
  });
  const std::string key = flags.compare.substr(0, flags.compare.find('='));
  std::cout << (global.structured ? Document(ComparisonJson(key, settings).dump(2) + "\n")
                                  : ComparisonText(key, settings));
  return absl::OkStatus();
}

// A number that is missing was not seen.
absl::StatusOr<RehearsedSpread> ReadSpread(const nlohmann::json& json, const char* name) {
  RehearsedSpread spread;
  const nlohmann::json values = json.value(name, nlohmann::json());
  if (values.is_null()) return spread;
  if (!values.is_object()) return absl::InvalidArgumentError(absl::StrCat(name, " is no object"));
  for (const auto& [key, to] : {std::pair("low", &spread.low), std::pair("median", &spread.median),
                                std::pair("high", &spread.high)}) {
    const nlohmann::json value = values.value(key, nlohmann::json());
    if (value.is_number()) *to = value.get<double>();
  }
  return spread;
}

}  // namespace

absl::Status ReadRehearsed(const std::string& path, JobSpec& spec) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(path, kAnswerBytesMax));
  const auto json = ParseBoundedJson<nlohmann::json>(text, kAnswerDepthMax);
  if (!json.is_object() || !json.contains("job") || !json.contains("seeds") ||
      !json["seeds"].is_number_integer()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no answer of atoll rehearse --json for one setting"));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string own, Fingerprint(spec));
  if (json["job"] != own) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": is the answer for another job, or for other settings of it: rehearse "
                     "this one, or leave out --rehearsed"));
  }
  spec.rehearsed.runs = json["seeds"].get<int64_t>();
  ATOLL_ASSIGN_OR_RETURN(spec.rehearsed.finish_s, ReadSpread(json, "finish_seconds"));
  ATOLL_ASSIGN_OR_RETURN(spec.rehearsed.tokens_per_s, ReadSpread(json, "tokens_per_s"));
  return Annotate(Validate(spec), path);
}

int Rehearse(const Global& global, const RehearseFlags& flags) {
  const std::string bad = BadRehearseFlag(flags);
  return bad.empty() ? ExitCode(RunRehearse(global, flags)) : FailUsage(bad);
}

}  // namespace atl::cli
