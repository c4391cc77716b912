#include "common/model/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/model/adapters/peft.h"
#include "common/model/image_model.h"

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
  LayoutBuilder(std::string name, const Architecture& architecture, std::string prefix = "")
      : a_(architecture), prefix_(std::move(prefix)) {
    layout_.name = std::move(name);
  }

  // All matrices come before all vectors. At most one extent is cut, the output's by rows.
  void Matrix(Param use, const std::string& name, const Kept& out, const Kept& in,
              Init init = Init::kNormal, bool transposed = false) {
    std::vector<int64_t> shape = {out.size(), in.size()};
    if (transposed) std::swap(shape[0], shape[1]);
    Add(use, prefix_ + name + ".weight", std::move(shape), init, out.cut == Cut::kNone ? in : out);
    layout_.params.back().transposed = transposed;
    layout_.decay_size = layout_.size;
    ATOLL_CHECK(layout_.params.size() == 1 || layout_.params[layout_.params.size() - 2].decay);
  }
  void Bias(Param use, const std::string& name, const Kept& extent) {
    Add(use, prefix_ + name + ".bias", {extent.size()}, Init::kZeros, extent);
  }
  // `bias` follows the weight, where the architecture's norms have one.
  void Norm(Param weight, Param bias, const std::string& name, int64_t channels) {
    Add(weight, prefix_ + name + ".weight", {channels}, Init::kOnes, All(channels));
    if (a_.norms_from_zero) layout_.params.back().file_offset = 1;
    if (a_.norm_bias()) Bias(bias, name, All(channels));
  }
  void Vector(Param use, const std::string& whole_name, const Kept& extent, Init init) {
    Add(use, whole_name, {extent.size()}, init, extent);
  }
  // Adds what no gradient moves; behind all others.
  void Statistic(Param use, const std::string& whole_name, int64_t extent) {
    const int64_t trained = layout_.trained_size;
    Add(use, whole_name, {extent}, Init::kZeros, All(extent));
    layout_.trained_size = trained;
  }
  LayerLayout Done() { return std::move(layout_); }

 private:
  void Add(Param use, std::string name, std::vector<int64_t> shape, Init init, const Kept& kept) {
    ParamSpec param;
    param.name = std::move(name);
    param.use = use;
    param.decay = shape.size() >= 2;
    param.init = init;
    param.offset = layout_.size;
    param.size = 1;
    for (const int64_t extent : shape) param.size *= extent;
    param.shape = std::move(shape);
    param.cut = kept.cut;
    if (kept.cut != Cut::kNone) param.kept = kept.ranges;
    layout_.size += param.size;
    layout_.trained_size = layout_.size;
    layout_.params.push_back(std::move(param));
  }

  const Architecture& a_;
  const std::string prefix_;
  LayerLayout layout_;
};

// Channels of heads, from channel `from` on.
Range Channels(const ModelConfig& c, const Range& heads, int64_t from = 0) {
  return {from + heads.begin * c.head_dim(), from + heads.end * c.head_dim()};
}

void AddFeedForward(const ModelConfig& c, const Architecture& a, const TensorPart& p,
                    LayoutBuilder& b) {
  const ParamNames& n = a.names;
  const Kept width = All(c.d_model), hidden = Rows({p.ffn});
  const bool transposed = a.matrices_transposed;
  switch (a.feed_forward) {
    case FeedForward::kPlain:
      b.Matrix(Param::kUp, n.up, hidden, width, Init::kNormal, transposed);
      break;
    case FeedForward::kGated:
      if (!n.gate_up.empty()) {
        b.Matrix(Param::kGate, n.gate_up, Rows({p.ffn, {c.ffn + p.ffn.begin, c.ffn + p.ffn.end}}),
                 width);
      } else {
        b.Matrix(Param::kGate, n.gate, hidden, width);
        b.Matrix(Param::kUp, n.up, hidden, width);
      }
      break;
  }
  b.Matrix(Param::kDown, n.down, width, Columns(p.ffn), Init::kNormalResidual, transposed);
}

