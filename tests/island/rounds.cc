#include "tests/island/rounds.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/protocol/learning_rate.h"
#include "kernels/add_delta.h"
#include "kernels/cpu/cpu.h"
#include "kernels/host_ops.h"
#include "tests/island/solo_island.h"

namespace atl::worker {

// The parameters that islands hold follow the model as pulls bring it: the server encodes the step,
// which every island adds to what it has.
static void StepServed(Encoding pulls, const std::vector<ShardPlacement>& shards,
                       const LayerBuffers& theta, ThreadPool& pool, LayerBuffers* served) {
  if (!IsQuantized(pulls)) {
    *served = theta;
    return;
  }
  for (const ShardPlacement& shard : shards) {
    std::vector<float>& held = (*served)[shard.layer];
    std::vector<float> added = held;
    std::vector<std::byte> step(static_cast<size_t>(EncodedBytes(pulls, shard.elements)));
    StepToward(pulls, theta[shard.layer], held, step, pool);
    AddDelta({step.data(), pulls, shard.elements}, added, added, pool);
    ATOLL_CHECK(added == held, "an island holds other bits than its server serves");
  }
}

RoundsResult RunRounds(const RoundsOptions& options) {
  const JobSpec& spec = options.spec;
  const auto make_device = [](int index) -> LocalDevice {
    return {index, NewCpuBackend(1), NewCpuBackend(1)};
  };
  std::vector<std::unique_ptr<SoloIsland>> islands;
  for (int i = 0; i < options.islands; ++i) {
    islands.push_back(
        std::make_unique<SoloIsland>(SoloOptions{.spec = spec, .make_device = make_device}));
    islands.back()->Prepares();
  }
  const std::vector<ShardPlacement> shards = islands[0]->Shards();
  islands[0]->MakesWeights();
  LayerBuffers theta = islands[0]->delta().values, velocity = theta, served = theta;
  for (std::vector<float>& layer : velocity) layer.assign(layer.size(), 0.0f);
  for (const auto& island : islands) island->Adopts(theta, {0, AdoptMode::kReplace});

  ThreadPool pool(1);
  RoundsResult result;
  int64_t position = 0, tokens = 0;
  const int64_t batch = spec.inner.batch_sequences;
  for (Version version = 0; version < options.rounds; ++version) {
    for (int64_t step = 0; step < spec.outer.steps_per_round; ++step) {
      for (const auto& island : islands) {
        tokens += batch * spec.data.sequence_length;
        island->Does<StepDone>(TrainStep{
            {{position, position + batch}},
            LearningRate(spec.inner, spec.schedule.train_tokens, tokens, options.islands)});
        position += batch;
      }
    }
    for (int i = 0; i < options.islands; ++i) {
      islands[i]->Captures({{i, 1, 1, version}, spec.outer.push_encoding, shards});
    }
    result.push_bytes = 0;
    for (const ShardPlacement& shard : shards) {
      std::vector<WeightedDelta> deltas;
      for (const auto& island : islands) {
        const Delta& delta = island->delta();
        const bool quantized = IsQuantized(spec.outer.push_encoding);
        const void* data = quantized
                               ? static_cast<const void*>(delta.encoded.at(shard.shard).data())
                               : delta.values[shard.layer].data();
        deltas.push_back(
            {{data, quantized ? spec.outer.push_encoding : Encoding::kFloat32, shard.elements},
             1.0f / static_cast<float>(options.islands)});
      }
      OuterNesterov(theta[shard.layer], velocity[shard.layer], deltas,
                    static_cast<float>(spec.outer.learning_rate),
                    static_cast<float>(spec.outer.momentum), pool);
      result.push_bytes += EncodedBytes(spec.outer.push_encoding, shard.elements);
    }
    StepServed(spec.outer.pull_encoding, shards, theta, pool, &served);
    if (!options.error_feedback) theta = served;
    for (const auto& island : islands) {
      island->Adopts(served, {version + 1, AdoptMode::kReplace, false, options.error_feedback});
    }
  }
  result.loss = islands[0]->Does<ValidationDone>(Validate{options.rounds}).loss;
  return result;
}

}  // namespace atl::worker
