// A model's description: its family and its numbers. architecture.h has what a family is made of,
// hugging_face.h config.json.

#ifndef ATOLL_COMMON_MODEL_CONFIG_H_
#define ATOLL_COMMON_MODEL_CONFIG_H_

#include <cstdint>
#include <vector>

#include "common/model/adapters/adapter.h"
#include "common/model/architecture.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"

namespace atl {

inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxPositions = int64_t{1} << 24;

// How rotary positions reach beyond what a model was first trained on; see rope.h.
struct RopeScaling {
  enum class Kind : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn };

  Kind kind = Kind::kNone;
  double factor = 1;
  int64_t original_positions = 0;  // before scaling; 0: those of the model (kNone, kLinear)
  double low_frequency_factor = 1, high_frequency_factor = 4;  // kLlama3
  double beta_fast = 32, beta_slow = 1;                        // kYarn
  double attention_factor = 0;                                 // kYarn; 0: 0.1 ln(factor) + 1

  bool operator==(const RopeScaling&) const = default;
};

// Blocks that attend to the last `tokens` alone: every period-th one, from block `first` on.
struct AttentionWindow {
  int64_t tokens = 0;  // 0: no block has a window
  int64_t first = 0;
  int64_t period = 1;

  bool operator==(const AttentionWindow&) const = default;
};

// The feed-forward of blocks that are mixtures of experts: a router scores `count` experts for each
// token, which goes through the `per_token` of highest score; of equal scores the lowest index is
// chosen. An expert is a gated feed-forward of its own; no token is dropped.
struct Experts {
  enum class Score : uint8_t { kSoftmax, kSigmoid };  // over all experts; each by itself

  int64_t count = 0;  // 0: no block has experts
  int64_t per_token = 0;
  int64_t hidden = 0;         // width of an expert's hidden layer
  int64_t shared_hidden = 0;  // of the expert that sees all tokens; 0: there is none
  bool shared_gate = false;   // its output is weighted by the sigmoid of a product with its input
  Score score = Score::kSoftmax;
  bool normalise = false;   // the scores of a token's experts are divided by their sum
  double scale = 1;         // of these weights, behind that
  bool correction = false;  // a bias for each expert is added to scores where experts are chosen,
                            // and not to their weights
  std::vector<int64_t> dense_blocks;  // in order: these have a feed-forward as others do
  double auxiliary_loss = 0;          // coefficient of the loss that balances experts, in files
  bool adds_auxiliary_loss = false;   // and whether training adds it
  double z_loss = 0;                  // coefficient of the loss that keeps logits small; 0: none

  bool operator==(const Experts&) const = default;
};
inline constexpr int64_t kMaxExperts = 4096;
// Experts times the width of one: parameters of all layers, and their bytes, fit an int64.
inline constexpr int64_t kMaxExpertsWidth = int64_t{1} << 24;

// Ids of config.json, which an export carries on; empty where it has null.
struct SpecialTokens {
  std::vector<int64_t> bos, eos, pad;
  std::vector<int64_t> cls, sep;  // BERT's

  bool operator==(const SpecialTokens&) const = default;
};

// The numbers of a model of images, in place of a transformer's; see image_model.h.
struct ImageModel {
  int64_t height = 0, width = 0, channels = 0;  // of its images
  std::vector<double> mean, deviation;          // by channel, of pixels from 0 to 1
  double label_smoothing = 0;
  // ResNet: blocks and channels of each stage.
  std::vector<int64_t> depths, widths;
  int64_t stem_channels = 0;
  bool small_stem = false;
  bool bottleneck = false;
  // EfficientNet
  double width_coefficient = 0, depth_coefficient = 0;

  int64_t pixels() const { return height * width * channels; }
  bool operator==(const ImageModel&) const = default;
};
inline constexpr int64_t kMaxImageSide = 2048;
inline constexpr int64_t kMaxImageChannels = 4;

// A token of a model with token types has its type in the bits from here on.
inline constexpr int kTokenTypeShift = 24;

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int64_t vocab = 0;  // of images: classes
  int64_t d_model = 0;
  int64_t layers = 0;         // transformer blocks
  int64_t heads = 0;          // query heads
  int64_t kv_heads = 0;       // key and value heads; divides heads
  int64_t head_channels = 0;  // 0: d_model / heads
  int64_t ffn = 0;            // width of the feed-forward's hidden layer, where it has no experts
  int64_t max_positions = 0;  // as config.json has them; see LongestSequence
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;  // rotary positions only
  RopeScaling rope_scaling;
  AttentionWindow window;
  Experts experts;
  double attention_scalar = 0;   // scores are divided by its root; 0: head_dim
  double attention_softcap = 0;  // 0: none; see Architecture
  double logit_softcap = 0;
  int64_t token_types = 0;          // BERT's segments
  int64_t mask_token = 0;           // that stands for a masked one
  bool tied_head = false;           // the head multiplies with the embedding's table
  double initializer_range = 0.02;  // standard deviation of matrices made from a seed
  SpecialTokens special_tokens;

  ImageModel image;

  AdapterConfig adapter;  // not of config.json

  // Returns the model without its adapter.
  ModelConfig Base() const;

  // An image is a sequence of one token: activations have a row for each.
  bool is_images() const { return image.height > 0; }
  // Numbers that a sequence of `seq_len` tokens is read as, in and out: see FillRow.
  int64_t InputNumbers(int64_t seq_len) const { return is_images() ? image.pixels() : seq_len; }
  int64_t RowNumbers(int64_t seq_len) const { return InputNumbers(seq_len) + 1; }
  // Columns of what layer `layer` hands to the next one: channels, or a whole image.
  int64_t OutputColumns(int64_t layer) const;

  int64_t head_dim() const { return head_channels > 0 ? head_channels : d_model / heads; }
  int64_t query_channels() const { return heads * head_dim(); }
  int64_t key_channels() const { return kv_heads * head_dim(); }

  // max_positions, or what the scaling of rotary positions makes of them.
  int64_t LongestSequence() const;

  // Returns the architecture that the family makes of these numbers.
  Architecture architecture() const;

  // Returns the attention window of a block for sequences of `seq_len`; 0: the block sees the whole
  // sequence.
  int64_t WindowOfBlock(int64_t block, int64_t seq_len) const;

  // Returns whether a block's feed-forward is a mixture of experts.
  bool HasExperts(int64_t block) const;
  // Returns how many blocks before this one have experts; of all blocks, how many there are.
  int64_t MixtureIndex(int64_t block) const;
  int64_t mixtures() const { return MixtureIndex(layers); }
  // Returns the block that is measured for all: the first one with experts, where there are any.
  int64_t MeasuredBlock() const;
  // Returns whether some block's feed-forward is not.
  bool has_dense_blocks() const {
    return experts.count == 0 || std::ssize(experts.dense_blocks) > 0;
  }

  // INVALID_ARGUMENT names the field, its value and what it may be.
  absl::Status Validate() const;

  bool operator==(const ModelConfig&) const = default;

 private:
  absl::Status ValidateImages() const;
  absl::Status ValidateExperts() const;
};

// The model that a job file's numbers describe, for sequences of up to `sequence_length` tokens;
// or that of spec.config_json, where that is given. feed_forward 0 becomes the family's usual
// multiple of hidden. `warning`: as of ParseModelConfig.
absl::StatusOr<ModelConfig> ModelConfigFromSpec(const ModelSpec& spec, int64_t sequence_length,
                                                std::string* warning = nullptr);

// The same model for ModelConfigFromSpec: its config.json, and the numbers that there are.
ModelSpec ToSpec(const ModelConfig& config);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_CONFIG_H_
