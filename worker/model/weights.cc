#include "worker/model/weights.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/file_kind.h"
#include "common/files.h"
#include "common/model/job_model.h"
#include "common/model/json.h"
#include "common/object_store/hub.h"
#include "common/paths.h"
#include "common/rng.h"
#include "worker/model/published_folder.h"

namespace atl {
namespace {

uint64_t HashName(absl::string_view name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// Mean 0, variance 1 (the sum of twelve uniform numbers has variance 12/12).
float RoughlyNormal(Rng& rng) {
  int64_t sum = 0;
  for (int i = 0; i < 3; ++i) {
    const uint64_t bits = rng.Next();
    for (int part = 0; part < 4; ++part) sum += static_cast<int64_t>(bits >> (16 * part) & 0xffff);
  }
  return static_cast<float>(2 * sum - 12 * 65535) * 0x1p-17f;
}

// Up to `bound` from 0.
void FillUniform(Rng& rng, float bound, std::span<float> out) {
  constexpr int kBits = 24;  // that a float has
  for (float& value : out) {
    const auto bits = static_cast<float>(rng.Next() >> (64 - kBits));
    value = bound * (bits * 0x1p-23f - 1);
  }
}

void Transpose(std::span<const float> from, int64_t rows, int64_t cols, std::span<float> to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
  }
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  const ByteSpan bytes = AsBytes(text);
  return WriteFileAtomically(RealFiles(), path, {&bytes, 1});
}

// Facts that names in files depend on.
struct NameRules {
  bool tied = false;    // no matrix of the head
  bool masked = false;  // BERT
  bool images = false;
};

// By which a tensor of a file is found: without the family's prefix, and with transformers' newer
// names of BERT's norms.
std::string TargetName(absl::string_view name, bool masked) {
  for (const char* prefix : {"transformer.", "model.", "bert."}) {
    if (absl::ConsumePrefix(&name, prefix)) break;
  }
  for (const auto& [old_name, new_name] :
       {std::pair{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}}) {
    if (masked && absl::ConsumeSuffix(&name, old_name)) return absl::StrCat(name, new_name);
  }
  return std::string(name);
}

void Add(float offset, std::span<float> values) {
  if (offset == 0) return;
  for (float& value : values) value += offset;
}

// Returns whether the tensor is one that transformers has stored beside parameters: masks,
// frequencies, a copy of a tied table; of BERT also what masked tokens do not train; of images,
// torchvision's counts of batches.
bool IsLeftover(absl::string_view name, const NameRules& rules) {
  if (rules.images) return absl::EndsWith(name, ".num_batches_tracked");
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq") || (rules.tied && name == "lm_head.weight") ||
         (rules.tied && absl::StartsWith(name, "cls.predictions.decoder.")) ||
         name == "bert.embeddings.position_ids" || absl::StartsWith(name, "bert.pooler.") ||
         absl::StartsWith(name, "cls.seq_relationship.");
}

struct Target {
  const ParamSpec* param;
  std::span<float> to;
  std::string found_in, found_as;  // file and name; empty: not yet
  uint64_t digest = 0;             // of what was found, where that is requested
};

// Parts of a tensor that is found that are read.
enum class Reading : uint8_t { kNothing, kValues, kDigest };

// Finds where tensors of one file belong, and reads them there.
class ShardReader {
 public:
  // `cancelled` may be null.
  ShardReader(std::map<std::string, Target>& targets, const NameRules& rules,
              const std::function<bool()>& cancelled)
      : targets_(targets), rules_(rules), cancelled_(cancelled) {}

