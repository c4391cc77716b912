// Which keys a query sees and what becomes of its scores, as attention's kernels know it.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_ATTENTION_MASK_H_
#define ATOLL_KERNELS_CUDA_DEVICE_ATTENTION_MASK_H_

#include "kernels/cuda/device/device.h"
#include "kernels/ops.h"

namespace atl::ATOLL_DEVICE {

// A score and its derivative by the product before `softcap`.
struct CappedScore {
  float score, slope;
};

// kPlain: causal alone, and all else is left out of the kernel. Tiles of keys are as long as tiles
// of queries, and begin on multiples of that length.
template <bool kPlain>
struct AttentionMask {
  int seq_len;
  bool causal;
  int window;              // 0: all
  float softcap;           // 0: none
  const int32_t* lengths;  // of each sequence, the keys that exist; null: all

  AttentionMask(const AttentionShape& shape, const Tensor& lengths)
      : seq_len(static_cast<int>(shape.seq_len)),
        causal(shape.causal),
        window(static_cast<int>(shape.window < shape.seq_len ? shape.window : 0)),
        softcap(shape.softcap),
        lengths(lengths.present() ? lengths.as<int32_t>() : nullptr) {}

  // Returns the number of keys of a sequence.
  __device__ int Keys(int batch) const {
    if constexpr (kPlain) return seq_len;
    return lengths == nullptr ? seq_len : lengths[batch];
  }

  __device__ bool Sees(int query, int key, int keys) const {
    if constexpr (kPlain) return key <= query;
    return key < keys && (!causal || (key <= query && (window == 0 || key > query - window)));
  }

  // The tiles of keys that a tile of queries sees something of: the first, and the end of the last.
  __device__ int FirstKey(int query, int tile) const {
    if constexpr (kPlain) return 0;
    return window == 0 || query < window ? 0 : (query + 1 - window) / tile * tile;
  }
  __device__ int EndKey(int query, int tile, int keys) const {
    if constexpr (kPlain) return query + 1;
    return causal && query + tile < keys ? query + tile : keys;
  }

  // Returns the first of the queries that see something of a tile of keys.
  __device__ int FirstQuery(int key) const {
    if constexpr (kPlain) return key;
    return causal ? key : 0;
  }
  __device__ int EndQuery(int key, int tile, int keys) const {
    if constexpr (kPlain) return seq_len;
    if (key >= keys) return 0;
    const int end = key + tile - 1 + window;
    return window == 0 || end > seq_len ? seq_len : end;
  }

  __device__ CappedScore Cap(float score) const {
    if constexpr (kPlain) return {score, 1.0f};
    if (softcap == 0.0f) return {score, 1.0f};
    const float t = tanhf(score / softcap);
    return {softcap * t, 1.0f - t * t};
  }

  // Returns the number that a row's largest score is subtracted as; 0 for a row that has seen
  // nothing yet.
  __device__ static float Base(float largest) {
    if constexpr (kPlain) return largest;
    return largest == -INFINITY ? 0.0f : largest;
  }
};

// Calls function.operator()<kPlain>().
template <typename Function>
void ForMask(const AttentionShape& shape, const Tensor& lengths, const Function& function) {
  if (shape.plain() && !lengths.present()) {
    function.template operator()<true>();
  } else {
    function.template operator()<false>();
  }
}

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_ATTENTION_MASK_H_
