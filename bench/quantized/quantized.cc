// Quantised pushes against fp32 ones: bytes of a push, and the loss after as many tokens. Two
// islands of a small model train on a text for many rounds, once for each encoding, from the same
// weights on the same data; what differs is what the servers decode.
//
// usage: quantized [TEXT]    without a text: numbers and words that a formula makes

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "bench/measure.h"
#include "kernels/cpu/cpu.h"
#include "worker/runtime/model_trainer.h"
#include "worker/runtime/testing/rounds.h"

namespace atl::bench {
namespace {

using worker::RoundsOptions;
using worker::RoundsResult;
using worker::RunRounds;

void WriteText(const std::string& path) {
  std::ofstream out(path);
  for (int i = 0; i < 6000; ++i) {
    out << "The tide of day " << i * 37 % 101 << " comes in at " << i * 7 % 24 << ":" << i % 60
        << " and leaves " << i * i % 13 << " shells on the sand. ";
  }
}

RoundsOptions Job(const std::string& path, Encoding encoding, bool error_feedback) {
  RoundsOptions options;
  JobSpec& spec = options.spec;
  spec.name = "quantized";
  spec.model.hidden = 64;
  spec.model.layers = 3;
  spec.model.heads = 4;
  spec.data.path = path;
  spec.data.sequence_length = 64;
  spec.inner.learning_rate = 2e-3;
  spec.inner.batch_sequences = 4;
  spec.outer.steps_per_round = 16;
  spec.outer.push_encoding = encoding;
  options.rounds = 60;
  options.error_feedback = error_feedback;
  spec.schedule.train_tokens = 2 * options.rounds * 16 * 4 * 64;
  spec.schedule.validation_sequences = 64;
  options.trainer = [] { return worker::NewModelTrainer(NewCpuBackend(2)); };
  return options;
}

void Run(const std::string& path) {
  std::printf("encoding               bytes a push   validation loss   times fp32\n");
  const RoundsResult full = RunRounds(Job(path, Encoding::kFloat32, true));
  const auto row = [&](const char* name, Encoding encoding, bool error_feedback) {
    const RoundsResult result =
        encoding == Encoding::kFloat32 ? full : RunRounds(Job(path, encoding, error_feedback));
    std::printf("%-22s %12lld   %15.4f   %10.4f\n", name, static_cast<long long>(result.push_bytes),
                result.loss, result.loss / full.loss);
    std::fflush(stdout);
    return result;
  };
  row("fp32", Encoding::kFloat32, true);
  const RoundsResult eight = row("8 bits", Encoding::kInt8, true);
  row("8 bits, no feedback", Encoding::kInt8, false);
  const RoundsResult four = row("4 bits", Encoding::kInt4, true);
  const RoundsResult lossy = row("4 bits, no feedback", Encoding::kInt4, false);
  const auto bytes = [](const RoundsResult& r) { return static_cast<double>(r.push_bytes); };
  PrintFigureAtLeast("push.int8_bytes_saved", bytes(full) / bytes(eight), "ratio", 3.9);
  PrintFigureAtLeast("push.int4_bytes_saved", bytes(full) / bytes(four), "ratio", 7.7);
  PrintFigureAtMost("push.int8_loss", eight.loss / full.loss, "ratio", 1.005);
  PrintFigureAtMost("push.int4_loss", four.loss / full.loss, "ratio", 1.02);
  PrintFigureAtLeast("push.int4_loss_without_feedback", lossy.loss / four.loss, "ratio", 1.0);
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  if (argc > 1) {
    atl::bench::Run(argv[1]);
    return 0;
  }
  const char* folder = std::getenv("TMPDIR");
  const std::string path =
      std::string(folder != nullptr ? folder : "/tmp") + "/atoll-quantized-text";
  atl::bench::WriteText(path);
  atl::bench::Run(path);
  std::remove(path.c_str());
}
