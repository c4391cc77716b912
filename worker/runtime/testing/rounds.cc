#include "worker/runtime/testing/rounds.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/protocol/learning_rate.h"
#include "kernels/add_delta.h"
#include "kernels/host_ops.h"
#include "worker/runtime/island.h"
#include "worker/runtime/testing/island_events.h"

namespace atl::worker {
namespace {

// One island, and what it posts.
struct IslandHarness {
  explicit IslandHarness(const RoundsOptions& options)
      : trainer(options.trainer()),
        island(trainer.get(), {}, {[this](Event e) { events.Post(std::move(e)); }}) {
    island.Run(Prepare{"job-1", options.spec});
  }
  template <typename T>
  T Does(const Action& command) {
    island.Run(command);
    const Event last = events.last();
    if (const auto* failed = std::get_if<CommandFailed>(&last)) ATOLL_CHECK(false, failed->reason);
    ATOLL_CHECK(std::holds_alternative<T>(last));
    return std::get<T>(last);
  }
  void Capture(const CaptureDelta& command) {
    Does<DeltaCaptured>(command);
    const DeltaReady ready = events.AwaitReady();
    ATOLL_CHECK(ready.ok, ready.reason);
  }
  void Adopt(const LayerBuffers& theta, Version version, bool keep_residual) {
    *island.pulled() = theta;
    Does<Adopted>(AdoptPulled{version, AdoptMode::kReplace, false, keep_residual});
  }

  std::unique_ptr<Trainer> trainer;
  IslandEvents events;
  Island island;
};

// A shard a layer.
std::vector<ShardPlacement> Shards(const std::vector<LayerSize>& layers) {
  std::vector<ShardPlacement> shards;
  for (size_t l = 0; l < layers.size(); ++l) {
    shards.push_back({static_cast<ShardId>(l), static_cast<int32_t>(l), 0, layers[l].elements});
  }
  return shards;
}

// What islands hold follows theta by a step as they pull it.
void StepServed(Encoding encoding, const std::vector<float>& theta, std::vector<float>& served,
                ThreadPool& pool) {
  if (!IsQuantized(encoding)) {
    served = theta;
    return;
  }
  std::vector<std::byte> bytes(
      static_cast<size_t>(EncodedBytes(encoding, static_cast<int64_t>(theta.size()))));
  StepToward(encoding, theta, served, bytes, pool);
}

}  // namespace

RoundsResult RunRounds(const RoundsOptions& options) {
  const JobSpec& spec = options.spec;
  std::vector<std::unique_ptr<IslandHarness>> harnesses;
  for (int i = 0; i < options.islands; ++i)
    harnesses.push_back(std::make_unique<IslandHarness>(options));
  const Event opened = harnesses[0]->events.last();
  const auto* prepared = std::get_if<Prepared>(&opened);
  ATOLL_CHECK(prepared != nullptr, "the job cannot be opened");
  const std::vector<ShardPlacement> shards = Shards(prepared->facts.layers);

  harnesses[0]->Does<InitialWeightsMade>(MakeInitialWeights{});
  harnesses[0]->Capture({{0, 1, 1, kNoVersion}});
  LayerBuffers theta = harnesses[0]->island.delta()->values, velocity = theta;
  for (std::vector<float>& layer : velocity) layer.assign(layer.size(), 0.0f);
  for (const auto& harness : harnesses) harness->Adopt(theta, 0, false);
  LayerBuffers served = theta;

  ThreadPool pool(1);
  RoundsResult result;
  int64_t position = 0, tokens = 0;
  const int64_t batch = spec.inner.batch_sequences;
  for (Version version = 0; version < options.rounds; ++version) {
    for (int64_t step = 0; step < spec.outer.steps_per_round; ++step) {
      for (const auto& harness : harnesses) {
        tokens += batch * spec.data.sequence_length;
        harness->Does<StepDone>(TrainStep{
            {{position, position + batch}},
            LearningRate(spec.inner, spec.schedule.train_tokens, tokens, options.islands)});
        position += batch;
      }
    }
    for (int i = 0; i < options.islands; ++i) {
      harnesses[i]->Capture({{i, 1, 1, version}, spec.outer.push_encoding, shards});
    }
    result.push_bytes = 0;
    for (const ShardPlacement& shard : shards) {
      std::vector<WeightedDelta> deltas;
      for (const auto& harness : harnesses) {
        const std::shared_ptr<const Delta> delta = harness->island.delta();
        const bool quantized = IsQuantized(spec.outer.push_encoding);
        const void* data = quantized
                               ? static_cast<const void*>(delta->encoded.at(shard.shard).data())
                               : delta->values[shard.layer].data();
        deltas.push_back(
            {{data, quantized ? spec.outer.push_encoding : Encoding::kFloat32, shard.elements},
             1.0f / static_cast<float>(options.islands)});
      }
      OuterNesterov(theta[shard.layer], velocity[shard.layer], deltas,
                    static_cast<float>(spec.outer.learning_rate),
                    static_cast<float>(spec.outer.momentum), pool);
      StepServed(spec.outer.pull_encoding, theta[shard.layer], served[shard.layer], pool);
      result.push_bytes += EncodedBytes(spec.outer.push_encoding, shard.elements);
    }
    for (const auto& harness : harnesses)
      harness->Adopt(served, version + 1, options.error_feedback);
  }
  result.loss = harnesses[0]->Does<ValidationDone>(Validate{options.rounds}).loss;
  return result;
}

}  // namespace atl::worker
