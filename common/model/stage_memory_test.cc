#include "common/model/stage_memory.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

TEST_CASE("a_head_of_a_large_vocabulary_takes_a_third_at_most_of_whole_logits") {
  ModelConfig config;  // LLaMA 3 8B
  config.family = ModelFamily::kLlama;
  config.vocab = 128256;
  config.d_model = 4096;
  config.layers = 32;
  config.heads = 32;
  config.kv_heads = 8;
  config.ffn = 14336;
  config.max_positions = 8192;
  const ElementBytes element{2, 4};
  const BatchShape shape{1, 8192};
  const auto all = ComputeLayerFootprints(config, WholePart(config), shape, element);
  const StageSpan head{33, 1, {}};
  const int64_t logits = shape.tokens() * config.vocab * element.compute;
  const int64_t input = all[33].input_bytes;
  CHECK(3 * (ActivationBytes(all, head, {0, 1, 1, true}) - input) < logits);
  // More micro-batches in flight have their inputs, and no logits.
  CHECK(ActivationBytes(all, head, {0, 3, 2, false}) -
            ActivationBytes(all, head, {0, 1, 1, false}) ==
        2 * input);
}

TEST_CASE("slices_have_the_same_rows_on_ranks_with_other_parts_of_a_vocabulary") {
  ModelConfig config;
  config.vocab = 1000;
  config.d_model = 8;
  CHECK(LossRows(config, {4, 256}) == 64);  // 8 x 1024 x 8 / 1000, down to a multiple of 16
  CHECK(LossRows(config, {1, 24}) == 16);
  CHECK(LossRows(config, {1, 5}) == 5);
  config.vocab = 32;
  CHECK(LossRows(config, {4, 256}) == 1024);
}

}  // namespace
}  // namespace atl