// An expert that is not of this part has matrices without elements.
void AddExperts(const ModelConfig& c, const ParamNames& n, const TensorPart& p, LayoutBuilder& b) {
  const Kept width = All(c.d_model);
  if (c.experts.shared_hidden > 0) {
    b.Matrix(Param::kSharedGate, n.shared_gate, Rows({p.shared}), width);
    b.Matrix(Param::kSharedUp, n.shared_up, Rows({p.shared}), width);
    b.Matrix(Param::kSharedDown, n.shared_down, width, Columns(p.shared), Init::kNormalResidual);
  }
  for (int64_t e = 0; e < c.experts.count; ++e) {
    const std::string name = absl::StrCat(n.expert_prefix, e, ".");
    const bool here = p.experts.begin <= e && e < p.experts.end;
    const auto kept = [&](int64_t size) { return Rows({{0, here ? size : 0}}); };
    b.Matrix(Param::kExpertGate, name + n.expert_gate, kept(c.experts.hidden), width);
    b.Matrix(Param::kExpertUp, name + n.expert_up, kept(c.experts.hidden), width);
    b.Matrix(Param::kExpertDown, name + n.expert_down, kept(c.d_model), All(c.experts.hidden),
             Init::kNormalResidual);
  }
  b.Matrix(Param::kRouter, n.router, All(c.experts.count), width);
  if (c.experts.shared_gate) b.Matrix(Param::kSharedWeight, n.shared_weight, All(1), width);
}

LayerLayout Block(const ModelConfig& c, const Architecture& a, const TensorPart& p, int64_t index) {
  const ParamNames& n = a.names;
  const Kept width = All(c.d_model);
  const Range queries = Channels(c, p.heads), keys = Channels(c, p.kv_heads);
  const int64_t q = c.query_channels(), kv = c.key_channels();
  const Kept qkv = Rows({queries, Channels(c, p.kv_heads, q), Channels(c, p.kv_heads, q + kv)});
  const Kept hidden = Rows({p.ffn});
  const bool transposed = a.matrices_transposed;
  LayoutBuilder b(absl::StrCat("block.", index), a, absl::StrCat(n.block_prefix, index, "."));

  if (!n.qkv.empty()) {
    b.Matrix(Param::kQuery, n.qkv, qkv, width, Init::kNormal, transposed);
  } else {
    b.Matrix(Param::kQuery, n.query, Rows({queries}), width);
    b.Matrix(Param::kKey, n.key, Rows({keys}), width);
    b.Matrix(Param::kValue, n.value, Rows({keys}), width);
  }
  b.Matrix(Param::kOut, n.out, width, Columns(queries), Init::kNormalResidual, transposed);
  if (c.HasExperts(index)) {
    AddExperts(c, n, p, b);
  } else {
    AddFeedForward(c, a, p, b);
  }

  const bool before = HasNormBefore(a.norm_position), after = HasNormAfter(a.norm_position);
  if (before) b.Norm(Param::kNorm, Param::kNormBias, n.attention_norm, c.d_model);
  if (a.qkv_bias && !n.qkv.empty()) b.Bias(Param::kQueryBias, n.qkv, qkv);
  if (a.qkv_bias && n.qkv.empty()) {
    b.Bias(Param::kQueryBias, n.query, Rows({queries}));
    b.Bias(Param::kKeyBias, n.key, Rows({keys}));
    b.Bias(Param::kValueBias, n.value, Rows({keys}));
  }
  if (a.qk_norm != QkNorm::kNone) {
    const bool each = a.qk_norm == QkNorm::kEachHead;
    b.Norm(Param::kQueryNorm, Param::kNormBias, n.query_norm, each ? c.head_dim() : q);
    b.Norm(Param::kKeyNorm, Param::kNormBias, n.key_norm, each ? c.head_dim() : kv);
  }
  if (a.out_bias) b.Bias(Param::kOutBias, n.out, width);
  if (after) b.Norm(Param::kAfterNorm, Param::kAfterNormBias, n.after_attention_norm, c.d_model);
  if (before) {
    b.Norm(Param::kFeedForwardNorm, Param::kFeedForwardNormBias, n.feed_forward_norm, c.d_model);
  }
  if (a.feed_forward_bias) {
    b.Bias(Param::kUpBias, n.up, hidden);
    b.Bias(Param::kDownBias, n.down, width);
  }
  if (after) {
    b.Norm(Param::kAfterFeedForwardNorm, Param::kAfterFeedForwardNormBias,
           n.after_feed_forward_norm, c.d_model);
  }
  if (c.HasExperts(index) && c.experts.correction) {
    b.Statistic(Param::kCorrection, absl::StrCat(n.block_prefix, index, ".", n.correction),
                c.experts.count);
  }
  return b.Done();
}

