#include "common/model/adapters/adapter.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/config.h"
#include "common/model/family.h"
#include "common/model/layout.h"

namespace atl {
namespace {

// Names of the matrices of a block that may have adapters, by use: experts have none, and neither
// has the feed-forward of other blocks beside them.
std::vector<std::pair<Param, std::string>> ListMatrices(const ModelConfig& config) {
  const ParamNames n = config.architecture().names;
  std::vector<std::pair<Param, std::string>> all;
  for (const auto& [use, name] : {std::pair(Param::kQuery, &n.qkv),
                                  {Param::kQuery, &n.query},
                                  {Param::kKey, &n.key},
                                  {Param::kValue, &n.value},
                                  {Param::kOut, &n.out},
                                  {Param::kGate, &n.gate_up},
                                  {Param::kGate, &n.gate},
                                  {Param::kUp, &n.up},
                                  {Param::kDown, &n.down}}) {
    const bool attention = use != Param::kGate && use != Param::kUp && use != Param::kDown;
    if (!name->empty() && (attention || config.experts.count == 0)) all.emplace_back(use, *name);
  }
  return all;
}

bool EndsAs(absl::string_view name, absl::string_view target) {
  return name == target || absl::EndsWith(name, absl::StrCat(".", target));
}

absl::Status CheckTargets(const AdapterConfig& adapter, const ModelConfig& config) {
  const auto matrices = ListMatrices(config);
  const bool mixture = config.experts.count > 0;
  for (const std::string& target : adapter.targets) {
    const bool all = target == kAllLinear;
    const bool found = all ? !mixture
                           : std::any_of(matrices.begin(), matrices.end(),
                                         [&](const auto& m) { return EndsAs(m.second, target); });
    if (found) continue;
    const auto name = [](std::string* out, const auto& m) { absl::StrAppend(out, m.second); };
    if (mixture) {
      return absl::InvalidArgumentError(
          absl::StrCat("adapter.targets has \"", absl::CHexEscape(target.substr(0, 40)),
                       "\": of a mixture of experts only attention has adapters; its matrices are ",
                       absl::StrJoin(matrices, ", ", name)));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("adapter.targets has \"", absl::CHexEscape(target.substr(0, 40)),
                     "\": no matrix of the model's blocks is called so; they are ",
                     absl::StrJoin(matrices, ", ", name), ", all of them \"", kAllLinear, "\""));
  }
  return absl::OkStatus();
}

std::optional<WeightCode> FindWeightCode(AdapterBase base) {
  switch (base) {
    case AdapterBase::kInt8:
      return WeightCode::kInt8;
    case AdapterBase::kNf4:
      return WeightCode::kNf4;
    case AdapterBase::kCompute:
      break;
  }
  return std::nullopt;
}

absl::Status CheckBase(const ModelConfig& config) {
  if (!config.adapter.base) return absl::OkStatus();
  for (const auto& [name, columns] :
       {std::pair("a hidden size of", config.d_model),
        {"heads of together", config.query_channels()},
        {"a feed-forward of", config.has_dense_blocks() ? config.ffn : 0}}) {
    if (columns % kWeightBlock == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("adapter.base = \"", *config.adapter.base == WeightCode::kNf4 ? "nf4" : "int8",
                     "\": the model has ", name, " ", columns,
                     " channels, and its weights are coded "
                     "in blocks of ",
                     kWeightBlock, "; leave adapter.base out"));
  }
  return absl::OkStatus();
}

}  // namespace

double AdapterConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (use_rslora ? std::sqrt(r) : r);
}

bool AdapterConfig::Adapts(absl::string_view matrix) const {
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
    return target == kAllLinear || EndsAs(matrix, target);
  });
}

std::array<int64_t, kBlockProducts> CountAdapterColumns(const ModelConfig& config) {
  std::array<int64_t, kBlockProducts> columns = {};
  if (!config.adapter.present()) return columns;
  for (const auto& [use, name] : ListMatrices(config)) {
    const std::optional<BlockProduct> product = FindProduct(use);
    if (!product || !config.adapter.Adapts(name)) continue;
    columns[static_cast<size_t>(*product)] += config.adapter.rank;
  }
  return columns;
}

absl::StatusOr<ModelConfig> WithAdapter(ModelConfig config, const AdapterSpec& spec) {
  if (spec.kind == AdapterKind::kNone) return config;
  if (config.is_images() || config.architecture().objective != Objective::kNextToken) {
    return absl::InvalidArgumentError(absl::StrCat(
        "adapter.kind = \"lora\": the model is of family ", GetFamily(config.family).model_type,
        ", and only decoders of text have adapters; leave [adapter] out"));
  }
  config.adapter = {spec.rank, spec.alpha, spec.use_rslora, spec.targets, FindWeightCode(spec.base),
                    spec.init};
  ATOLL_RETURN_IF_ERROR(CheckTargets(config.adapter, config));
  ATOLL_RETURN_IF_ERROR(CheckBase(config));
  return config;
}

}  // namespace atl
