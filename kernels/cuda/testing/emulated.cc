#include "kernels/cuda/testing/emulated.h"

#include <cmath>

#include "kernels/bfloat16.h"
#include "kernels/cuda/ops.h"
#include "kernels/testing/reference/reference.h"

namespace atl {
namespace {

using emulated::Queue;

// ---- cublasLtMatmul, as its documentation describes it, by loops over column-major matrices ----

float Get(const void* data, DType dtype, int64_t i) {
  return dtype == DType::kFloat32 ? static_cast<const float*>(data)[i]
                                  : WidenBfloat16(static_cast<const Bfloat16*>(data)[i]);
}

void Set(void* data, DType dtype, int64_t i, double value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[i] = static_cast<float>(value);
  } else {
    static_cast<Bfloat16*>(data)[i] = RoundToBfloat16(static_cast<float>(value));
  }
}

constexpr double kSqrt2OverPi = 0.7978845608028654, kCubic = 0.044715;

double Gelu(double x) { return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x))); }

double GeluDerivative(double x) {
  const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
}

double Element(const void* data, const LtCall::Matrix& matrix, bool transposed, int64_t row,
               int64_t col) {
  if (transposed) std::swap(row, col);
  return Get(data, matrix.dtype, row + col * matrix.stride);
}

void Compute(const LtCall& call) {
  const LtCall::Shape& s = call.shape;
  ATOLL_CHECK(s.a.rows == (s.a_transposed ? s.k : s.m) && s.a.cols == (s.a_transposed ? s.m : s.k));
  ATOLL_CHECK(s.b.rows == (s.b_transposed ? s.n : s.k) && s.b.cols == (s.b_transposed ? s.k : s.n));
  ATOLL_CHECK(s.d.rows == s.m && s.d.cols == s.n);
  const DType out = s.d.dtype;
  for (int64_t col = 0; col < s.n; ++col) {
    for (int64_t row = 0; row < s.m; ++row) {
      const int64_t at = row + col * s.d.stride, aux_at = row + col * s.aux_stride;
      double sum = s.accumulates ? Get(call.c, out, at) : 0.0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += Element(call.a, s.a, s.a_transposed, row, k) *
               Element(call.b, s.b, s.b_transposed, k, col);
      }
      if (s.epilogue == Epilogue::kBias || s.epilogue == Epilogue::kGeluBias) {
        sum += Get(call.bias, out, row);
      }
      if (s.epilogue == Epilogue::kGelu || s.epilogue == Epilogue::kGeluBias) {
        Set(call.aux, out, aux_at, sum);
        sum = Gelu(sum);
      }
      if (s.epilogue == Epilogue::kGeluBackward) sum *= GeluDerivative(Get(call.aux, out, aux_at));
      Set(call.d, out, at, sum);
    }
  }
}

class LoopEngine final : public emulated::ProductEngine {
 public:
  explicit LoopEngine(Declined* declined) : declined_(declined) {}
  int64_t WorkspaceBytes() const override { return 1024; }
  bool Run(const Queue&, const Product& product, Workspace workspace) override {
    ATOLL_CHECK(workspace.bytes >= WorkspaceBytes());
    const LtCall call = MakeLtCall(product);
    if (const char* why = WhyNotByLt(call); why != nullptr) {
      declined_->Add(Name(call.shape.epilogue), why);
      return false;
    }
    Compute(call);
    return true;
  }

 private:
  Declined* const declined_;
};

// ---- The backend: memory, streams and events are the reference backend's ----

class EmulatedCudaBackend final : public emulated::Ops {
 public:
  explicit EmulatedCudaBackend(bool fused) : memory_(NewReferenceBackend()) {
    UseEngines(fused ? &engine_ : nullptr, nullptr);
  }

  std::string Name() const override { return "emulated cuda"; }
  bool Supports(DType compute) const override {
    return compute == DType::kFloat32 || compute == DType::kBfloat16;
  }

  bool memory_on_host() const override { return true; }
  absl::StatusOr<Buffer> Allocate(int64_t bytes) override { return memory_->Allocate(bytes); }
  absl::StatusOr<Buffer> AllocateHost(int64_t bytes) override {
    return memory_->AllocateHost(bytes);
  }
  MemoryUse Memory() const override { return memory_->Memory(); }
  void ForgetPeak() override { memory_->ForgetPeak(); }
  void CopyToDevice(Stream& stream, const Tensor& to, const void* host) override {
    memory_->CopyToDevice(stream, to, host);
  }
  void CopyToHost(Stream& stream, void* host, const Tensor& from) override {
    memory_->CopyToHost(stream, host, from);
  }
  void Zero(Stream& stream, const Tensor& x) override { memory_->Zero(stream, x); }
  absl::StatusOr<std::unique_ptr<Stream>> NewStream() override { return memory_->NewStream(); }
  absl::StatusOr<std::unique_ptr<Event>> NewEvent() override { return memory_->NewEvent(); }
  absl::StatusOr<std::unique_ptr<Event>> NewTimedEvent() override {
    return memory_->NewTimedEvent();
  }
  Duration Elapsed(const Event& from, const Event& to) const override {
    return memory_->Elapsed(from, to);
  }
  void Record(Stream& stream, Event& event) override { memory_->Record(stream, event); }
  void Wait(Stream&, const Event&) override {}
  bool Passed(const Event&) const override { return true; }
  absl::Status Synchronize(Stream&) override { return errors_.Take(); }

 private:
  Queue GetQueue(Stream&) override { return {nullptr, &errors_}; }
  void Free(void*, bool) override { ATOLL_CHECK(false, "buffers are the reference backend's"); }

  const std::unique_ptr<Backend> memory_;
  LoopEngine engine_{mutable_declined()};
  emulated::FirstError errors_;
};

}  // namespace

std::vector<DeclinedWork> DeclinedByEmulated(const Backend& backend) {
  return dynamic_cast<const EmulatedCudaBackend&>(backend).declined().work();
}

std::unique_ptr<Backend> NewEmulatedCudaBackend(bool fused) {
  return std::make_unique<EmulatedCudaBackend>(fused);
}

}  // namespace atl
