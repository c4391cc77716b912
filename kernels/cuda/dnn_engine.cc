#include "kernels/cuda/dnn_engine.h"

#include <cuda_runtime.h>

#include <mutex>
#include <optional>

#include "common/logging.h"
#include "kernels/cuda/dnn_rules.h"
#include "kernels/cuda/plan_cache.h"

namespace atl::cuda {
namespace {

constexpr size_t kPlansMax = 64;
// Scratch of one plan. The backward pass without atomics keeps scores of [batch, heads, T, T]; our
// own kernel needs nothing that grows with T squared.
constexpr int64_t kWorkspaceMaxBytes = int64_t{1} << 30;
constexpr cudnnDataType_t kHalf = CUDNN_DATA_BFLOAT16;

int64_t AlignUp(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Token-major memory as [batch, heads, T, D] with its strides.
struct Layout {
  const AttentionShape& s;
  DnnDims Dims(int64_t heads) const { return {s.batch, heads, s.seq_len, s.head_dim}; }
  DnnDims Strides(int64_t stride) const { return {s.seq_len * stride, s.head_dim, stride, 1}; }
  // The same memory as [batch, heads, D, T].
  DnnDims TransposedDims(int64_t heads) const { return {s.batch, heads, s.head_dim, s.seq_len}; }
  DnnDims TransposedStrides(int64_t stride) const {
    return {s.seq_len * stride, s.head_dim, 1, stride};
  }
  DnnDims Scores() const { return {s.batch, s.heads, s.seq_len, s.seq_len}; }
  DnnDims Stats() const { return {s.batch, s.heads, s.seq_len, 1}; }
  DnnDims StatsStrides() const { return {s.heads * s.seq_len, s.seq_len, 1, 1}; }
};

// Scores above the diagonal become minus infinity, where queries look back alone.
int Mask(AttentionGraph& a, const Layout& layout, int scores) {
  if (!layout.s.causal) return scores;
  DnnGraph& g = a.graph;
  const DnnDims dims = layout.Scores();
  const int row = g.Virtual(dims, CUDNN_DATA_INT32), col = g.Virtual(dims, CUDNN_DATA_INT32);
  const int visible = g.Virtual(dims, CUDNN_DATA_BOOLEAN), masked = g.Virtual(dims);
  a.minus_infinity = g.Scalar();
  g.Index(scores, 2, row);
  g.Index(scores, 3, col);
  g.Pointwise(CUDNN_POINTWISE_CMP_GE, row, col, visible, CUDNN_DATA_BOOLEAN);
  g.Select(visible, scores, a.minus_infinity, masked);
  return masked;
}

}  // namespace

// The operations in the order and number in which cuDNN's fused engines look for them.
AttentionGraph ForwardGraph(const AttentionShape& shape, const AttentionStrides& strides) {
  const Layout l{shape};
  AttentionGraph a;
  DnnGraph& g = a.graph;
  a.q = g.Real(l.Dims(shape.heads), l.Strides(strides.q), kHalf);
  a.k = g.Real(l.TransposedDims(shape.kv_heads), l.TransposedStrides(strides.k), kHalf);
  a.v = g.Real(l.Dims(shape.kv_heads), l.Strides(strides.v), kHalf);
  a.out = g.Real(l.Dims(shape.heads), l.Strides(strides.out), kHalf);
  a.lse = g.Real(l.Stats(), l.StatsStrides(), CUDNN_DATA_FLOAT);
  a.scale = g.Scalar();
  const int product = g.Virtual(l.Scores()), scores = g.Virtual(l.Scores());
  g.Multiply(a.q, a.k, product);
  g.Pointwise(CUDNN_POINTWISE_MUL, product, a.scale, scores);
  const int masked = Mask(a, l, scores);
  const int largest = g.Virtual(l.Stats()), below = g.Virtual(l.Scores());
  const int powers = g.Virtual(l.Scores()), sum = g.Virtual(l.Stats()), log = g.Virtual(l.Stats());
  const int p = g.Virtual(l.Scores(), kHalf);
  g.Reduce(CUDNN_REDUCE_TENSOR_MAX, masked, largest);
  g.Pointwise(CUDNN_POINTWISE_SUB, masked, largest, below);
  g.Pointwise(CUDNN_POINTWISE_EXP, below, powers);
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  g.Pointwise(CUDNN_POINTWISE_LOG, sum, log);
  g.Pointwise(CUDNN_POINTWISE_ADD, largest, log, a.lse);
  g.Pointwise(CUDNN_POINTWISE_DIV, powers, sum, p);
  g.Multiply(p, a.v, a.out);
  return a;
}

AttentionGraph BackwardGraph(const AttentionShape& shape, const AttentionStrides& strides) {
  const Layout l{shape};
  AttentionGraph a;
  DnnGraph& g = a.graph;
  const DnnDims dims = l.Dims(shape.heads), scores_dims = l.Scores();
  a.q = g.Real(dims, l.Strides(strides.q), kHalf);
  a.k = g.Real(l.TransposedDims(shape.kv_heads), l.TransposedStrides(strides.k), kHalf);
  a.v = g.Real(l.TransposedDims(shape.kv_heads), l.TransposedStrides(strides.v), kHalf);
  a.out = g.Real(dims, l.Strides(strides.out), kHalf);
  a.dout = g.Real(dims, l.Strides(strides.dout), kHalf);
  a.lse = g.Real(l.Stats(), l.StatsStrides(), CUDNN_DATA_FLOAT);
  a.dq = g.Real(dims, l.Strides(strides.dq), kHalf);
  a.dk = g.Real(l.Dims(shape.kv_heads), l.Strides(strides.dk), kHalf);
  a.dv = g.Real(l.Dims(shape.kv_heads), l.Strides(strides.dv), kHalf);
  a.delta = g.Real(l.Stats(), l.StatsStrides(), CUDNN_DATA_FLOAT);
  a.scale = g.Scalar();
  a.one = g.Scalar();

  // delta = rows' sums of dout * out.
  const int products = g.Virtual(dims), sums = g.Virtual(l.Stats());
  g.Pointwise(CUDNN_POINTWISE_MUL, a.dout, a.out, products);
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, products, sums);
  g.Pointwise(CUDNN_POINTWISE_MUL, sums, a.one, a.delta);

