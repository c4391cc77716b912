#include "common/model/stash.h"

namespace atl {
namespace {

NormSlots Norm(SlotCarver& c, const Architecture& a, int64_t n) {
  NormSlots slots;
  if (a.norm_bias()) slots.mean = c.State(1, n);
  slots.rstd = c.State(1, n);
  return slots;
}

AdapterSlots Adapters(SlotCarver& c, const ModelConfig& config, int64_t n) {
  const std::array<int64_t, kBlockProducts> columns = CountAdapterColumns(config);
  AdapterSlots slots;
  for (size_t p = 0; p < slots.size(); ++p) {
    if (columns[p] > 0) slots[p] = c.Activation(n, columns[p]);
  }
  return slots;
}

ExpertSlots MakeExpertSlots(SlotCarver& c, const Experts& experts, const TensorPart& part,
                            int64_t n, int64_t rows) {
  ExpertSlots s;
  const int64_t gates = experts.shared_gate ? 1 : 0;
  s.logits = c.Activation(n, experts.count + gates);
  s.chosen = c.State(n, experts.per_token);
  s.weights = c.State(n, experts.per_token + gates);
  s.group_starts = c.State(1, part.experts.size() + 1);
  s.assignments = c.State(1, rows);
  s.rows = c.State(n, experts.per_token);
  if (experts.shared_hidden == 0) return s;
  s.shared_up = c.Activation(n, 2 * part.shared.size());
  s.shared_hidden = c.Activation(n, part.shared.size());
  return s;
}

}  // namespace

absl::Status CheckChoices(const ModelConfig& config, const BatchShape& shape) {
  constexpr int64_t kChoicesMax = int64_t{1} << 28;
  const int64_t choices = shape.tokens() * config.experts.per_token;
  if (choices <= kChoicesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a micro-batch of ", shape.rows, " sequences of ", shape.seq_len, " tokens that go through ",
      config.experts.per_token, " experts each has ", choices, " choices, and at most ",
      kChoicesMax, " are possible; lower inner.micro_batch_sequences or data.sequence_length"));
}

int64_t ExpertRows(const ModelConfig& config, const TensorPart& part, int64_t tokens) {
  return tokens * std::min(config.experts.per_token, part.experts.size());
}

Slot SlotCarver::Take(int64_t rows, int64_t cols, bool state) {
  const Slot slot{bytes_, rows, cols, state};
  const int64_t bytes = rows * cols * (state ? element_.state : element_.compute);
  bytes_ += (bytes + 63) / 64 * 64;
  return slot;
}

BlockForwardStash MakeBlockForwardStash(const ModelConfig& config, int64_t block,
                                        const TensorPart& part, const BatchShape& shape,
                                        const ElementBytes& element) {
  const Architecture a = config.architecture();
  const bool before = HasNormBefore(a.norm_position), after = HasNormAfter(a.norm_position);
  const int64_t n = shape.tokens(), d = config.d_model, f = part.ffn.size();
  const int64_t heads = part.heads.size(), kv_heads = part.kv_heads.size();
  const int64_t q = heads * config.head_dim(), kv = kv_heads * config.head_dim();
  SlotCarver c(element);
  BlockForwardStash s;
  if (before) s.norm = Norm(c, a, n);
  if (before) s.normed = c.Activation(n, d);
  s.qkv = c.Activation(n, q + 2 * kv);
  if (a.qk_norm != QkNorm::kNone) {
    s.raw_qk = c.Activation(n, q + kv);
    s.qk_norm.rstd = c.State(a.qk_norm == QkNorm::kEachHead ? heads + kv_heads : 2, n);
  }
  s.out = c.Activation(n, q);
  s.lse = c.State(shape.rows * heads, shape.seq_len);
  if (after) s.attention_sum = c.Activation(n, d);
  if (after) s.after_norm = Norm(c, a, n);
  s.middle = c.Activation(n, d);
  if (before) s.feed_forward_norm = Norm(c, a, n);
  if (before) s.feed_forward_normed = c.Activation(n, d);
  if (config.HasExperts(block)) {
    const int64_t rows = ExpertRows(config, part, n), hidden = config.experts.hidden;
    s.up = c.Activation(rows, 2 * hidden);
    s.hidden = c.Activation(rows, hidden);
    s.experts = MakeExpertSlots(c, config.experts, part, n, rows);
  } else {
    s.up = c.Activation(n, a.gated() ? 2 * f : f);
    s.hidden = c.Activation(n, f);
  }
  if (after) s.feed_forward_sum = c.Activation(n, d);
  if (after) s.after_feed_forward_norm = Norm(c, a, n);
  s.low = Adapters(c, config, n);
  s.bytes = c.bytes();
  return s;
}

