// Merges an adapter into the matrices that it is of.

#ifndef ATOLL_WORKER_MODEL_MERGE_ADAPTER_H_
#define ATOLL_WORKER_MODEL_MERGE_ADAPTER_H_

#include <span>

#include "common/model/adapters/adapter.h"
#include "common/model/layout.h"

namespace atl {

// Adds a layer's adapter, scale * B A, to its frozen matrices. REQUIRES: buffers of the layout.
void MergeAdapter(const LayerLayout& layout, const AdapterConfig& adapter,
                  std::span<const float> params, std::span<float> frozen);

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_MERGE_ADAPTER_H_
