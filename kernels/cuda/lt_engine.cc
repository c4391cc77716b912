#include "kernels/cuda/lt_engine.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/lt_plan_key.h"
#include "kernels/cuda/plan_cache.h"

namespace atl::cuda {
namespace {

constexpr size_t kPlansMax = 1024;
constexpr int64_t kAlignment = 256;

cudaDataType_t ToCudaDataType(DType dtype) {
  return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
}

cublasLtEpilogue_t ToCublasEpilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// Owns a descriptor of the library.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

using MatmulDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

struct Plan {
  bool usable = false;  // false: the library has no algorithm for this shape
  MatmulDesc desc;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

template <typename T>
bool Set(const MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

template <typename T>
bool Set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  return cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

bool MakeLayout(const LtCall::Matrix& x, Layout* layout) {
  return cublasLtMatrixLayoutCreate(layout->out(), ToCudaDataType(x.dtype),
                                    static_cast<uint64_t>(x.rows), static_cast<uint64_t>(x.cols),
                                    x.stride) == CUBLAS_STATUS_SUCCESS;
}

// Per call: where the epilogue's operands lie.
bool SetPointers(const Plan& plan, const LtCall& call) {
  const Epilogue epilogue = call.shape.epilogue;
  if (UsesBias(epilogue) && !Set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias)) {
    return false;
  }
  return !UsesAux(epilogue) || Set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux);
}

bool Describe(const LtCall::Shape& s, Plan* plan) {
  if (cublasLtMatmulDescCreate(plan->desc.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F) !=
      CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  const cublasOperation_t a = s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t b = s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  bool ok = Set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, a) &&
            Set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, b) &&
            Set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, ToCublasEpilogue(s.epilogue));
  if (UsesBias(s.epilogue)) {
    ok = ok && Set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, ToCudaDataType(s.d.dtype));
  }
  if (UsesAux(s.epilogue)) {
    ok = ok && Set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.aux_stride) &&
         Set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, ToCudaDataType(s.d.dtype));
  }
  return ok && MakeLayout(s.a, &plan->a) && MakeLayout(s.b, &plan->b) && MakeLayout(s.d, &plan->d);
}

class LtEngine final : public ProductEngine {
 public:
  LtEngine(cublasLtHandle_t handle, int64_t workspace_bytes, Declined* declined)
      : handle_(handle),
        workspace_bytes_(workspace_bytes),
        declined_(declined),
        plans_(kPlansMax) {}
  ~LtEngine() override { cublasLtDestroy(handle_); }

  int64_t WorkspaceBytes() const override { return workspace_bytes_ + kAlignment; }

  bool Run(const Queue& queue, const Product& product, Workspace workspace) override {
    const LtCall call = MakeLtCall(product);
    if (call.shape.m == 0 || call.shape.n == 0 || call.shape.k == 0) return false;
    if (const char* why = WhyNotByLt(call); why != nullptr) return Decline(call, why);
    Plan& plan = plans_.Get(MakeLtPlanKey(call), [&] { return Choose(call); });
    if (!plan.usable || !SetPointers(plan, call)) return Decline(call, "no algorithm");
    const auto begin = reinterpret_cast<uintptr_t>(workspace.data);
    const uintptr_t aligned = (begin + kAlignment - 1) / kAlignment * kAlignment;
    ATOLL_CHECK(workspace.bytes >= WorkspaceBytes(), "workspace too small for cuBLASLt");
    const float alpha = 1.0f, beta = call.shape.accumulates ? 1.0f : 0.0f;
    const cublasStatus_t status = cublasLtMatmul(
        handle_, plan.desc.get(), &alpha, call.a, plan.a.get(), call.b, plan.b.get(), &beta, call.c,
        plan.d.get(), call.d, plan.d.get(), &plan.algorithm, reinterpret_cast<void*>(aligned),
        static_cast<size_t>(workspace_bytes_), queue.stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {  // the heuristic was wrong
      plan.usable = false;
      cudaGetLastError();  // it would pass for the next launch's
      return Decline(call, "the algorithm that was proposed is not supported");
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
      queue.errors->Keep(
          absl::InternalError(absl::StrCat("cublasLtMatmul: ", cublasLtGetStatusString(status))));
    }
    return true;
  }

 private:
  bool Decline(const LtCall& call, absl::string_view why) {
    const LtCall::Shape& s = call.shape;
    declined_->Add(absl::StrCat("cuBLASLt ", Name(s.epilogue)),
                   absl::StrCat(why, " (", s.n, " x ", s.k, " by ", s.k, " x ", s.m, ")"));
    return false;
  }

  Plan Choose(const LtCall& call) {
    Plan plan;
    const LtCall::Shape& s = call.shape;
    Preference preference;
    if (!Describe(s, &plan) || !SetPointers(plan, call) ||
        cublasLtMatmulPreferenceCreate(preference.out()) != CUBLAS_STATUS_SUCCESS) {
      return plan;
    }
    const auto alignment = [&](cublasLtMatmulPreferenceAttributes_t attribute, int bytes) {
      return Set(preference, attribute, static_cast<uint32_t>(bytes));
    };
    const bool ok = Set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                        static_cast<uint64_t>(workspace_bytes_)) &&
                    // Sums of parts of k stay fp32: not in the result's type.
                    Set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) &&
                    alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.a.alignment) &&
                    alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.b.alignment) &&
                    alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.c_alignment) &&
                    alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.d.alignment);
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    plan.usable = ok &&
                  cublasLtMatmulAlgoGetHeuristic(
                      handle_, plan.desc.get(), plan.a.get(), plan.b.get(), plan.d.get(),
                      plan.d.get(), preference.get(), 1, &best, &found) == CUBLAS_STATUS_SUCCESS &&
                  found == 1 && best.state == CUBLAS_STATUS_SUCCESS;
    if (plan.usable) plan.algorithm = best.algo;
    cudaGetLastError();  // of what the library tried: it would pass for the next launch's
    return plan;
  }

  const cublasLtHandle_t handle_;
  const int64_t workspace_bytes_;
  Declined* const declined_;
  PlanCache<LtPlanKey, Plan> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProductEngine>> NewLtEngine(int compute_capability_major,
                                                           Declined* declined) {
  cublasLtHandle_t handle = nullptr;
  if (const cublasStatus_t status = cublasLtCreate(&handle); status != CUBLAS_STATUS_SUCCESS) {
    return absl::InternalError(absl::StrCat("cublasLtCreate: ", cublasLtGetStatusName(status)));
  }
  // NVIDIA recommends 32 MiB from Hopper on, 4 MiB before.
  const int64_t workspace_bytes = int64_t{compute_capability_major >= 9 ? 32 : 4} << 20;
  return std::make_unique<LtEngine>(handle, workspace_bytes, declined);
}

}  // namespace atl::cuda
