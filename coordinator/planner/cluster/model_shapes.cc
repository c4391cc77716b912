#include "coordinator/planner/cluster/model_shapes.h"

namespace atl::plan {

const std::vector<TransformerShape>& TransformerShapes() {
  static const auto* shapes = new std::vector<TransformerShape>{
      {"gpt2", 12, 768, 12, 0, 0, 50257, 1024},
      {"gpt2-medium", 24, 1024, 16, 0, 0, 50257, 1024},
      {"gpt2-large", 36, 1280, 20, 0, 0, 50257, 1024},
      {"gpt2-xl", 48, 1600, 25, 0, 0, 50257, 1024},
      {"gpt3-1.3b", 24, 2048, 16, 0, 0, 50257, 2048},
      {"gpt3-2.7b", 32, 2560, 32, 0, 0, 50257, 2048},
      {"gpt3-6.7b", 32, 4096, 32, 0, 0, 50257, 2048},
      {"gpt3-13b", 40, 5120, 40, 0, 0, 50257, 2048},
      {"gpt3-22b", 48, 6144, 64, 0, 0, 50257, 2048},
      {"gpt3-175b", 96, 12288, 96, 0, 0, 50257, 2048},
      {"llama-1b", 16, 2048, 32, 8, 8192, 128256, 4096, true, true, false},
      {"llama-7b", 32, 4096, 32, 0, 11008, 32000, 2048, true, false, false},
      {"llama-8b", 32, 4096, 32, 8, 14336, 128256, 4096, true, false, false},
      {"llama-13b", 40, 5120, 40, 0, 13824, 32000, 2048, true, false, false},
      {"llama-70b", 80, 8192, 64, 8, 28672, 32000, 4096, true, false, false},
      {"bert-small", 4, 512, 8, 0, 0, 30522, 512},
      {"bert-base", 12, 768, 12, 0, 0, 30522, 512},
      {"bert-large", 24, 1024, 16, 0, 0, 30522, 512},
  };
  return *shapes;
}

}  // namespace atl::plan
