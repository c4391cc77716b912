#include "common/protocol/outer_optimizer.h"

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/status.h"

namespace atl {
namespace {

template <class Info>
const Info* Find(const std::vector<Info>& table, absl::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Info& info) { return info.name == name; });
  return found == table.end() ? nullptr : &*found;
}

template <class Info>
std::string Names(const std::vector<Info>& table) {
  return absl::StrJoin(table, ", ",
                       [](std::string* out, const Info& info) { out->append(info.name); });
}

// `section` of a job file has them.
absl::StatusOr<std::map<std::string, double>> Parse(absl::string_view section,
                                                    const std::string& parameters,
                                                    const OuterOptimizerInfo& optimizer) {
  std::map<std::string, double> values;
  for (const OuterParameter& p : optimizer.parameters) values[p.name] = p.default_value;
  if (absl::StripAsciiWhitespace(parameters).empty()) return values;
  for (const absl::string_view setting : absl::StrSplit(parameters, ',')) {
    const std::vector<absl::string_view> sides = absl::StrSplit(setting, '=');
    const absl::string_view name = absl::StripAsciiWhitespace(sides[0]);
    const OuterParameter* parameter = Find(optimizer.parameters, name);
    if (parameter == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(section, ".parameters = \"", parameters, "\": ", optimizer.name, " has ",
                       optimizer.parameters.empty() ? "no parameters" : Names(optimizer.parameters),
                       ", not \"", name, "\""));
    }
    double value = 0;
    if (sides.size() != 2 || !absl::SimpleAtod(sides[1], &value) ||
        !(value >= parameter->low && value <= parameter->high)) {
      return absl::InvalidArgumentError(absl::StrCat(section, ".parameters = \"", parameters,
                                                     "\": must have ", name, "=VALUE, from ",
                                                     parameter->low, " to ", parameter->high));
    }
    values[std::string(name)] = value;
  }
  return values;
}

absl::StatusOr<const OuterOptimizerInfo*> FindOptimizer(absl::string_view section,
                                                        const std::string& name) {
  const OuterOptimizerInfo* optimizer = Find(OuterOptimizers(), name);
  if (optimizer != nullptr) return optimizer;
  return absl::InvalidArgumentError(absl::StrCat(section, ".optimizer = \"", name,
                                                 "\": must be one of ", Names(OuterOptimizers())));
}

