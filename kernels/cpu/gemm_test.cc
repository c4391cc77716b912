// Products whose operands' rows share sets of the cache, against the same with other strides.

#include "kernels/cpu/gemm.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

namespace atl {
namespace {

struct Shape {
  int64_t m, n, k;
};

// The product's c, of operands with `gap` elements behind each row.
std::vector<float> Product(const Shape& shape, bool transpose_a, bool transpose_b, bool accumulate,
                           int64_t gap) {
  const auto [m, n, k] = shape;
  auto fill = [gap, random = std::mt19937(7)](int64_t rows, int64_t columns) mutable {
    std::vector<float> matrix(rows * (columns + gap), NAN);
    std::uniform_real_distribution<float> number(-1, 1);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < columns; ++i) matrix[row * (columns + gap) + i] = number(random);
    }
    return matrix;
  };
  const std::vector<float> a = transpose_a ? fill(k, m) : fill(m, k);
  const std::vector<float> b = transpose_b ? fill(n, k) : fill(k, n);
  std::vector<float> c(m * n, 0.5f);
  Gemm(transpose_a, transpose_b, m, n, k, a.data(), (transpose_a ? m : k) + gap, b.data(),
       (transpose_b ? k : n) + gap, accumulate, c.data(), n);
  return c;
}

TEST_CASE("products_do_not_depend_on_how_far_rows_are_apart") {
  // More than 512 rows to add up, more columns than that, and few.
  const auto shape = GENERATE(Shape{8, 1024, 600}, Shape{512, 512, 70}, Shape{512, 40, 1030},
                              Shape{3, 1536, 64}, Shape{512, 1024, 7});
  const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
  const bool accumulate = GENERATE(false, true);
  const std::vector<float> near = Product(shape, transpose_a, transpose_b, accumulate, 0);
  const std::vector<float> apart = Product(shape, transpose_a, transpose_b, accumulate, 5);
  float largest = 0;
  for (size_t i = 0; i < near.size(); ++i) {
    const float difference = std::abs(near[i] - apart[i]);
    if (!(difference <= largest)) largest = difference;
  }
  CHECK(largest < 1e-4f);
}

}  // namespace
}  // namespace atl