  absl::Status Read(const std::string& path, Reading what) {
    ATOLL_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::Open(path));
    for (const auto& [name, entry] : reader.tensors()) {
      const auto bad = [&, &name = name](absl::string_view problem) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", name, "\" ", problem));
      };
      if (cancelled_ && cancelled_()) return absl::AbortedError(path + ": reading is interrupted");
      const std::string target_name = TargetName(name, rules_.masked);
      std::vector<Target*> parts;
      std::vector<int64_t> shape;
      if (const auto found = targets_.find(target_name); found != targets_.end()) {
        parts = {&found->second};
        shape = found->second.param->shape;
      } else {
        parts = FindStacked(target_name, &shape);
      }
      if (parts.empty()) {
        if (IsLeftover(name, rules_)) continue;
        return bad("is not one of this model's");
      }
      for (Target* target : parts) {
        if (!target->found_in.empty()) {
          return bad(absl::StrCat("is also in ", target->found_in, " as \"", target->found_as,
                                  "\"; leave one of them out"));
        }
        target->found_in = path;
        target->found_as = name;
      }
      if (entry.shape != shape) {
        return bad(absl::StrCat("has shape ", ShapeText(entry.shape), "; config.json requests ",
                                ShapeText(shape)));
      }
      ATOLL_RETURN_IF_ERROR(reader.CheckType(name));
      int64_t first = 0;
      uint64_t digest = 0;
      if (what == Reading::kDigest) {
        ATOLL_ASSIGN_OR_RETURN(digest, reader.Digest(entry));
      }
      for (Target* target : parts) {
        target->digest = digest;
        const int64_t begin = std::exchange(first, first + target->param->size);
        if (what != Reading::kValues || target->to.empty()) continue;
        ATOLL_RETURN_IF_ERROR(ReadTensor(reader, name, begin, *target));
        const auto not_finite = std::find_if(target->to.begin(), target->to.end(),
                                             [](float value) { return !std::isfinite(value); });
        if (not_finite != target->to.end()) {
          return bad(absl::StrCat("has the value ", *not_finite, " at element ",
                                  begin + (not_finite - target->to.begin()),
                                  "; a model is not trained from values that are not finite"));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  // Finds the matrices of a block's experts of which `name` is a stack, as transformers has them in
  // memory and some folders in files: "layers.3.mlp.experts.gate_up_proj", of each expert in turn
  // gate and up, and "down_proj". Empty: it is none.
  std::vector<Target*> FindStacked(const std::string& name, std::vector<int64_t>* shape) {
    const bool down = absl::EndsWith(name, ".experts.down_proj");
    const size_t number = name.find('.') + 1;
    const size_t block = name.find('.', number);
    std::vector<Target*> parts;
    if ((!down && !absl::EndsWith(name, ".experts.gate_up_proj")) || block == std::string::npos) {
      return parts;
    }
    const std::string prefix = name.substr(0, block + 1);
    for (auto at = targets_.lower_bound(prefix);
         at != targets_.end() && absl::StartsWith(at->first, prefix); ++at) {
      const Param use = at->second.param->use;
      const bool is_in =
          down ? use == Param::kExpertDown : use == Param::kExpertGate || use == Param::kExpertUp;
      if (is_in) parts.push_back(&at->second);
    }
    if (parts.empty()) return parts;
    std::sort(parts.begin(), parts.end(),
              [](const Target* a, const Target* b) { return a->param->offset < b->param->offset; });
    const std::vector<int64_t>& one = parts.front()->param->shape;
    const int64_t each = down ? 1 : 2;
    *shape = {std::ssize(parts) / each, each * one[0], one[1]};
    return parts;
  }

  absl::Status ReadTensor(const SafetensorsReader& reader, const std::string& name, int64_t first,
                          const Target& target) {
    if (!target.param->transposed) {
      ATOLL_RETURN_IF_ERROR(reader.ReadPart(name, first, target.to));
      Add(target.param->file_offset, target.to);
      return absl::OkStatus();
    }
    buffer_.resize(target.to.size());
    ATOLL_RETURN_IF_ERROR(reader.ReadPart(name, first, buffer_));
    Transpose(buffer_, target.param->shape[0], target.param->shape[1], target.to);
    return absl::OkStatus();
  }

  std::map<std::string, Target>& targets_;
  const NameRules rules_;
  const std::function<bool()>& cancelled_;
  std::vector<float> buffer_;
};

struct Shard {
  std::string file;
  std::vector<std::pair<int, const ParamSpec*>> params;  // layer, parameter
};

std::vector<Shard> CutIntoShards(std::span<const LayerLayout> layouts, int64_t max_shard_bytes,
                                 int64_t element_bytes) {
  std::vector<Shard> shards(1);
  int64_t bytes = 0;
  for (size_t layer = 0; layer < layouts.size(); ++layer) {
    for (const ParamSpec& param : layouts[layer].params) {
      if (bytes > 0 && bytes + element_bytes * param.size > max_shard_bytes) {
        shards.emplace_back();
        bytes = 0;
      }
      shards.back().params.emplace_back(static_cast<int>(layer), &param);
      bytes += element_bytes * param.size;
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? kWeightsFile
                         : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
  }
  return shards;
}

absl::Status WriteShard(const std::string& dir, const Shard& shard, const LayerSource& source,
                        WeightType type) {
  std::vector<SafetensorsWriter::Spec> specs;
  for (const auto& [layer, param] : shard.params) specs.push_back({param->name, param->shape});
  ATOLL_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                         SafetensorsWriter::Create(JoinPath(dir, shard.file), specs, type));
  std::vector<float> buffer;
  std::span<const float> values;
  int current = -1;
  for (const auto& [layer, param] : shard.params) {
    if (layer != current) {
      ATOLL_ASSIGN_OR_RETURN(values, source(layer));
      current = layer;
    }
    std::span<const float> tensor = values.subspan(param->offset, param->size);
    if (param->transposed) {
      buffer.resize(tensor.size());
      Transpose(tensor, param->shape[1], param->shape[0], buffer);
      tensor = buffer;
    }
    if (param->file_offset != 0) {
      buffer.assign(tensor.begin(), tensor.end());
      Add(-param->file_offset, buffer);
      tensor = buffer;
    }
    ATOLL_RETURN_IF_ERROR(writer.Append(tensor));
  }
  return writer.Finish();
}

std::string FormatIndex(std::span<const Shard> shards, int64_t element_bytes) {
  nlohmann::ordered_json index;
  int64_t bytes = 0;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const Shard& shard : shards) {
    for (const auto& [layer, param] : shard.params) {
      map[param->name] = shard.file;
      bytes += element_bytes * param->size;
    }
  }
  index["metadata"] = {{"total_size", bytes}};
  index["weight_map"] = std::move(map);
  return index.dump(2) + "\n";
}

// Computes the deviation; kFanOut counts outputs times taps, of each group of a convolution [out,
// in / groups, height, width].
double ComputeStandardDeviation(const ParamSpec& param, double range, int64_t blocks) {
  switch (param.init) {
    case Init::kZeros:
    case Init::kOnes:
    case Init::kNormal:
    case Init::kUniformIn:
      break;
    case Init::kNormalRank:
      return 1 / static_cast<double>(param.shape.front());
    case Init::kNormalResidual:
      return range / std::sqrt(2.0 * static_cast<double>(blocks));
    case Init::kFanOut:
      return std::sqrt(2.0 * static_cast<double>(param.shape[1]) / static_cast<double>(param.size));
  }
  return range;
}

}  // namespace

