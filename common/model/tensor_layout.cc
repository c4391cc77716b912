#include "common/model/tensor_layout.h"

#include <algorithm>

#include "common/check.h"

namespace atl {
namespace {

struct IslandScopes {
  int64_t rows, cols;
};

// A parameter's matrix in memory; a vector is a column.
IslandScopes InMemory(const ParamSpec& param) {
  if (param.shape.size() < 2) return {param.size, 1};
  const int64_t rows = param.shape[0], cols = rows == 0 ? 0 : param.size / rows;
  return param.transposed ? IslandScopes{cols, rows} : IslandScopes{rows, cols};
}

}  // namespace

void ForEachRun(const ParamSpec& whole, const ParamSpec& part, const RunFunction& copy) {
  const IslandScopes from = InMemory(whole), to = InMemory(part);
  if (part.cut == Cut::kNone) {
    ATOLL_CHECK(whole.size == part.size);
    return copy(whole.offset, part.offset, whole.size);
  }
  if (part.size == 0) return;  // of an expert on another rank
  int64_t at = 0;
  for (const Range& kept : part.kept) {
    if (part.cut == Cut::kRows) {
      ATOLL_CHECK(from.cols == to.cols && kept.end <= from.rows);
      copy(whole.offset + kept.begin * from.cols, part.offset + at * to.cols,
           kept.size() * to.cols);
    } else {
      ATOLL_CHECK(from.rows == to.rows && kept.end <= from.cols);
      for (int64_t row = 0; row < from.rows; ++row) {
        copy(whole.offset + row * from.cols + kept.begin, part.offset + row * to.cols + at,
             kept.size());
      }
    }
    at += kept.size();
  }
  ATOLL_CHECK(at == (part.cut == Cut::kRows ? to.rows : to.cols));
}

namespace {

void ForEachRun(const LayerLayout& whole, const LayerLayout& part, const RunFunction& copy) {
  ATOLL_CHECK(whole.params.size() == part.params.size(), "layouts of two models");
  for (size_t i = 0; i < whole.params.size(); ++i) {
    ATOLL_CHECK(whole.params[i].name == part.params[i].name, "layouts of two layers");
    ForEachRun(whole.params[i], part.params[i], copy);
  }
}

}  // namespace

void CutLayer(const LayerLayout& whole, const LayerLayout& part, std::span<const float> from,
              std::span<float> to) {
  ATOLL_CHECK(std::ssize(from) == whole.size && std::ssize(to) == part.size);
  ForEachRun(whole, part, [&](int64_t in_whole, int64_t in_part, int64_t count) {
    std::copy_n(from.begin() + in_whole, count, to.begin() + in_part);
  });
}

void JoinLayer(const LayerLayout& whole, const LayerLayout& part, std::span<const float> from,
               std::span<float> to) {
  ATOLL_CHECK(std::ssize(from) == part.size && std::ssize(to) == whole.size);
  ForEachRun(whole, part, [&](int64_t in_whole, int64_t in_part, int64_t count) {
    std::copy_n(from.begin() + in_part, count, to.begin() + in_whole);
  });
}

std::vector<Range> CountedRanges(const LayerLayout& part, int rank) {
  std::vector<Range> ranges;
  for (const ParamSpec& param : part.params) {
    if (rank != 0 && param.cut == Cut::kNone) continue;
    if (param.offset >= part.trained_size) continue;
    if (!ranges.empty() && ranges.back().end == param.offset) {
      ranges.back().end = param.end();
    } else {
      ranges.push_back({param.offset, param.end()});
    }
  }
  return ranges;
}

}  // namespace atl
