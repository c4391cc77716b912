// What a model is: family and sizes, as in Hugging Face's config.json.

#ifndef ATOLL_WORKER_MODEL_CONFIG_H_
#define ATOLL_WORKER_MODEL_CONFIG_H_

#include <cstdint>
#include <string>

#include "common/protocol/job_spec.h"
#include "common/status.h"

namespace atl {

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int64_t vocab = 0;
  int64_t d_model = 0;
  int64_t layers = 0;         // transformer blocks
  int64_t heads = 0;          // query heads; divides d_model
  int64_t kv_heads = 0;       // key and value heads; divides heads; GPT-2: == heads
  int64_t ffn = 0;            // width of the feed-forward's hidden layer
  int64_t max_positions = 0;  // longest sequence
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;  // LLaMA only
  bool tied_head = false;       // the head multiplies with the embedding's table

  int64_t head_dim() const { return d_model / heads; }

  // INVALID_ARGUMENT names the field, its value and what it may be.
  absl::Status Validate() const;

  // Number of parameters; a tied table counts once. REQUIRES: valid.
  int64_t ParameterCount() const;

  // Floating-point operations of forward and backward for one token of a sequence of `seq_len`
  // tokens: 6 per weight of a matrix product (a table look-up is none) and causal attention.
  double TrainFlopsPerToken(int64_t seq_len) const;

  bool operator==(const ModelConfig&) const = default;
};

// The model that a job file's numbers describe, for sequences of up to `sequence_length` tokens.
// feed_forward 0 becomes 4 * hidden (GPT-2), or 8/3 * hidden rounded up to a multiple of 32
// (LLaMA).
absl::StatusOr<ModelConfig> ModelConfigFromSpec(const ModelSpec& spec, int64_t sequence_length);

// The numbers that make this model, as a job file has them.
ModelSpec ToSpec(const ModelConfig& config);

// Reads the text of a config.json, which may come from anybody: unknown fields are skipped, as
// transformers does, but a field that would change the model in a way Atoll does not implement is
// refused. `file` is named in messages.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view file);

// A config.json that transformers' AutoModelForCausalLM loads. REQUIRES: valid.
std::string FormatModelConfig(const ModelConfig& config);

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_CONFIG_H_
