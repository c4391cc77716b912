#include "common/model/config.h"

#include <algorithm>
#include <cmath>

#include "common/model/family.h"
#include "common/model/hugging_face.h"
#include "common/model/image_model.h"
#include "common/protocol/limits.h"

namespace atl {
namespace {

absl::Status Bad(absl::string_view field, auto value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("model ", field, " is ", value, "; expected ", expected));
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return Bad(field, value, absl::StrCat("1 to ", max));
}

absl::Status CheckInitializerRange(double value) {
  if (value > 0 && value <= 1) return absl::OkStatus();
  return Bad("initializer_range", value, "more than 0, at most 1");
}

absl::Status CheckAtLeastZero(absl::string_view field, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return Bad(field, value, "0 or more");
}

}  // namespace

Architecture ModelConfig::architecture() const {
  Architecture a = GetFamily(family).describe(*this);
  a.token_types = token_types;
  a.attention_softcap = attention_softcap;
  a.logit_softcap = logit_softcap;
  const auto channels = static_cast<double>(head_dim());
  a.attention_scale = 1 / std::sqrt(attention_scalar > 0 ? attention_scalar : channels);
  return a;
}

ModelConfig ModelConfig::Base() const {
  ModelConfig base = *this;
  base.adapter = {};
  return base;
}

int64_t ModelConfig::LongestSequence() const {
  if (rope_scaling.kind == RopeScaling::Kind::kNone) return max_positions;
  // A file's max_position_embeddings may have the factor in it, or not, beside the original ones.
  const int64_t original =
      rope_scaling.original_positions > 0 ? rope_scaling.original_positions : max_positions;
  const auto scaled = static_cast<int64_t>(static_cast<double>(original) * rope_scaling.factor);
  return std::clamp(scaled, max_positions, std::max(max_positions, kMaxPositions));
}

int64_t ModelConfig::WindowOfBlock(int64_t block, int64_t seq_len) const {
  const bool windowed = block >= window.first && (block - window.first) % window.period == 0;
  return windowed && window.tokens < seq_len ? window.tokens : 0;
}

bool ModelConfig::HasExperts(int64_t block) const {
  return experts.count > 0 &&
         !std::binary_search(experts.dense_blocks.begin(), experts.dense_blocks.end(), block);
}

int64_t ModelConfig::MixtureIndex(int64_t block) const {
  const std::vector<int64_t>& dense = experts.dense_blocks;
  return experts.count == 0
             ? 0
             : block - (std::lower_bound(dense.begin(), dense.end(), block) - dense.begin());
}

int64_t ModelConfig::MeasuredBlock() const {
  int64_t block = 0;
  while (experts.count > 0 && !HasExperts(block)) ++block;
  return block;
}

int64_t ModelConfig::OutputColumns(int64_t layer) const {
  return is_images() ? ImageLayers(*this)[static_cast<size_t>(layer)].out().elements() : d_model;
}

absl::Status ModelConfig::ValidateImages() const {
  ATOLL_RETURN_IF_ERROR(CheckRange("classes", vocab, kMaxVocab));
  ATOLL_RETURN_IF_ERROR(CheckRange("image height", image.height, kMaxImageSide));
  ATOLL_RETURN_IF_ERROR(CheckRange("image width", image.width, kMaxImageSide));
  ATOLL_RETURN_IF_ERROR(CheckRange("image channels", image.channels, kMaxImageChannels));
  ATOLL_RETURN_IF_ERROR(CheckRange("layers", layers, kMaxLayers));
  if (!(norm_eps > 0 && norm_eps < 1)) return Bad("norm_eps", norm_eps, "more than 0, less than 1");
  ATOLL_RETURN_IF_ERROR(CheckInitializerRange(initializer_range));
  if (!(image.label_smoothing >= 0 && image.label_smoothing < 1)) {
    return Bad("label_smoothing", image.label_smoothing, "0 or more, less than 1");
  }
  for (const std::vector<double>* numbers : {&image.mean, &image.deviation}) {
    if (std::ssize(*numbers) != image.channels) {
      return Bad("image_mean or image_std", absl::StrCat(numbers->size(), " numbers"),
                 absl::StrCat(image.channels, ", one for each channel"));
    }
    for (const double number : *numbers) ATOLL_RETURN_IF_ERROR(CheckAtLeastZero("pixels", number));
  }
  for (const double deviation : image.deviation) {
    if (deviation < 1e-3) return Bad("image_std", deviation, "at least 0.001");
  }
  for (const ImageLayer& layer : ImageLayers(*this)) {
    for (const ConvPart& part : layer.convs) {
      ATOLL_RETURN_IF_ERROR(CheckRange("channels", part.out_channels, kMaxWidth));
      ATOLL_RETURN_IF_ERROR(
          CheckRange("numbers of an activation", part.out().elements(), int64_t{1} << 30));
    }
  }
  return absl::OkStatus();
}