// Checks the job of a site's servers.
absl::Status ValidateContributing(const OuterSpec& spec) {
  if (IsQuantized(spec.pull_encoding)) {
    return absl::InvalidArgumentError(
        absl::StrCat("outer.pull_encoding = \"", GetEncodingInfo(spec.pull_encoding).name,
                     "\": must be \"float32\" in the job of a site's servers"));
  }
  if (spec.fragments > 1) {
    return absl::InvalidArgumentError(absl::StrCat("outer.fragments = ", spec.fragments,
                                                   ": must be 1 in the job of a site's servers"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<OuterOptimizerInfo>& OuterOptimizers() {
  static const auto& table = *new std::vector<OuterOptimizerInfo>{
      {"sgd", {}, -1, false, {}},
      {"nesterov", {"momentum"}, 0, false, {}},
      {"nesterov_gain", {"momentum"}, 0, false, {{"gain_target", 1, 0.01, 10}}},
      {"delayed_nesterov", {"momentum", "pushes since"}, 0, true, {{"pushes", 4, 1, 4096}}},
  };
  return table;
}

const std::vector<std::string>& OuterMerges() {
  static const auto& names =
      *new std::vector<std::string>{"mean", "radial", "geometric_median", "trimmed_norms"};
  return names;
}

OuterChoice WithDefaults(OuterChoice choice) {
  constexpr double kRateWithMomentum = 0.7, kMomentum = 0.8;
  const bool needs_momentum = choice.momentum.value_or(0) > 0;
  if (!choice.optimizer) choice.optimizer = needs_momentum ? "nesterov" : OuterSpec().optimizer;
  const bool averages = *choice.optimizer == OuterSpec().optimizer;
  if (!choice.learning_rate) {
    choice.learning_rate = averages ? OuterSpec().learning_rate : kRateWithMomentum;
  }
  if (!choice.momentum) choice.momentum = averages ? OuterSpec().momentum : kMomentum;
  return choice;
}

const OuterOptimizerInfo& GetOuterOptimizer(const OuterSpec& spec) {
  const OuterOptimizerInfo* info = Find(OuterOptimizers(), spec.optimizer);
  ATOLL_CHECK(info != nullptr, spec.optimizer);
  return *info;
}

bool HasSinglePushRounds(const OuterSpec& spec) { return GetOuterOptimizer(spec).single_pushes; }

bool MergesByLayer(const OuterSpec& spec) { return spec.merge == "radial"; }

int64_t ServerBytesPerElement(const JobSpec& spec) {
  auto bytes = static_cast<int64_t>(sizeof(float) * (1 + ListServerSlots(spec).size()));
  const auto add = [&](Encoding encoding) {
    bytes += (EncodedBytes(encoding, kQuantBlock) + kQuantBlock - 1) / kQuantBlock;
  };
  // Beside them the newest step and the averaged moments as they are pulled.
  if (IsQuantized(spec.outer.pull_encoding)) add(spec.outer.pull_encoding);
  if (spec.outer.average_moments_steps > 0) add(Encoding::kMomentsAlone);
  return bytes;
}

int64_t ServerPeakBytesPerElement(const JobSpec& spec) {
  const int64_t tensors = spec.outer.contributes_to.empty() ? 1 : 2;
  const int64_t moments = spec.outer.average_moments_steps > 0 ? 2 : 0;  // staged with it
  return ServerBytesPerElement(spec) + tensors * static_cast<int64_t>(sizeof(float)) + moments;
}

bool KeepsAverage(const JobSpec& spec) {
  return spec.inner.ema > 0 && spec.outer.contributes_to.empty();
}

size_t AverageSlotIndex(const JobSpec& spec) { return GetOuterOptimizer(spec.outer).slots.size(); }

size_t RatioSlotIndex(const JobSpec& spec) {
  return AverageSlotIndex(spec) + (KeepsAverage(spec) ? 1 : 0);
}

std::vector<std::string> ListServerSlots(const JobSpec& spec) {
  std::vector<std::string> slots = GetOuterOptimizer(spec.outer).slots;
  if (KeepsAverage(spec)) slots.emplace_back(kAverageSlot);
  if (spec.outer.average_moments_steps > 0) slots.insert(slots.end(), {kRatioSlot, kSecondSlot});
  if (IsQuantized(spec.outer.pull_encoding)) slots.emplace_back(kServedSlot);
  if (!spec.outer.contributes_to.empty()) {
    slots.emplace_back(kBaseSlot);
    slots.emplace_back(kContributedSlot);
  }
  return slots;
}

double OuterParameterValue(const OuterSpec& spec, absl::string_view name) {
  const auto values = Parse("outer", spec.parameters, GetOuterOptimizer(spec));
  ATOLL_CHECK(values.ok(), spec.parameters);
  const auto found = values->find(std::string(name));
  ATOLL_CHECK(found != values->end(), spec.optimizer, " has no ", name);
  return found->second;
}

absl::Status ValidateOuterChoice(const OuterSpec& spec) {
  ATOLL_ASSIGN_OR_RETURN(const OuterOptimizerInfo* optimizer,
                         FindOptimizer("outer", spec.optimizer));
  if (std::count(OuterMerges().begin(), OuterMerges().end(), spec.merge) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "outer.merge = \"", spec.merge, "\": must be one of ", absl::StrJoin(OuterMerges(), ", ")));
  }
  const bool is_robust = spec.merge != "mean" && !MergesByLayer(spec);
  if (optimizer->single_pushes && (is_robust || spec.max_share < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "outer.optimizer = \"", spec.optimizer,
        "\": each push makes a round, so there is nothing to "
        "compare it with; set another one, or outer.merge = \"mean\" and outer.max_share = 1"));
  }
  if (spec.max_share < 1 && MergesByLayer(spec)) {
    return absl::InvalidArgumentError(
        absl::StrCat("outer.max_share = ", spec.max_share, ": must be 1 with outer.merge = \"",
                     spec.merge, "\", which also takes what islands say of their speed"));
  }
  if (optimizer->single_pushes && spec.wait_for_all) {
    return absl::InvalidArgumentError(
        absl::StrCat("outer.wait_for_all = true: must be false where outer.optimizer is \"",
                     spec.optimizer, "\": each push makes a round"));
  }
  if (!spec.contributes_to.empty()) ATOLL_RETURN_IF_ERROR(ValidateContributing(spec));
  return Parse("outer", spec.parameters, *optimizer).status();
}

absl::Status ValidateSiteChoice(const SiteServersSpec& spec) {
  ATOLL_ASSIGN_OR_RETURN(const OuterOptimizerInfo* optimizer,
                         FindOptimizer("outer.site", spec.optimizer));
  if (optimizer->single_pushes && spec.rounds > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("outer.site.optimizer = \"", spec.optimizer,
                     "\": must be one for which not every push is a round"));
  }
  return Parse("outer.site", spec.parameters, *optimizer).status();
}

}  // namespace atl