void InitLayer(const LayerLayout& layout, int64_t blocks, uint64_t seed, std::span<float> params) {
  ATOLL_CHECK(static_cast<int64_t>(params.size()) == layout.size && blocks > 0);
  for (const ParamSpec& param : layout.params) {
    const auto out = params.subspan(param.offset, param.size);
    if (param.init == Init::kZeros || param.init == Init::kOnes) {
      std::fill(out.begin(), out.end(), param.init == Init::kOnes ? 1.0f : 0.0f);
      continue;
    }
    if (param.init == Init::kUniformIn) {
      Rng rng(seed, HashName(param.name));
      FillUniform(rng, 1 / std::sqrt(static_cast<float>(param.shape.back())), out);
      continue;
    }
    const auto deviation =
        static_cast<float>(ComputeStandardDeviation(param, layout.initializer_range, blocks));
    Rng rng(seed, HashName(param.name));
    for (float& value : out) value = deviation * RoughlyNormal(rng);
  }
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& dir, std::string* warning) {
  ATOLL_RETURN_IF_ERROR(CheckIsModelFolder(dir));
  return ReadConfigFile(JoinPath(dir, "config.json"), "the model", warning);
}

namespace {

// Every tensor's place, by its name without the family's prefix. Without `layers` no values.
std::map<std::string, Target> ListTargets(std::span<const LayerLayout> layouts,
                                          std::span<const std::span<float>> layers) {
  std::map<std::string, Target> targets;
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (const ParamSpec& param : layouts[i].params) {
      Target& target = targets[TargetName(param.name, /*masked=*/false)];
      target.param = &param;
      if (!layers.empty() && !layers[i].empty())
        target.to = layers[i].subspan(param.offset, param.size);
    }
  }
  return targets;
}