LayerLayout Embedding(const ModelConfig& c, const Architecture& a, const TensorPart& p) {
  const Kept width = All(c.d_model);
  LayoutBuilder b("embedding", a);
  b.Matrix(Param::kTable, a.names.embedding, Rows({p.vocab}), width);
  if (!a.rotary()) b.Matrix(Param::kPositions, a.names.positions, All(c.max_positions), width);
  if (a.token_types > 0) {
    b.Matrix(Param::kTokenTypes, a.names.token_types, All(a.token_types), width);
  }
  if (a.embedding_norm) {
    b.Norm(Param::kNorm, Param::kNormBias, a.names.embedding_norm, c.d_model);
  }
  return b.Done();
}

LayerLayout Head(const ModelConfig& c, const Architecture& a, const TensorPart& p) {
  const Kept width = All(c.d_model);
  LayoutBuilder b("head", a);
  switch (a.objective) {
    case Objective::kNextToken:
      if (!c.tied_head) b.Matrix(Param::kHead, a.names.head, Rows({p.vocab}), width);
      b.Norm(Param::kNorm, Param::kNormBias, a.names.final_norm, c.d_model);
      break;
    case Objective::kMaskedToken:
      b.Matrix(Param::kTransform, a.names.transform, width, width);
      b.Bias(Param::kTransformBias, a.names.transform, width);
      b.Norm(Param::kNorm, Param::kNormBias, a.names.transform_norm, c.d_model);
      b.Vector(Param::kHeadBias, a.names.head_bias, Rows({p.vocab}), Init::kZeros);
      break;
    case Objective::kImageClass:
      break;
  }
  return b.Done();
}

// Freezes what the layer has, and gives the targets among its matrices an A and a B. Where a
// matrix's rows are cut so are B's, and A is whole; where its columns are, A's, and B is whole.
class AdapterBuilder {
 public:
  AdapterBuilder(const ModelConfig& config, LayerLayout* layout)
      : rank_(config.adapter.rank),
        init_(config.adapter.init == AdapterInit::kGaussian ? Init::kNormalRank : Init::kUniformIn),
        layout_(layout) {
    layout->coding = config.adapter.base;
    layout->frozen = std::exchange(layout->params, {});
    layout->frozen_size = layout->size;
    layout->size = 0;
  }

  // Matrices of one product, by their indices in frozen.
  void Add(const std::vector<size_t>& matrices) {
    const size_t first = layout_->adapted.size();
    for (const size_t m : matrices) {
      const ParamSpec& w = layout_->frozen[m];
      AddParam(w, 'A', {rank_, w.shape[w.transposed ? 0 : 1]}, Cut::kColumns);
      layout_->adapted.push_back({.matrix = m, .a = layout_->params.size() - 1});
    }
    for (size_t i = first; i < layout_->adapted.size(); ++i) {
      AdaptedMatrix& adapted = layout_->adapted[i];
      const ParamSpec& w = layout_->frozen[adapted.matrix];
      AddParam(w, 'B', {w.shape[w.transposed ? 1 : 0], rank_}, Cut::kRows);
      adapted.b = layout_->params.size() - 1;
    }
  }
  void Done() { layout_->decay_size = layout_->trained_size = layout_->size; }

