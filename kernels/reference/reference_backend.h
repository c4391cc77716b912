// The class behind NewReferenceBackend, and how its loops reach elements.

#ifndef ATOLL_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define ATOLL_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

#include <string>

#include "kernels/bfloat16.h"
#include "kernels/host_backend.h"

namespace atl {

// An element of a tensor of reals, read and written as a double, and rounded once.
class Element {
 public:
  Element(const Tensor& x, int64_t index) : x_(x), index_(index) {}
  Element(const Element&) = delete;
  operator double() const {
    if (x_.dtype == DType::kFloat32) return x_.f32()[index_];
    if (x_.dtype == DType::kFloat64) return x_.as<double>()[index_];
    return WidenBfloat16(x_.as<Bfloat16>()[index_]);
  }
  void operator=(double value) const {
    if (x_.dtype == DType::kFloat32) {
      x_.f32()[index_] = static_cast<float>(value);
    } else if (x_.dtype == DType::kFloat64) {
      x_.as<double>()[index_] = value;
    } else {
      x_.as<Bfloat16>()[index_] = RoundToBfloat16(static_cast<float>(value));
    }
  }
  void operator=(const Element& from) const { *this = static_cast<double>(from); }
  void operator+=(double value) const { *this = *this + value; }

 private:
  const Tensor& x_;
  const int64_t index_;
};

// x[row][col].
inline Element At(const Tensor& x, int64_t row, int64_t col) { return {x, row * x.stride + col}; }

// Element `col` of a vector.
inline Element At(const Tensor& x, int64_t col) { return At(x, 0, col); }

// The element of an optional operand: 0 where it is absent.
inline double AtOrZero(const Tensor& x, int64_t row, int64_t col) {
  return x.present() ? double{At(x, row, col)} : 0.0;
}

// Activations and their derivatives, in double.
double Activate(Activation kind, double x);
double ActivateDerivative(Activation kind, double x);

class ReferenceBackend final : public HostBackend {
 public:
  ReferenceBackend() : HostBackend("the reference", 0) {}

  std::string Name() const override { return "reference"; }
  // Sums stay in double: what bf16 costs here is the rounding of what is stored.
  bool Supports(DType compute) const override { return compute != DType::kInt32; }

  using HostBackend::Run;
  using HostBackend::WorkspaceBytes;
  void Run(Stream&, const LinearForward& op, Workspace) override;
  void Run(Stream&, const LinearBackwardInput& op, Workspace) override;
  void Run(Stream&, const LinearBackwardWeight& op, Workspace) override;
  void Run(Stream&, const EmbeddingForward& op) override;
  void Run(Stream&, const EmbeddingBackwardWeight& op, Workspace) override;
  void Run(Stream&, const RmsNormForward& op) override;
  void Run(Stream&, const RmsNormBackwardInput& op) override;
  void Run(Stream&, const RmsNormBackwardWeight& op, Workspace) override;
  void Run(Stream&, const LayerNormForward& op) override;
  void Run(Stream&, const LayerNormBackwardInput& op) override;
  void Run(Stream&, const LayerNormBackwardWeight& op, Workspace) override;
  void Run(Stream&, const Rope& op) override;
  void Run(Stream&, const AttentionForward& op, Workspace) override;
  void Run(Stream&, const AttentionBackward& op, Workspace) override;
  void Run(Stream&, const GatedForward& op) override;
  void Run(Stream&, const GatedBackward& op) override;
  void Run(Stream&, const GeluForward& op) override;
  void Run(Stream&, const GeluBackward& op) override;
  void Run(Stream&, const SoftcapForward& op) override;
  void Run(Stream&, const SoftcapBackward& op) override;
  void Run(Stream&, const AddScaled& op) override;
  void Run(Stream&, const Scale& op) override;
  void Run(Stream&, const Convert& op) override;
  void Run(Stream&, const CrossEntropy& op, Workspace) override;
  void Run(Stream&, const CrossEntropyMax& op) override;
  void Run(Stream&, const CrossEntropySums& op) override;
  void Run(Stream&, const AdamW& op) override;
  void Run(Stream&, const MomentumStep& op) override;
  void Run(Stream&, const LambStep& op) override;
  void Run(Stream&, const LambNorms& op, Workspace) override;
  void Run(Stream&, const Normalize& op) override;
  void Run(Stream&, const SumOfSquares& op, Workspace) override;
  void Run(Stream&, const PixelsForward& op) override;
  void Run(Stream&, const ConvForward& op, Workspace) override;
  void Run(Stream&, const ConvBackwardInput& op, Workspace) override;
  void Run(Stream&, const ConvBackwardWeight& op, Workspace) override;
  void Run(Stream&, const BatchNormForward& op, Workspace) override;
  void Run(Stream&, const BatchNormBackwardInput& op, Workspace) override;
  void Run(Stream&, const BatchNormBackwardWeight& op) override;
  void Run(Stream&, const RunningMean& op) override;
  void Run(Stream&, const PoolForward& op) override;
  void Run(Stream&, const PoolBackward& op) override;
  void Run(Stream&, const ChannelGateForward& op) override;
  void Run(Stream&, const ChannelGateBackward& op) override;
  void Run(Stream&, const CountHits& op) override;

  // No operation needs scratch memory of the caller.
  int64_t WorkspaceBytes(const LinearForward&) const override { return 0; }
  int64_t WorkspaceBytes(const LinearBackwardInput&) const override { return 0; }
  int64_t WorkspaceBytes(const LinearBackwardWeight&) const override { return 0; }
  int64_t WorkspaceBytes(const EmbeddingBackwardWeight&) const override { return 0; }
  int64_t WorkspaceBytes(const RmsNormBackwardWeight&) const override { return 0; }
  int64_t WorkspaceBytes(const LayerNormBackwardWeight&) const override { return 0; }
  int64_t WorkspaceBytes(const AttentionForward&) const override { return 0; }
  int64_t WorkspaceBytes(const AttentionBackward&) const override { return 0; }
  int64_t WorkspaceBytes(const CrossEntropy&) const override { return 0; }
  int64_t WorkspaceBytes(const SumOfSquares&) const override { return 0; }
  int64_t WorkspaceBytes(const LambNorms&) const override { return 0; }
  int64_t WorkspaceBytes(const ConvForward&) const override { return 0; }
  int64_t WorkspaceBytes(const ConvBackwardInput&) const override { return 0; }
  int64_t WorkspaceBytes(const ConvBackwardWeight&) const override { return 0; }
  int64_t WorkspaceBytes(const BatchNormForward&) const override { return 0; }
  int64_t WorkspaceBytes(const BatchNormBackwardInput&) const override { return 0; }
};

}  // namespace atl

#endif  // ATOLL_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
