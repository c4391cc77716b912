#include "common/model/config_fields.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/model/unknown_fields.h"

namespace atl {
namespace {

// By RopeScaling::Kind.
constexpr const char* kScalings[] = {"default", "linear", "dynamic", "llama3", "yarn"};

void ReadLlama3Scaling(ConfigFields& fields, RopeScaling* scaling) {
  scaling->low_frequency_factor = fields.Number("low_freq_factor");
  scaling->high_frequency_factor = fields.Number("high_freq_factor");
  if (!(scaling->low_frequency_factor > 0 &&
        scaling->high_frequency_factor > scaling->low_frequency_factor)) {
    fields.Fail("high_freq_factor", "is not above low_freq_factor, and that above 0");
  }
}

void ReadYarnScaling(ConfigFields& fields, RopeScaling* scaling) {
  scaling->beta_fast = fields.Number("beta_fast", 32);
  scaling->beta_slow = fields.Number("beta_slow", 1);
  scaling->attention_factor = fields.Number("attention_factor", 0);
  fields.MustBe("truncate", true);
  if (!(scaling->beta_slow > 0 && scaling->beta_fast > scaling->beta_slow)) {
    fields.Fail("beta_fast", "is not above beta_slow, and that above 0");
  }
  if (!(scaling->attention_factor >= 0)) fields.Fail("attention_factor", "is below 0");
}

}  // namespace

int64_t ConfigFields::Integer(const std::string& name, int64_t max) {
  if (!Has(name)) {
    Fail(name, "is missing");
    return 0;
  }
  auto value = JsonInteger(object_[name], 1, max);
  if (!value.ok()) Fail(name, value.status().message());
  return value.ok() ? *value : 0;
}

int64_t ConfigFields::Count(const std::string& name, int64_t max, int64_t otherwise) {
  if (!Has(name)) return otherwise;
  const auto value = JsonInteger(object_[name], 0, max);
  if (!value.ok()) Fail(name, value.status().message());
  return value.ok() ? *value : 0;
}

double ConfigFields::Number(const std::string& name) {
  if (!Has(name)) Fail(name, "is missing");
  return Number(name, 0);
}

double ConfigFields::Number(const std::string& name, double otherwise) {
  if (!Has(name)) return otherwise;
  if (!object_[name].is_number()) {
    Fail(name, "is not a number");
    return 0;
  }
  return object_[name].get<double>();
}

const nlohmann::json* ConfigFields::Array(const std::string& name, size_t least, size_t most) {
  if (!Has(name)) return nullptr;
  const auto& array = object_[name];
  if (array.is_array() && array.size() >= least && array.size() <= most) return &array;
  Fail(name, absl::StrCat("is not an array of ", least, " to ", most, " numbers"));
  return nullptr;
}

std::vector<int64_t> ConfigFields::Integers(const std::string& name, size_t most, int64_t max,
                                            std::vector<int64_t> otherwise) {
  const auto* const array = Array(name, 1, most);
  if (array == nullptr) return otherwise;
  std::vector<int64_t> numbers;
  for (const auto& element : *array) {
    const auto value = JsonInteger(element, 1, max);
    if (!value.ok()) Fail(name, value.status().message());
    numbers.push_back(value.ok() ? *value : 1);
  }
  return numbers;
}

std::vector<int64_t> ConfigFields::Indices(const std::string& name, int64_t count) {
  std::vector<int64_t> indices;
  const auto* const array = Array(name, 0, kMaxLayers);
  for (const auto& element : array == nullptr ? nlohmann::json::array() : *array) {
    const auto index = JsonInteger(element, 0, kMaxLayers - 1);
    if (!index.ok()) Fail(name, index.status().message());
    if (index.ok() && *index < count) indices.push_back(*index);
  }
  return indices;
}

std::vector<double> ConfigFields::Numbers(const std::string& name, size_t most,
                                          std::vector<double> otherwise) {
  const auto* const array = Array(name, 1, most);
  if (array == nullptr) return otherwise;
  std::vector<double> numbers;
  for (const auto& element : *array) {
    if (!element.is_number()) Fail(name, "holds something that is not a number");
    numbers.push_back(element.is_number() ? element.get<double>() : 0);
  }
  return numbers;
}

std::vector<int64_t> ConfigFields::TokenIds(const std::string& name, std::vector<int64_t> absent) {
  constexpr size_t kMostIds = 64;
  if (IsNull(name)) return {};
  if (!Has(name)) return absent;
  const auto& value = object_[name];
  const auto list = value.is_array() ? value : nlohmann::json::array({value});
  if (list.size() > kMostIds) Fail(name, absl::StrCat("has more than ", kMostIds, " ids"));
  std::vector<int64_t> ids;
  for (const auto& element : list) {
    const auto id = JsonInteger(element, -1, kMaxVocab);  // LLaMA 1 has no padding: -1
    if (!id.ok()) Fail(name, id.status().message());
    if (id.ok()) ids.push_back(*id);
  }
  return ids;
}

int64_t ConfigFields::Entries(const std::string& name) {
  if (!Has(name)) return 0;
  if (!object_[name].is_object()) Fail(name, "is not an object");
  return static_cast<int64_t>(object_[name].size());
}

bool ConfigFields::Flag(const std::string& name, bool otherwise) {
  if (!Has(name)) return otherwise;
  if (!object_[name].is_boolean()) {
    Fail(name, "is not true or false");
    return false;
  }
  return object_[name].get<bool>();
}

std::string ConfigFields::Text(const std::string& name, const std::string& otherwise) {
  if (!Has(name)) return otherwise;
  if (!object_[name].is_string()) {
    Fail(name, "is not a string");
    return "";
  }
  return object_[name].get<std::string>();
}

void ConfigFields::MustBe(const std::string& name, const nlohmann::json& implemented) {
  if (Has(name) && object_[name] != implemented) {
    Fail(name, absl::StrCat("is not ", implemented.dump(), ", the only value Atoll implements"));
  }
}

void ConfigFields::Fail(const std::string& name, absl::string_view problem) {
  if (!status_.ok()) return;
  status_ =
      absl::InvalidArgumentError(absl::StrCat(file_, ": field \"", path_, name, "\" ", problem));
}

void ConfigFields::Activation(const std::string& name, std::vector<std::string> implemented) {
  activations_ = std::move(implemented);
  if (Has(name)) CheckActivation(name);
}

void ConfigFields::CheckActivation(const std::string& name) {
  const auto& value = object_[name];
  if (std::any_of(activations_.begin(), activations_.end(),
                  [&](const std::string& known) { return value == nlohmann::json(known); })) {
    return;
  }
  Fail(name, absl::StrCat("is ", ValueText(value), "; Atoll implements \"",
                          absl::StrJoin(activations_, "\" or \""), "\" here"));
}

void ConfigFields::CheckUnread(absl::string_view family) {
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) > 0) continue;
    switch (ClassifyField(name, value)) {
      case FieldUse::kNone:
        break;
      case FieldUse::kUnknown:
        unknown_.push_back(absl::StrCat(name, " = ", ValueText(value)));
        break;
      case FieldUse::kActivation:
        if (activations_.empty()) {
          unknown_.push_back(absl::StrCat(name, " = ", ValueText(value)));
        } else {
          CheckActivation(name);
        }
        break;
      case FieldUse::kQuantisation:
        Fail(name, absl::StrCat("is ", ValueText(value),
                                ": the weights are quantised; name the folder of the model that "
                                "they were made from"));
        break;
      case FieldUse::kChangesModel:
        Fail(name, absl::StrCat("is ", ValueText(value), ", which changes a model, and Atoll does ",
                                "not implement it for ", family, " models"));
        break;
    }
  }
}