  // p = exp(scale q k^T - lse), masked.
  const int product = g.Virtual(scores_dims), scores = g.Virtual(scores_dims);
  const int below = g.Virtual(scores_dims), p = g.Virtual(scores_dims);
  g.Multiply(a.q, a.k, product);
  g.Pointwise(CUDNN_POINTWISE_MUL, product, a.scale, scores);
  g.Pointwise(CUDNN_POINTWISE_SUB, scores, a.lse, below);
  g.Pointwise(CUDNN_POINTWISE_EXP, Mask(a, l, below), p);

  // Strides of the transposes; with fewer key heads, their queries' heads are summed.
  const int64_t square = shape.seq_len * shape.seq_len;
  const DnnDims turned = {shape.heads * square, square, 1, shape.seq_len};
  const auto key_gradient = [&](int weights, int with, int to) {
    const int transposed = g.Virtual(scores_dims, turned, kHalf);
    g.Reshape(weights, transposed);
    if (shape.heads == shape.kv_heads) return g.Multiply(transposed, with, to);
    const int of_all_heads = g.Virtual(dims, kHalf);
    g.Multiply(transposed, with, of_all_heads);
    g.Reduce(CUDNN_REDUCE_TENSOR_ADD, of_all_heads, to);
  };
  key_gradient(p, a.dout, a.dv);

  // ds = scale p (dout v^T - delta).
  const int dp = g.Virtual(scores_dims), centred = g.Virtual(scores_dims);
  const int weighted = g.Virtual(scores_dims), ds = g.Virtual(scores_dims, kHalf);
  g.Multiply(a.dout, a.v, dp);
  g.Pointwise(CUDNN_POINTWISE_SUB, dp, a.delta, centred);
  g.Pointwise(CUDNN_POINTWISE_MUL, centred, p, weighted);
  g.Pointwise(CUDNN_POINTWISE_MUL, weighted, a.scale, ds);
  key_gradient(ds, a.q, a.dk);
  const int keys = g.Virtual(l.Dims(shape.kv_heads), l.Strides(strides.k), kHalf);
  g.Reshape(a.k, keys);
  g.Multiply(ds, keys, a.dq);
  return a;
}

namespace {

struct Key {
  bool backward = false;
  AttentionShape shape;
  AttentionStrides strides;

