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

// The keys of one sequence.
struct SequenceKeys {
  int count;
  const int32_t* starts;  // by query, the first key of its document; null: there is one
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
  const int32_t* starts;   // of all sequences

  AttentionMask(const AttentionShape& shape, const Tensor& lengths, const Tensor& starts)
      : seq_len(static_cast<int>(shape.seq_len)),
        causal(shape.causal),
        window(static_cast<int>(shape.window < shape.seq_len ? shape.window : 0)),
        softcap(shape.softcap),
        lengths(lengths.present() ? lengths.as<int32_t>() : nullptr),
        starts(starts.present() ? starts.as<int32_t>() : nullptr) {}

  __device__ SequenceKeys Keys(int batch) const {
    if constexpr (kPlain) return {seq_len, nullptr};
    return {lengths == nullptr ? seq_len : lengths[batch],
            starts == nullptr ? nullptr : starts + int64_t{batch} * seq_len};
  }

  // Queries may lie beyond the sequence.
  __device__ bool Sees(int query, int key, const SequenceKeys& keys) const {
    if constexpr (kPlain) return key <= query;
    if (keys.starts != nullptr && query < seq_len && key < keys.starts[query]) return false;
    return key < keys.count && (!causal || (key <= query && (window == 0 || key > query - window)));
  }

  // The tiles of keys that a tile of queries sees something of: the first, and the end of the last.
  __device__ int FirstKey(int query, int tile, const SequenceKeys& keys) const {
    if constexpr (kPlain) return 0;
    const int start = keys.starts == nullptr ? 0 : keys.starts[query];
    const int of_window = window == 0 ? 0 : query + 1 - window;
    return (start > of_window ? start : of_window) / tile * tile;
  }
  __device__ int EndKey(int query, int tile, const SequenceKeys& keys) const {
    if constexpr (kPlain) return query + 1;
    return causal && query + tile < keys.count ? query + tile : keys.count;
  }

  // Returns the first of the queries that see something of a tile of keys.
  __device__ int FirstQuery(int key) const {
    if constexpr (kPlain) return key;
    return causal ? key : 0;
  }
  __device__ int EndQuery(int key, int tile, const SequenceKeys& keys) const {
    if constexpr (kPlain) return seq_len;
    if (key >= keys.count) return 0;
    const int of_window = key + tile - 1 + window;
    int end = window == 0 || of_window > seq_len ? seq_len : of_window;
    // Documents that begin behind the tile see nothing of it.
    for (int low = key; keys.starts != nullptr && low < end;) {
      const int middle = (low + end) / 2;
      if (keys.starts[middle] >= key + tile) {
        end = middle;
      } else {
        low = middle + 1;
      }
    }
    return end;
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

// Calls function.operator()<kPlain>(). `masked`: there are lengths or starts.
template <typename Function>
void ForMask(const AttentionShape& shape, bool masked, const Function& function) {
  if (shape.plain() && !masked) {
    function.template operator()<true>();
  } else {
    function.template operator()<false>();
  }
}

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_ATTENTION_MASK_H_