absl::Status ReadFolder(const std::string& dir, std::map<std::string, Target>& targets,
                        Reading what, const std::function<bool()>& cancelled) {
  NameRules rules{.tied = targets.count("lm_head.weight") == 0};
  for (const auto& [name, target] : targets) {
    rules.masked = rules.masked || target.param->use == Param::kTransform;
    rules.images = rules.images || target.param->use == Param::kImage;
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> files, FindWeightFiles(dir));
  ShardReader reader(targets, rules, cancelled);
  for (const std::string& file : files) ATOLL_RETURN_IF_ERROR(reader.Read(file, what));
  std::vector<std::string> missing;
  for (const auto& [name, target] : targets) {
    if (target.found_in.empty()) missing.push_back(target.param->name);
  }
  if (missing.empty()) return absl::OkStatus();
  return MissingTensors(dir, missing);
}

}  // namespace

absl::Status CheckWeights(const std::string& dir, std::span<const LayerLayout> layouts) {
  ATOLL_ASSIGN_OR_RETURN(const std::string folder, FetchFromHub(dir, HubFiles::kWeights));
  std::map<std::string, Target> targets = ListTargets(layouts, {});
  return ReadFolder(folder, targets, Reading::kNothing, nullptr);
}

absl::StatusOr<uint64_t> DigestWeights(const std::string& dir, std::span<const LayerLayout> layouts,
                                       const std::function<bool()>& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const std::string folder,
                         FetchFromHub(dir, HubFiles::kWeights, cancelled));
  std::map<std::string, Target> targets = ListTargets(layouts, {});
  ATOLL_RETURN_IF_ERROR(ReadFolder(folder, targets, Reading::kDigest, cancelled));
  std::vector<uint64_t> digests;
  for (const auto& [name, target] : targets) {
    digests.insert(digests.end(), {HashName(name), target.digest});
  }
  return std::max<uint64_t>(1, XXH3_64bits(digests.data(), digests.size() * sizeof(uint64_t)));
}

absl::Status ReadWeights(const std::string& dir, std::span<const LayerLayout> layouts,
                         std::span<const std::span<float>> layers,
                         const std::function<bool()>& cancelled) {
  ATOLL_CHECK(layouts.size() == layers.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    ATOLL_CHECK(layers[i].empty() || static_cast<int64_t>(layers[i].size()) == layouts[i].size);
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string folder,
                         FetchFromHub(dir, HubFiles::kWeights, cancelled));
  std::map<std::string, Target> targets = ListTargets(layouts, layers);
  return ReadFolder(folder, targets, Reading::kValues, cancelled);
}

// ------------------------------------------------------------------------------ adapters ----

