// Copies between a whole layer's flat buffer and those of a tensor-parallel group's parts:
// parameters, gradients and moments alike, since all have one layout. From one cut to another a
// layer goes through the whole.

#ifndef ATOLL_COMMON_MODEL_TENSOR_LAYOUT_H_
#define ATOLL_COMMON_MODEL_TENSOR_LAYOUT_H_

#include <functional>
#include <span>
#include <vector>

#include "common/model/layout.h"

namespace atl {

// `whole` and `part` are layouts of the same layer, from MakeLayouts without and with a part.
// REQUIRES: buffers of the layouts' sizes.
void CutLayer(const LayerLayout& whole, const LayerLayout& part, std::span<const float> from,
              std::span<float> to);

// Writes what the part holds into the whole; all parts together fill it. What every rank holds
// whole is written by each of them.
void JoinLayer(const LayerLayout& whole, const LayerLayout& part, std::span<const float> from,
               std::span<float> to);

// Calls copy(whole, part, count) for runs of adjacent elements of one parameter, by their places in
// the layers' buffers. Where columns are cut a run is a part of one row.
using RunFunction = std::function<void(int64_t whole, int64_t part, int64_t count)>;
void ForEachRun(const ParamSpec& whole, const ParamSpec& part, const RunFunction& copy);

// The elements of a part's buffer that count at this rank where the group's parts are added up (a
// norm of all gradients): all at rank 0, elsewhere without what every rank holds whole. In order,
// adjacent ranges joined.
std::vector<Range> CountedRanges(const LayerLayout& part, int rank);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_TENSOR_LAYOUT_H_