void ConfigFields::RefuseUnread(absl::string_view what) {
  CheckUnread(what);
  if (unknown_.empty()) return;
  Fail(unknown_[0].substr(0, unknown_[0].find(' ')),
       absl::StrCat("is not known for ", what, "; Atoll reads ", absl::StrJoin(known_, ", ")));
}

std::string ConfigFields::Warning() const {
  if (unknown_.empty()) return "";
  return absl::StrCat(file_, ": left out, because Atoll does not know what they mean: ",
                      absl::StrJoin(unknown_, ", "));
}

void ConfigFields::Rope(ModelConfig* config) {
  MustBe("rope_interleaved", false);
  MustBe("partial_rotary_factor", 1.0);
  bool has_theta = Has("rope_theta"), has_scaling = false;
  config->rope_theta = Number("rope_theta", config->rope_theta);
  // Older files have rope_theta and rope_scaling, newer ones both in rope_parameters.
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (!Has(name)) continue;
    const auto& rope = object_[name];
    if (!rope.is_object()) return Fail(name, "is not an object");
    ModelConfig read = *config;
    read.rope_scaling = {};
    ReadScaling(rope, name, &read);
    if (has_theta && read.rope_theta != config->rope_theta) {
      Fail(name, absl::StrCat("has rope_theta ", read.rope_theta, ", and another field has ",
                              config->rope_theta, "; leave one of them out"));
    }
    if (has_scaling && read.rope_scaling != config->rope_scaling) {
      Fail(name, "says something else than rope_scaling; leave one of them out");
    }
    has_scaling = true;
    has_theta = has_theta || rope.contains("rope_theta");
    config->rope_scaling = read.rope_scaling;
    config->rope_theta = read.rope_theta;
  }
}

