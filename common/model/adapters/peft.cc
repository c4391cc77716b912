#include "common/model/adapters/peft.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/model/json.h"

namespace atl {
namespace {

constexpr char kPrefix[] = "base_model.model.";

// Fields that say where an adapter comes from, or what only PEFT's own training looks at.
constexpr const char* kWithoutEffect[] = {"auto_mapping",
                                          "base_model_name_or_path",
                                          "bias",
                                          "corda_config",
                                          "eva_config",
                                          "fan_in_fan_out",
                                          "inference_mode",
                                          "init_lora_weights",
                                          "layers_pattern",
                                          "lora_alpha",
                                          "lora_dropout",
                                          "megatron_core",
                                          "peft_type",
                                          "peft_version",
                                          "qalora_group_size",
                                          "r",
                                          "revision",
                                          "runtime_config",
                                          "target_modules",
                                          "task_type",
                                          "use_rslora"};

// Ways for A and B to begin that leave the base's weights as they are.
constexpr const char* kInits[] = {"gaussian", "eva", "orthogonal"};

bool IsOff(const nlohmann::json& value) {
  return value.is_null() || value == false ||
         ((value.is_object() || value.is_array()) && value.empty());
}

// Reads target_modules: names, or one text.
absl::StatusOr<std::vector<std::string>> ReadTargets(const nlohmann::json& value) {
  if (value == kAllLinear) return std::vector<std::string>{kAllLinear};
  std::vector<std::string> targets;
  if (!value.is_array()) {
    return absl::InvalidArgumentError("is no list of names; patterns are not read");
  }
  for (const nlohmann::json& name : value) {
    if (!name.is_string()) return absl::InvalidArgumentError("has an entry that is no name");
    targets.push_back(name.get<std::string>());
  }
  std::sort(targets.begin(), targets.end());
  if (targets.empty() || std::ssize(targets) > kAdapterTargetsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", targets.size(), " names; must be 1 to ", kAdapterTargetsMax));
  }
  return targets;
}

}  // namespace

std::string AdapterTensorName(absl::string_view matrix, char which) {
  absl::ConsumeSuffix(&matrix, ".weight");
  return absl::StrCat(kPrefix, matrix, ".lora_", std::string(1, which), ".weight");
}

std::string FormatAdapterConfig(const ModelConfig& config, absl::string_view base,
                                absl::string_view revision) {
  const AdapterConfig& adapter = config.adapter;
  nlohmann::ordered_json json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  for (const auto& [field, value] :
       {std::pair("base_model_name_or_path", base), {"revision", revision}}) {
    json[field] = value.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  }
  json["r"] = adapter.rank;
  json["lora_alpha"] = adapter.alpha;
  if (adapter.targets == std::vector<std::string>{kAllLinear}) {
    json["target_modules"] = kAllLinear;
  } else {
    json["target_modules"] = adapter.targets;
  }
  json["use_rslora"] = adapter.use_rslora;
  json["fan_in_fan_out"] = config.architecture().matrices_transposed;
  json["bias"] = "none";
  json["lora_dropout"] = 0.0;
  json["use_dora"] = false;
  json["modules_to_save"] = nullptr;
  json["inference_mode"] = true;
  return json.dump(2) + "\n";
}

absl::StatusOr<AdapterSpec> ParseAdapterConfig(absl::string_view text, absl::string_view file) {
  constexpr int kDepthMax = 8;
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, file, kDepthMax));
  const auto bad = [&](absl::string_view field, absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", field, " ", problem));
  };
  for (const char* field : {"peft_type", "r", "lora_alpha", "target_modules"}) {
    if (!object.contains(field)) return bad(field, "is missing");
  }
  if (object["peft_type"] != "LORA") return bad("peft_type", "is not \"LORA\"");
  if (object.contains("bias") && object["bias"] != "none") return bad("bias", "is not \"none\"");
  const nlohmann::json init = object.value("init_lora_weights", nlohmann::json(true));
  if (!init.is_boolean() &&
      std::find(std::begin(kInits), std::end(kInits), init) == std::end(kInits)) {
    return bad(
        "init_lora_weights",
        "is none of true, false, \"gaussian\", \"eva\" and \"orthogonal\": the adapter may "
        "belong to a base that it has changed; convert it in PEFT to one of the model's own");
  }
  for (const auto& [field, value] : object.items()) {
    const bool known = std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), field) !=
                       std::end(kWithoutEffect);
    if (known || IsOff(value)) continue;
    return bad(field, "is set, which is not implemented");
  }
  AdapterSpec spec;
  spec.kind = AdapterKind::kLora;
  const auto rank = JsonInteger(object["r"], 1, kAdapterRankMax);
  if (!rank.ok()) return bad("r", rank.status().message());
  spec.rank = *rank;
  const nlohmann::json& alpha = object["lora_alpha"];
  spec.alpha = alpha.is_number() ? alpha.get<double>() : 0;
  if (!(spec.alpha > 0 && spec.alpha <= kAdapterAlphaMax)) {
    return bad("lora_alpha", absl::StrCat("is not above 0 and at most ", kAdapterAlphaMax));
  }
  auto targets = ReadTargets(object["target_modules"]);
  if (!targets.ok()) return bad("target_modules", targets.status().message());
  spec.targets = *std::move(targets);
  if (object.contains("use_rslora") && !object["use_rslora"].is_boolean()) {
    return bad("use_rslora", "is neither true nor false");
  }
  spec.use_rslora = object.value("use_rslora", false);
  return spec;
}

}  // namespace atl
