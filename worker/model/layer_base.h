// Base of the layers of all families. Not for use outside this folder.

#ifndef ATOLL_WORKER_MODEL_LAYER_BASE_H_
#define ATOLL_WORKER_MODEL_LAYER_BASE_H_

#include <algorithm>
#include <array>
#include <utility>

#include "common/model/adapters/frozen_place.h"
#include "worker/model/model.h"

namespace atl {

// Turns a layer written as operations on an Exec into a Layer: the same three functions run the
// work and, on tensors without data, measure the workspace it takes.
class LayerBase : public Layer {
 public:
  absl::Status Forward(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                       const Tensor& output, const Stash& stash) const final {
    Exec exec = Start(call);
    DoForward(exec, {call.shape,
                     memory,
                     call.constants,
                     stash,
                     input,
                     output,
                     call.borders,
                     call.evaluates,
                     {},
                     Room(exec)});
    return exec.status();
  }
  absl::Status BackwardInput(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                             const Tensor& grad_output, const Tensor& grad_input,
                             const Stash& stash) const final {
    Exec exec = Start(call);
    DoBackwardInput(exec,
                    {call.shape, memory, call.constants, stash, input, grad_output, call.borders,
                     false, AddLoads(call.router, memory), Room(exec)},
                    grad_input);
    return exec.status();
  }
  void BackwardWeight(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                      const Tensor& grad_output, const Stash& stash) const final {
    Exec exec = Start(call);
    DoBackwardWeight(exec,
                     {call.shape, memory, call.constants, stash, input, grad_output, call.borders});
  }

  LayerBytes Bytes(Backend& backend, const BatchShape& shape) const final {
    Args args{shape,
              {},
              Tensor(nullptr, state_, shape.seq_len, config_.head_dim()),
              {},
              InputShape(shape),
              Tensor(nullptr, compute_, shape.tokens(), output_cols())};
    LayerBytes bytes;
    StashBytes(shape, &bytes);
    Exec forward = Exec::Measuring(backend);
    args.room = Room(forward);
    DoForward(forward, args);
    Exec input = Exec::Measuring(backend);
    args.room = Room(input);
    DoBackwardInput(input, args, InputShape(shape));
    Exec weight = Exec::Measuring(backend);
    DoBackwardWeight(weight, args);
    bytes.workspace =
        std::max({forward.needed_bytes(), input.needed_bytes(), weight.needed_bytes()});
    return bytes;
  }

 protected:
  struct Args {
    BatchShape shape;
    LayerMemory memory;
    Tensor constants;
    Stash stash;
    Tensor input;
    Tensor output;  // of BackwardInput and BackwardWeight: grad_output
    Borders borders = {};
    bool evaluates = false;
    RouterCall router = {};
    Tensor room = {};  // that matrices are decoded into
  };

  LayerBase(const ModelConfig& config, const TensorPart& part, DType compute, LayerLayout layout)
      : Layer(std::move(layout)),
        config_(config),
        arch_(config.architecture()),
        part_(part),
        compute_(compute),
        state_(StateType(compute)),
        adapts_(config.adapter.present()),
        decoded_elements_(CountDecoded(config, part, this->layout())),
        places_(PlaceFrozen(this->layout(), GetElementSize(compute))) {
    first_.fill(-1);
    const std::vector<ParamSpec>& all = this->layout().base();
    for (size_t i = 0; i < all.size(); ++i) {
      int& first = first_[static_cast<size_t>(all[i].use)];
      if (first < 0) first = static_cast<int>(i);  // of experts the first one's
    }
  }

  virtual Tensor InputShape(const BatchShape& shape) const {
    return {nullptr, compute_, shape.tokens(), config_.d_model};
  }
  virtual void StashBytes(const BatchShape& shape, LayerBytes* bytes) const = 0;
  virtual void DoForward(Exec& exec, const Args& args) const = 0;
  virtual void DoBackwardInput(Exec& exec, const Args& args, const Tensor& grad_input) const = 0;
  virtual void DoBackwardWeight(Exec& exec, const Args& args) const = 0;

