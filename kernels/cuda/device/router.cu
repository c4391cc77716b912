// Routers of mixtures of experts: a warp for each token.
//
// Bytes per element of s bytes, and FLOP per element:
//   RouteForward s E a token, about 20 E + 2 k E;  RouteBackward 2 s E, about (30 + k) E
//   CountExperts 4 k E a token, from the second-level cache

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/map.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kRouterWarps = 4;
constexpr int kRouterThreads = kRouterWarps * kWarp;
constexpr int kSortThreads = 256;

struct Min {
  __device__ int operator()(int a, int b) const { return a < b ? a : b; }
};

template <typename T>
struct RouterArgs {
  View<T> logits;
  const float* bias;  // null: none
  int rows, experts, k;
  bool softmax, normalise;
  float scale;
};

// A token's scores; the same in all lanes of its warp. Divisions are quick ones: those by rule
// call a function, around which registers are spilled.
template <typename T>
struct TokenScores {
  const T* logits;
  float largest, sum;  // of exp(logit - largest)
  bool softmax;

  __device__ static TokenScores Read(const RouterArgs<T>& a, int row, int lane) {
    const T* logits = a.logits.Row(row);
    float largest = -INFINITY, sum = 0.0f;
    for (int e = lane; e < a.experts; e += kWarp) largest = fmaxf(largest, ToFloat(logits[e]));
    largest = GroupReduce<kWarp>(largest, Max());
    for (int e = lane; e < a.experts; e += kWarp) sum += expf(ToFloat(logits[e]) - largest);
    return {logits, largest, GroupReduce<kWarp>(sum, Sum()), a.softmax};
  }
  __device__ float Softmax(int e) const {
    return __fdividef(expf(ToFloat(logits[e]) - largest), sum);
  }
  __device__ float At(int e) const {
    return softmax ? Softmax(e) : __fdividef(1.0f, 1.0f + expf(-ToFloat(logits[e])));
  }
  __device__ float LogSum() const { return largest + logf(sum); }
  // A sum of scores to divide by: see RouterRule.
  __device__ float Divisor(float sum) const { return softmax ? sum : sum + kRouterEpsilon; }
};

template <typename T>
__global__ void __launch_bounds__(kRouterThreads)
    RouteForwardKernel(const RouterArgs<T> a, int32_t* experts, View<float> weights) {
  const int row = static_cast<int>(blockIdx.x) * kRouterWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= a.rows) return;
  const TokenScores<T> scores = TokenScores<T>::Read(a, row, lane);
  int32_t* const chosen = experts + int64_t{row} * a.k;
  float sum = 0.0f, last = INFINITY;
  int last_expert = -1;
  // The next in order of preference is the best of those behind the last one.
  for (int j = 0; j < a.k; ++j) {
    float best = -INFINITY;
    int expert = INT32_MAX;
    for (int e = lane; e < a.experts; e += kWarp) {
      // A logit that is not a number comes last.
      const float preference = fmaxf(
          -INFINITY, a.bias == nullptr ? ToFloat(scores.logits[e]) : scores.At(e) + a.bias[e]);
      const bool left = preference < last || (preference == last && e > last_expert);
      if (left && (preference > best || expert == INT32_MAX)) best = preference, expert = e;
    }
    const float largest = GroupReduce<kWarp>(best, Max());
    expert = GroupReduce<kWarp>(best == largest ? expert : INT32_MAX, Min());
    last = largest;
    last_expert = expert;
    sum += scores.At(expert);
    if (lane == 0) chosen[j] = expert;
  }
  if (lane != 0) return;
  const float factor = a.normalise ? __fdividef(a.scale, scores.Divisor(sum)) : a.scale;
  for (int j = 0; j < a.k; ++j) weights.Row(row)[j] = scores.At(chosen[j]) * factor;
}

struct LossArgs {
  const int32_t* counts;  // null: no losses
  const int32_t* starts;  // null: no sequence has padding
  const float* share;
  int seq_len;
  float balance, z;
  View<float> terms;
};

// Says what IsPadding (expert_ops.h) says.
__device__ bool IsPaddingHere(const int32_t* starts, int64_t n, int seq_len) {
  const int at = static_cast<int>(n % seq_len);
  if (starts == nullptr || at == 0 || starts[n] != at) return false;
  return at + 1 < seq_len ? starts[n + 1] == at + 1 : starts[n - 1] == at - 1;
}