namespace {

absl::Status ReadAdapterFile(const std::string& dir, std::map<std::string, Target> targets,
                             Reading what, const std::function<bool()>& cancelled) {
  ShardReader reader(targets, {}, cancelled);
  ATOLL_RETURN_IF_ERROR(reader.Read(JoinPath(dir, kAdapterWeightsFile), what));
  for (const auto& [name, target] : targets) {
    if (!target.found_in.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(JoinPath(dir, kAdapterWeightsFile), ": tensor \"", target.param->name,
                     "\" is missing; adapter.targets and the file must name the same matrices"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdapterSpec> ReadAdapterConfig(const std::string& dir) {
  constexpr int64_t kBytesMax = int64_t{1} << 20;
  const std::string path = JoinPath(dir, kAdapterConfigFile);
  ATOLL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  ATOLL_ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kBytesMax));
  return ParseAdapterConfig(text, path);
}

absl::Status CheckAdapter(const std::string& dir, const AdapterConfig& adapter,
                          std::span<const LayerLayout> layouts) {
  ATOLL_ASSIGN_OR_RETURN(const AdapterSpec spec, ReadAdapterConfig(dir));
  const AdapterConfig there{spec.rank, spec.alpha, spec.use_rslora, spec.targets};
  if (there.rank != adapter.rank || there.scale() != adapter.scale()) {
    return absl::InvalidArgumentError(
        absl::StrCat(JoinPath(dir, kAdapterConfigFile), ": r = ", there.rank, " and a scale of ",
                     there.scale(), "; [adapter] has rank = ", adapter.rank, " and a scale of ",
                     adapter.scale(), ": make them equal"));
  }
  return ReadAdapterFile(dir, ListTargets(layouts, {}), Reading::kNothing, nullptr);
}

absl::Status ReadAdapter(const std::string& dir, std::span<const LayerLayout> layouts,
                         std::span<const std::span<float>> layers,
                         const std::function<bool()>& cancelled) {
  return ReadAdapterFile(dir, ListTargets(layouts, layers), Reading::kValues, cancelled);
}

absl::Status WriteAdapterFolder(const std::string& dir, const ModelConfig& config,
                                std::span<const LayerLayout> layouts, const LayerSource& source,
                                const std::string& base, WeightType type) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(dir, ": cannot make: ", error.message()));
  }
  Shard shard = CutIntoShards(layouts, std::numeric_limits<int64_t>::max(), 1).front();
  shard.file = kAdapterWeightsFile;
  ATOLL_RETURN_IF_ERROR(WriteShard(dir, shard, source, type));
  std::string text = FormatAdapterConfig(config, base);
  if (IsHubPath(base)) {
    ATOLL_ASSIGN_OR_RETURN(const HubPath hub, ParseHubPath(base));
    text = FormatAdapterConfig(config, hub.repo, hub.revision);
  }
  return WriteText(JoinPath(dir, kAdapterConfigFile), text);
}

absl::Status WriteModelFolder(const std::string& dir, const ModelConfig& config,
                              std::span<const LayerLayout> layouts, const LayerSource& source,
                              int64_t max_shard_bytes, WeightType type) {
  const WeightTypeInfo& info = Describe(type);
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(dir, ": cannot make: ", error.message()));
  }
  const std::vector<Shard> shards = CutIntoShards(layouts, max_shard_bytes, info.bytes);
  for (const Shard& shard : shards) ATOLL_RETURN_IF_ERROR(WriteShard(dir, shard, source, type));
  // An index, or a single file, of an earlier model in this folder must not be found beside ours.
  const std::string former = JoinPath(dir, shards.size() > 1 ? kWeightsFile : kWeightsIndexFile);
  std::filesystem::remove(former, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(former, ": of an earlier model, cannot be deleted: ", error.message()));
  }
  if (shards.size() > 1) {
    ATOLL_RETURN_IF_ERROR(
        WriteText(JoinPath(dir, kWeightsIndexFile), FormatIndex(shards, info.bytes)));
  }
  return WriteText(JoinPath(dir, "config.json"), FormatModelConfig(config, info.torch));
}

}  // namespace atl