 private:
  void AddParam(const ParamSpec& w, char which, std::vector<int64_t> shape, Cut cut_with) {
    ParamSpec param;
    param.name = AdapterTensorName(w.name, which);
    param.use = which == 'A' ? Param::kAdapterA : Param::kAdapterB;
    param.init = which == 'A' ? init_ : Init::kZeros;
    param.decay = true;
    param.offset = layout_->size;
    param.size = shape[0] * shape[1];
    param.shape = std::move(shape);
    if (w.cut == cut_with) {
      param.cut = w.cut;
      param.kept = w.kept;
    }
    layout_->size += param.size;
    layout_->params.push_back(std::move(param));
  }

  const int64_t rank_;
  const Init init_;  // of A
  LayerLayout* const layout_;
};

// Layers without targets have no parameters then.
void Adapt(const ModelConfig& c, const Architecture& a, LayerLayout* layout) {
  AdapterBuilder builder(c, layout);
  for (size_t product = 0; product < kBlockProducts; ++product) {
    std::vector<size_t> matrices;
    for (size_t m = 0; m < layout->frozen.size(); ++m) {
      const ParamSpec& w = layout->frozen[m];
      if (FindProduct(w.use) != static_cast<BlockProduct>(product)) continue;
      // "transformer.h.0.attn.c_attn.weight": behind the block's number.
      absl::string_view name = w.name;
      ATOLL_CHECK(absl::ConsumePrefix(&name, a.names.block_prefix), w.name);
      name.remove_prefix(name.find('.') + 1);
      absl::ConsumeSuffix(&name, ".weight");
      if (c.adapter.Adapts(name)) matrices.push_back(m);
    }
    builder.Add(matrices);
  }
  builder.Done();
}

}  // namespace

std::optional<BlockProduct> FindProduct(Param use) {
  switch (use) {
    case Param::kQuery:
    case Param::kKey:
    case Param::kValue:
      return BlockProduct::kQueryKeyValue;
    case Param::kOut:
      return BlockProduct::kOut;
    case Param::kGate:
    case Param::kUp:
      return BlockProduct::kUp;
    case Param::kDown:
      return BlockProduct::kDown;
    default:
      return std::nullopt;
  }
}

const ParamSpec& LayerLayout::Find(absl::string_view param_name) const {
  for (const ParamSpec& param : params) {
    if (param.name == param_name) return param;
  }
  ATOLL_CHECK(false, "layer ", name, " has no parameter ", param_name);
  __builtin_unreachable();
}

const ParamSpec* LayerLayout::Find(Param use) const {
  for (const ParamSpec& param : params) {
    if (param.use == use) return &param;
  }
  return nullptr;
}

LayerLayout FrozenLayout(const LayerLayout& layout) {
  LayerLayout frozen;
  frozen.name = layout.name;
  frozen.params = layout.frozen;
  frozen.size = frozen.decay_size = frozen.trained_size = layout.frozen_size;
  frozen.initializer_range = layout.initializer_range;
  return frozen;
}

std::vector<LayerLayout> MakeLayouts(const ModelConfig& c) { return MakeLayouts(c, WholePart(c)); }

std::vector<LayerLayout> MakeLayouts(const ModelConfig& c, const TensorPart& p) {
  const Architecture a = c.architecture();
  std::vector<LayerLayout> layouts;
  if (c.is_images()) {
    for (const ImageLayer& layer : ImageLayers(c)) layouts.push_back(MakeImageLayout(layer));
  } else {
    layouts.push_back(Embedding(c, a, p));
    for (int64_t i = 0; i < c.layers; ++i) layouts.push_back(Block(c, a, p, i));
    layouts.push_back(Head(c, a, p));
  }
  for (LayerLayout& layout : layouts) {
    layout.initializer_range = c.initializer_range;
    if (c.adapter.present()) Adapt(c, a, &layout);
  }
  if (!c.adapter.base) return layouts;
  const std::vector<LayerLayout> wholes = p.whole() ? layouts : MakeLayouts(c);
  for (size_t l = 0; l < layouts.size(); ++l) {
    for (size_t m = 0; m < layouts[l].frozen.size(); ++m) {
      layouts[l].frozen[m].whole_size = wholes[l].frozen[m].size;
    }
  }
  return layouts;
}

}  // namespace atl