void ConfigFields::ReadScaling(const nlohmann::json& rope, const std::string& name,
                               ModelConfig* config) {
  ConfigFields fields(rope, file_, absl::StrCat(path_, name, "."));
  RopeScaling& scaling = config->rope_scaling;
  const std::string type = fields.Text("rope_type", fields.Text("type", "default"));
  config->rope_theta = fields.Number("rope_theta", config->rope_theta);
  using Kind = RopeScaling::Kind;
  const auto* kind = std::find(std::begin(kScalings), std::end(kScalings), type);
  if (kind == std::end(kScalings)) {
    return Fail(name,
                absl::StrCat("has rope_type \"", type,
                             "\"; Atoll implements default, linear, dynamic, llama3 and yarn"));
  }
  scaling.kind = static_cast<Kind>(kind - kScalings);
  fields.MustBe("partial_rotary_factor", 1.0);
  if (scaling.kind == Kind::kNone) {
    fields.Has("factor");  // which transformers ignores here
  } else {
    scaling.factor = fields.Number("factor");
    if (!(scaling.factor >= 1 && scaling.factor <= kMaxPositions)) {
      fields.Fail("factor", absl::StrCat("is not from 1 to ", kMaxPositions));
    }
  }
  constexpr char kOriginal[] = "original_max_position_embeddings";
  const bool has_original = fields.Has(kOriginal);
  const int64_t original = fields.Integer(kOriginal, kMaxPositions, config->max_positions);
  if (scaling.kind == Kind::kLinear ? has_original : scaling.kind != Kind::kNone) {
    scaling.original_positions = original;
  }
  if (scaling.kind == Kind::kLlama3) ReadLlama3Scaling(fields, &scaling);
  if (scaling.kind == Kind::kYarn) ReadYarnScaling(fields, &scaling);
  fields.Has("finetuned");  // how the model was made
  fields.RefuseUnread(type + " rotary positions");
  if (status_.ok()) status_ = fields.status();
}

void ConfigFields::LayerTypes(const ModelConfig& config) {
  if (!Has("layer_types")) return;
  const auto& types = object_["layer_types"];
  if (!types.is_array() || static_cast<int64_t>(types.size()) != config.layers) {
    return Fail("layer_types", "does not have one entry a layer");
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const bool windowed = config.WindowOfBlock(i, kMaxPositions) > 0;
    const char* const expected = windowed ? "sliding_attention" : "full_attention";
    if (types[static_cast<size_t>(i)] == expected) continue;
    return Fail("layer_types", absl::StrCat("has another type than \"", expected, "\" for layer ",
                                            i, ", the only one Atoll implements there"));
  }
}

void WriteRope(const ModelConfig& config, nlohmann::ordered_json* json) {
  using Kind = RopeScaling::Kind;
  const RopeScaling& s = config.rope_scaling;
  nlohmann::ordered_json scaling;
  if (s.kind != Kind::kNone) {
    scaling = {{"rope_type", kScalings[static_cast<size_t>(s.kind)]}, {"factor", s.factor}};
    if (s.original_positions > 0) {
      scaling["original_max_position_embeddings"] = s.original_positions;
    }
  }
  if (s.kind == Kind::kLlama3) {
    scaling["low_freq_factor"] = s.low_frequency_factor;
    scaling["high_freq_factor"] = s.high_frequency_factor;
  }
  if (s.kind == Kind::kYarn) {
    scaling["beta_fast"] = s.beta_fast;
    scaling["beta_slow"] = s.beta_slow;
    if (s.attention_factor > 0) scaling["attention_factor"] = s.attention_factor;
  }
  (*json)["rope_theta"] = config.rope_theta;
  (*json)["rope_scaling"] = std::move(scaling);
}

}  // namespace atl
