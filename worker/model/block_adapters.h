// The adapters of one product of a block: of the matrices that multiply one input. Not for use
// outside this folder.
//
// In a tensor-parallel group, where the product's outputs are cut, A is whole on every rank and B
// is cut by rows, and the backward pass sums the gradient of A x over the ranks. Where its input is
// cut, A is cut by columns and B is whole, and the forward pass sums A x. So parameters that every
// rank holds whole have the same gradient on all.

#ifndef ATOLL_WORKER_MODEL_BLOCK_ADAPTERS_H_
#define ATOLL_WORKER_MODEL_BLOCK_ADAPTERS_H_

#include <vector>

#include "common/model/layout.h"
#include "worker/model/exec.h"
#include "worker/model/model.h"

namespace atl {

class BlockAdapters {
 public:
  BlockAdapters(const LayerLayout& layout, const ModelConfig& config, DType compute,
                BlockProduct product);

  bool present() const { return !matrices_.empty(); }

  // F: low = scale * x A^T; of each matrix, y += low B^T, where y is what `output` returns for the
  // matrix's columns of the product's output.
  template <typename Output>
  void Forward(Exec& exec, const LayerMemory& memory, const Tensor& x, const Tensor& low,
               const Output& output) const {
    if (!present() || memory.without_adapter) return;
    MakeLow(exec, memory, x, low);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      AddOutput(exec, memory, low, i, output(matrices_[i].columns));
    }
  }
  // B, dy being of the whole product: dlow = scale * dy B, then dx += dlow A.
  void BackwardInput(Exec& exec, const LayerMemory& memory, const Tensor& dy, const Tensor& dlow,
                     const Tensor& dx) const;
  // W: A and B.
  void BackwardWeight(Exec& exec, const LayerMemory& memory, const Tensor& x, const Tensor& dy,
                      const Tensor& low, const Tensor& dlow) const;

 private:
  struct Matrix {
    Range columns;  // of the product's output
    int64_t b = 0;  // offset of B [columns, rank]
  };

  void MakeLow(Exec& exec, const LayerMemory& memory, const Tensor& x, const Tensor& low) const;
  void AddOutput(Exec& exec, const LayerMemory& memory, const Tensor& low, size_t index,
                 const Tensor& y) const;
  Tensor A(void* base, DType type) const { return At(base, type, a_, low_, inputs_); }
  Tensor B(void* base, DType type, size_t index) const {
    return At(base, type, matrices_[index].b, matrices_[index].columns.size(), rank_);
  }
  static Tensor At(void* base, DType type, int64_t offset, int64_t rows, int64_t cols) {
    char* data =
        base == nullptr ? nullptr : static_cast<char*>(base) + offset * GetElementSize(type);
    return {data, type, rows, cols};
  }

  const DType compute_;
  const int64_t rank_;
  const float scale_;
  std::vector<Matrix> matrices_;
  int64_t a_ = 0;       // offset of all A [low_, inputs_]
  int64_t low_ = 0;     // rank of all matrices
  int64_t inputs_ = 0;  // of this part
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_BLOCK_ADAPTERS_H_