  ElementBytes element_bytes() const { return {GetElementSize(compute_), GetElementSize(state_)}; }

  // A stash's tensor; absent where the family has none.
  Tensor At(const Slot& slot, void* stash) const {
    if (!slot.present()) return {};
    void* data = stash == nullptr ? nullptr : static_cast<char*>(stash) + slot.offset;
    return {data, slot.state ? state_ : compute_, slot.rows, slot.cols};
  }

  // The parameter, or parameters, that start at the one of this use; absent where the layer has
  // none.
  Tensor Weight(const Args& args, Param use, int64_t rows, int64_t cols) const {
    return At(adapts_ ? args.memory.frozen : args.memory.params, compute_, use, rows, cols);
  }
  // The same of matrices of a block's products. Those that are stored as codes are decoded, into
  // the place that the call before has decoded into.
  Tensor Matrix(Exec& exec, const Args& args, Param use, int64_t rows, int64_t cols) const {
    const int first = first_[static_cast<size_t>(use)];
    if (first < 0 || !layout().coding) return Weight(args, use, rows, cols);
    const Tensor decoded(args.room.data, compute_, rows, cols);
    ATOLL_CHECK(rows * cols <= decoded_elements_, layout().name);
    int64_t row = 0;
    for (auto i = static_cast<size_t>(first); row < rows; ++i) {
      const FrozenPlace& place = places_.params[i];
      ATOLL_CHECK(place.coded() && place.cols == cols, layout().name);
      Decode(exec, args, place, decoded, &row);
    }
    return decoded;
  }
  // The same before it was rounded. REQUIRES: no adapter, or no half precision.
  Tensor StateWeight(const Args& args, Param use, int64_t rows, int64_t cols) const {
    return At(adapts_ ? args.memory.frozen : args.memory.state_params, state_, use, rows, cols);
  }
  // REQUIRES: no adapter.
  Tensor Grad(const Args& args, Param use, int64_t rows, int64_t cols) const {
    return At(args.memory.grads, state_, use, rows, cols);
  }

  // Returns where documents begin, for attention and for positions; absent in other sequences.
  Tensor Starts(const Args& args) const { return arch_.causal ? args.borders.at : Tensor(); }
  Tensor PositionStarts(const Args& args) const {
    return args.borders.continue_positions ? Tensor() : Starts(args);
  }
  // Returns the lengths of padded sequences; absent of others.
  Tensor Lengths(const Args& args) const { return arch_.causal ? Tensor() : args.borders.at; }

  // Returns x on the rank that leads, absent on others: for what the sum over the group's ranks
  // must hold once.
  Tensor OnLead(const Tensor& x) const { return part_.leads() ? x : Tensor(); }

  // The architecture's norm over rows of d_model channels.
  struct Norm {
    Param weight, bias;
    Tensor mean, rstd;
  };
  void RunNorm(Exec& exec, const Args& a, const Norm& norm, const Tensor& x,
               const Tensor& y) const {
    exec.Run(NormForward{.x = x,
                         .w = Weight(a, norm.weight, 1, x.cols),
                         .b = arch_.norm_bias() ? Weight(a, norm.bias, 1, x.cols) : Tensor(),
                         .y = y,
                         .mean = Mean(norm),
                         .rstd = norm.rstd,
                         .eps = static_cast<float>(config_.norm_eps)});
  }
  // dx = add + ...
  void RunNormBackwardInput(Exec& exec, const Args& a, const Norm& norm, const Tensor& dy,
                            const Tensor& x, const Tensor& add, const Tensor& dx) const {
    exec.Run(NormBackwardInput{dy, x, Weight(a, norm.weight, 1, x.cols), Mean(norm), norm.rstd, add,
                               dx});
  }
  void RunNormBackwardWeight(Exec& exec, const Args& a, const Norm& norm, const Tensor& dy,
                             const Tensor& x) const {
    exec.Run(NormBackwardWeight{dy, x, Mean(norm), norm.rstd, Grad(a, norm.weight, 1, x.cols),
                                arch_.norm_bias() ? Grad(a, norm.bias, 1, x.cols) : Tensor()});
  }
  // Returns the means of a LayerNorm; absent of an RMSNorm.
  Tensor Mean(const Norm& norm) const { return arch_.norm_bias() ? norm.mean : Tensor(); }

