// What quantised pushes do to training: a small model on a small text, two islands, many rounds.

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "kernels/cpu/cpu.h"
#include "worker/runtime/model_trainer.h"
#include "worker/runtime/testing/rounds.h"

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
  options.trainer = [] { return NewModelTrainer(NewCpuBackend(1)); };
  return options;
}

TEST_CASE("8 bits lose next to nothing, 4 bits little, and far less than without error feedback") {
  const Text text;
  const RoundsResult full = RunRounds(Job(text, Encoding::kFloat32));
  const RoundsResult eight = RunRounds(Job(text, Encoding::kInt8));
  const RoundsResult four = RunRounds(Job(text, Encoding::kInt4));
  RoundsOptions forgetful = Job(text, Encoding::kInt4);
  forgetful.error_feedback = false;
  const RoundsResult lossy = RunRounds(forgetful);
  std::printf("loss: fp32 %.4f, 8 bits %.4f, 4 bits %.4f, 4 bits without feedback %.4f\n",
              full.loss, eight.loss, four.loss, lossy.loss);
  REQUIRE(full.loss < 3.0);  // it has learnt: 5.5 at the start
  REQUIRE(eight.loss < 1.01 * full.loss);
  REQUIRE(four.loss < 1.04 * full.loss);
  REQUIRE(lossy.loss > four.loss);
  REQUIRE(full.push_bytes > 3.8 * eight.push_bytes);
  REQUIRE(full.push_bytes > 7.5 * four.push_bytes);
}

}  // namespace
}  // namespace atl::worker