  bool operator==(const Key& o) const {
    return backward == o.backward && shape.causal == o.shape.causal &&
           shape.batch == o.shape.batch && shape.seq_len == o.shape.seq_len &&
           shape.heads == o.shape.heads && shape.kv_heads == o.shape.kv_heads &&
           shape.head_dim == o.shape.head_dim && strides == o.strides;
  }
  uint64_t Hash() const {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t x : {int64_t{backward}, int64_t{shape.causal}, shape.batch, shape.seq_len,
                      shape.heads, shape.kv_heads, shape.head_dim, strides.q, strides.k, strides.v,
                      strides.out, strides.dout, strides.dq, strides.dk, strides.dv}) {
      hash = (hash ^ static_cast<uint64_t>(x)) * 0x100000001b3u;
    }
    return hash;
  }
};

Key MakeKey(const AttentionForward& op) {
  return {false,
          op.shape,
          {.q = op.q.stride, .k = op.k.stride, .v = op.v.stride, .out = op.out.stride}};
}

Key MakeKey(const AttentionBackward& op) {
  return {true,
          op.shape,
          {op.q.stride, op.k.stride, op.v.stride, op.out.stride, op.dout.stride, op.dq.stride,
           op.dk.stride, op.dv.stride}};
}

struct Built {
  AttentionGraph graph;
  std::optional<DnnPlan> plan;
  std::string why_not;  // where there is none
  int64_t bytes = 0;    // of scratch: delta, then the plan's
};

bool Aligned(std::initializer_list<Tensor> tensors) {
  for (const Tensor& x : tensors) {
    if (reinterpret_cast<uintptr_t>(x.data) % 16 != 0 || x.stride % 8 != 0) return false;
  }
  return true;
}

class DnnEngine final : public AttentionEngine {
 public:
  DnnEngine(cudnnHandle_t handle, int64_t version, Declined* declined)
      : handle_(handle), version_(version), declined_(declined), plans_(kPlansMax) {}
  ~DnnEngine() override { cudnnDestroy(handle_); }

  int64_t WorkspaceBytes(const AttentionForward& op) override { return Bytes(op, MakeKey(op)); }
  int64_t WorkspaceBytes(const AttentionBackward& op) override { return Bytes(op, MakeKey(op)); }

  bool Run(const Queue& queue, const AttentionForward& op, Workspace workspace) override {
    const char* why = WhyNot(op);
    if (why == nullptr && !Aligned({op.q, op.k, op.v, op.out})) why = kOdd;
    if (why != nullptr) return Decline(kForward, op.shape, why);
    const Built& built = Get(MakeKey(op));
    if (!built.plan) return Decline(kForward, op.shape, built.why_not);
    if (workspace.bytes < built.bytes) return Decline(kForward, op.shape, kSmall);
    const AttentionGraph& a = built.graph;
    Bindings bindings;
    bindings.Add(a.q, op.q).Add(a.k, op.k).Add(a.v, op.v).Add(a.out, op.out).Add(a.lse, op.lse);
    Execute(queue, built, op.shape, bindings, workspace);
    return true;
  }

  bool Run(const Queue& queue, const AttentionBackward& op, Workspace workspace) override {
    const char* why = WhyNot(op);
    if (why == nullptr && !Aligned({op.q, op.k, op.v, op.out, op.dout, op.dq, op.dk, op.dv})) {
      why = kOdd;
    }
    if (why != nullptr) return Decline(kBackward, op.shape, why);
    const Built& built = Get(MakeKey(op));
    if (!built.plan) return Decline(kBackward, op.shape, built.why_not);
    if (workspace.bytes < built.bytes) return Decline(kBackward, op.shape, kSmall);
    const AttentionGraph& a = built.graph;
    Bindings bindings;
    bindings.Add(a.q, op.q).Add(a.k, op.k).Add(a.v, op.v).Add(a.out, op.out).Add(a.lse, op.lse);
    bindings.Add(a.dout, op.dout).Add(a.dq, op.dq).Add(a.dk, op.dk).Add(a.dv, op.dv);
    Execute(queue, built, op.shape, bindings, workspace);
    return true;
  }

 private:
  struct Bindings {
    std::vector<int64_t> ids;
    std::vector<void*> pointers;
    Bindings& Add(int id, void* pointer) {
      if (id >= 0) {
        ids.push_back(id);
        pointers.push_back(pointer);
      }
      return *this;
    }
    Bindings& Add(int id, const Tensor& x) { return Add(id, x.data); }
  };

  static constexpr char kForward[] = "cuDNN attention forward";
  static constexpr char kBackward[] = "cuDNN attention backward";
  static constexpr char kOdd[] = "rows do not begin on 16 bytes";
  // A workspace is taken for the largest micro-batch; a smaller one's engine may want more.
  static constexpr char kSmall[] = "it wants more scratch memory than the largest batch does";