  const ModelConfig config_;
  const Architecture arch_;
  const TensorPart part_;
  const DType compute_;
  const DType state_;  // of gradients and statistics
  const bool adapts_;  // weights are frozen

 private:
  // Counts those of queries, keys and values, or of gate and up: of blocks without any these two
  // too, since the workspace of one block is measured for all.
  static int64_t CountDecoded(const ModelConfig& config, const TensorPart& part,
                              const LayerLayout& layout) {
    if (std::ranges::none_of(layout.frozen, [&](const ParamSpec& p) { return layout.coded(p); })) {
      return 0;
    }
    const int64_t channels = part.heads.size() + 2 * part.kv_heads.size();
    const int64_t hidden = config.has_dense_blocks() ? part.ffn.size() : 0;
    return config.d_model * std::max(channels * config.head_dim(),
                                     config.architecture().gated() ? 2 * hidden : hidden);
  }

  // Returns the call with where a correcting bias's loads wait for the optimizer: nowhere where
  // that is frozen.
  RouterCall AddLoads(RouterCall router, const LayerMemory& memory) const {
    if (!adapts_) {
      router.loads = At(memory.grads, state_, Param::kCorrection, 1, config_.experts.count);
    }
    return router;
  }

  Tensor Room(Exec& exec) const {
    return decoded_elements_ == 0 ? Tensor() : exec.Temporary(compute_, 1, decoded_elements_);
  }

  // Decodes a matrix into the rows from `row` on, which becomes the one behind it.
  void Decode(Exec& exec, const Args& args, const FrozenPlace& place, const Tensor& to,
              int64_t* row) const {
    char* const frozen = static_cast<char*>(args.memory.frozen);
    const auto at = [&](int64_t offset, DType type, int64_t bytes) {
      return Tensor(frozen == nullptr ? nullptr : frozen + offset, type, 1, (bytes + 3) / 4);
    };
    const WeightCode code = *layout().coding;
    int64_t elements = 0;  // of the matrix, before these rows
    for (const CodedRows& part : place.rows) {
      const int64_t size = part.rows * place.cols, blocks = size / kWeightBlock;
      exec.Run(
          DecodeWeights{.code = code,
                        .codes = at(place.values + GetCodeBytes(code, elements), DType::kInt32,
                                    GetCodeBytes(code, size)),
                        .scales = at(place.scales + elements / kWeightBlock, DType::kInt32, blocks),
                        .coarse = at(place.coarse, DType::kFloat32, 4 * place.coarse_numbers),
                        .first_scale = part.first_scale,
                        .scale_step = part.scale_step,
                        .y = to.Rows(*row, part.rows)});
      elements += size;
      *row += part.rows;
    }
  }

  Exec Start(const LayerCall& call) const {
    CheckGroup(call, part_);
    return {call.backend, call.stream, call.workspace, call.communicator};
  }

  Tensor At(void* base, DType dtype, Param use, int64_t rows, int64_t cols) const {
    const int first = first_[static_cast<size_t>(use)];
    if (first < 0) return {};
    const auto index = static_cast<size_t>(first);
    const int64_t each = GetElementSize(dtype);
    const int64_t offset =
        adapts_ ? places_.params[index].values : layout().params[index].offset * each;
    ATOLL_CHECK(offset + rows * cols * each <= (adapts_ ? places_.bytes : layout().size * each));
    char* data = base == nullptr ? nullptr : static_cast<char*>(base) + offset;
    return {data, dtype, rows, cols};
  }

  std::array<int, kParamUses> first_;  // by use, in layout().base(); -1: the layer has none
  const int64_t decoded_elements_;     // of the largest matrices that are decoded at once
  const FrozenPlaces places_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_LAYER_BASE_H_