template <typename T>
__global__ void __launch_bounds__(kRouterThreads)
    RouteBackwardKernel(const RouterArgs<T> a, const int32_t* experts, View<float> dweights,
                        View<T> dlogits, const LossArgs l) {
  const int row = static_cast<int>(blockIdx.x) * kRouterWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= a.rows) return;
  const TokenScores<T> scores = TokenScores<T>::Read(a, row, lane);
  const int32_t* const chosen = experts + int64_t{row} * a.k;
  const float* const dweight = dweights.Row(row);
  float sum = 1.0f, mean = 0.0f;
  if (a.normalise) {
    sum = 0.0f;
    for (int j = 0; j < a.k; ++j) {
      sum += scores.At(chosen[j]);
      mean += dweight[j] * scores.At(chosen[j]);
    }
    sum = scores.Divisor(sum);
    mean = __fdividef(mean, sum);
  }
  const int32_t* counts = nullptr;
  float loss = 0.0f, all = 1.0f;  // the token's part of the balance loss; the sum of its scores
  float unit = 0.0f, of_balance = 0.0f, of_z = 0.0f, tokens = 1.0f;
  if (l.counts != nullptr && !IsPaddingHere(l.starts, row, l.seq_len)) {
    counts = l.counts + int64_t{row / l.seq_len} * a.experts;
    float total = 0.0f;
    int assigned = 0;
    for (int e = lane; e < a.experts; e += kWarp) {
      total += scores.At(e);
      loss += counts[e] * scores.At(e);
      assigned += counts[e];
    }
    all = scores.Divisor(GroupReduce<kWarp>(total, Sum()));
    tokens = static_cast<float>(GroupReduce<kWarp>(assigned, Sum()) / a.k);
    unit = __fdividef(static_cast<float>(a.experts), tokens * tokens);
    loss = __fdividef(unit * GroupReduce<kWarp>(loss, Sum()), all);
    of_balance = l.balance * *l.share;
    of_z = __fdividef(l.z * *l.share, tokens);
  }
  const auto dscore = [&](int e) {
    float d = 0.0f;
    for (int j = 0; j < a.k; ++j) {
      if (chosen[j] == e) d = __fdividef(a.scale * (dweight[j] - mean), sum);
    }
    return counts == nullptr ? d : d + __fdividef(of_balance * (unit * counts[e] - loss), all);
  };
  float dot = 0.0f;
  for (int e = lane; e < a.experts; e += kWarp) dot += dscore(e) * scores.At(e);
  dot = GroupReduce<kWarp>(dot, Sum());
  const float log_sum = scores.LogSum();
  for (int e = lane; e < a.experts; e += kWarp) {
    const float s = scores.At(e), d = dscore(e);
    float dlogit = a.softmax ? s * (d - dot) : d * s * (1.0f - s);
    if (counts != nullptr) dlogit += 2.0f * of_z * log_sum * scores.Softmax(e);
    Put(dlogits.Row(row) + e, dlogit);
  }
  if (l.counts == nullptr || lane != 0) return;
  l.terms.Row(0)[row] = loss;
  l.terms.Row(1)[row] = counts == nullptr ? 0.0f : __fdividef(log_sum * log_sum, tokens);
}

// totals[i] += share * sum of row i, and behind both the counts of each expert; loads, if there
// are any, += E times these less all.
__global__ void __launch_bounds__(kSortThreads)
    RouterTotalsKernel(View<float> terms, int64_t rows, const float* share, const int32_t* counts,
                       int64_t sequences, int experts, float* totals, float* loads) {
  for (int i = 0; i < 2; ++i) {
    double sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) sum += terms.Row(i)[row];
    sum = BlockReduce(sum, 0.0, Sum());
    if (threadIdx.x == 0) totals[i] += static_cast<float>(sum * *share);
  }
  int64_t all = 0;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int64_t count = 0;
    for (int64_t s = 0; s < sequences; ++s) count += counts[s * experts + e];
    totals[2 + e] += static_cast<float>(count);
    all += count;
    if (loads != nullptr) loads[e] += static_cast<float>(experts * count);
  }
  if (loads == nullptr) return;
  all = BlockReduce(all, int64_t{0}, Sum());
  for (int e = threadIdx.x; e < experts; e += blockDim.x) loads[e] -= static_cast<float>(all);
}

struct BalanceMap {
  float *bias, *loads;
  Bf16* copy;
  float rate;
  bool zero_loads;
  template <int N>
  __device__ void At(int64_t, int64_t e) const {
    static_assert(N == 1);
    const float load = loads[e];
    const float next = load == 0.0f ? bias[e] : bias[e] - copysignf(rate, load);
    bias[e] = next;
    if (zero_loads) loads[e] = 0.0f;
    if (copy != nullptr) Put(copy + e, next);
  }
};

