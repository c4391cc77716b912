#include "common/model/adapters/frozen_place.h"

#include "common/check.h"

namespace atl {
namespace {

constexpr int64_t kAlignment = 64;

int64_t Take(int64_t bytes, int64_t* at) {
  const int64_t begin = (*at + kAlignment - 1) / kAlignment * kAlignment;
  *at = begin + bytes;
  return begin;
}

std::vector<CodedRows> ListCodedRows(const ParamSpec& param, int64_t rows, int64_t cols) {
  ATOLL_CHECK(cols % kWeightBlock == 0 && param.whole_size % kWeightBlock == 0, param.name);
  switch (param.cut) {
    case Cut::kNone:
      break;
    case Cut::kColumns: {
      const int64_t begin = param.kept.front().begin, step = param.whole_size / rows / kWeightBlock;
      ATOLL_CHECK(begin % kWeightBlock == 0, param.name, " is cut within a block of codes");
      return {{rows, begin / kWeightBlock, step}};
    }
    case Cut::kRows: {
      std::vector<CodedRows> all;
      for (const Range& kept : param.kept) {
        const int64_t step = cols / kWeightBlock;
        all.push_back({kept.size(), kept.begin * step, step});
      }
      return all;
    }
  }
  return {{rows, 0, cols / kWeightBlock}};
}

}  // namespace

FrozenPlaces PlaceFrozen(const LayerLayout& layout, int64_t compute_bytes) {
  FrozenPlaces places;
  places.params.resize(layout.frozen.size());
  int64_t at = 0;
  for (size_t i = 0; i < layout.frozen.size(); ++i) {
    if (layout.coded(layout.frozen[i])) continue;
    places.params[i].values = at;
    at += layout.frozen[i].size * compute_bytes;
  }
  for (size_t i = 0; i < layout.frozen.size(); ++i) {
    const ParamSpec& param = layout.frozen[i];
    if (!layout.coded(param)) continue;
    FrozenPlace& place = places.params[i];
    const int64_t rows = param.shape[param.transposed ? 1 : 0];
    place.cols = param.size / rows;
    place.rows = ListCodedRows(param, rows, place.cols);
    place.coarse_numbers = 1 + CountScaleBlocks(param.whole_size);
    place.values = Take(GetCodeBytes(*layout.coding, param.size), &at);
    place.scales = Take(param.size / kWeightBlock, &at);
    place.coarse = Take(place.coarse_numbers * static_cast<int64_t>(sizeof(float)), &at);
  }
  places.bytes = layout.coding ? (at + 3) / 4 * 4 : at;
  return places;
}

}  // namespace atl
