#include "worker/profiler/layer_profiler.h"

#include <catch2/catch.hpp>
#include <map>

#include "kernels/cpu/cpu.h"
#include "kernels/testing/reference/reference.h"
#include "worker/model/model.h"

namespace atl::worker {
namespace {

ModelConfig Tiny(ModelFamily family, bool tied = false) {
  ModelConfig config;
  config.family = family;
  config.vocab = 64;
  config.d_model = 32;
  config.layers = 3;
  config.heads = config.kv_heads = 4;
  config.ffn = 64;
  config.max_positions = 16;
  config.tied_head = tied;
  return config;
}

struct Worker {
  explicit Worker(int count) {
    for (int i = 0; i < count; ++i) {
      backends.push_back(NewCpuBackend(1));
      devices.push_back({"w1/" + std::to_string(i), "cpu", backends.back().get()});
    }
  }
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<ProfiledDevice> devices;
};

ProfileOptions Quick(int64_t most) {
  ProfileOptions options;
  options.sequence_length = 16;
  options.micro_batch_max = most;
  options.runs = 2;
  return options;
}

TEST_CASE("devices that pretend to compute take what they say, and their bytes are real") {
  Worker worker(1);
  const ModelConfig config = Tiny(ModelFamily::kGpt2);
  ProfileOptions options = Quick(2);
  const auto real = ProfileLayers(worker.devices, config, options);
  options.emulation = EmulatedBlocks(std::chrono::milliseconds(3));
  const auto emulated = ProfileLayers(worker.devices, config, options);
  REQUIRE((real.ok() && emulated.ok()));
  for (size_t i = 0; i < real->at(0).layers.size(); ++i) {
    const LayerCost& cost = emulated->at(0).layers[i];
    const bool block = cost.kind == LayerKind::kBlock;
    const int64_t whole = 3'000'000 * cost.micro_batch_sequences;
    CHECK((cost.forward_ns == whole) == block);
    CHECK((cost.input_gradient_ns == whole) == block);
    CHECK((cost.weight_gradient_ns == whole) == block);
    CHECK(cost.forward_ns > 0);
    CHECK(cost.stash_bytes == real->at(0).layers[i].stash_bytes);
    CHECK(cost.output_bytes == real->at(0).layers[i].output_bytes);
  }
}

TEST_CASE("every kind of layer is measured for every size up to the largest, once") {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    Worker worker(2);
    const ModelConfig config = Tiny(family, family == ModelFamily::kGpt2);
    const auto profiles = ProfileLayers(worker.devices, config, Quick(2));
    INFO(profiles.status());
    REQUIRE(profiles.ok());
    REQUIRE(profiles->size() == 2);
    const auto model = Model::Create(config);
    for (const DeviceProfile& profile : *profiles) {
      REQUIRE(profile.layers.size() == 6);
      for (const LayerCost& cost : profile.layers) {
        INFO(Name(cost.kind) << " " << cost.micro_batch_sequences);
        CHECK(cost.tensor_parallel == 1);
        CHECK(cost.forward_ns > 0);
        const bool is_head = cost.kind == LayerKind::kHead;  // its F does B and W, too
        CHECK((cost.input_gradient_ns > 0) == (cost.kind != LayerKind::kEmbedding && !is_head));
        CHECK((cost.weight_gradient_ns > 0) == !is_head);
        CHECK(cost.optimizer_ns > 0);
        const int layer = cost.kind == LayerKind::kEmbedding ? 0
                          : cost.kind == LayerKind::kBlock   ? 1
                                                             : config.layers + 1;
        const Layer& of = *model->layers()[layer];
        CHECK(cost.parameter_bytes == of.layout().size * 16);
        if (cost.kind == LayerKind::kHead) {  // all in its F, of a slice
          CHECK(cost.stash_bytes + cost.output_bytes == 0);
          continue;
        }
        const LayerBytes bytes = of.Bytes(*worker.backends[0], {cost.micro_batch_sequences, 16});
        CHECK(cost.stash_bytes == bytes.forward_stash + bytes.backward_stash);
        CHECK(cost.output_bytes == cost.micro_batch_sequences * 16 * of.output_cols() * 4);
      }
    }
    CHECK((*profiles)[1].device == "w1/1");
  }
}

TEST_CASE(
    "devices that share a layer are measured together, as far as there are devices and heads") {
  Worker worker(3);
  ProfileOptions options = Quick(1);
  options.tensor_parallel = {1, 2, 4, 8};
  const auto profiles = ProfileLayers(worker.devices, Tiny(ModelFamily::kLlama), options);
  REQUIRE(profiles.ok());
  std::map<int, int> sizes;
  for (const DeviceProfile& profile : *profiles) {
    for (const LayerCost& cost : profile.layers) ++sizes[cost.tensor_parallel];
  }
  CHECK(sizes == std::map<int, int>{{1, 9}, {2, 6}});  // of the third device there is no second
  const LayerCost& whole = (*profiles)[0].layers[1];
  const LayerCost& half = (*profiles)[0].layers[4];
  CHECK(half.kind == LayerKind::kBlock);
  CHECK(half.parameter_bytes < whole.parameter_bytes);
  CHECK(half.output_bytes == whole.output_bytes);
}

TEST_CASE("after the limit only the smallest micro-batch is measured, and progress is reported") {
  Worker worker(1);
  ProfileOptions options = Quick(8);
  options.limit = Duration(0);
  std::vector<std::string> reported;
  options.progress = [&](int64_t layer, int64_t most, const std::string& what) {
    reported.push_back(absl::StrCat(layer, " of ", most, " ", what));
  };
  const auto profiles = ProfileLayers(worker.devices, Tiny(ModelFamily::kGpt2), options);
  REQUIRE(profiles.ok());
  CHECK((*profiles)[0].layers.size() == 3);
  CHECK(reported == std::vector<std::string>{"1 of 12 embedding, micro-batch 1",
                                             "2 of 12 block, micro-batch 1",
                                             "3 of 12 head, micro-batch 1"});
}

TEST_CASE("a bf16 device keeps a copy of the weights in bf16, and activations half as large") {
  const std::unique_ptr<Backend> backend = NewReferenceBackend();
  ProfileOptions options = Quick(1);
  options.compute = DType::kBfloat16;
  const auto profiles =
      ProfileLayers({{"w1/0", "reference", backend.get()}}, Tiny(ModelFamily::kGpt2), options);
  INFO(profiles.status());
  REQUIRE(profiles.ok());
  const LayerCost& block = (*profiles)[0].layers[1];
  CHECK(block.output_bytes == 16 * 32 * 2);
  CHECK(block.parameter_bytes % 18 == 0);
}

}  // namespace
}  // namespace atl::worker