// Block (x, y): expert x in sequences y, y + gridDim.y, ...
__global__ void __launch_bounds__(kSortThreads)
    CountExpertsKernel(const int32_t* experts, int64_t each, int k, const int32_t* starts,
                       int32_t* counts, int64_t sequences) {
  const int expert = static_cast<int>(blockIdx.x);
  for (int64_t s = blockIdx.y; s < sequences; s += gridDim.y) {
    const int32_t* const from = experts + each * s;
    int count = 0;
    for (int64_t a = threadIdx.x; a < each; a += blockDim.x) {
      if (from[a] != expert) continue;
      const int64_t token = (each * s + a) / k;
      count += IsPaddingHere(starts, token, static_cast<int>(each / k)) ? 0 : 1;
    }
    count = BlockReduce(count, 0, Sum());
    if (threadIdx.x == 0) counts[s * gridDim.x + expert] = count;
  }
}

// ---- Launchers ----

template <typename T, typename Op>
RouterArgs<T> MakeRouterArgs(const Op& op, const float* bias) {
  ATOLL_CHECK(op.logits.rows < INT32_MAX / kRouterWarps);
  return {MakeView<T>(op.logits),
          bias,
          static_cast<int>(op.logits.rows),
          static_cast<int>(op.logits.cols),
          static_cast<int>(op.experts.cols),
          op.rule.score == RouterScore::kSoftmax,
          op.rule.normalise,
          op.rule.scale};
}

dim3 RouterGrid(const Tensor& logits) {
  return dim3(static_cast<unsigned>(CeilDiv(logits.rows, kRouterWarps)));
}

const int32_t* StartsOrNull(const Tensor& starts) {
  return starts.present() ? starts.as<int32_t>() : nullptr;
}

}  // namespace

void Enqueue(const Queue& queue, const RouteForward& op) {
  ForType(op.logits.dtype, [&]<typename T>() {
    Launch(queue, RouterGrid(op.logits), dim3(kRouterThreads), 0, "RouteForward",
           RouteForwardKernel<T>, MakeRouterArgs<T>(op, static_cast<const float*>(op.bias.data)),
           op.experts.as<int32_t>(), MakeView<float>(op.weights));
  });
}

void Enqueue(const Queue& queue, const RouteBackward& op) {
  const RouterLosses& l = op.losses;
  LossArgs losses{nullptr, nullptr, nullptr, 1, 0.0f, 0.0f, {}};
  if (l.present()) {
    losses = {l.counts.as<int32_t>(),
              StartsOrNull(l.starts),
              l.share.f32(),
              static_cast<int>(op.logits.rows / l.counts.rows),
              l.balance,
              l.z,
              MakeView<float>(l.terms)};
  }
  ForType(op.logits.dtype, [&]<typename T>() {
    Launch(queue, RouterGrid(op.logits), dim3(kRouterThreads), 0, "RouteBackward",
           RouteBackwardKernel<T>, MakeRouterArgs<T>(op, nullptr), op.experts.as<int32_t>(),
           MakeView<float>(op.dweights), MakeView<T>(op.dlogits), losses);
  });
  if (!l.present()) return;
  Launch(queue, dim3(1), dim3(kSortThreads), 0, "RouterTotals", RouterTotalsKernel,
         MakeView<float>(l.terms), op.logits.rows, l.share.f32(), l.counts.as<int32_t>(),
         l.counts.rows, static_cast<int>(op.logits.cols), l.totals.f32(),
         static_cast<float*>(l.loads.data));
}

void Enqueue(const Queue& queue, const BalanceExperts& op) {
  const BalanceMap map{op.bias.f32(), op.loads.f32(), static_cast<Bf16*>(op.param_copy.data),
                       op.rate, op.zero_loads};
  LaunchMap<1>(queue, "BalanceExperts", map, 1, op.bias.cols);
}

void Enqueue(const Queue& queue, const CountExperts& op) {
  const int64_t sequences = op.counts.rows < kRowsOfGrid ? op.counts.rows : kRowsOfGrid;
  Launch(queue, dim3(static_cast<unsigned>(op.counts.cols), static_cast<unsigned>(sequences)),
         dim3(kSortThreads), 0, "CountExperts", CountExpertsKernel, op.experts.as<int32_t>(),
         op.experts.size() / op.counts.rows, static_cast<int>(op.experts.cols),
         StartsOrNull(op.starts), op.counts.as<int32_t>(), op.counts.rows);
}

}  // namespace atl::ATOLL_DEVICE