  // Returns why the operation is declined, by what WorkspaceBytes' caller knows: shape and type.
  template <typename Op>
  const char* WhyNot(const Op& op) const {
    if (op.q.dtype != DType::kBfloat16) return "it is not bf16";
    if (op.shape.head_dim > 128) return "heads of more than 128 channels";
    if (op.shape.head_dim % 8 != 0) return "heads that are not a multiple of 8 channels";
    if (op.shape.seq_len == 1) return "sequences of one token";
    if (!op.lse.contiguous()) return "lse is not contiguous";
    if (op.shape.window > 0) return "a window: our own kernel skips what it hides";
    if (op.shape.softcap > 0) return "capped scores";
    if (op.lengths.present()) return "padded sequences";
    if (op.starts.present()) return "several documents: our own kernel skips what they hide";
    return WhyNotByDnn(version_, std::is_same_v<Op, AttentionBackward>, op.shape.seq_len);
  }

  bool Decline(const char* what, const AttentionShape& s, absl::string_view why) {
    declined_->Add(what, absl::StrCat(why, " (", s.batch, " x ", s.seq_len, " tokens, heads ",
                                      s.heads, " / ", s.kv_heads, " of ", s.head_dim, ")"));
    return false;
  }

  template <typename Op>
  int64_t Bytes(const Op& op, const Key& key) {
    return WhyNot(op) == nullptr ? Get(key).bytes : 0;
  }

  const Built& Get(const Key& key) {
    return plans_.Get(key, [&] {
      Built built;
      built.graph = key.backward ? BackwardGraph(key.shape, key.strides)
                                 : ForwardGraph(key.shape, key.strides);
      absl::StatusOr<DnnPlan> plan =
          built.graph.graph.Plan({.handle = handle_, .workspace_max_bytes = kWorkspaceMaxBytes});
      cudaGetLastError();  // of engines that were tried: it would pass for the next launch's
      if (plan.ok()) {
        built.plan = *std::move(plan);
        built.bytes = DeltaBytes(key.shape) + built.plan->workspace_bytes + 256;
      } else {
        built.why_not = std::string(plan.status().message());
      }
      return built;
    });
  }

  static int64_t DeltaBytes(const AttentionShape& shape) {
    return AlignUp(shape.batch * shape.heads * shape.seq_len * int64_t{sizeof(float)});
  }

  void Execute(const Queue& queue, const Built& built, const AttentionShape& shape,
               Bindings& bindings, Workspace workspace) {
    const auto begin = reinterpret_cast<uintptr_t>(workspace.data);
    char* scratch = reinterpret_cast<char*>(AlignUp(static_cast<int64_t>(begin)));
    float scale = shape.scale, one = 1.0f;
    float minus_infinity = DnnMinusInfinity(version_);
    const AttentionGraph& a = built.graph;
    bindings.Add(a.scale, &scale).Add(a.one, &one).Add(a.minus_infinity, &minus_infinity);
    bindings.Add(a.delta, scratch);
    void* plans_own = scratch + DeltaBytes(shape);
    DnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.SetArray(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                  static_cast<int64_t>(bindings.ids.size()), bindings.ids.data());
    pack.SetArray(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                  static_cast<int64_t>(bindings.pointers.size()), bindings.pointers.data());
    pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, plans_own);
    pack.Finalize();
    cudnnStatus_t status = cudnnSetStream(handle_, queue.stream);
    if (status == CUDNN_STATUS_SUCCESS) status = pack.status();
    if (status == CUDNN_STATUS_SUCCESS) {
      status = cudnnBackendExecute(handle_, built.plan->descriptor.get(), pack.get());
    }
    if (status != CUDNN_STATUS_SUCCESS) {
      queue.errors->Keep(
          absl::InternalError(absl::StrCat("cuDNN attention: ", cudnnGetErrorString(status))));
    }
  }

  const cudnnHandle_t handle_;
  const int64_t version_;
  Declined* const declined_;
  PlanCache<Key, Built> plans_;
};

}  // namespace

std::unique_ptr<AttentionEngine> NewDnnEngine(int compute_capability_major, Declined* declined) {
  if (compute_capability_major < 8) return nullptr;
  cudnnHandle_t handle = nullptr;
  if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS) {
    declined->Add("cuDNN", absl::StrCat("it does not start: ", cudnnGetErrorString(status)));
    return nullptr;
  }
  const auto version = static_cast<int64_t>(cudnnGetVersion());
  static std::once_flag once;
  std::call_once(once, [&] { LogInfo("cuda", "attention by cuDNN ", DnnVersionText(version)); });
  return std::make_unique<DnnEngine>(handle, version, declined);
}

}  // namespace atl::cuda
