// Tests of the effect of quantised pushes and pulls on training: a small model on a small text, two
// or three islands, many rounds.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/island/rounds.h"

namespace atl::worker {
namespace {

class Text {
 public:
  Text() {
    std::ofstream out(path);
    for (int i = 0; i < 400; ++i) {
      out << "The tide of day " << i * 37 % 101 << " comes in at " << i * 7 % 24 << ":" << i % 60
          << " and leaves " << i * i % 13 << " shells on the sand. ";
    }
  }
  ~Text() { std::remove(path.c_str()); }
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/text";
};

RoundsOptions Job(const Text& text, Encoding encoding) {
  RoundsOptions options;
  JobSpec& spec = options.spec;
  spec.outer.learning_rate = 0.7;
  spec.outer.momentum = 0.8;
  spec.name = "tide";
  spec.model.hidden = 32;
  spec.model.layers = 2;
  spec.model.heads = 2;
  spec.data.path = text.path;
  spec.data.sequence_length = 32;
  spec.inner.learning_rate = 3e-3;
  spec.inner.batch_sequences = 4;
  spec.outer.steps_per_round = 8;
  spec.outer.push_encoding = encoding;
  options.rounds = 30;
  spec.schedule.train_tokens = 2 * options.rounds * 8 * 4 * 32;
  spec.schedule.validation_sequences = 0;  // all
  return options;
}

TEST_CASE("quantised pushes learn nearly as well, and far better than without error feedback") {
  const Text text;
  const RoundsResult full = RunRounds(Job(text, Encoding::kFloat32));
  REQUIRE(full.loss < 3.0);  // it has learnt: 5.5 at the start
  struct Expected {
    Encoding encoding;
    double worse_max, fewer_bytes;
  };
  // With topk a number of 64 may wait for 64 rounds, and these are 30: 1.1 from 5.5.
  for (const auto& [encoding, worse_max, fewer_bytes] :
       {Expected{Encoding::kInt8, 1.01, 3.8}, Expected{Encoding::kInt4, 1.04, 7.5},
        Expected{Encoding::kE3m0, 1.04, 7.5}, Expected{Encoding::kTopK, 5, 120}}) {
    RoundsOptions options = Job(text, encoding);
    const RoundsResult result = RunRounds(options);
    std::printf("loss: float32 %.4f, %s %.4f\n", full.loss, GetEncodingInfo(encoding).name,
                result.loss);
    CHECK(result.loss < worse_max * full.loss);
    CHECK(full.push_bytes > fewer_bytes * result.push_bytes);
    if (encoding != Encoding::kInt4 && encoding != Encoding::kTopK) continue;
    options.error_feedback = false;
    CHECK(RunRounds(options).loss > result.loss);
  }
}

// Three islands, rounds of two steps, pushes in four bits.
RoundsOptions ShortRounds(const Text& text, Encoding pulls, uint64_t seed) {
  RoundsOptions options = Job(text, Encoding::kInt4);
  JobSpec& spec = options.spec;
  options.islands = 3;
  options.rounds = 80;
  spec.outer.learning_rate = 1;
  spec.outer.momentum = 0;
  spec.outer.steps_per_round = 2;
  spec.outer.pull_encoding = pulls;
  spec.inner.warmup_fraction = 0.05;
  spec.inner.final_learning_rate_ratio = 0.1;
  spec.inner.clip_norm = 0.5;
  spec.schedule.train_tokens = int64_t{3} * options.rounds * 2 * 4 * 32;
  spec.model.seed = seed;
  spec.data.shuffle_seed = seed;
  return options;
}

TEST_CASE("quantised pulls of short rounds cost no loss: pairs of the same seeds and data") {
  constexpr int kPairs = 4;
  const Text text;
  double full[kPairs];
  for (int i = 0; i < kPairs; ++i) {
    full[i] = RunRounds(ShortRounds(text, Encoding::kFloat32, i + 1)).loss;
  }
  for (const Encoding pulls : {Encoding::kInt8, Encoding::kInt4}) {
    double ratio = 0;
    for (int i = 0; i < kPairs; ++i) {
      ratio += RunRounds(ShortRounds(text, pulls, i + 1)).loss / full[i] / kPairs;
    }
    std::printf("loss of pulls in %s over float32: %.5f\n", GetEncodingInfo(pulls).name, ratio);
    CHECK(std::abs(ratio - 1) < 0.004);
  }
  // The bound sees what is done to errors: without feedback training goes elsewhere.
  RoundsOptions forgetful = ShortRounds(text, Encoding::kInt4, 1);
  forgetful.error_feedback = false;
  CHECK(std::abs(RunRounds(forgetful).loss / full[0] - 1) > 0.01);
}

}  // namespace
}  // namespace atl::worker