absl::Status ModelConfig::ValidateExperts() const {
  const Experts& e = experts;
  if (e.count == 0) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(CheckRange("experts", e.count, kMaxExperts));
  ATOLL_RETURN_IF_ERROR(CheckRange("experts per token", e.per_token, e.count));
  ATOLL_RETURN_IF_ERROR(CheckRange("width of an expert", e.hidden, kMaxWidth));
  // Each product's factors are within their limits here, so that it fits.
  ATOLL_RETURN_IF_ERROR(CheckRange("experts of all layers", e.count * layers, kMaxExpertsOfModel));
  ATOLL_RETURN_IF_ERROR(
      CheckRange("width of all experts of a block", e.count * e.hidden, kMaxExpertsWidth));
  if (e.shared_hidden != 0) {
    ATOLL_RETURN_IF_ERROR(CheckRange("width of the shared expert", e.shared_hidden, kMaxWidth));
  }
  if (!(e.scale > 0 && e.scale <= 1024)) {
    return Bad("scale of the experts' weights", e.scale, "more than 0, at most 1024");
  }
  if (!(e.auxiliary_loss >= 0 && e.auxiliary_loss <= 1)) {
    return Bad("coefficient of the experts' auxiliary loss", e.auxiliary_loss, "0 to 1");
  }
  if (!(e.z_loss >= 0 && e.z_loss <= 1)) {
    return Bad("coefficient of the routers' z-loss", e.z_loss, "0 to 1");
  }
  if (std::ssize(e.dense_blocks) >= layers) {
    return Bad("blocks without experts", e.dense_blocks.size(),
               absl::StrCat("fewer than its ", layers, " layers"));
  }
  return absl::OkStatus();
}

