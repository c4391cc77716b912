// Work that is not put to cuBLASLt is computed all the same, and counted. The other side of the
// choice, that everything else is put to it, is in the counts too.

#include "kernels/cuda/declined.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/rng.h"
#include "kernels/cuda/testing/emulated.h"
#include "kernels/testing/reference/reference.h"

namespace atl {
namespace {

constexpr int64_t kRows = 5, kIn = 16, kOut = 24;

using Floats = std::vector<float>;

// y = gelu(x w^T + bias), or x w^T + bias + add, where every operand lies as far from a 16-byte
// aligned so, and its rows as far apart, as given.
struct Linear {
  int64_t bias_offset = 0, pre_offset = 0, pre_gap = 0, add_gap = 0;
  bool gelu = false, add = false;

  Floats Run(Backend& backend) const {
    alignas(64) float x[kRows * kIn], w[kOut * kIn], bias[kOut + 8];
    alignas(64) float pre[kRows * (kOut + 8) + 8], added[kRows * (kOut + 8)];
    Rng rng(1);
    for (float& v : x) v = static_cast<float>(rng.Normal());
    for (float& v : w) v = static_cast<float>(rng.Normal());
    Floats biases(kOut), summands(kRows * kOut), y(kRows * kOut);
    for (float& v : biases) v = static_cast<float>(rng.Normal());
    for (float& v : summands) v = static_cast<float>(rng.Normal());
    std::copy(biases.begin(), biases.end(), bias + bias_offset);
    for (int64_t row = 0; row < kRows; ++row) {
      std::copy_n(&summands[row * kOut], kOut, added + row * (kOut + add_gap));
    }
    const auto f32 = [](float* data, int64_t rows, int64_t cols, int64_t gap = 0) {
      return Tensor(data, DType::kFloat32, rows, cols, cols + gap);
    };
    LinearForward op{.x = f32(x, kRows, kIn),
                     .w = f32(w, kOut, kIn),
                     .bias = f32(bias + bias_offset, 1, kOut),
                     .y = f32(y.data(), kRows, kOut)};
    if (add) op.add = f32(added, kRows, kOut, add_gap);
    if (gelu) {
      op.activation = Activation::kGeluTanh;
      op.pre = f32(pre + pre_offset, kRows, kOut, pre_gap);
    }
    const auto stream = *backend.NewStream();
    const Buffer scratch = *backend.Allocate(backend.WorkspaceBytes(op));
    backend.Run(*stream, op, scratch.workspace());
    REQUIRE(backend.Synchronize(*stream).ok());
    return y;
  }

  // The emulated backend's results, which must be the reference's; what it declined.
  std::string Declines() const {
    const auto backend = NewEmulatedCudaBackend(/*fused=*/true);
    const Floats expected = Run(*NewReferenceBackend()), got = Run(*backend);
    for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - expected[i]) < 1e-4);
    std::string text;
    for (const DeclinedWork& work : DeclinedByEmulated(*backend)) {
      REQUIRE(work.count == 1);
      text += work.what + ": " + work.reason + "; ";
    }
    return text;
  }
};

TEST_CASE("what lies on 16 bytes is put to cuBLASLt with all its epilogues") {
  REQUIRE(Linear{}.Declines() == "");
  REQUIRE(Linear{.add = true}.Declines() == "");
  REQUIRE(Linear{.gelu = true}.Declines() == "");
  REQUIRE(Linear{.pre_gap = 8, .gelu = true}.Declines() == "");
}

TEST_CASE("a bias off 16 bytes is added by our own kernel") {
  REQUIRE(Linear{.bias_offset = 3}.Declines() == "product + bias: the bias is not on 16 bytes; ");
  REQUIRE(Linear{.bias_offset = 2, .add = true}.Declines() ==
          "product + bias: the bias is not on 16 bytes; ");
  REQUIRE(Linear{.bias_offset = 1, .gelu = true}.Declines() ==
          "product + bias + GELU: the bias is not on 16 bytes; ");
}

TEST_CASE("so is GELU whose argument lies as cuBLASLt cannot write it") {
  REQUIRE(Linear{.pre_offset = 2, .gelu = true}.Declines() ==
          "product + bias + GELU: GELU's argument is not on 16 bytes; ");
  REQUIRE(
      Linear{.pre_gap = 4, .gelu = true}.Declines() ==
      "product + bias + GELU: rows of GELU's argument are not a multiple of 8 elements apart; ");
}

TEST_CASE("what is added must have its rows as far apart as the result's") {
  const std::string why = "what is added has rows further apart, or nearer, than the result's; ";
  REQUIRE(Linear{.add_gap = 8, .add = true}.Declines() ==
          "product + bias: " + why + "product: " + why);
}

TEST_CASE("each kind is counted, with its first reason") {
  Declined declined;
  declined.Add("cuDNN attention forward", "it is not bf16");
  declined.Add("cuBLASLt product", "no algorithm");
  declined.Add("cuDNN attention forward", "sequences of one token");
  REQUIRE(declined.work().size() == 2);
  REQUIRE(declined.work()[0].what == "cuDNN attention forward");
  REQUIRE(declined.work()[0].count == 2);
  REQUIRE(declined.work()[0].reason == "it is not bf16");
  REQUIRE(declined.work()[1].count == 1);
}

}  // namespace
}  // namespace atl