BlockBackwardStash MakeBlockBackwardStash(const ModelConfig& config, int64_t block,
                                          const TensorPart& part, const BatchShape& shape,
                                          const ElementBytes& element) {
  const Architecture a = config.architecture();
  const bool before = HasNormBefore(a.norm_position), after = HasNormAfter(a.norm_position);
  const int64_t n = shape.tokens(), d = config.d_model, f = part.ffn.size();
  const int64_t q = part.heads.size() * config.head_dim();
  const int64_t kv = part.kv_heads.size() * config.head_dim();
  SlotCarver c(element);
  BlockBackwardStash s;
  if (before) s.normed = c.Activation(n, d);
  s.qkv = c.Activation(n, q + 2 * kv);
  if (a.qk_norm != QkNorm::kNone) {
    const bool each = a.qk_norm == QkNorm::kEachHead;
    s.raw_qk = c.Activation(n, q + kv);
    s.query_norm_weight = c.State(1, each ? config.head_dim() : q);
    s.key_norm_weight = c.State(1, each ? config.head_dim() : kv);
  }
  if (after) s.attention_sum = c.Activation(n, d);
  s.middle = c.Activation(n, d);
  if (before) s.feed_forward_normed = c.Activation(n, d);
  if (!a.gated()) s.up = c.Activation(n, f);
  if (config.HasExperts(block)) {
    s.expert_logits = c.Activation(n, config.experts.count + (config.experts.shared_gate ? 1 : 0));
  }
  if (after) s.feed_forward_sum = c.Activation(n, d);
  s.low = Adapters(c, config, n);
  s.bytes = c.bytes();
  return s;
}

EmbeddingStash MakeEmbeddingStash(const ModelConfig& config, const BatchShape& shape,
                                  const ElementBytes& element) {
  const Architecture a = config.architecture();
  EmbeddingStash s;
  SlotCarver forward(element), backward(element);
  if (a.embedding_norm) {
    s.norm = Norm(forward, a, shape.tokens());
    s.sum = forward.Activation(shape.tokens(), config.d_model);
    s.grad_sum = backward.Activation(shape.tokens(), config.d_model);
  }
  s.forward_bytes = forward.bytes();
  s.backward_bytes = backward.bytes();
  return s;
}

HeadStash MakeHeadStash(const ModelConfig& config, const BatchShape& shape,
                        const ElementBytes& element) {
  const Architecture a = config.architecture();
  const int64_t n = shape.tokens(), d = config.d_model;
  HeadStash s;
  SlotCarver forward(element), backward(element);
  s.norm = Norm(forward, a, n);
  s.normed = forward.Activation(n, d);
  s.grad_normed = backward.Activation(n, d);
  switch (a.objective) {
    case Objective::kNextToken:
      break;
    case Objective::kMaskedToken:
      s.transform = forward.Activation(n, d);
      s.transformed = forward.Activation(n, d);
      s.grad_transform = backward.Activation(n, d);
      break;
    case Objective::kImageClass:
      break;
  }
  s.forward_bytes = forward.bytes();
  s.backward_bytes = backward.bytes();
  return s;
}

int64_t LossRows(const ModelConfig& config, const BatchShape& shape) {
  constexpr int64_t kActivations = 8, kLeast = 16;
  const int64_t n = shape.tokens();
  if (config.is_images()) return n;
  const int64_t rows = kActivations * n * config.d_model / config.vocab;
  return std::min(n, std::max(kLeast, rows / kLeast * kLeast));
}

}  // namespace atl
