#include "worker/model/layout.h"

#include "common/check.h"

namespace atl {
namespace {

class LayoutBuilder {
 public:
  explicit LayoutBuilder(std::string name) { layout_.name = std::move(name); }

  // All matrices come before all vectors.
  void Matrix(std::string name, int64_t rows, int64_t cols, Init init, bool transposed = false) {
    Add(std::move(name), {rows, cols}, init, transposed);
    layout_.decay_size = layout_.size;
    ATOLL_CHECK(layout_.params.size() == 1 || layout_.params[layout_.params.size() - 2].decay);
  }
  void Vector(std::string name, int64_t size, Init init) {
    Add(std::move(name), {size}, init, false);
  }
  LayerLayout Done() { return std::move(layout_); }

 private:
  void Add(std::string name, std::vector<int64_t> shape, Init init, bool transposed) {
    ParamSpec param;
    param.name = std::move(name);
    param.decay = shape.size() >= 2;
    param.init = init;
    param.transposed = transposed;
    param.offset = layout_.size;
    param.size = 1;
    for (const int64_t extent : shape) param.size *= extent;
    param.shape = std::move(shape);
    layout_.size += param.size;
    layout_.params.push_back(std::move(param));
  }

  LayerLayout layout_;
};

LayerLayout Gpt2Block(const ModelConfig& c, int64_t index) {
  const std::string h = absl::StrCat("transformer.h.", index, ".");
  const int64_t d = c.d_model;
  LayoutBuilder b(absl::StrCat("block.", index));
  b.Matrix(h + "attn.c_attn.weight", d, 3 * d, Init::kNormal, true);
  b.Matrix(h + "attn.c_proj.weight", d, d, Init::kNormalResidual, true);
  b.Matrix(h + "mlp.c_fc.weight", d, c.ffn, Init::kNormal, true);
  b.Matrix(h + "mlp.c_proj.weight", c.ffn, d, Init::kNormalResidual, true);
  b.Vector(h + "ln_1.weight", d, Init::kOnes);
  b.Vector(h + "ln_1.bias", d, Init::kZeros);
  b.Vector(h + "attn.c_attn.bias", 3 * d, Init::kZeros);
  b.Vector(h + "attn.c_proj.bias", d, Init::kZeros);
  b.Vector(h + "ln_2.weight", d, Init::kOnes);
  b.Vector(h + "ln_2.bias", d, Init::kZeros);
  b.Vector(h + "mlp.c_fc.bias", c.ffn, Init::kZeros);
  b.Vector(h + "mlp.c_proj.bias", d, Init::kZeros);
  return b.Done();
}

LayerLayout LlamaBlock(const ModelConfig& c, int64_t index) {
  const std::string h = absl::StrCat("model.layers.", index, ".");
  const int64_t d = c.d_model, kv_dim = c.kv_heads * c.head_dim();
  LayoutBuilder b(absl::StrCat("block.", index));
  b.Matrix(h + "self_attn.q_proj.weight", d, d, Init::kNormal);
  b.Matrix(h + "self_attn.k_proj.weight", kv_dim, d, Init::kNormal);
  b.Matrix(h + "self_attn.v_proj.weight", kv_dim, d, Init::kNormal);
  b.Matrix(h + "self_attn.o_proj.weight", d, d, Init::kNormalResidual);
  b.Matrix(h + "mlp.gate_proj.weight", c.ffn, d, Init::kNormal);
  b.Matrix(h + "mlp.up_proj.weight", c.ffn, d, Init::kNormal);
  b.Matrix(h + "mlp.down_proj.weight", d, c.ffn, Init::kNormalResidual);
  b.Vector(h + "input_layernorm.weight", d, Init::kOnes);
  b.Vector(h + "post_attention_layernorm.weight", d, Init::kOnes);
  return b.Done();
}

}  // namespace

const ParamSpec& LayerLayout::Find(absl::string_view param_name) const {
  for (const ParamSpec& param : params) {
    if (param.name == param_name) return param;
  }
  ATOLL_CHECK(false, "layer ", name, " has no parameter ", param_name);
  __builtin_unreachable();
}

std::vector<LayerLayout> MakeLayouts(const ModelConfig& c) {
  const bool gpt2 = c.family == ModelFamily::kGpt2;
  std::vector<LayerLayout> layouts;

  LayoutBuilder embedding("embedding");
  embedding.Matrix(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", c.vocab,
                   c.d_model, Init::kNormal);
  if (gpt2) {
    embedding.Matrix("transformer.wpe.weight", c.max_positions, c.d_model, Init::kNormal);
  }
  layouts.push_back(embedding.Done());

  for (int64_t i = 0; i < c.layers; ++i) {
    layouts.push_back(gpt2 ? Gpt2Block(c, i) : LlamaBlock(c, i));
  }

  LayoutBuilder head("head");
  if (!c.tied_head) head.Matrix("lm_head.weight", c.vocab, c.d_model, Init::kNormal);
  head.Vector(gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", c.d_model, Init::kOnes);
  if (gpt2) head.Vector("transformer.ln_f.bias", c.d_model, Init::kZeros);
  layouts.push_back(head.Done());
  return layouts;
}

}  // namespace atl
