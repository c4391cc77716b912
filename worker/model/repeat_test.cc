// A device that records what repeats trains as one that does not.

#include <catch2/catch.hpp>

#include "kernels/cpu/cpu.h"
#include "kernels/testing/fake_device.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/weights.h"

namespace atl {
namespace {

constexpr int64_t kLength = 6;

ModelConfig Tiny() {
  ModelConfig config;
  config.family = ModelFamily::kLlama;
  config.vocab = 29;
  config.d_model = 16;
  config.layers = 2;
  config.heads = config.kv_heads = 2;
  config.ffn = 24;
  config.max_positions = kLength;
  return config;
}

// Steps of so many sequences, two at a time; the losses.
std::vector<double> Train(Backend& backend, const ModelConfig& config = Tiny(),
                          const std::vector<int64_t>& steps = {3, 3, 3, 2, 3, 3}) {
  const Model model = *Model::Create(config);
  const auto runner =
      *ModelRunner::Create(backend, model, {.micro_batch_rows = 2, .seq_len = kLength});
  const auto optimizer =
      *Optimizer::Create(backend, runner->stream(), runner->layers(), OptimizerOptions());
  for (size_t l = 0; l < model.layers().size(); ++l) {
    const LayerLayout& layout = model.layers()[l]->layout();
    std::vector<float> values(static_cast<size_t>(layout.size));
    InitLayer(layout, model.config().layers, 1, values);
    backend.CopyToDevice(runner->stream(), runner->params(static_cast<int>(l)), values.data());
    REQUIRE(backend.Synchronize(runner->stream()).ok());
  }
  std::vector<double> losses;
  int64_t step = 0;
  for (const int64_t rows : steps) {
    std::vector<int32_t> tokens(static_cast<size_t>(rows * (kLength + 1)));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>((i * 7 + static_cast<size_t>(step) * 3) % 29);
    }
    losses.push_back(runner->Train(tokens, rows)->mean());
    REQUIRE(optimizer->Step(++step, 1e-2f).ok());
  }
  return losses;
}

TEST_CASE("recorded micro-batches are what they were when they were enqueued") {
  const auto plain = NewCpuBackend(1);
  const std::vector<double> expected = Train(*plain);
  REQUIRE(expected.back() < expected.front());
  REQUIRE(plain->Repeats().recorded == 0);

  const testing::FakeDevice device("fake", [] { return NewCpuBackend(1); });
  const auto recording = device.NewBackend();
  REQUIRE(Train(*recording) == expected);
  const RepeatCounts once = recording->Repeats();
  // F and B of two sequences and of one; each first seen, then recorded, then launched: the larger
  // micro-batch comes six times, the smaller one five.
  REQUIRE(once.recorded == 4);
  REQUIRE(once.replayed == 2 * (6 - 2) + 2 * (5 - 2));
  REQUIRE(once.trouble.empty());

  // Another runner has other memory: nothing of the first one is launched.
  REQUIRE(Train(*recording) == expected);
  REQUIRE(recording->Repeats().recorded == 8);
}

TEST_CASE("steps of a mixture of any size repeat the same work") {
  ModelConfig config = Tiny();
  config.family = ModelFamily::kQwen3Moe;
  config.experts = {.count = 4,
                    .per_token = 2,
                    .hidden = 8,
                    .auxiliary_loss = 0.1,
                    .adds_auxiliary_loss = true,
                    .z_loss = 0.01};
  const std::vector<int64_t> ramp = {2, 2, 4, 4, 6, 6, 8, 8, 10, 10};
  const auto plain = NewCpuBackend(1);
  const std::vector<double> expected = Train(*plain, config, ramp);
  const testing::FakeDevice device("fake", [] { return NewCpuBackend(1); });
  const auto recording = device.NewBackend();
  REQUIRE(Train(*recording, config, ramp) == expected);
  CHECK(recording->Repeats().recorded == 2);  // F and B
}

}  // namespace
}  // namespace atl
