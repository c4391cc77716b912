// What the layers of all families share. Not for use outside this folder.

#ifndef ATOLL_WORKER_MODEL_LAYER_BASE_H_
#define ATOLL_WORKER_MODEL_LAYER_BASE_H_

#include <utility>

#include "worker/model/model.h"

namespace atl {

// Turns a layer written as operations on an Exec into a Layer: the same three functions run the
// work and, on tensors without data, measure the workspace it takes.
class LayerBase : public Layer {
 public:
  absl::Status Forward(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                       const Tensor& output, const Stash& stash) const final {
    Exec exec = Start(call);
    DoForward(exec, {call.shape, memory, call.constants, stash, input, output});
    return exec.status();
  }
  absl::Status BackwardInput(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                             const Tensor& grad_output, const Tensor& grad_input,
                             const Stash& stash) const final {
    Exec exec = Start(call);
    DoBackwardInput(exec, {call.shape, memory, call.constants, stash, input, grad_output},
                    grad_input);
    return exec.status();
  }
  void BackwardWeight(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                      const Tensor& grad_output, const Stash& stash) const final {
    Exec exec = Start(call);
    DoBackwardWeight(exec, {call.shape, memory, call.constants, stash, input, grad_output});
  }

  LayerBytes Bytes(Backend& backend, const BatchShape& shape) const final {
    const Args args{shape,
                    {},
                    Tensor(nullptr, state_, shape.seq_len, config_.head_dim()),
                    {},
                    InputShape(shape),
                    Tensor(nullptr, compute_, shape.tokens(), output_cols())};
    LayerBytes bytes;
    StashBytes(shape, &bytes);
    Exec forward = Exec::Measuring(backend);
    DoForward(forward, args);
    Exec input = Exec::Measuring(backend);
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
  };

  LayerBase(const ModelConfig& config, const TensorPart& part, DType compute, LayerLayout layout)
      : Layer(std::move(layout)),
        config_(config),
        part_(part),
        compute_(compute),
        state_(StateType(compute)) {}

  virtual Tensor InputShape(const BatchShape& shape) const {
    return {nullptr, compute_, shape.tokens(), config_.d_model};
  }
  virtual void StashBytes(const BatchShape& shape, LayerBytes* bytes) const = 0;
  virtual void DoForward(Exec& exec, const Args& args) const = 0;
  virtual void DoBackwardInput(Exec& exec, const Args& args, const Tensor& grad_input) const = 0;
  virtual void DoBackwardWeight(Exec& exec, const Args& args) const = 0;

  // Index into layout().params plus shape: the parameter, or parameters, that start there.
  Tensor Param(const Args& args, int index, int64_t rows, int64_t cols) const {
    return At(args.memory.params, compute_, index, rows, cols);
  }
  Tensor Grad(const Args& args, int index, int64_t rows, int64_t cols) const {
    return At(args.memory.grads, state_, index, rows, cols);
  }

  // What the sum over the group's ranks must hold once: present on the one that leads.
  Tensor OnLead(const Tensor& x) const { return part_.leads() ? x : Tensor(); }

  const ModelConfig config_;
  const TensorPart part_;
  const DType compute_;
  const DType state_;  // of gradients and statistics

 private:
  Exec Start(const LayerCall& call) const {
    CheckGroup(call, part_);
    return {call.backend, call.stream, call.workspace, call.communicator};
  }

  Tensor At(void* base, DType dtype, int index, int64_t rows, int64_t cols) const {
    const int64_t offset = layout().params[index].offset;
    ATOLL_CHECK(offset + rows * cols <= layout().size);
    char* data = base == nullptr ? nullptr : static_cast<char*>(base) + offset * SizeOf(dtype);
    return {data, dtype, rows, cols};
  }
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_LAYER_BASE_H_
