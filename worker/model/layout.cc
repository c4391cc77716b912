#include "worker/model/layout.h"

#include "common/check.h"

namespace atl {
namespace {

// A parameter's extent along the dimension that is cut, or all of it.
struct Kept {
  Cut cut = Cut::kNone;
  std::vector<Range> ranges;

  int64_t size() const {
    int64_t sum = 0;
    for (const Range& range : ranges) sum += range.size();
    return sum;
  }
};

Kept All(int64_t size) { return {Cut::kNone, {{0, size}}}; }
Kept Rows(std::vector<Range> ranges) { return {Cut::kRows, std::move(ranges)}; }
Kept Columns(Range range) { return {Cut::kColumns, {range}}; }

class LayoutBuilder {
 public:
  explicit LayoutBuilder(std::string name) { layout_.name = std::move(name); }

  // All matrices come before all vectors. At most one extent is cut, the output's by rows.
  void Matrix(std::string name, const Kept& out, const Kept& in, Init init,
              bool transposed = false) {
    std::vector<int64_t> shape = {out.size(), in.size()};
    if (transposed) std::swap(shape[0], shape[1]);
    Add(std::move(name), std::move(shape), init, transposed, out.cut == Cut::kNone ? in : out);
    layout_.decay_size = layout_.size;
    ATOLL_CHECK(layout_.params.size() == 1 || layout_.params[layout_.params.size() - 2].decay);
  }
  void Vector(std::string name, const Kept& extent, Init init) {
    Add(std::move(name), {extent.size()}, init, false, extent);
  }
  LayerLayout Done() { return std::move(layout_); }

 private:
  void Add(std::string name, std::vector<int64_t> shape, Init init, bool transposed,
           const Kept& kept) {
    ParamSpec param;
    param.name = std::move(name);
    param.decay = shape.size() >= 2;
    param.init = init;
    param.transposed = transposed;
    param.offset = layout_.size;
    param.size = 1;
    for (const int64_t extent : shape) param.size *= extent;
    param.shape = std::move(shape);
    param.cut = kept.cut;
    if (kept.cut != Cut::kNone) param.kept = kept.ranges;
    layout_.size += param.size;
    layout_.params.push_back(std::move(param));
  }

  LayerLayout layout_;
};

// Channels of heads, from channel `from` on.
Range Channels(const ModelConfig& c, const Range& heads, int64_t from = 0) {
  return {from + heads.begin * c.head_dim(), from + heads.end * c.head_dim()};
}

LayerLayout Gpt2Block(const ModelConfig& c, const TensorPart& p, int64_t index) {
  const std::string h = absl::StrCat("transformer.h.", index, ".");
  const int64_t d = c.d_model;
  const Kept qkv =
      Rows({Channels(c, p.heads), Channels(c, p.heads, d), Channels(c, p.heads, 2 * d)});
  LayoutBuilder b(absl::StrCat("block.", index));
  b.Matrix(h + "attn.c_attn.weight", qkv, All(d), Init::kNormal, true);
  b.Matrix(h + "attn.c_proj.weight", All(d), Columns(Channels(c, p.heads)), Init::kNormalResidual,
           true);
  b.Matrix(h + "mlp.c_fc.weight", Rows({p.ffn}), All(d), Init::kNormal, true);
  b.Matrix(h + "mlp.c_proj.weight", All(d), Columns(p.ffn), Init::kNormalResidual, true);
  b.Vector(h + "ln_1.weight", All(d), Init::kOnes);
  b.Vector(h + "ln_1.bias", All(d), Init::kZeros);
  b.Vector(h + "attn.c_attn.bias", qkv, Init::kZeros);
  b.Vector(h + "attn.c_proj.bias", All(d), Init::kZeros);
  b.Vector(h + "ln_2.weight", All(d), Init::kOnes);
  b.Vector(h + "ln_2.bias", All(d), Init::kZeros);
  b.Vector(h + "mlp.c_fc.bias", Rows({p.ffn}), Init::kZeros);
  b.Vector(h + "mlp.c_proj.bias", All(d), Init::kZeros);
  return b.Done();
}

LayerLayout LlamaBlock(const ModelConfig& c, const TensorPart& p, int64_t index) {
  const std::string h = absl::StrCat("model.layers.", index, ".");
  const int64_t d = c.d_model;
  const Kept keys = Rows({Channels(c, p.kv_heads)});
  LayoutBuilder b(absl::StrCat("block.", index));
  b.Matrix(h + "self_attn.q_proj.weight", Rows({Channels(c, p.heads)}), All(d), Init::kNormal);
  b.Matrix(h + "self_attn.k_proj.weight", keys, All(d), Init::kNormal);
  b.Matrix(h + "self_attn.v_proj.weight", keys, All(d), Init::kNormal);
  b.Matrix(h + "self_attn.o_proj.weight", All(d), Columns(Channels(c, p.heads)),
           Init::kNormalResidual);
  b.Matrix(h + "mlp.gate_proj.weight", Rows({p.ffn}), All(d), Init::kNormal);
  b.Matrix(h + "mlp.up_proj.weight", Rows({p.ffn}), All(d), Init::kNormal);
  b.Matrix(h + "mlp.down_proj.weight", All(d), Columns(p.ffn), Init::kNormalResidual);
  b.Vector(h + "input_layernorm.weight", All(d), Init::kOnes);
  b.Vector(h + "post_attention_layernorm.weight", All(d), Init::kOnes);
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

std::vector<LayerLayout> MakeLayouts(const ModelConfig& c) { return MakeLayouts(c, WholePart(c)); }

std::vector<LayerLayout> MakeLayouts(const ModelConfig& c, const TensorPart& p) {
  const bool gpt2 = c.family == ModelFamily::kGpt2;
  const Kept width = All(c.d_model);
  std::vector<LayerLayout> layouts;

  LayoutBuilder embedding("embedding");
  embedding.Matrix(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", Rows({p.vocab}),
                   width, Init::kNormal);
  if (gpt2) {
    embedding.Matrix("transformer.wpe.weight", All(c.max_positions), width, Init::kNormal);
  }
  layouts.push_back(embedding.Done());

  for (int64_t i = 0; i < c.layers; ++i) {
    layouts.push_back(gpt2 ? Gpt2Block(c, p, i) : LlamaBlock(c, p, i));
  }

  LayoutBuilder head("head");
  if (!c.tied_head) head.Matrix("lm_head.weight", Rows({p.vocab}), width, Init::kNormal);
  head.Vector(gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", width, Init::kOnes);
  if (gpt2) head.Vector("transformer.ln_f.bias", width, Init::kZeros);
  layouts.push_back(head.Done());
  return layouts;
}

}  // namespace atl
