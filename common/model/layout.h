// Which parameters a model's layers have, and where each lies.
//
// A model is an ordered list of layers: embedding, block 0 .. block L-1, head. All parameters of
// one layer lie in ONE flat buffer without gaps; gradients, both moments of AdamW, pushes and pulls
// and checkpoints use the same layout. Parameters subject to weight decay (matrices) come first,
// the others (norms, biases) after them, so that an optimizer sees two contiguous ranges. Matrices
// that multiply the same input (q, k, v; gate, up) are adjacent, so that one product serves all of
// them. An expert's gate, up and down are adjacent, and so are the experts: from one to the next it
// is as far as all three are large.
//
// Names and shapes in files are transformers'. In memory every matrix is [out, in]; GPT-2's
// "Conv1D" matrices are [in, out] in files, marked `transposed`.
//
// Where the model has an adapter (adapters/adapter.h), a layer's parameters are the adapter's
// alone, all that the first paragraph speaks of, and may be none; the model's own tensors are
// `frozen`: they have a buffer of their own, of the compute type but for matrices that are stored
// as codes, and neither gradient nor moments.

#ifndef ATOLL_COMMON_MODEL_LAYOUT_H_
#define ATOLL_COMMON_MODEL_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/model/tensor_part.h"

namespace atl {

// How a parameter starts when a model is made from a seed.
enum class Init : uint8_t {
  kZeros,
  kOnes,
  kNormal,          // standard deviation initializer_range
  kNormalResidual,  // initializer_range / sqrt(2 * blocks): what adds to the residual stream
  kUniformIn,       // uniform, up to 1 / sqrt(columns) from 0: Kaiming's as PEFT has it for A
  kNormalRank,      // 1 / rows: PEFT's "gaussian" for A
  kFanOut,          // sqrt(2 / numbers that one input reaches), of a convolution (He et al. 2015)
};

// How tensor parallelism cuts a parameter's matrix in memory; a vector is a column.
enum class Cut : uint8_t {
  kNone,  // every rank holds all of it
  kRows,
  kColumns,
};

// A parameter's use in a layer. Of matrices that one product serves, the first one is named.
enum class Param : uint8_t {
  kTable,
  kPositions,
  kTokenTypes,
  kQuery,  // and key and value behind it
  kKey,
  kValue,
  kOut,
  kGate,  // and up behind it
  kUp,
  kDown,
  kSharedGate,  // and up behind it
  kSharedUp,
  kSharedDown,
  kExpertGate,  // for each expert: and its up and down behind it
  kExpertUp,
  kExpertDown,
  kRouter,
  kSharedWeight,  // whose product with the input weights the shared expert
  kQueryBias,     // and those of key and value behind it
  kKeyBias,
  kValueBias,
  kOutBias,
  kUpBias,
  kDownBias,
  kQueryNorm,
  kKeyNorm,
  kNorm,  // before attention; of the ends, their norm
  kNormBias,
  kAfterNorm,  // after attention
  kAfterNormBias,
  kCorrection,  // of experts' scores
  kFeedForwardNorm,
  kFeedForwardNormBias,
  kAfterFeedForwardNorm,
  kAfterFeedForwardNormBias,
  kHead,
  kHeadBias,
  kTransform,
  kTransformBias,
  kAdapterA,
  kAdapterB,
  kImage,  // of a model of images: see image_model.h
};
inline constexpr size_t kParamUses = static_cast<size_t>(Param::kImage) + 1;

// The product of a block that a matrix has a part in; nothing: it is no matrix of a block.
std::optional<BlockProduct> FindProduct(Param use);

struct ParamSpec {
  std::string name;  // in files
  Param use = Param::kTable;
  std::vector<int64_t> shape;  // in files; of a part: as if it were in a file
  bool transposed = false;     // memory holds the transpose of the file's matrix
  float file_offset = 0;       // memory holds the file's numbers plus this
  bool decay = false;          // weight decay applies: two dimensions or more
  Init init = Init::kZeros;
  int64_t offset = 0;      // elements from the start of the layer's buffer
  int64_t size = 0;        // elements
  int64_t whole_size = 0;  // of a part's coded matrix: elements of the whole
  Cut cut = Cut::kNone;
  std::vector<Range> kept;  // rows, or columns, of the whole that are here, side by side; by `cut`

  int64_t end() const { return offset + size; }
};

// The adapter of one frozen matrix, by indices.
struct AdaptedMatrix {
  size_t matrix = 0;    // in frozen
  size_t a = 0, b = 0;  // in params
};

struct LayerLayout {
  std::string name;               // "embedding", "block.0", ..., "head"
  std::vector<ParamSpec> params;  // in order of offset
  int64_t size = 0;               // elements of the flat buffer
  int64_t decay_size = 0;         // the first decay_size elements have weight decay
  // Behind these are statistics, which no gradient moves: the optimizer makes them run
  // (RunningMean, BalanceExperts), and an outer round takes their mean.
  int64_t trained_size = 0;
  double initializer_range = 0.02;  // the model's
  std::vector<ParamSpec> frozen;    // in order of offset, in the buffer of the frozen tensors
  int64_t frozen_size = 0;
  std::optional<WeightCode> coding;  // of those that coded() says
  // By product of a block; the A of matrices that one product serves are adjacent.
  std::vector<AdaptedMatrix> adapted;

  // Returns whether a frozen tensor is stored as codes; frozen_place.h says where.
  bool coded(const ParamSpec& frozen_param) const {
    return coding.has_value() && FindProduct(frozen_param.use).has_value();
  }
  // The model's own tensors: frozen or trained.
  const std::vector<ParamSpec>& base() const { return frozen.empty() ? params : frozen; }
  // REQUIRES: there is such a parameter.
  const ParamSpec& Find(absl::string_view param_name) const;
  // Null: the layer has none.
  const ParamSpec* Find(Param use) const;
};

// layers + 2 layouts, in order. The head of a tied model has no matrix of its own.
// REQUIRES: config is valid.
std::vector<LayerLayout> MakeLayouts(const ModelConfig& config);

// Returns the layout of the frozen tensors alone, as parameters: as they lie in files and in their
// buffer.
LayerLayout FrozenLayout(const LayerLayout& layout);

// Makes the layouts of what one tensor-parallel rank holds: the same parameters in the same order,
// each cut; of experts that are not here, nothing.
std::vector<LayerLayout> MakeLayouts(const ModelConfig& config, const TensorPart& part);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_LAYOUT_H_
