// The shapes that are tested and measured.

#include "kernels/testing/case_makers.h"

namespace atl::testing {
namespace {

constexpr auto kTanh = Activation::kGeluTanh, kErf = Activation::kGeluErf;

std::vector<OpCase> AttentionCases() {
  return {
      AttentionCase(1, 1, 1, 1, 4),
      AttentionCase(2, 19, 2, 2, 8),
      AttentionCase(1, 67, 4, 2, 16),
      AttentionCase(1, 130, 6, 1, 20),
      AttentionCase(2, 64, 2, 2, 48),
      AttentionCase(1, 66, 2, 1, 72),
      AttentionCase(1, 257, 4, 2, 64),
      AttentionCase(1, 384, 2, 1, 128),
      AttentionCase(1, 40, 2, 2, 160),
      MaskedAttentionCase({2, 33, 2, 1, 8, 0, true, 5}),
      MaskedAttentionCase({1, 150, 2, 2, 20, 0, true, 64, 3.0f}),
      MaskedAttentionCase({1, 70, 2, 1, 16, 0, true, 2}),
      MaskedAttentionCase({2, 67, 4, 2, 16, 0, true, 0, 2.0f}),
      MaskedAttentionCase({2, 69, 2, 1, 16, 0, false}),
      MaskedAttentionCase({3, 40, 2, 2, 8, 0, false}, true),
      MaskedAttentionCase({2, 70, 2, 1, 24, 0, true, 0, 1.5f}, true),
      // Over several tiles of every kernel: some that a window hides whole, some that it cuts.
      MaskedAttentionCase({1, 200, 2, 1, 64, 0, true, 70}),
      MaskedAttentionCase({1, 140, 1, 1, 128, 0, true, 9, 4.0f}),
      MaskedAttentionCase({2, 130, 1, 1, 128, 0, false}, true),
      MaskedAttentionCase({1, 40, 2, 1, 160, 0, true, 13, 2.0f}),
      MaskedAttentionCase({2, 30, 2, 2, 8, 0, true, 64}),
      WithDocuments(AttentionCase(3, 61, 2, 1, 16), 3, 61, 4),
      WithDocuments(AttentionCase(2, 300, 2, 2, 64), 2, 300, 3),
      WithDocuments(AttentionCase(1, 40, 2, 1, 160), 1, 40, 5),
      WithDocuments(MaskedAttentionCase({2, 150, 2, 1, 128, 0, true, 20, 2.0f}), 2, 150, 4),
  };
}

std::vector<OpCase> OptimizerCases() {
  return {
      AdamCase(1000, 1, false, false, false),
      AdamCase(70'003, 100, true, true, false),
      MomentumCase(1000, false, true, false),
      MomentumCase(70'003, false, false, false),
      MomentumCase(1000, true, true, true),
      MomentumCase(70'003, true, true, false),
      AdamCase(1000, 1, false, false, true),
      AdamCase(70'003, 100, true, true, true),
      NormalizeCase(40'001),
      ClipCase(40'001, 1.0f),
      ClipCase(3, 1e6f),
  };
}

}  // namespace

std::vector<OpCase> TestCases() {
  std::vector<OpCase> cases = OptimizerCases();
  const std::vector<OpCase> others = {
      LinearCase(7, 5, 9, false, false),
      LinearCase(300, 33, 20, true, false),
      LinearCase(4, 16, 150, false, true),
      LinearCase(3, 8, 4101, true, true),  // a vocabulary's, in two parts
      LinearCase(19, 24, 33, true, true, kTanh),
      LinearCase(5, 7, 16, false, false, kErf),
      // Shapes as models have them on a GPU, where every epilogue is cuBLASLt's.
      LinearCase(64, 64, 128, true, false, kTanh),
      LinearCase(64, 64, 128, false, false, kTanh),
      LinearCase(128, 256, 192, true, false),
      WithWiderGaps(LinearCase(16, 24, 40, true, true), {"add", "dadd"}),
      ActivatedInputCase(64, 128, 64, kTanh, false),
      ActivatedInputCase(9, 18, 11, kTanh),
      ActivatedInputCase(3, 16, 4, kErf),
      EmbeddingCase(2, 7, 11, 5, false, 0),
      EmbeddingCase(3, 5, 6, 70, true, 2),
      EmbeddingCase(3, 700, 41, 8, false, 0),
      WithDocuments(EmbeddingCase(3, 25, 6, 70, true, 2), 3, 25, 4),
      EmbeddingPartCase(3, 11, 7, 9, 70),
      RmsNormCase(5, 16, false),
      RmsNormCase(150, 37, true),
      RmsNormCase(67, 16, false, 3),
      RmsNormCase(33, 5, true, 4),
      LayerNormCase(5, 16, false),
      LayerNormCase(150, 37, true),
      RopeCase(2, 5, 3, 4, 0),
      RopeCase(1, 9, 2, 40, 3),
      WithDocuments(RopeCase(2, 19, 2, 40, 3), 2, 19, 4),
      TypedEmbeddingCase(3, 5, 6, 70),
      GatedCase(7, 33),
      GatedCase(7, 33, kTanh),
      SoftcapCase(5, 37, 0.8f),
      GeluCase(7, 33, Activation::kSilu),
      LinearCase(19, 24, 33, true, true, Activation::kSilu),
      GeluCase(7, 33, kTanh),
      GeluCase(7, 33, kErf),
      AddScaledCase(5, 19, kF32, kF32, kF32),
      AddScaledCase(5, 19, kF32, Type::kBf16, kF32),
      AddScaledCase(5, 19, kF32, kF32, Type::kBf16),
      InPlaceCase(6, 21),
      ConvertCase(5, 35),
      DecodeCase(WeightCode::kNf4, 5, 192, 0, 192),
      DecodeCase(WeightCode::kNf4, 300, 64, 128, 256),
      DecodeCase(WeightCode::kInt8, 5, 192, 0, 192),
      DecodeCase(WeightCode::kInt8, 300, 64, 128, 256),
      CrossEntropyCase(11, 23, false),
      CrossEntropyCase(7, 256, true),
      CrossEntropyCase(900, 20, false),
      CrossEntropyCase(2, 16'397, true),
      CrossEntropyCase(2, 16'392, true),
      CrossEntropyCase(2, 60'000, true),
      CrossEntropyPartCase(17, 9, 21, false),
      CrossEntropyPartCase(700, 0, 40, true),
  };
  cases.insert(cases.end(), others.begin(), others.end());
  for (auto& made : {AttentionCases(), ExpertTestCases(), ImageTestCases()}) {
    cases.insert(cases.end(), made.begin(), made.end());
  }
  return cases;
}

std::vector<OpCase> BenchmarkCases() {
  const int64_t n = 2048, d = 256, f = 688, vocabulary = 256, parameters = 6'400'000;
  return {
      LinearCase(n, d, d, false, true),
      LinearCase(n, d, 3 * d, false, false),
      LinearCase(n, d, 2 * f, false, false),
      LinearCase(n, f, d, false, true),
      LinearCase(n, d, 4 * d, true, false, kTanh),
      LinearCase(n, 1024, 1024, false, false),
      EmbeddingCase(8, 256, vocabulary, d, false, 0),
      RmsNormCase(n, d, true),
      LayerNormCase(n, d, true),
      RopeCase(8, 256, 8, 32, 0),
      AttentionCase(8, 256, 8, 8, 32),
      AttentionCase(2, 1024, 12, 4, 64),
      WithDocuments(AttentionCase(2, 1024, 12, 4, 64), 2, 1024, 8),
      GatedCase(n, f),
      GeluCase(n, 4 * d, kTanh),
      AddScaledCase(n, d, kF32, kF32, kF32),
      ConvertCase(n, d),
      DecodeCase(WeightCode::kNf4, n, d, 0, d),
      DecodeCase(WeightCode::kInt8, n, d, 0, d),
      CrossEntropyCase(n, vocabulary, true),
      AdamCase(parameters, 10, true, false, false),
      ClipCase(parameters, 1.0f),
      ExpertsCase(1024, d, d, 16, 2, 0, 16, true),
      ConvCase({{64, 32, 32, 3, 1, 1}, 64, 64}),
      ConvCase({{64, 8, 8, 3, 1, 1}, 256, 256}),
      ConvCase({{64, 16, 16, 5, 1, 2}, 240, 240, 240}),
      BatchNormCase(64 * 1024, 64, Activation::kRelu, true),
  };
}

OpCase LargeProductCase() { return LinearCase(2048, 1024, 2048, false, false); }

OpCase MemoryCase() {
  OpCase c;
  c.name = "scale in place";
  const int64_t size = 32 << 20;
  c.args = {{"x", Role::kState, 1, size, kF32, [](int64_t) { return 1.0; }, true}};
  c.forward = [](Call& a) { a.Run(Scale{.x = a["x"], .factor = 0.999999f}); };
  c.forward_bytes = Floats(2.0 * size);
  return c;
}

}  // namespace atl::testing