absl::Status ModelConfig::Validate() const {
  if (is_images()) return ValidateImages();
  ATOLL_RETURN_IF_ERROR(CheckRange("vocab", vocab, kMaxVocab));
  ATOLL_RETURN_IF_ERROR(CheckRange("d_model", d_model, kMaxWidth));
  ATOLL_RETURN_IF_ERROR(CheckRange("layers", layers, kMaxLayers));
  ATOLL_RETURN_IF_ERROR(CheckRange("heads", heads, kMaxWidth));
  ATOLL_RETURN_IF_ERROR(CheckRange("kv_heads", kv_heads, heads));
  ATOLL_RETURN_IF_ERROR(CheckRange("ffn", ffn, kMaxWidth));
  ATOLL_RETURN_IF_ERROR(CheckRange("max_positions", max_positions, kMaxPositions));
  if (head_channels == 0 && (heads > d_model || d_model % heads != 0)) {
    return Bad("heads", heads, absl::StrCat("a divisor of d_model ", d_model));
  }
  ATOLL_RETURN_IF_ERROR(CheckRange("head_dim", head_dim(), kMaxWidth));
  ATOLL_RETURN_IF_ERROR(CheckRange("heads times head_dim", query_channels(), kMaxWidth));
  if (heads % kv_heads != 0) {
    return Bad("kv_heads", kv_heads, absl::StrCat("a divisor of heads ", heads));
  }
  if (architecture().rotary() && head_dim() % 2 != 0) {
    return Bad("head_dim", head_dim(), "an even number, for rotary positions");
  }
  // One matrix for all three, and no room for grouped queries: GPT-2's.
  if (architecture().matrices_transposed && kv_heads != heads) {
    return Bad("kv_heads", kv_heads, absl::StrCat(heads, ": GPT-2 has no grouped queries"));
  }
  if (!(norm_eps > 0 && norm_eps < 1)) return Bad("norm_eps", norm_eps, "more than 0, less than 1");
  if (!(rope_theta >= 1 && std::isfinite(rope_theta))) {
    return Bad("rope_theta", rope_theta, "at least 1");
  }
  if (architecture().objective == Objective::kMaskedToken) {
    if (mask_token < 0 || mask_token >= vocab) {
      return Bad("mask_token_id", mask_token, absl::StrCat("0 to ", vocab - 1, ", a token"));
    }
    if (vocab > int64_t{1} << kTokenTypeShift) {
      return Bad("vocab", vocab, absl::StrCat("at most ", int64_t{1} << kTokenTypeShift));
    }
  }
  ATOLL_RETURN_IF_ERROR(ValidateExperts());
  ATOLL_RETURN_IF_ERROR(CheckInitializerRange(initializer_range));
  ATOLL_RETURN_IF_ERROR(CheckAtLeastZero("window", static_cast<double>(window.tokens)));
  ATOLL_RETURN_IF_ERROR(CheckAtLeastZero("attention_scalar", attention_scalar));
  ATOLL_RETURN_IF_ERROR(CheckAtLeastZero("attention_softcap", attention_softcap));
  ATOLL_RETURN_IF_ERROR(CheckAtLeastZero("logit_softcap", logit_softcap));
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ModelConfigFromSpec(const ModelSpec& spec, int64_t sequence_length,
                                                std::string* warning) {
  if (!spec.config_json.empty()) {
    return ParseModelConfig(spec.config_json, "model.config_json", warning);
  }
  const Family& family = GetFamily(spec.family);
  if (family.image_layers != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.family: ", family.model_type,
                     " models are described by a config.json; give it as model.config_path"));
  }
  ModelConfig c;
  c.family = spec.family;
  c.vocab = spec.vocabulary;
  c.d_model = spec.hidden;
  c.layers = spec.layers;
  c.heads = spec.heads;
  c.kv_heads = spec.key_value_heads == 0 ? spec.heads : spec.key_value_heads;
  // Defaults are made of these numbers: the rest is checked with the defaults.
  ATOLL_RETURN_IF_ERROR(CheckRange("vocab", c.vocab, kMaxVocab));
  ATOLL_RETURN_IF_ERROR(CheckRange("d_model", c.d_model, kMaxWidth));
  c.ffn = spec.feed_forward;
  if (c.ffn == 0) {
    const auto wide =
        static_cast<int64_t>(family.default_ffn_ratio * static_cast<double>(spec.hidden));
    c.ffn = (wide + family.ffn_multiple - 1) / family.ffn_multiple * family.ffn_multiple;
  }
  ATOLL_RETURN_IF_ERROR(CheckRange("ffn", c.ffn, kMaxWidth));
  c.max_positions = sequence_length;
  c.tied_head = spec.tied_head;
  c.norm_eps = family.norm_eps;
  if (family.set_defaults != nullptr) family.set_defaults(&c);
  if (spec.experts + spec.experts_per_token + spec.expert_hidden > 0) {
    if (c.experts.count == 0) {
      return absl::InvalidArgumentError(absl::StrCat("model.experts: the family ",
                                                     family.model_type,
                                                     " has none; leave it out, or name another"));
    }
    const auto given = [](int64_t value, int64_t standard) { return value > 0 ? value : standard; };
    c.experts.count = given(spec.experts, c.experts.count);
    c.experts.per_token =
        given(spec.experts_per_token, std::min(c.experts.per_token, c.experts.count));
    // A shared one stays as many times as wide.
    const int64_t shared = c.experts.shared_hidden / c.experts.hidden;
    c.experts.hidden = given(spec.expert_hidden, c.experts.hidden);
    c.experts.shared_hidden = shared * c.experts.hidden;
    // config.json has one width of both.
    const bool one_width =
        spec.family == ModelFamily::kMixtral || spec.family == ModelFamily::kOlmoe;
    if (one_width) c.ffn = c.experts.hidden;
  }
  ATOLL_RETURN_IF_ERROR(c.Validate());
  return c;
}

ModelSpec ToSpec(const ModelConfig& config) {
  ModelSpec spec;
  spec.family = config.family;
  spec.config_json = FormatModelConfig(config);
  spec.vocabulary = config.vocab;
  spec.hidden = config.d_model;
  spec.layers = config.layers;
  spec.heads = config.heads;
  spec.key_value_heads = config.kv_heads;
  spec.feed_forward = config.ffn;
  spec.tied_head = config.tied_head;
  return spec;
}

}  // namespace atl
